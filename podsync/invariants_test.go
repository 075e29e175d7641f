// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A History has the earlier state of each pod, for invariants about changes.
type History map[*podState]earlier

type earlier struct {
	instance      instanceState
	end           *termination
	grace, passed time.Duration
}

// BrokenInvariants returns the invariants of podState, and of the Controller's queues,
// that do not hold. It keeps in h what the next call compares with.
func (c *Controller) BrokenInvariants(h History) (broken []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var running [laneCount]int
	for _, t := range c.tracks {
		var what []string
		if err := t.check(); err != nil {
			what = append(what, err.Error())
		}
		if before, ok := h[t]; ok {
			what = append(what, t.brokenSince(before)...)
		}
		now := earlier{instance: t.provider.instance, end: t.end}
		if t.end != nil {
			now.grace, now.passed = t.end.grace, t.end.passed
		}
		h[t] = now
		for _, what := range what {
			broken = append(broken, fmt.Sprintf("%s: %s", t.ref, what))
		}
		if t.sched.dirty != slices.Contains(c.dirty, t) {
			broken = append(broken, fmt.Sprintf("%s: dirty means that the pod is in Controller.dirty", t.ref))
		}
		if i := int(t.sched.wakeIndex); i > 0 && (i > len(c.wakes) || c.wakes[i-1] != t) || i == 0 && slices.Contains(c.wakes, t) {
			broken = append(broken, fmt.Sprintf("%s: wakeIndex is the pod's place in Controller.wakes", t.ref))
		}
		for q := range c.queues {
			if t.sched.queued[q] != slices.Contains(c.queues[q].items[c.queues[q].head:], t) {
				broken = append(broken, fmt.Sprintf("%s: queued[%d] means that the pod is in Controller.queues[%d]", t.ref, q, q))
			}
		}
		if call := t.call.inflight; call != nil {
			running[laneOf(queueOf(call.op))]++
		}
		if t.write.inflight != nil {
			running[laneAPI]++
		}
	}
	if running != c.running {
		broken = append(broken, fmt.Sprintf("the lanes run %v, and %v calls are in flight", c.running, running))
	}
	return broken
}

// brokenSince returns the invariants of t about changes that do not hold.
func (t *podState) brokenSince(before earlier) (broken []string) {
	if before.instance >= instanceStopped && !t.stopped() {
		runsAgain := t.provider.instance == instanceHeld && t.end != nil && t.end.accepted == 0
		if closed := !t.provider.listed || t.orphan(); !runsAgain && !closed {
			broken = append(broken, "an instance never leaves Stopped or Forgotten, except that a List shows that the provider runs it again")
		}
	}
	if t.end != nil && t.end == before.end && (t.end.grace > before.grace || before.passed > 0 && t.end.passed > before.passed) {
		broken = append(broken, "grace and passed never grow")
	}
	return broken
}

func TestAGracePeriodNeverGrows(t *testing.T) {
	s := running().now(deletedWithin(20))
	for _, tc := range []struct{ requested, want time.Duration }{{30, 20}, {20, 20}, {5, 5}, {10, 5}, {0, 1}, {-1, 1}} {
		s.beginTermination(tick, StopDeleted, nil, tc.requested*time.Second)
		if s.end.grace != tc.want*time.Second {
			t.Errorf("%v requested: %v, want %v", tc.requested*time.Second, s.end.grace, tc.want*time.Second)
		}
	}
}

// An API server that is restored from a backup has older versions than before.
func TestVersionsOfARestoredServerCount(t *testing.T) {
	older := func(s *scene, rv string) *version {
		pod := s.pod().DeepCopy()
		pod.ResourceVersion, pod.Generation = rv, 1
		return &version{pod: pod}
	}
	cached := func(v *version) *version {
		v.cached = true
		return v
	}
	for name, tc := range map[string]struct {
		scene func() (*scene, *version)
		taken bool
	}{
		"the informer goes back": {func() (*scene, *version) {
			s := running()
			return s, cached(older(s, "5"))
		}, true},
		"the informer lags behind an answer": {func() (*scene, *version) {
			s := running()
			s.setPod(s.r, tick, older(s, "40"))
			return s, cached(older(s, "20"))
		}, false},
		"the informer goes back behind an answer": {func() (*scene, *version) {
			s := running()
			s.setPod(s.r, tick, older(s, "40"))
			return s, cached(older(s, "5"))
		}, true},
		"a late answer to a write": {func() (*scene, *version) {
			s := running()
			s.writeStarted(tick, OpPatch)
			return s, older(s, "5")
		}, false},
		"a GET that was sent before": {func() (*scene, *version) {
			s := running()
			s.writeStarted(tick, OpGet)
			s.setPod(s.r, tick, cached(older(s, "40")))
			return s, older(s, "20")
		}, false},
		"a GET": {func() (*scene, *version) {
			s := running()
			s.setPod(s.r, tick, older(s, "40"))
			s.writeStarted(tick, OpGet)
			return s, older(s, "20")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, v := tc.scene()
			s.api.cachedVersion = max(s.api.cachedVersion, "10")
			s.provider.generation = 3
			if got := s.setPod(s.r, tick, v); got != tc.taken || tc.taken != (s.api.pod == v) {
				t.Errorf("taken: %v, want %v", got, tc.taken)
			}
			if tc.taken && s.provider.generation != 0 {
				t.Errorf("generation %d counts as accepted, and the pod has %d", s.provider.generation, s.pod().Generation)
			}
		})
	}
}
