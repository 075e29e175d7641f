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

// known is what is known about a controller. without names faults that are left out, and once
// is that of explore.Config. All findings must be those of bugs.
type known struct {
	without, once []string
	bugs          []bug
}

// run explores a controller.
func run(t *testing.T, short bool, k known, scenario func(w *explore.World) explore.Scenario) {
	bugs := k.bugs
	// Users who delete and re-create what controllers have made break the invariants of
	// these scenarios themselves.
	without := append([]string{"delete", "recreate"}, k.without...)
	cfg := explore.Config{
		Faults: slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return slices.Contains(without, f.Name) }),
		Once:   k.once,
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
