// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

// step is an event, one second after the previous one.
type step struct {
	podView
	gone bool
	want bool // the driver is about to delete it
}

func TestPods(t *testing.T) {
	pending := podView{UID: "1", Name: "p"}
	runs := podView{UID: "1", Name: "p", Running: true}
	stopping := podView{UID: "1", Name: "p", Running: true, Deleting: true}
	ended := podView{UID: "1", Name: "p", Ended: true}
	stopped := podView{UID: "1", Name: "p", Ended: true, Deleting: true}
	for _, test := range []struct {
		name           string
		steps          []step
		start, end     time.Duration // 0 for none
		lost           int
		there, running int
	}{
		{
			name:  "created and run",
			steps: []step{{podView: pending}, {podView: pending}, {podView: runs}, {podView: runs}},
			start: 2 * time.Second, there: 1, running: 1,
		},
		{
			name:  "deleted in order",
			steps: []step{{podView: pending}, {podView: runs, want: true}, {podView: stopping}, {podView: stopped}, {podView: stopped, gone: true}},
			start: time.Second, end: 2 * time.Second,
		},
		{
			name:  "deleted at once",
			steps: []step{{podView: pending}, {podView: runs, want: true}, {podView: runs, gone: true}},
			start: time.Second,
		},
		{
			name:  "deleted before it ran",
			steps: []step{{podView: pending, want: true}, {podView: podView{UID: "1", Deleting: true}}, {podView: pending, gone: true}},
			end:   time.Second,
		},
		{
			name:  "deleted by another client, reported once",
			steps: []step{{podView: runs}, {podView: stopping}, {podView: stopped}, {podView: stopped, gone: true}},
			lost:  1, end: 2 * time.Second,
		},
		{
			name:  "gone without a word",
			steps: []step{{podView: runs}, {podView: runs, gone: true}},
			lost:  1,
		},
		{
			name:  "ended on its own",
			steps: []step{{podView: runs}, {podView: ended}},
			lost:  1, there: 1,
		},
		{
			name:  "no longer Ready",
			steps: []step{{podView: runs}, {podView: pending}},
			lost:  1, there: 1,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPods()
			now := time.Unix(0, 0)
			for _, s := range test.steps {
				if s.gone {
					p.gone(now, s.podView)
				} else {
					p.observe(now, s.podView)
				}
				if s.want {
					p.want(s.UID)
				}
				now = now.Add(time.Second)
			}
			there, running := p.counts()
			if there != test.there || running != test.running {
				t.Errorf("%d are there and %d run, want %d and %d", there, running, test.there, test.running)
			}
			starts, ends := p.took(time.Unix(0, 0), now)
			if starts.Max != test.start {
				t.Errorf("the start took %v, want %v", starts.Max, test.start)
			}
			if ends.Max != test.end {
				t.Errorf("the end took %v, want %v", ends.Max, test.end)
			}
			if lost := p.faults(); lost.Count != test.lost {
				t.Errorf("lost: %v, want %d", lost, test.lost)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	n := newNodes()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	expect := func(there, ready, flips int) {
		t.Helper()
		gotThere, gotReady := n.counts()
		if gotThere != there || gotReady != ready || n.faults().Count != flips {
			t.Fatalf("%d there, %d Ready, %d flips; want %d, %d, %d", gotThere, gotReady, n.faults().Count, there, ready, flips)
		}
	}
	n.observe(at(0), nodeView{"1", "a", false})
	expect(1, 0, 0) // a Node that was never Ready does not flip
	n.observe(at(1), nodeView{"1", "a", true})
	n.observe(at(1), nodeView{"2", "b", true})
	expect(2, 2, 0)
	n.observe(at(2), nodeView{"1", "a", false})
	n.observe(at(3), nodeView{"1", "a", false})
	expect(2, 1, 1) // reported once
	n.observe(at(4), nodeView{"1", "a", true})
	n.gone(at(10), nodeView{"1", "a", true})
	expect(1, 1, 1)
	if n.isReady("a") || !n.isReady("b") || n.isReady("c") {
		t.Error("only b is Ready")
	}
	n.observe(at(15), nodeView{"3", "a", false})
	expect(2, 1, 1)                          // a new Node starts over
	n.gone(at(15), nodeView{"1", "a", true}) // too late: the name already has another Node
	n.observe(at(17), nodeView{"3", "a", true})
	expect(2, 2, 1)
	if d := n.took(at(0), at(100)); d.N != 1 || d.Max != 7*time.Second {
		t.Errorf("absences: %+v, want one of 7 s", d)
	}
	n.observe(at(20), nodeView{"3", "a", true})
	if d := n.took(at(0), at(100)); d.N != 1 {
		t.Errorf("%d absences, want one", d.N)
	}
}

func TestFaultsNameTheFirst(t *testing.T) {
	var f faults
	for i := range 100 {
		f.add("%d", i)
	}
	if f.Count != 100 || len(f.Examples) != maxExamples || f.Examples[0] != "0" {
		t.Errorf("%+v", f)
	}
}
