// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"testing"
	"testing/synctest"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/conformance"
)

// TestAPITest runs every case against apitest, in each version, each with its own
// server and in its own bubble.
func TestAPITest(t *testing.T) {
	versions := conformance.Versions
	if testing.Short() {
		versions = versions[:1]
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			// Of managedFields the default has stubs. Module apitest/crdschema runs the
			// case of schemas.
			run(t, conformance.Target{Version: version, Except: []string{"ownership", conformance.CustomResourceSchemas}}, apitest.Options{})
		})
	}
}

// TestExactManagedFields runs the cases against a server that tracks the fields of every
// writer.
func TestExactManagedFields(t *testing.T) {
	run(t, conformance.Target{Except: []string{"corpus", conformance.CustomResourceSchemas}}, apitest.Options{ManagedFields: true})
}

func run(t *testing.T, target conformance.Target, opts apitest.Options) {
	opts.Version = target.Version
	opts.Serve = []schema.GroupVersion{coordinationv1beta1.SchemeGroupVersion, resourcev1beta1.SchemeGroupVersion, resourcev1beta2.SchemeGroupVersion}
	target.Isolate = synctest.Test
	target.Server = func(t *testing.T) conformance.Server {
		s := apitest.New(opts)
		return conformance.Server{
			Config: s.Config,
			Forget: s.Compact,
			Grant: func(manifest string) {
				rbac, err := apitest.RBACFrom([]byte(manifest))
				if err != nil {
					t.Fatal(err)
				}
				s.Authorize(apitest.AnyOf(apitest.NodeRules, rbac))
			},
		}
	}
	conformance.Run(t, target)
}
