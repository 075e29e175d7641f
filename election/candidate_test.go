// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"testing"
	"time"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// One candidate leads at once, with one POST and renewals after that.
func TestSingleCandidate(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		_, took := r.awaitLeader(time.Second)
		if took > 100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		r.sleep(time.Minute)
		r.expectLeader(a)
		if err := a.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
		if l := r.lease(); spec.HolderOf(l) != "" || *l.Spec.LeaseDurationSeconds != 1 {
			t.Errorf("not released: %+v", l.Spec)
		}
		if n := len(r.lease().Annotations); n != 0 {
			t.Errorf("annotations left: %v", r.lease().Annotations)
		}
	})
}

// A crash is followed by another term within CrashFailover.
func TestCrash(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.expectLeader(a)
		b, c := r.start("b"), r.start("c")
		r.sleep(time.Minute)
		r.expectLeader(a)
		a.crash()
		who, took := r.awaitLeader(time.Minute)
		if limit := (Timing{}).CrashFailover(); took > limit {
			t.Errorf("%s leads after %v, want %v", who, took, limit)
		}
		t.Log(who, took, b.told(), c.told())
	})
}

// An ordered exit is followed by the next term at once.
func TestGracefulExit(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.start("b")
		r.start("c")
		r.sleep(time.Minute)
		r.expectLeader(a)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		_, took := r.awaitLeader(time.Second)
		if took > 30*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		t.Log(took)
	})
}

// A better candidate takes over without a gap.
func TestBetterCandidate(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
		a := r.start("a")
		r.sleep(time.Minute)
		b := r.start("b", func(cfg *Config) { cfg.Self.Priority = 10 })
		r.sleep(time.Second)
		r.expectLeader(b)
		if gap := r.office.lastGap(); gap > 30*time.Millisecond {
			t.Errorf("nobody led for %v", gap)
		}
		t.Log(r.office.lastGap(), a.told(), b.told())
	})
}
