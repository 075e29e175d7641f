// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane is an example of tests that run in memory, and against a
// real control plane, in a module of their own.
package controlplane

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Cordon sets or clears spec.unschedulable of a Node. It stands for your code.
func Cordon(ctx context.Context, client corev1client.NodesGetter, node string, unschedulable bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
	if _, err := client.Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cordon node %s: %w", node, err)
	}
	return nil
}
