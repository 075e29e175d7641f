// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestARunIsWatchedForEachOfItsHooksAndProbes(t *testing.T) {
	probe := &corev1.Probe{}
	for name, tc := range map[string]struct {
		spec corev1.Container
		want bool
	}{
		"nothing":   {corev1.Container{}, false},
		"preStop":   {corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}}, false},
		"postStart": {corev1.Container{Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}}, true},
		"startup":   {corev1.Container{StartupProbe: probe}, true},
		"liveness":  {corev1.Container{LivenessProbe: probe}, true},
		"readiness": {corev1.Container{ReadinessProbe: probe}, true},
	} {
		if got := New(&Pod{}, Regular, &tc.spec).Watched(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A run of which the runtime does not know when it began was no long run.
func TestARunThatBeganAtAnUnknownTimeIsHeldBack(t *testing.T) {
	pod := &Pod{Backoff: Backoff{10 * time.Second, time.Minute, 10 * time.Minute}}
	for name, tc := range map[string]struct {
		started time.Time
		want    time.Duration
	}{
		"unknown": {time.Time{}, 10 * time.Second},
		"short":   {now.Add(-time.Minute), 10 * time.Second},
		"long":    {now.Add(-time.Hour), 0},
	} {
		c := New(pod, Regular, &corev1.Container{Name: "c"})
		c.Recall(1, Record{})
		if err := c.Apply(now, Listed{Runs: []Run{{Attempt: 1, State: Exited, StartedAt: tc.started, FinishedAt: now}}}); err != nil {
			t.Fatal(err)
		}
		if got := c.Delay(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestAContainerIsOverIfItNeverStartsAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		kind   Kind
		policy corev1.RestartPolicy
		exit   int32
		rec    Record
		want   bool
	}{
		"Always":                       {Regular, "Always", 0, Record{}, false},
		"Never":                        {Regular, "Never", 1, Record{}, true},
		"Never, with another spec":     {Regular, "Never", 1, Record{Replace: true}, false},
		"an init container":            {Init, "Always", 0, Record{}, true},
		"an init container that fails": {Init, "Always", 1, Record{}, false},
		"an ephemeral container":       {Ephemeral, "Always", 1, Record{}, true},
	} {
		c := New(&Pod{}, tc.kind, &corev1.Container{Name: "c"})
		c.Recall(0, tc.rec)
		if err := c.Apply(now, Listed{Runs: []Run{{State: Exited, ExitCode: tc.exit, FinishedAt: now}}}); err != nil {
			t.Fatal(err)
		}
		if got := c.Over(&corev1.PodSpec{RestartPolicy: tc.policy}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAPlanWaitsForTheEarliestTime(t *testing.T) {
	var p Plan
	for _, step := range []struct{ until, want int }{{5, 5}, {7, 5}, {3, 3}} {
		if p.Wait(at(step.until)); !p.Again.Equal(at(step.want)) {
			t.Errorf("after %d: again at %v, want %d", step.until, p.Again.Sub(now), step.want)
		}
	}
}

// TestOnlyApplyChangesAContainer: the exported fields are there for the driver to read.
func TestOnlyApplyChangesAContainer(t *testing.T) {
	files, err := filepath.Glob("../../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of the driver: %v, %v", files, err)
	}
	reads := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		// ofM reports whether an expression is a field of m, or of such a field.
		var ofM func(ast.Expr) bool
		ofM = func(e ast.Expr) bool {
			s, ok := e.(*ast.SelectorExpr)
			if !ok {
				return false
			}
			x, ok := s.X.(*ast.SelectorExpr)
			return ok && (x.Sel.Name == "m" || ofM(x))
		}
		var written []ast.Expr
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				written = append(written, n.Lhs...)
			case *ast.IncDecStmt:
				written = append(written, n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					written = append(written, n.X)
				}
			case *ast.SelectorExpr:
				if ofM(n) {
					reads++
				}
			}
			return true
		})
		if slices.ContainsFunc(written, ofM) {
			t.Errorf("%s changes a field of a Container, or takes its address", name)
		}
	}
	if reads == 0 {
		t.Error("no file reads a Container: the test looks for the wrong name")
	}
}
