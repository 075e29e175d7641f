// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/internal/statuserr"
)

func TestWhichErrorsAreAboutTheStatus(t *testing.T) {
	invalid := func(path string) error {
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", field.ErrorList{field.Invalid(field.NewPath(path), "x", "is invalid")})
	}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a field of the status":   {invalid("status.podIPs"), true},
		"a field of the metadata": {invalid("metadata.labels"), false},
		"an admission policy":     {statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "denied"), false},
		"a proxy":                 {statuserr.New(http.StatusBadRequest, metav1.StatusReasonBadRequest, "<html>"), false},
		"it is too large":         {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},
		"a webhook":               {statuserr.Forbidden("pods", "a", "denied"), false},
	} {
		if got := isAboutStatus(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
