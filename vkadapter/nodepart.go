// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/nodestatus"
)

// ReasonPingFailed is the reason of a Node that is not ready because Ping of the
// NodeProvider has failed.
const ReasonPingFailed = "NodePingFailed"

// nodePart is what the NodeProvider has reported.
type nodePart struct {
	mu   sync.Mutex
	node *corev1.Node // nil: nothing yet
}

func (a *Adapter) nodeNotified(ctx context.Context, node *corev1.Node) {
	if node == nil {
		return
	}
	node = node.DeepCopy() // at once: providers go on changing it
	a.node.mu.Lock()
	changed := !equality.Semantic.DeepEqual(withoutTimes(a.node.node), withoutTimes(node))
	a.node.node = node
	a.node.mu.Unlock()
	if changed && a.cfg.NodeChanged != nil { // some providers report in each Ping, which a round calls
		report.Call(ctx, nil, "NodeChanged", a.cfg.NodeChanged)
	}
}

// withoutTimes returns a copy of a Node without the times of its conditions.
func withoutTimes(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	if node != nil {
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].LastHeartbeatTime, node.Status.Conditions[i].LastTransitionTime = metav1.Time{}, metav1.Time{}
		}
	}
	return node
}

// Node returns a copy of the Node that Config.NodeProvider has reported last, nil if it has
// reported none. Its taints are not part of a status: [Node] of this package writes them.
func (a *Adapter) Node() *corev1.Node {
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	return a.node.node.DeepCopy()
}

// Setter is a nodestatus.Setter that sets what Config.NodeProvider has reported: labels,
// annotations, and the fields of the status. A field that it left empty stays as the
// setters before this one have set it. Ready is not set: see HealthCheck.
func (a *Adapter) Setter(_ context.Context, node *corev1.Node) error {
	from := a.Node()
	if from == nil {
		return nil
	}
	node.Labels, node.Annotations = merged(node.Labels, from.Labels), merged(node.Annotations, from.Annotations)
	to, status := &node.Status, &from.Status
	setList(&to.Capacity, status.Capacity)
	setList(&to.Allocatable, status.Allocatable)
	if len(status.Addresses) > 0 {
		to.Addresses = status.Addresses
	}
	if status.DaemonEndpoints.KubeletEndpoint.Port != 0 && to.DaemonEndpoints.KubeletEndpoint.Port == 0 {
		to.DaemonEndpoints = status.DaemonEndpoints
	}
	if status.NodeInfo != (corev1.NodeSystemInfo{}) {
		to.NodeInfo = status.NodeInfo
	}
	if len(status.Images) > 0 {
		to.Images = status.Images
	}
	for _, condition := range status.Conditions {
		if condition.Type != corev1.NodeReady && condition.Status != "" {
			nodestatus.SetCondition(node, condition)
		}
	}
	return nil
}

// diskUnknown sets the condition DiskPressure for a provider that does not report it: its pods
// have the disks of a backend, which nothing here can measure.
func diskUnknown(_ context.Context, node *corev1.Node) error {
	nodestatus.SetCondition(node, corev1.NodeCondition{
		Type: corev1.NodeDiskPressure, Status: corev1.ConditionUnknown, Reason: "NotReported", Message: "the provider does not report the disks of its backend",
	})
	return nil
}

func setList(to *corev1.ResourceList, from corev1.ResourceList) {
	if len(from) > 0 {
		*to = from
	}
}

// HealthCheck is a nodestatus.HealthCheck. It fails if Ping of Config.NodeProvider does, and
// while the provider reports a Ready condition that is False or Unknown, with its reason. A
// Ready condition without a status, as in the Node that a program begins with, is none.
func (a *Adapter) HealthCheck(ctx context.Context, _ string) error {
	if a.cfg.NodeProvider == nil {
		return nil
	}
	if err := a.cfg.NodeProvider.Ping(ctx); err != nil {
		return &nodestatus.NotReadyError{Reason: ReasonPingFailed, Message: err.Error()}
	}
	if node := a.Node(); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != "" && c.Status != corev1.ConditionTrue {
				return &nodestatus.NotReadyError{Reason: c.Reason, Message: c.Message}
			}
		}
	}
	return nil
}
