// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/examples/internal/exampletest"
	"github.com/kubewright/kubewright/internal/apitest"
)

var fleetUser = apitest.ServiceAccountUser("kubewright", "virtual-node")

func TestFleetIsRegisteredAndRenewed(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml")
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "200", "--report-interval", "100ms")
	exampletest.Eventually(t, s, "200 nodes and leases", func() bool {
		return s.Count(apitest.Match{Verb: "create", Resource: "leases"}) == 200
	})
	exampletest.Eventually(t, s, "the progress line", func() bool {
		return strings.Contains(program.Output(), "200 of 200 nodes registered")
	})
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if n := len(apitest.List[*corev1.Node](s, "")); n != 200 {
		t.Errorf("%d nodes are left, want all 200", n)
	}
	exampletest.NothingRefused(t, s)
}

func TestFleetUnregisters(t *testing.T) {
	// What the README says that --unregister needs besides.
	content, err := os.ReadFile("../rbac/nodestatus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deleting := filepath.Join(t.TempDir(), "nodestatus.yaml")
	if err := os.WriteFile(deleting, bytes.Replace(content, []byte("verbs: [get, create]"), []byte("verbs: [get, create, delete]"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	s := exampletest.Server(t, "../rbac/lease.yaml", deleting)
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "50", "--unregister")
	exampletest.Eventually(t, s, "50 nodes and leases", func() bool {
		return s.Count(apitest.Match{Verb: "create", Resource: "leases"}) == 50
	})
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if n := len(apitest.List[*corev1.Node](s, "")); n != 0 {
		t.Errorf("%d nodes are left, want none", n)
	}
	exampletest.NothingRefused(t, s)
}
