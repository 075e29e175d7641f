// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/fault"
	"github.com/kubewright/kubewright/apitest/internal/request"
)

var errBroken = errors.New("broken")

// decided sends n gets of pods and returns the names of the faults that decide.
func decided(l *fault.List, n int) (names []string) {
	for range n {
		name := ""
		if _, f, _ := l.Take(&request.Request{Verb: "get", Resource: "pods", Time: time.Now()}); f != nil {
			name = f.Name
		}
		names = append(names, name)
	}
	return names
}

func TestWhichRequestsAFaultHits(t *testing.T) {
	for name, tt := range map[string]struct {
		faults []fault.Fault
		want   []string
	}{
		"all":              {[]fault.Fault{{Name: "a", Hang: true}}, []string{"a", "a", "a", "a"}},
		"skip and times":   {[]fault.Fault{{Name: "a", Err: errBroken, Skip: 1, Times: 2}}, []string{"", "a", "a", ""}},
		"another resource": {[]fault.Fault{{Name: "a", Hang: true, Match: request.Match{Resource: "nodes"}}}, []string{"", "", "", ""}},
		"latency alone decides nothing": {
			[]fault.Fault{{Name: "slow", Latency: time.Second}, {Name: "a", Hang: true, Times: 1}}, []string{"a", "", "", ""}},
		"the first that decides": {
			[]fault.Fault{{Name: "a", Hang: true, Times: 2}, {Name: "b", Malformed: true}}, []string{"a", "a", "b", "b"}},
		// b sees only the requests that a leaves to it.
		"the second does not count what the first decides": {
			[]fault.Fault{{Name: "a", Hang: true, Times: 1}, {Name: "b", Malformed: true, Skip: 1}}, []string{"a", "", "b", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var l fault.List
			for _, f := range tt.faults {
				l.Inject(f)
			}
			if got := decided(&l, 4); !slices.Equal(got, tt.want) {
				t.Errorf("decided by %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLatenciesAddUp(t *testing.T) {
	var l fault.List
	called := 0
	l.Inject(fault.Fault{Latency: time.Second, Hang: true})
	l.Inject(fault.Fault{Latency: 2 * time.Second, Err: errBroken})
	l.Inject(fault.Fault{Served: func(*request.Request) { called++ }})
	latency, f, served := l.Take(&request.Request{})
	if latency != 3*time.Second || f == nil || !f.Hang || len(served) != 1 {
		t.Fatalf("latency %v, decided by %+v, %d functions", latency, f, len(served))
	}
	if served[0](&request.Request{}); called != 1 {
		t.Errorf("Served is another function")
	}
}

func TestAFaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l fault.List
		l.Inject(fault.Fault{Name: "minute", Hang: true, For: time.Minute})
		remove := l.Inject(fault.Fault{Name: "until removed", Hang: true})
		time.Sleep(time.Minute - time.Nanosecond)
		got := decided(&l, 1)
		time.Sleep(time.Nanosecond)
		got = append(got, decided(&l, 1)...)
		remove()
		got = append(got, decided(&l, 1)...)
		if want := []string{"minute", "until removed", ""}; !slices.Equal(got, want) {
			t.Errorf("decided by %q, want %q", got, want)
		}
	})
}

// A function of a match may inject and remove faults.
func TestMatchesRunWithoutTheLock(t *testing.T) {
	var l fault.List
	l.Inject(fault.Fault{Name: "a", Hang: true, Match: request.Match{Func: func(*request.Request) bool {
		l.Inject(fault.Fault{Name: "b", Malformed: true})
		return false
	}}})
	if got, want := decided(&l, 2), []string{"", "b"}; !slices.Equal(got, want) {
		t.Errorf("decided by %q, want %q", got, want)
	}
}
