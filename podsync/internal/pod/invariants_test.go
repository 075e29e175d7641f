// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"
)

func TestAGracePeriodNeverGrows(t *testing.T) {
	s := runningPod().now(deletedWithin(20))
	for _, tc := range []struct{ requested, want time.Duration }{{30, 20}, {20, 20}, {5, 5}, {10, 5}, {0, 1}, {-1, 1}} {
		s.beginTermination(tick, StopDeleted, nil, tc.requested*time.Second)
		if s.end.grace != tc.want*time.Second {
			t.Errorf("%v requested: %v, want %v", tc.requested*time.Second, s.end.grace, tc.want*time.Second)
		}
	}
}

// An API server that is restored from a backup has older versions than before.
func TestVersionsOfARestoredServerCount(t *testing.T) {
	older := func(s *scene, rv string) *Version {
		pod := s.Pod().DeepCopy()
		pod.ResourceVersion, pod.Generation = rv, 1
		return &Version{pod: pod}
	}
	cached := func(v *Version) *Version {
		v.cached = true
		return v
	}
	for name, tc := range map[string]struct {
		scene func() (*scene, *Version)
		taken bool
	}{
		"the informer goes back": {func() (*scene, *Version) {
			s := runningPod()
			return s, cached(older(s, "5"))
		}, true},
		"the informer lags behind an answer": {func() (*scene, *Version) {
			s := runningPod()
			s.setPod(tick, older(s, "40"))
			return s, cached(older(s, "20"))
		}, false},
		"the informer goes back behind an answer": {func() (*scene, *Version) {
			s := runningPod()
			s.setPod(tick, older(s, "40"))
			return s, cached(older(s, "5"))
		}, true},
		"a late answer to a write": {func() (*scene, *Version) {
			s := runningPod()
			s.writeStarted(tick, Patch, wallAt(tick))
			return s, older(s, "5")
		}, false},
		"a GET that was sent before": {func() (*scene, *Version) {
			s := runningPod()
			s.writeStarted(tick, Get, wallAt(tick))
			s.setPod(tick, cached(older(s, "40")))
			return s, older(s, "20")
		}, false},
		"a GET": {func() (*scene, *Version) {
			s := runningPod()
			s.setPod(tick, older(s, "40"))
			s.writeStarted(tick, Get, wallAt(tick))
			return s, older(s, "20")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, v := tc.scene()
			s.api.cachedVersion = max(s.api.cachedVersion, "10")
			s.provider.generation = 3
			if got := s.setPod(tick, v); got != tc.taken || tc.taken != (s.api.pod == v) {
				t.Errorf("taken: %v, want %v", got, tc.taken)
			}
			if tc.taken && s.provider.generation != 0 {
				t.Errorf("generation %d counts as accepted, and the pod has %d", s.provider.generation, s.Pod().Generation)
			}
		})
	}
}
