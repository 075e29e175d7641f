// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"errors"
	"net/http"
	"reflect"

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

// IsNotFound is the default of [Config.NotFound]. It reports whether err, or an error that it
// wraps, has a method NotFound that returns true, as those of virtual-kubelet's errdefs; is a
// "not found" of the Kubernetes API; or has the status code 404 in a method or a field StatusCode.
func IsNotFound(err error) bool {
	var notFound interface{ NotFound() bool }
	return errors.As(err, &notFound) && notFound.NotFound() || apierrors.IsNotFound(err) || errors.Is(err, podsync.ErrNotFound) ||
		statusCode(err) == http.StatusNotFound
}

// statusCode returns the HTTP status code that an error has, or that an error has that it wraps, and
// else 0. Clients of back ends have it in a method, or in a field of a struct.
func statusCode(err error) (code int) {
	switch e := err.(type) { //nolint:errorlint // each error of the tree is looked at
	case nil:
		return 0
	case interface{ StatusCode() int }:
		return e.StatusCode()
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() == reflect.Struct {
		if field := v.FieldByName("StatusCode"); field.IsValid() && field.CanInt() {
			return int(field.Int())
		}
	}
	switch e := err.(type) { //nolint:errorlint // see above
	case interface{ Unwrap() error }:
		return statusCode(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if code = statusCode(one); code != 0 {
				return code
			}
		}
	}
	return 0
}
