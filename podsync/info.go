// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Info is what the Controller knows of one pod, for a debugging page, or for a
// server that has to find the pod by its name.
type Info struct {
	// Stage is how far the pod has come.
	Stage Stage
	// Pod is the newest version of the object that was seen, a private copy.
	// It is nil for an orphan.
	Pod *corev1.Pod
	// Call is the call of the provider under way, "" if there is none.
	Call Op
	// CallSince is when it began.
	CallSince time.Time
	// Failures is how many calls of the provider failed in a row.
	Failures int
	// LastError is what the last of them failed with, nil after a success.
	LastError error
}

// All returns the pods that the Controller knows, orphans included, in no
// order. It may be used at any time by anybody; the pods are those of the moment
// at which the iteration begins.
func (c *Controller) All() iter.Seq2[Ref, Info] {
	return func(yield func(Ref, Info) bool) {
		c.mu.Lock()
		refs := make([]Ref, 0, len(c.tracks))
		infos := make([]Info, 0, len(c.tracks))
		for _, t := range c.tracks {
			info := Info{Stage: t.position(), Pod: t.pod, Failures: int(t.failures), LastError: t.lastErr}
			if t.call != nil {
				info.Call, info.CallSince = t.call.op, c.rules.epoch.Add(t.call.since)
			}
			refs, infos = append(refs, t.ref), append(infos, info)
		}
		c.mu.Unlock()
		for i, info := range infos {
			info.Pod = info.Pod.DeepCopy()
			if !yield(refs[i], info) {
				return
			}
		}
	}
}

// active yields private copies of the pods that have their place, the oldest first.
// They are collected when somebody asks: of ten thousand pods that are admitted
// one after the other, each would otherwise wait for a list of those before it.
func (c *Controller) active(yield func(*corev1.Pod) bool) {
	c.mu.Lock()
	var pods []*corev1.Pod
	for _, t := range c.tracks {
		if t.admitted && !t.stopped && t.pod != nil {
			pods = append(pods, t.pod)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range pods {
		if !yield(pod.DeepCopy()) {
			return
		}
	}
}
