// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// taintManager is the writer of the taints in managedFields.
const taintManager = "kubewright-vkadapter-taints"

// A tainter gives the Node the taints that its provider reports. It removes only taints of the
// last report and of the template: those of administrators stay.
type tainter struct {
	nodes    corev1client.NodesGetter
	template []corev1.Taint // a Node that is registered again has them again
	had      []corev1.Taint // of the last report that was written
}

// write brings the taints of the registered Node from those that the provider had reported
// to those of its newest report. It returns false if it must be called again.
func (t *tainter) write(ctx context.Context, registered, reported *corev1.Node) (done bool) {
	if registered == nil || reported == nil || reported.Spec.Taints == nil {
		return registered != nil // a report without taints says nothing about them
	}
	taints := slices.Clone(reported.Spec.Taints)
	for _, taint := range registered.Spec.Taints {
		if !hasTaint(taints, taint) && !hasTaint(t.had, taint) && !hasTaint(t.template, taint) {
			taints = append(taints, taint)
		}
	}
	if sameTaints(taints, registered.Spec.Taints) {
		t.had = reported.Spec.Taints
		return true
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": registered.UID, "resourceVersion": registered.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		_, err = t.nodes.Nodes().Patch(ctx, registered.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: taintManager})
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to write the taints of the node; trying again", "node", registered.Name, "err", err)
		return false
	}
	t.had = reported.Spec.Taints
	return true
}

// hasTaint reports whether taints has one of the key and the effect of taint, which the API
// takes for the same.
func hasTaint(taints []corev1.Taint, taint corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(other corev1.Taint) bool { return other.MatchTaint(&taint) })
}

func sameTaints(a, b []corev1.Taint) bool {
	same := func(x corev1.Taint, list []corev1.Taint) bool {
		return slices.ContainsFunc(list, func(y corev1.Taint) bool { return x.MatchTaint(&y) && x.Value == y.Value })
	}
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x corev1.Taint) bool { return !same(x, b) })
}
