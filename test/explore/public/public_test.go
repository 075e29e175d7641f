// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest/explore"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // the other one sleeps, for years in a bubble
	os.Exit(m.Run())
}

// bug is what explorations find in a controller. docs/testing.md says more about each.
type bug struct {
	plan, problem string // how its findings begin, and what their problem contains
	always        bool   // it is in each exploration; others depend on jitter
}

// run explores a controller. All findings must be those of bugs. once names the kinds of
// objects that the controller makes, and need not make again.
func run(t *testing.T, short bool, once []string, bugs []bug, scenario func(w *explore.World) explore.Scenario) {
	cfg := explore.Config{
		// Users who delete and re-create what controllers have made break the invariants of
		// these scenarios themselves.
		Faults: slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "delete" || f.Name == "recreate" }),
		Once:   once,
		Ignore: []string{"ResourceSlice.spec.pool.generation", "ResourceSlice.spec.devices"},
	}
	if short {
		cfg.Sample = 40
	}
	report := explore.Find(t, cfg, scenario)
	seen := make([]int, len(bugs))
	for _, f := range report.Findings {
		at := slices.IndexFunc(bugs, func(b bug) bool { return strings.HasPrefix(f.Plan, b.plan) && strings.Contains(f.Problem, b.problem) })
		if at < 0 {
			t.Errorf("finding in %d of %d runs: %s", f.Failed, f.Runs, f.Story)
			continue
		}
		if seen[at]++; seen[at] == 1 {
			t.Logf("known, in %d of %d runs: %s", f.Failed, f.Runs, f.Story)
		}
	}
	for i, b := range bugs {
		t.Logf("%d findings: %s … %s", seen[i], b.plan, b.problem)
		if b.always && seen[i] == 0 && !short {
			t.Errorf("not found: %s", b.plan)
		}
	}
	t.Logf("%d plans in %v", report.Plans, report.Took)
}
