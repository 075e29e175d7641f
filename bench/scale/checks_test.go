// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// good returns the result of a run in which all claims hold.
func good() *result {
	r := &result{
		Name: ours, What: "it", Kubernetes: "v1.37.1", Made: 10,
		RampUp:  stage{From: 1, To: 2},
		Churn:   stage{From: 10, To: 50, Absences: distribution{N: 2, Max: 20 * time.Second}, Others: []requests{{request{driverAgent, "delete", "nodes", 200}, 2, distribution{}}}},
		Empty:   footprint{Heap: 10 << 20},
		Loaded:  footprint{Heap: 100 << 20},
		Churned: footprint{Heap: 100 << 20},
		Drained: footprint{Heap: 12 << 20},
		Found:   survey{Pods: 10, Running: 10, Nodes: 3, Ready: 3, Leases: 3},
		Whole:   []requests{{request{"it", "patch", "pods/status", 200}, 20, distribution{}}, {request{"it", "get", "nodes", 404}, 1, distribution{}}},
	}
	for at := 0.0; at < 60; at++ {
		r.Samples = append(r.Samples, sample{At: at, Resident: 200 << 20, Goroutines: 50})
	}
	return r
}

func TestJudge(t *testing.T) {
	o := options{Nodes: 3, Pods: 10}
	for _, test := range []struct {
		name   string
		change func(r *result)
		broken string // the beginning of the claim that does not hold; "" for none
	}{
		{"all is well", func(*result) {}, ""},
		{"given up", func(r *result) { r.Error = "waited" }, "The run comes to its end"},
		{"a pod too few", func(r *result) { r.Found.Pods, r.Found.Running = 9, 9 }, "All 10 pods"},
		{"a pod too many", func(r *result) { r.Found.Pods = 11 }, "All 10 pods"},
		{"a pod that does not run", func(r *result) { r.Found.Running = 9 }, "All 10 pods"},
		{"a pod lost", func(r *result) { r.Lost.add("p") }, "No pod that was not deleted"},
		{"a Node flipped", func(r *result) { r.Flips.add("n") }, "No Node turned"},
		{"a Node not Ready", func(r *result) { r.Found.Ready = 2 }, "No Node turned"},
		{"a Node missing", func(r *result) { r.Found.Nodes = 2 }, "No Node turned"},
		{"a Node that did not come back", func(r *result) { r.Churn.Absences.N = 1 }, "Every Node that was deleted"},
		{"a Node away too long", func(r *result) { r.Churn.Absences.Max = 41 * time.Second }, "Every Node that was deleted"},
		{"a heap that grows", func(r *result) { r.Churned.Heap = 130 << 20 }, "Memory is flat"},
		{"a heap that grows within the noise", func(r *result) { r.Churned.Heap = 117 << 20 }, ""},
		{"a process that grows", func(r *result) {
			for i := 45; i < 50; i++ {
				r.Samples[i].Resident = 300 << 20
			}
			for i := 40; i < 45; i++ {
				r.Samples[i].Resident = 240 << 20
			}
		}, "Memory is flat"},
		{"a process that was larger in the ramp-up", func(r *result) { r.Samples[5].Resident = 900 << 20 }, ""},
		{"goroutines that grow", func(r *result) {
			for i := 40; i < 50; i++ {
				r.Samples[i].Goroutines = 70
			}
		}, "Goroutines are flat"},
		{"a refused request", func(r *result) {
			r.Whole = append(r.Whole, requests{request{"it", "get", "nodes", 429}, 1, distribution{}})
		}, "The API server refused nothing"},
		{"a stuck pod", func(r *result) { r.Stuck = 1 }, "Every pod that is deleted goes"},
		{"a lease left", func(r *result) { r.Left.Leases = 1 }, "Nothing is left behind"},
		{"a bad end", func(r *result) { r.Ended = "exit status 1" }, "Nothing is left behind"},
		{"memory kept", func(r *result) { r.Drained.Heap = 40 << 20 }, "The memory of the pods"},
	} {
		r := good()
		test.change(r)
		verdicts := judge(r, o)
		var broken []string
		for _, v := range verdicts {
			if !v.Holds {
				broken = append(broken, v.Claim)
			}
		}
		switch {
		case test.broken == "" && len(broken) > 0, test.broken != "" && (len(broken) != 1 || !strings.HasPrefix(broken[0], test.broken)):
			t.Errorf("%s: these do not hold: %q, want %q", test.name, broken, test.broken)
		case holds(verdicts) != (test.broken == ""):
			t.Errorf("%s: holds is %v", test.name, holds(verdicts))
		}
	}
}

func TestRefused(t *testing.T) {
	for code, want := range map[int]int{200: 0, 201: 0, 404: 0, 409: 0, 410: 0, 401: 3, 403: 3, 422: 3, 429: 3, 500: 3, 503: 3, 504: 3} {
		if got := refused([]requests{{request{Code: code}, 3, distribution{}}}); got != want {
			t.Errorf("%d: %d, want %d", code, got, want)
		}
	}
}
