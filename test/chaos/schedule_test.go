// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"slices"
	"testing"
	"time"
)

func TestScheduleIsThatOfItsSeed(t *testing.T) {
	for _, l := range lanes(true) {
		one, same, other := l.schedule(7, time.Hour), l.schedule(7, time.Hour), l.schedule(8, time.Hour)
		if !slices.Equal(one, same) {
			t.Errorf("%s: the same seed makes another schedule", l.name)
		}
		if slices.Equal(one, other) {
			t.Errorf("%s: another seed makes the same schedule", l.name)
		}
	}
}

func TestScheduleIsWithinItsBounds(t *testing.T) {
	for seed := range uint64(200) {
		for _, l := range lanes(true) {
			var end time.Duration
			for i, f := range l.schedule(seed, 10*time.Minute) {
				if gap := f.At - end; i > 0 && (gap < l.minGap || gap > l.maxGap) {
					t.Fatalf("seed %d, %s: %v after the one before", seed, l.name, gap)
				}
				if !slices.Contains(l.kinds, f.Kind) || f.For < 0 || f.For > l.maxHold || f.At+f.For > 10*time.Minute {
					t.Fatalf("seed %d, %s: %+v", seed, l.name, f)
				}
				if (f.Kind == clockStep) != (f.By != 0) || f.By.Abs() > maxStep {
					t.Fatalf("seed %d, %s: %+v", seed, l.name, f)
				}
				end = f.At + f.For
			}
		}
	}
}

// A run of ten minutes has every kind of fault.
func TestScheduleHasAllKinds(t *testing.T) {
	for _, l := range lanes(true) {
		for seed := range uint64(50) {
			faults := l.schedule(seed, 10*time.Minute)
			for _, k := range l.kinds {
				if !slices.ContainsFunc(faults, func(f fault) bool { return f.Kind == k }) {
					t.Fatalf("seed %d: no %q", seed, k)
				}
			}
		}
	}
	if slices.ContainsFunc(lanes(false), func(l lane) bool { return slices.Contains(l.kinds, diskFull) }) {
		t.Error("a disk is filled that is not there")
	}
}
