// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// ready returns the Ready condition of the Node, or a zero one.
func ready(s *apitest.Server) corev1.NodeCondition {
	if node := apitest.Get[*corev1.Node](s, "", "n1"); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

func TestNodeTellsTheTruth(t *testing.T) {
	for name, tc := range map[string]struct {
		user apitest.User
		args []string
	}{
		"ServiceAccount": {apitest.ServiceAccountUser("kubewright", "virtual-node"), nil},
		"Node":           {apitest.NodeUser("n1"), []string{"--node-credentials"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, "rbac/lease.yaml", "rbac/nodestatus.yaml", "rbac/events.yaml")
			unhealthy := filepath.Join(t.TempDir(), "unhealthy")
			program := startProgram(t, append(tc.args, "--kubeconfig", kubeconfig(t, s, tc.user),
				"--node-name", "n1", "--unhealthy-file", unhealthy, "--sync-interval", "100ms")...)
			is := func(status corev1.ConditionStatus) func() bool {
				return func() bool { return ready(s).Status == status }
			}

			eventually(t, s, "the node to be ready", is(corev1.ConditionTrue))
			eventually(t, s, "its lease", func() bool {
				return len(apitest.List[*coordinationv1.Lease](s, corev1.NamespaceNodeLease)) == 1
			})
			if err := os.WriteFile(unhealthy, []byte("fan 2 has stopped\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			// The program may read the file before it has its content.
			eventually(t, s, "the node not to be ready, with the reason of the health check", func() bool {
				c := ready(s)
				return c.Status == corev1.ConditionFalse && c.Reason == "HealthCheckFailed" && strings.Contains(c.Message, "fan 2 has stopped")
			})
			if err := os.Remove(unhealthy); err != nil {
				t.Fatal(err)
			}
			eventually(t, s, "the node to be ready again", is(corev1.ConditionTrue))

			old := apitest.Get[*corev1.Node](s, "", "n1").UID
			apitest.Remove[*corev1.Node](s, "", "n1")
			// No watch observes the Node, so the next write finds the deletion:
			// here a write that a change of health causes.
			if err := os.WriteFile(unhealthy, []byte("again\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			eventually(t, s, "the Node to be registered again", func() bool {
				node := apitest.Get[*corev1.Node](s, "", "n1")
				return node != nil && node.UID != old
			})
			if !strings.Contains(program.Output(), "deleted by another client; policy: Reregister") {
				t.Errorf("the program did not report the deletion; it printed:\n%s", program.Output())
			}
			if err := program.Stop(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			if c := ready(s); c.Status != corev1.ConditionFalse {
				t.Errorf("after the end Ready is %s: %s", c.Status, c.Reason)
			}
			nothingRefused(t, s)
		})
	}
}

func TestExitWhenDeleted(t *testing.T) {
	s := newServer(t)
	unhealthy := filepath.Join(t.TempDir(), "unhealthy")
	program := startProgram(t, "--kubeconfig", kubeconfig(t, s, apitest.User{}),
		"--node-name", "n1", "--unhealthy-file", unhealthy, "--sync-interval", "100ms", "--exit-when-deleted")
	eventually(t, s, "the node to be ready", func() bool { return ready(s).Status == corev1.ConditionTrue })
	apitest.Remove[*corev1.Node](s, "", "n1")
	if err := os.WriteFile(unhealthy, []byte("any\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := program.Wait(); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("the program ended with %v, want it to say that the Node was deleted", err)
	}
	if node := apitest.Get[*corev1.Node](s, "", "n1"); node != nil {
		t.Error("the Node is there again")
	}
}
