// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// The bugs of coordinated election in the API server, on the side of the
// candidates; with the registry OnLease.

// Candidates that are equal and were made in the same moment stay with who
// leads.
func TestTiesStayWithTheIncumbent(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = OldestEmulationVersion() }
		for i := range 5 {
			r.start(fmt.Sprint("c", i))
		}
		r.sleep(10 * time.Minute)
		if stays := r.office.stays(); len(stays) != 1 {
			t.Errorf("%d terms in ten minutes", len(stays))
		}
	})
}

// A better candidate that is dead costs an offer now and then, and no term.
func TestADeadBetterCandidateCostsNoTerm(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
		a := r.start("a")
		r.sleep(time.Second)
		best := r.start("best", func(cfg *Config) { cfg.Self.Priority = 9 })
		r.sleep(10 * time.Second)
		best.crash() // within the tenure of a
		r.sleep(time.Hour)
		r.expectLeader(a)
		if stays := r.office.stays(); len(stays) != 1 {
			t.Errorf("%d terms", len(stays))
		}
		offers := 0
		for _, note := range a.told() {
			if strings.HasPrefix(note, "offered") {
				offers++
			}
		}
		if offers != 1 {
			t.Errorf("%d offers, want 1: its record is gone after that", offers)
		}
	})
}

// No missing field of a Lease causes a panic, and a candidate leads.
func TestALeaseWithMissingFieldsGetsALeader(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*coordinationv1.LeaseSpec)
		within time.Duration
	}{
		// Another client has emptied it, and its holder may not know.
		"nil holder":             {func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil }, 15100 * time.Millisecond},
		"empty holder":           {func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("") }, 15100 * time.Millisecond},
		"nil holder, never held": {func(s *coordinationv1.LeaseSpec) { s.HolderIdentity, s.RenewTime = nil, nil }, 100 * time.Millisecond},
		"released": {func(s *coordinationv1.LeaseSpec) {
			s.HolderIdentity, s.LeaseDurationSeconds = nil, ptr.To[int32](1)
		}, 100 * time.Millisecond},
		"nothing": {func(s *coordinationv1.LeaseSpec) { *s = coordinationv1.LeaseSpec{} }, 100 * time.Millisecond},
		"only a holder": {func(s *coordinationv1.LeaseSpec) {
			*s = coordinationv1.LeaseSpec{HolderIdentity: ptr.To("x")}
		}, 15100 * time.Millisecond},
		"no renewTime":     {func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }, 15100 * time.Millisecond},
		"a short duration": {func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](4) }, 4100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.put("x")
				r.edit(func(l *coordinationv1.Lease) { tc.change(&l.Spec) })
				r.start("a")
				_, took := r.awaitLeader(time.Minute)
				if took > tc.within || tc.within > time.Second && took < tc.within-200*time.Millisecond {
					t.Errorf("it took %v, want about %v", took, tc.within)
				}
			})
		})
	}
}

// The candidate to which the lease is offered dies, before or after it has
// accepted.
func TestACandidateThatDiesWithAnOfferCostsNoLeader(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("after its answer: ", after), func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
				a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2*time.Second) })
				r.sleep(time.Second)
				b := r.start("b", func(cfg *Config) { cfg.Self.Priority = 9 })
				r.sleep(time.Second)
				if !after {
					b.crash()
				} else {
					for !slices.Contains(a.told(), "accepted true") {
						time.Sleep(time.Millisecond)
					}
					b.crash()
				}
				r.sleep(2 * time.Minute)
				r.expectLeader(a)
				if stays := r.office.stays(); after != (len(stays) > 1) {
					t.Errorf("terms: %v", stays)
				}
			})
		})
	}
}

// An elector of client-go holds the same Lease: nothing is written but the
// records, once.
func TestALeaseHeldByClientGoGetsRecordsOnly(t *testing.T) {
	inRig(t, func(r *rig) {
		r.put("legacy")
		go func() {
			for range 9 * 30 {
				time.Sleep(2 * time.Second)
				r.edit(func(l *coordinationv1.Lease) { l.Spec.RenewTime.Time = time.Now() })
			}
		}()
		for i := range 3 {
			r.start(fmt.Sprint("c", i), func(cfg *Config) { cfg.Strategy = NewestVersion() })
		}
		r.sleep(9 * time.Minute)
		stored := 0
		writes := r.server.Requests(apitest.Match{Verb: "update,patch,create"})
		for _, req := range writes {
			if req.Code < 300 {
				stored++
			}
		}
		// Records that were written at once, or while the holder renewed, conflict.
		if stored != 3 || len(writes) > 6 {
			t.Errorf("%d writes in nine minutes and %d of them stored, want a record for each of 3", len(writes), stored)
		}
		if r.office.current() != "" {
			t.Error("somebody leads beside the legacy holder")
		}
		r.sleep(time.Minute)
		if r.office.current() == "" {
			t.Error("nobody leads after the legacy holder is gone")
		}
	})
}

// A hand-over leaves no gap, and works while the old leader drains.
func TestAHandOverLeavesNoGap(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = NewestVersion() }
		r.start("old", func(cfg *Config) { cfg.Lead = r.office.lead("old", 2*time.Second) })
		r.sleep(time.Minute)
		b := r.start("new", func(cfg *Config) { cfg.Self.BinaryVersion = "1.38.0" })
		r.sleep(3 * time.Second)
		r.expectLeader(b)
		if gap := r.office.lastGap(); gap > 25*time.Millisecond {
			t.Errorf("nobody led for %v", gap)
		}
	})
}

// A process that is restarted under its old name publishes its new Peer at once.
func TestARestartedProcessPublishesItsNewVersion(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.ExclusiveIdentity = true }
		r.start("a")
		r.sleep(time.Minute)
		b := r.start("b")
		r.sleep(time.Minute)
		heal := b.isolate()
		b.cancel() // its record stays
		r.sleep(10 * time.Second)
		heal()
		r.start("b", func(cfg *Config) { cfg.Self.BinaryVersion = "1.38.0" })
		r.sleep(300 * time.Millisecond)
		if got := records(r.lease().Annotations)["b"].BinaryVersion; got != "1.38.0" {
			t.Errorf("the record says %q", got)
		}
	})
}

// A record that another client removed is back within a second.
func TestARemovedRecordIsBackWithinASecond(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { delete(l.Annotations, keyOf(l, b.Identity())) })
		r.sleep(time.Second)
		if _, ok := records(r.lease().Annotations)[b.Identity()]; !ok {
			t.Error("the record is not back")
		}
	})
}

// Two processes with one identity are two.
func TestTwoProcessesWithOneIdentity(t *testing.T) {
	inRig(t, func(r *rig) {
		a, b := r.new("same"), r.new("same")
		if a.Identity() == b.Identity() {
			t.Fatal("the same identity on the Lease")
		}
		a.start()
		b.start()
		r.sleep(10 * time.Minute)
		if stays := r.office.stays(); len(stays) != 1 {
			t.Errorf("%d terms", len(stays))
		}
	})
}

// A candidate that is not ready gives way, also to a worse one, and leads if there is
// no other.
func TestLastResort(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
		a := r.start("a", func(cfg *Config) { cfg.Self.Priority = 5 })
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		r.expectLeader(a)
		if err := a.Update(func(p *Peer) { p.LastResort = true }); err != nil {
			t.Fatal(err)
		}
		r.sleep(time.Second)
		r.expectLeader(b)
		b.stop()
		r.sleep(3 * time.Second)
		r.expectLeader(a)
	})
}
