// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// run3 returns the results of a run in which the second contender was aborted.
func run3() *results {
	first, second := good(), &result{Name: theirs, What: "kwok", Error: "waited 2m0s for all Nodes to be Ready"}
	first.Churn.Own = []requests{{request{"a|b", "patch", "pods/status", 200}, 100, distribution{100, 1e6, 2e6, 15e6, 20e6}}}
	first.Churn.Starts = distribution{50, 5 * time.Millisecond, 12 * time.Millisecond, 40 * time.Millisecond, time.Second}
	first.Server = []latency{{"PATCH pods/status", 100, 1e6, 2e6, 3e6}}
	return &results{
		When:       time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine:    machine{"P", 2, 24 << 10, "go1.26"},
		Options:    options{Nodes: 3, Pods: 10, Duration: 40 * time.Second, PodChurn: 20, NodeChurn: 6, Rate: 200},
		Contenders: []result{*first, *second},
	}
}

func TestReport(t *testing.T) {
	var b strings.Builder
	if err := writeReport(&b, run3()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-02 03:04 UTC", "2 cores (P), 24 GiB, go1.26", "v1.37.1",
		"| The run comes to its end | **no** | waited 2m0s for all Nodes to be Ready |",
		"| bound to Running, churn, ms: p50 / p90 / p99 / most | 5.0 / 12 / 40 / 1000 | – |",
		`| a\|b | patch | pods/status | 200 | 100 | 1.0 | 2.0 | 15 |`,
		"kubewright-scale 2",
		"| PATCH pods/status | 100 | 1.0 | 2.0 | 3.0 |",
		"| requests for pods, per pod's life (without watches) | 2.00 | 0.00 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "%!"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("%q is in the report", bad)
		}
	}
	columns := 0
	for line := range strings.Lines(b.String()) {
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if columns > 0 && n > 0 && n != columns {
			t.Errorf("%d columns, the row before has %d: %s", n-1, columns-1, line)
		}
		columns = n
	}
}

func TestConclude(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := run3()
	var out bytes.Buffer
	if err := conclude(r, dir, &out); err != nil {
		t.Errorf("that the other one gave up is no failure of ours: %v", err)
	}
	for _, name := range []string{"report.md", "scale.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.Contenders[0].Found.Running--
	if err := conclude(r, dir, &out); err != errClaims {
		t.Errorf("a pod that does not run: %v, want %v", err, errClaims)
	}
	if !strings.Contains(out.String(), "FAIL All 10 pods") {
		t.Errorf("it is not said which claim does not hold:\n%s", &out)
	}
}

func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	r := run3()
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	again, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	var before, after strings.Builder
	if err := writeReport(&before, r); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(&after, again); err != nil {
		t.Fatal(err)
	}
	if before.String() != after.String() {
		t.Errorf("the report from the saved results differs:\n%s\nwas\n%s", &after, &before)
	}
}
