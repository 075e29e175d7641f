// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/conformance"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

var updateConformance = flag.Bool("update-conformance", false, "record what the real API server answers to the cases of internal/conformance")

var onlyConformance = flag.String("only-conformance", "", "run these cases alone, separated by commas")

// TestConformance runs the cases that apitest must pass against the real API server, whose answers must match the
// recordings. No controller runs, so that only the case changes objects.
func TestConformance(t *testing.T) {
	busy(t)
	c := ownCluster(t, harness.Options{
		Without: []string{harness.ControllerManager, harness.Scheduler},
		RuntimeConfig: map[string]bool{
			"coordination.k8s.io/v1beta1": true, "resource.k8s.io/v1beta1": true, "resource.k8s.io/v1beta2": true,
		},
	})
	target := conformance.Target{
		Version: c.Version(),
		Real:    true,
		Server: func(t *testing.T) conformance.Server {
			return conformance.Server{
				Config: func(u apitest.User) *rest.Config {
					if node, ok := strings.CutPrefix(u.Name, "system:node:"); ok {
						return c.NodeConfig(t, node)
					}
					if u.Name != "" {
						return c.UserConfig(t, u.Name, u.Groups...)
					}
					return c.AdminConfig()
				},
				Grant: func(manifest string) {
					path := filepath.Join(t.TempDir(), "rbac.yaml")
					if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
						t.Fatal(err)
					}
					c.Kubectl(t, "apply", "-f", path)
				},
				// A new process has no history from before its start.
				Forget: func() { c.Restart(t, harness.APIServer) },
			}
		},
	}
	switch {
	case *onlyConformance != "":
		target.Only = strings.Split(*onlyConformance, ",")
	case !*updateConformance:
		// Its 2,000 requests take a minute, and only another version can change the
		// answers; TestAPITest compares apitest with them each time.
		target.Except = []string{"corpus"}
		t.Log("the case corpus is left out: -only-conformance=corpus")
	}
	if *updateConformance {
		target.Record = func(t *testing.T, name, transcript string) {
			path, content, needed := conformance.File(c.Version(), name, transcript)
			path = filepath.Join("..", "..", "internal", "conformance", filepath.FromSlash(path))
			if !needed {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
				return
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
				t.Error(err)
			}
		}
	}
	conformance.Run(t, target)
}
