// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared is a cluster that the tests of a package share. It starts with the first test that needs it and ends after the
// last test:
//
//	var shared = harness.Shared{Options: harness.Options{SingleProcess: true}}
//
//	func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }
//
//	func TestSomething(t *testing.T) {
//		cluster := shared.Cluster(t)
//		…
//	}
type Shared struct {
	Options Options

	once    sync.Once
	cluster *Cluster
	err     error
}

// Run runs the tests of m, stops the cluster if it was started, and returns the exit status.
func (s *Shared) Run(m *testing.M) int {
	if !Enabled() {
		fmt.Println("end-to-end tests are skipped: each", skipMessage)
	}
	code := m.Run()
	if s.cluster == nil {
		return code
	}
	if code != 0 {
		fmt.Fprint(os.Stderr, s.cluster.logTails())
	}
	if err := s.cluster.launcher.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the shared control plane:", err)
		return max(code, 1)
	}
	return code
}

// Cluster returns the cluster. The first call starts it. It skips the test if end-to-end tests should not run.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	if !Enabled() {
		t.Skip(skipMessage)
	}
	s.once.Do(func() { s.cluster, s.err = start(s.Options) })
	if s.err != nil {
		t.Fatalf("start the shared control plane: %v", s.err)
	}
	return s.cluster
}
