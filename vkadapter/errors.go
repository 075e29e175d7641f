// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/podsync"
)

// ReasonProviderFailed is the status.reason of a pod that the provider refuses, as with
// virtual-kubelet.
const ReasonProviderFailed = "ProviderFailed"

// RejectInvalid is the default of [Config.CreateError]. An error that virtual-kubelet's
// errdefs call invalid input fails the pod with [ReasonProviderFailed]. Every other error
// is returned as it is, and the call is repeated.
func RejectInvalid(_ *corev1.Pod, err error) error {
	var invalid interface{ InvalidInput() bool }
	if errors.As(err, &invalid) && invalid.InvalidInput() {
		return podsync.Reject(ReasonProviderFailed, err.Error())
	}
	return err
}

// FailNever is a [Config.CreateError] that does what virtual-kubelet does: a pod with the
// restart policy Never fails with the first error of CreatePod, with
// [ReasonProviderFailed]. It does not fail other pods, not even for invalid input.
func FailNever(pod *corev1.Pod, err error) error {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return podsync.Reject(ReasonProviderFailed, err.Error())
	}
	return err
}

// isNotFound reports whether err says that there is no such pod, in one of the ways that
// are seen in providers.
func isNotFound(err error) bool {
	var notFound interface{ NotFound() bool }
	return errors.As(err, &notFound) && notFound.NotFound() || apierrors.IsNotFound(err) || errors.Is(err, podsync.ErrNotFound)
}
