// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/hack/walk/record"
)

func place(pkg, file, function string) record.Place {
	return record.Place{Package: pkg, File: file, Function: function}
}

// trip leads from lease to its internal package, to another one, and back.
func trip() record.Trip {
	visit, next, run := place("lease", "turn.go", "visit"), place("lease/internal/plan", "next.go", "Next"), place("internal/slots", "slots.go", "Run")
	return record.Trip{Name: "trip", Room: "lease", Calls: []record.Call{
		{From: record.Place{}, To: run},
		{From: run, To: visit},
		{From: visit, To: next},
		{From: next, To: place("lease/internal/plan", "next.go", "decide")},
		{From: visit, To: place("lease", "turn.go", "send")},
		{From: visit, To: run},
	}}
}

func TestJudge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ceilings")
	rare := trip()
	rare.Calls = append(rare.Calls, record.Call{From: place("lease", "turn.go", "visit"), To: place("lease", "rare.go", "rare")})
	trips := []record.Trip{trip(), rare, trip()}
	for _, c := range []struct {
		ceilings string
		want     string // of the error, or of what is printed
		fails    bool
	}{
		{ceilings: "trip 2 2\n", want: "2 files / 2 calls (3 files / 4 calls)\n"},
		{ceilings: "trip 3 2\n", want: "trip may have 3 files / 2 calls"},
		{ceilings: "trip 2 1\n", want: "trip has 2 files / 2 calls, of 2 files / 1 calls at most", fails: true},
		{ceilings: "trip 1 2\n", want: "at most", fails: true},
		{ceilings: "# none\n\n", want: "trip has 2 files / 2 calls, and no ceiling", fails: true},
		{ceilings: "trip 2 2\nother 1 1\n", want: "other has a ceiling", fails: true},
		{ceilings: "trip 2\n", want: "ceilings:1: want", fails: true},
	} {
		if err := os.WriteFile(file, []byte(c.ceilings), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := (&walk{out: &out, ceilings: file}).judge(trips, nil)
		got := out.String()
		if c.fails {
			if err == nil {
				t.Errorf("%q was accepted", c.ceilings)
				continue
			}
			got = err.Error()
		} else if err != nil {
			t.Errorf("%q: %v", c.ceilings, err)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.ceilings, got, c.want)
		}
	}
}

func TestCeilingsOnlyFall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ceilings")
	for _, c := range []struct{ before, after string }{
		{"trip 3 5\n", "trip 2 2\n"},
		{"trip 1 5\n", "trip 1 5\n"}, // it fails
		{"", "trip 2 2\n"},
	} {
		if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		_ = (&walk{out: &out, ceilings: file, lower: true}).judge([]record.Trip{trip()}, nil)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if got := strings.Join(strings.Fields(lines[len(lines)-1]), " ") + "\n"; got != c.after {
			t.Errorf("%q became %q, want %q", c.before, got, c.after)
		}
	}
}

func TestVerbosePrintsTheCallsBetweenFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ceilings")
	if err := os.WriteFile(file, []byte("trip 2 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := (&walk{out: &out, ceilings: file, verbose: true}).judge([]record.Trip{trip()}, nil); err != nil {
		t.Fatal(err)
	}
	_, calls, _ := strings.Cut(out.String(), "\n")
	want := "    internal/slots/slots.go Run -> lease/turn.go visit\n    lease/turn.go visit -> lease/internal/plan/next.go Next\n"
	if calls != want {
		t.Errorf("got\n%swant\n%s", calls, want)
	}
}

func TestCircles(t *testing.T) {
	ring := func(packages ...string) record.Trip {
		var r record.Trip
		for i, p := range packages {
			r.Calls = append(r.Calls, record.Call{From: place(p, "a.go", "f"), To: place(packages[(i+1)%len(packages)], "a.go", "f")})
		}
		return r
	}
	four := ring("a", "b", "c/internal/d", "c")
	if got, want := circlesOf(four), []string{"a", "b", "c"}; len(got) != 1 || !slices.Equal(got[0], want) {
		t.Errorf("got %q, want one circle of %q", got, want)
	}
	if got := circlesOf(record.Trip{Calls: ring("a", "b").Calls[:1]}); len(got) != 0 {
		t.Errorf("a call that nothing returns makes the circles %q", got)
	}
	file := filepath.Join(t.TempDir(), "ceilings")
	if err := os.WriteFile(file, []byte("five 1 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	five := ring("a", "b", "c", "d", "e")
	five.Name, five.Room = "five", "a"
	var out strings.Builder
	if err := (&walk{out: &out, ceilings: file}).judge([]record.Trip{five}, nil); err == nil || !strings.Contains(err.Error(), "a circle of 5 packages") {
		t.Errorf("a circle of five packages: %v", err)
	}
}

func TestRewrite(t *testing.T) {
	got, err := rewrite("f.go", []byte("// Package p.\npackage p\n\nimport \"fmt\"\n\nfunc f() {\n\tfmt.Print()\n}\n\nfunc (T) String() string { return \"\" }\n\nfunc g()\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := "// Package p.\npackage p; import walkrecord \"github.com/kubewright/kubewright/hack/walk/record\"\n\nimport \"fmt\"\n\nfunc f() { walkrecord.Enter();\n\tfmt.Print()\n}\n\nfunc (T) String() string { return \"\" }\n\nfunc g()\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	none := "package p\n\ntype T int\n"
	if got, err := rewrite("f.go", []byte(none)); err != nil || string(got) != none {
		t.Errorf("a file without functions became\n%s\n%v", got, err)
	}
	if _, err := rewrite("f.go", []byte("package")); err == nil {
		t.Error("a file that is not Go was accepted")
	}
}
