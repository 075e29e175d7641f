// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"testing"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestDRADriver runs the end-to-end test of examples/dradriver, which is in that
// module because it needs the kubelet's gRPC API.
func TestDRADriver(t *testing.T) {
	busy(t)
	harness.OnlyDefaultVersion(t, "the example is written for one version")
	if !harness.Enabled() {
		t.Skip("needs a real control plane: make e2e")
	}
	oneStart.Lock() // it starts a cluster
	defer oneStart.Unlock()
	out, err := exec.CommandContext(t.Context(), "go", "test", "-C", "../../examples/dradriver", "-count=1", "-v", "-run", "TestThePodGetsItsDevice", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
