// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// Ways to two leaders, each of which was one.

// A hook that hangs between the claim and the work, longer than the lease.
func TestNoWorkBeginsAfterAHookThatOutlastedTheTerm(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a", func(cfg *Config) {
			told := cfg.Hooks.TermStarted
			cfg.Hooks.TermStarted = func(e TermStarted) {
				told(e)
				if e.Transitions == 0 {
					time.Sleep(20 * time.Second)
				}
			}
		})
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		r.expectLeader(b)
		if stays := r.office.stays(); len(stays) != 1 {
			t.Errorf("terms %v", stays)
		}
	})
}

// The lease of a is given to b by another client, at each moment of a time in which
// the watch of b has stalled. What b knows of the last renewal of a is older than
// that then.
func TestWrittenOverALeaderUnseen(t *testing.T) {
	for after := 10 * time.Second; after < 16*time.Second; after += 500 * time.Millisecond {
		for _, reason := range []string{"stalled", "gone"} {
			inRig(t, func(r *rig) {
				a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
				r.sleep(time.Second)
				b := r.start("b")
				r.sleep(time.Minute)
				r.expectLeader(a)
				resume := r.server.StallWatches(apitest.Match{User: "b"})
				r.sleep(after)
				if r.office.current() == "a" {
					r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = b.Identity() })
				}
				if reason == "gone" {
					resume()
					r.server.ExpireWatches(apitest.Match{User: "b"})
				}
				r.sleep(time.Minute)
				resume()
				if faults := r.office.faults(); r.office.current() == "" || len(faults) > 0 {
					t.Errorf("%s, overwritten after %v: %q leads; %q", reason, after, r.office.current(), faults)
				}
			})
		}
	}
}

// The context of the work is done before the loop has heard of that.
func TestValidEndsWithTheContext(t *testing.T) {
	inRig(t, func(r *rig) {
		got := make(chan bool, 1)
		a := r.start("a", func(cfg *Config) {
			cfg.Lead = func(ctx context.Context, term Term) error {
				<-ctx.Done()
				got <- term.Valid() || !term.Deadline().IsZero()
				return nil
			}
		})
		r.sleep(time.Minute)
		a.hangHook(5 * time.Second)
		r.sleep(4 * time.Second) // within the hook
		a.cancel()
		if <-got {
			t.Error("valid although its context is done")
		}
	})
}

// While b knows of no Lease and its watch is down, a creates one and leads. Another
// client empties it. The watch of b begins without a version, so its first event is that
// state, and shows nothing of a.
func TestTheFirstEventOfAWatchWithoutAVersionIsAfterAGap(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		b := r.new("b")
		hang := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "watch", Resource: "leases"}, Times: 1, Latency: 3 * time.Second})
		b.start()
		r.sleep(100 * time.Millisecond)
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(500 * time.Millisecond)
		r.expectLeader(a)
		a.isolate()
		r.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Spec.AcquireTime = ptr.To(b.Identity()), nil })
		hang()
		r.sleep(time.Minute) // and the office complains about two
		r.expectLeader(b)
	})
}

// The watch is open when the coordinator creates the Lease: nothing was missed.
func TestACreationThatTheWatchShowsCostsNoWait(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(2 * time.Second)
		r.elect(a)
		r.sleep(50 * time.Millisecond)
		r.expectLeader(a)
	})
}
