// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNothingLargeIsLinked: the package is a part of agents that count their memory.
// The review webhooks of k8s.io/apiserver link these packages, and a program has them
// in memory without ever calling them.
func TestNothingLargeIsLinked(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	for _, path := range packages {
		for _, large := range []string{
			"cel.dev/", "github.com/antlr4-go/", "github.com/google/cel-go/", "go.opentelemetry.io/otel/exporters/", "google.golang.org/grpc",
			"k8s.io/apiserver/plugin/", "k8s.io/apiserver/pkg/cel", "k8s.io/apiserver/pkg/server",
		} {
			if strings.HasPrefix(path, large) {
				t.Errorf("package nodeapi links %s", path)
			}
		}
	}
	if len(packages) < 300 {
		t.Errorf("%d packages, want many more", len(packages))
	}
}
