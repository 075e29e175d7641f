// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/conformance"
)

// The authorizer of a real server learns of each kind of role and binding from a watch of its own, in any order.
func TestRBACSettlesHoweverLateRolesArrive(t *testing.T) {
	reversed := func(manifests []string) { slices.Reverse(manifests) }
	for name, order := range map[string]func([]string){"in order": func([]string) {}, "reversed": reversed} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Target{
				Only:    []string{"rbac"},
				Isolate: synctest.Test,
				Server: func(t *testing.T) conformance.Server {
					s := apitest.New(apitest.Options{})
					return conformance.Server{Config: s.Config, Forget: s.Compact, Grant: func(manifest string) {
						s.Authorize(apitest.NodeRules)
						manifests := strings.Split(manifest, "\n---\n")
						order(manifests)
						go func() {
							for i := range manifests {
								time.Sleep(50 * time.Millisecond)
								rbac, err := apitest.RBACFrom([]byte(strings.Join(manifests[:i+1], "\n---\n")))
								if err != nil {
									t.Error(err)
									return
								}
								s.Authorize(apitest.AnyOf(apitest.NodeRules, rbac))
							}
						}()
					}}
				},
			})
		})
	}
}
