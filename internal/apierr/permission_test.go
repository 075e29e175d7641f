// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestPermission(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	forbidden := apierrors.NewForbidden(resource, "n1", nil)
	if err := Permission(forbidden, "nodestatus.yaml"); !errors.Is(err, forbidden) || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "examples/rbac/nodestatus.yaml") {
		t.Errorf("%v", err)
	}
	for _, other := range []error{nil, errors.New("another"), apierrors.NewNotFound(resource, "n1")} {
		if err := Permission(other, "nodestatus.yaml"); err != other {
			t.Errorf("%v becomes %v", other, err)
		}
	}
}
