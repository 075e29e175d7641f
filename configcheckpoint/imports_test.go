// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestTheCoreNeedsNoKubernetes: an agent that knows no Kubernetes does not link it. These are
// all packages outside of the standard library.
func TestTheCoreNeedsNoKubernetes(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for path := range strings.Lines(string(out)) {
		path = strings.TrimPrefix(strings.TrimSpace(path), "github.com/kubewright/kubewright/")
		if path != "" && !strings.HasPrefix(path, "k8s.io/klog/v2/internal/") {
			got = append(got, path)
		}
	}
	slices.Sort(got)
	want := []string{
		"configcheckpoint", "configcheckpoint/internal/rollout", "configcheckpoint/internal/slotstore",
		"github.com/go-logr/logr",
		"internal/backoff", "internal/callback", "internal/dirlock", "internal/durable", "internal/enum", "internal/lifecycle", "internal/report",
		"k8s.io/klog/v2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the package links\n%q, want\n%q", got, want)
	}
}

// TestASmallAgentIsSmall: the agent in testdata links to at most 11 MB. With net/http and
// encoding/json alone it has 9 MB.
func TestASmallAgentIsSmall(t *testing.T) {
	if testing.Short() || runtime.GOARCH != "amd64" {
		t.Skip("builds a program, whose size is that of amd64")
	}
	path := filepath.Join(t.TempDir(), "agent")
	if out, err := exec.Command("go", "build", "-o", path, "./testdata/agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if size := info.Size(); size > 11e6 {
		t.Errorf("the agent has %d bytes", size)
	}
}
