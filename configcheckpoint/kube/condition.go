// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// Condition returns s as a Node condition of the given type. It is Unknown before Boot has
// returned. The heartbeat is left zero for the writer of the Node's status.
func Condition(s configcheckpoint.Status, kind corev1.NodeConditionType) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type:               kind,
		Status:             corev1.ConditionFalse,
		Reason:             string(s.Reason),
		Message:            s.Message,
		LastTransitionTime: metav1.NewTime(s.Since),
	}
	switch {
	case s.Phase == configcheckpoint.PhasePending:
		c.Status, c.Reason = corev1.ConditionUnknown, string(configcheckpoint.ReasonNotBooted)
		c.Message = "the configuration has not been chosen yet"
	case s.OK:
		c.Status = corev1.ConditionTrue
	}
	return c
}

// NodeCondition returns a function that sets the condition of the given type of a Node from
// the status at the time of the call. status is the method Status of a Controller. The
// function is a setter for package nodestatus, and never fails. That package also owns the
// condition Ready, so an agent next to a kubelet must not use it: see [Reporter].
func NodeCondition(status func() configcheckpoint.Status, kind corev1.NodeConditionType) func(context.Context, *corev1.Node) error {
	return func(_ context.Context, node *corev1.Node) error {
		condition := Condition(status(), kind)
		for i := range node.Status.Conditions {
			if old := &node.Status.Conditions[i]; old.Type == kind {
				*old = condition
				return nil
			}
		}
		node.Status.Conditions = append(node.Status.Conditions, condition)
		return nil
	}
}
