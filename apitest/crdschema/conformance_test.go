// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crdschema_test

import (
	"testing"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/crdschema"
	"github.com/kubewright/kubewright/internal/conformance"
)

// TestConformance compares the answers with recordings of the real server. The cases of
// custom resources with permissive schemas run too: schemas must not change their answers.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Target{
		Only: []string{conformance.CustomResourceSchemas, "custom-resources", "scale"},
		Server: func(*testing.T) conformance.Server {
			s := apitest.New(apitest.Options{Schemas: crdschema.Compile})
			return conformance.Server{Config: s.Config, Forget: s.Compact}
		},
	})
}
