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
	harness.OnlyDefaultVersion(t, "the example is written for one version")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-C", "../../examples/dradriver", "-count=1", "-v", "-run", "TestThePodGetsItsDevice", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
