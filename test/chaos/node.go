// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A nodeWatch follows the Node: whether it is Ready, and which settings it
// runs.
type nodeWatch struct {
	record *recorder

	mu   sync.Mutex
	node *corev1.Node // the current Node; nil if there is none
}

// replace implements sink.
func (w *nodeWatch) replace(_ context.Context, objects []runtime.Object, _, _ string) {
	if len(objects) == 0 {
		w.change(watch.Deleted, nil)
	}
	for _, o := range objects {
		w.change(watch.Modified, o)
	}
}

// change implements sink.
func (w *nodeWatch) change(kind watch.EventType, object runtime.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.node
	if w.node, _ = object.(*corev1.Node); kind == watch.Deleted {
		w.node = nil
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeReady, configCondition} {
		was, is := condition(before, t), condition(w.node, t)
		if was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
			continue
		}
		w.record.note("", "node: %s=%s, %s: %s", t, is.Status, is.Reason, is.Message)
		switch {
		case t == configCondition && was.Reason != is.Reason:
			w.record.configured(is.Reason)
		case t == corev1.NodeReady && was.Status != is.Status:
			w.record.ready(is.Status)
		}
	}
}

// ready records the Ready condition of the Node.
func (r *recorder) ready(status corev1.ConditionStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch now := time.Now(); {
	case status == corev1.ConditionTrue && r.history.Began.IsZero():
		r.history.Began = now
	case status == corev1.ConditionUnknown && !r.history.Began.IsZero():
		r.history.Unknown = append(r.history.Unknown, now)
	}
}

// configured records the condition of the settings.
func (r *recorder) configured(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settings[reason]++
}

func (w *nodeWatch) get() *corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

// configCondition reports the settings that the kubelet runs.
const configCondition corev1.NodeConditionType = "KubeletConfigOK"

// condition returns a condition of a Node, which may be nil.
func condition(node *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == t {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

// settingsAre returns how the Node differs from one that runs the settings of
// this round, or that still runs them after others were rejected for the given
// reason. It returns "" if the Node does not differ.
func settingsAre(node *corev1.Node, status corev1.ConditionStatus, reason, round string) string {
	if node == nil {
		return "there is no Node"
	}
	c, label := condition(node, configCondition), node.Labels[roundLabel]
	if c.Status == status && c.Reason == reason && label == round {
		return ""
	}
	return fmt.Sprintf("the Node has the label %s=%s and the condition %s=%s, %s: %s; want %s, %s, %s",
		roundLabel, label, configCondition, c.Status, c.Reason, c.Message, round, status, reason)
}
