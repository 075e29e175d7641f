// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// The bugs of coordinated election in the API server, on the side of the
// candidates, with LeaseCandidate objects. Only the test coordinates.

func inNativeRig(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, apitest.Options{Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true}})
		r.native = true
		test(r)
	})
}

func (c *replica) record() *coordinationv1beta1.LeaseCandidate {
	return apitest.Get[*coordinationv1beta1.LeaseCandidate](c.rig.server, theLease.Namespace, c.Identity())
}

func (c *replica) editRecord(change func(*coordinationv1beta1.LeaseCandidate)) {
	apitest.Edit(c.rig.server, theLease.Namespace, c.Identity(), change)
}

// elect makes a candidate the holder, as a controller does.
func (r *rig) elect(c *replica) {
	now := metav1.NewMicroTime(time.Now())
	r.server.Put(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: theLease.Namespace, Name: theLease.Name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(c.Identity()), RenewTime: &now, AcquireTime: &now, LeaseDurationSeconds: ptr.To[int32](15),
			LeaseTransitions: ptr.To[int32](0), Strategy: ptr.To(coordinationv1.OldestEmulationVersion),
		},
	})
}

func TestLeaseCandidateCreation(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) {
			cfg.Self.EmulationVersion, cfg.Self.Priority, cfg.Self.Attributes = "1.36.0", 3, map[string]string{"zone": "z"}
		})
		r.sleep(time.Second)
		lc := a.record()
		if lc == nil || lc.Spec.LeaseName != theLease.Name || lc.Spec.BinaryVersion != "1.37.0" || lc.Spec.EmulationVersion != "1.36.0" ||
			lc.Spec.Strategy != coordinationv1.OldestEmulationVersion || lc.Spec.RenewTime == nil {
			t.Fatalf("LeaseCandidate %+v", lc)
		}
		var p Peer
		if err := json.Unmarshal([]byte(lc.Annotations[spec.PeerAnnotation]), &p); err != nil || p.Priority != 3 || p.Attributes["zone"] != "z" {
			t.Errorf("peer %+v, %v", p, lc.Annotations)
		}
		a.stop()
		if a.record() != nil {
			t.Error("the LeaseCandidate is still there after Run")
		}
	})
}

// One ping is answered by one write, whatever the two clocks show.
func TestOnePingGetsOneAnswer(t *testing.T) {
	for _, skew := range []time.Duration{0, 6 * time.Second, -6 * time.Second, time.Hour, -time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			inNativeRig(t, func(r *rig) {
				a := r.start("a")
				r.sleep(10 * time.Second)
				writes := apitest.Match{Resource: "leasecandidates", Verb: "update,create,patch"}
				before := len(r.server.Requests(writes))
				ping := metav1.NewMicroTime(time.Now().Add(skew))
				a.editRecord(func(lc *coordinationv1beta1.LeaseCandidate) { lc.Spec.PingTime = &ping })
				asked := !ping.Before(a.record().Spec.RenewTime)
				r.sleep(100 * time.Millisecond)
				if acked := !a.record().Spec.RenewTime.Before(&ping); !acked {
					t.Errorf("renewTime %v is before pingTime %v", a.record().Spec.RenewTime, ping)
				}
				r.sleep(time.Minute)
				want := 0
				if asked {
					want = 1
				}
				if n := len(r.server.Requests(writes)) - before; n != want {
					t.Errorf("%d writes, want %d", n, want)
				}
			})
		})
	}
}

// Without the API, and so without a controller, a candidate leads too.
func TestACandidateLeadsWithoutTheAPI(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		r.server.Serve(coordinationv1beta1.SchemeGroupVersion, false)
		a := r.start("a")
		r.start("b")
		r.start("c")
		who, took := r.awaitLeader(time.Minute)
		if took < DefaultLeaseDuration || took > DefaultLeaseDuration+3*time.Second {
			t.Errorf("%s leads after %v", who, took)
		}
		if errs := a.errors(); len(errs) != 1 || !errors.Is(errs[0], ErrNoCandidateAPI) {
			t.Errorf("told %v, want that the API is missing, once", errs)
		}
	})
}

// A leader that is asked to give way stops its work, and hands over to whom
// it was asked to, without a gap, and not before the work has returned.
func TestAPreferredHolderTakesOverWithoutAGap(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2*time.Second) })
		b := r.start("b", func(cfg *Config) { cfg.Self.EmulationVersion = "1.36.0" })
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(time.Minute)
		r.expectLeader(a)
		r.edit(func(l *coordinationv1.Lease) { l.Spec.PreferredHolder = ptr.To(b.Identity()) })
		r.sleep(1900 * time.Millisecond)
		if spec.HolderOf(r.lease()) != a.Identity() {
			t.Error("handed over under running work")
		}
		r.sleep(200 * time.Millisecond)
		r.expectLeader(b)
		if gap := r.office.lastGap(); gap > 25*time.Millisecond {
			t.Errorf("nobody led for %v", gap)
		}
		if l := r.lease(); spec.PreferredOf(l) != "" || l.Spec.Strategy == nil || *l.Spec.LeaseTransitions != 1 {
			t.Errorf("Lease %+v", l.Spec)
		}
	})
}

// The controller in the API server breaks ties at random. The leader gives way to better
// candidates only, and not before MinTenure.
func TestAPreferenceIsWeighed(t *testing.T) {
	older := func(cfg *Config) { cfg.Self.EmulationVersion = "1.36.0" }
	for name, tc := range map[string]struct {
		change   func(*Config)
		after    time.Duration // of the term
		strategy coordinationv1.CoordinatedLeaseStrategy
		refuse   bool // the read of the LeaseCandidate
		gone     bool
		leads    string // the leader after MinTenure
	}{
		"equal":                        {after: time.Minute, strategy: coordinationv1.OldestEmulationVersion, leads: "a"},
		"better":                       {after: time.Minute, strategy: coordinationv1.OldestEmulationVersion, change: older, leads: "b"},
		"better, too early":            {after: time.Second, strategy: coordinationv1.OldestEmulationVersion, change: older, leads: "b"},
		"equal, too early":             {after: time.Second, strategy: coordinationv1.OldestEmulationVersion, leads: "a"},
		"gone":                         {after: time.Minute, strategy: coordinationv1.OldestEmulationVersion, change: older, gone: true, leads: "a"},
		"unreadable":                   {after: time.Minute, strategy: coordinationv1.OldestEmulationVersion, refuse: true, leads: "b"},
		"by a strategy not known to a": {after: time.Minute, strategy: "example.com/other", leads: "b"},
	} {
		inNativeRig(t, func(r *rig) {
			a := r.start("a")
			b := r.start("b", func(cfg *Config) {
				if tc.change != nil {
					tc.change(cfg)
				}
			})
			r.sleep(time.Second)
			r.elect(a)
			r.sleep(10 * time.Millisecond)
			r.expectLeader(a)
			if tc.refuse {
				r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a", Verb: "get", Resource: "leasecandidates"}, Status: statuserr.Forbidden("leasecandidates", "b", "no")})
			}
			to := b.Identity()
			if tc.gone {
				to = "gone"
			}
			r.sleep(tc.after)
			r.server.ResetJournal()
			r.edit(func(l *coordinationv1.Lease) { l.Spec.PreferredHolder, l.Spec.Strategy = &to, &tc.strategy })
			if tc.after < DefaultMinTenure {
				r.sleep(DefaultMinTenure - tc.after - time.Second)
				if r.office.current() != "a" {
					t.Errorf("%s: gave way before MinTenure", name)
				}
			}
			r.sleep(5 * time.Second)
			if got := r.office.current(); got != tc.leads {
				t.Errorf("%s: %q leads, want %q", name, got, tc.leads)
			}
			if got := spec.PreferredOf(r.lease()); got != "" {
				t.Errorf("%s: preferredHolder %q is not withdrawn", name, got)
			}
			if n := len(r.server.Requests(apitest.Match{User: "a", Verb: "get", Resource: "leasecandidates"})); n > 1 {
				t.Errorf("%s: %d reads for one preference", name, n)
			}
		})
	}
}

// Another preference in each second costs no term and no more writes than renewals.
func TestRandomPreferencesCostNoTerm(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a")
		others := []*replica{r.start("b"), r.start("c"), r.start("d")}
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(time.Minute)
		r.server.ResetJournal()
		for i := range 600 {
			r.edit(func(l *coordinationv1.Lease) { l.Spec.PreferredHolder = ptr.To(others[i%3].Identity()) })
			r.sleep(time.Second)
		}
		r.expectLeader(a)
		if n := len(r.office.stays()); n != 1 {
			t.Errorf("%d terms", n)
		}
		if n := len(r.server.Requests(apitest.Match{User: "a", Verb: "update", Resource: "leases"})); n > 240 {
			t.Errorf("%d writes of the Lease in ten minutes", n)
		}
		if n := len(r.server.Requests(apitest.Match{User: "a", Verb: "get", Resource: "leasecandidates"})); n > 70 {
			t.Errorf("%d reads in ten minutes", n)
		}
	})
}

// A controller that goes by a wrong clock makes a candidate the holder
// while another one leads. The candidate waits.
func TestACandidateAssignedOverALiveLeaderWaits(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
		b := r.start("b")
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(time.Minute)
		r.server.StallWatches(apitest.Match{User: "a"})
		r.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To(b.Identity()); l.Spec.AcquireTime = nil })
		r.sleep(14 * time.Second) // the office complains about two
		r.sleep(2 * time.Second)
		r.expectLeader(b)
	})
}

// After Resign a candidate is not to be chosen for a while.
func TestResignNative(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(time.Minute)
		a.Resign()
		r.sleep(time.Second)
		if a.record() != nil || spec.HolderOf(r.lease()) != "" {
			t.Errorf("record %v, holder %q", a.record(), spec.HolderOf(r.lease()))
		}
		r.sleep(DefaultMinTenure)
		if a.record() == nil {
			t.Error("no LeaseCandidate after MinTenure")
		}
	})
}

// Candidates report different registries.
func TestMixedRegistriesAreReported(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a")
		r.sleep(time.Minute)
		b := r.start("b", func(cfg *Config) {
			cfg.Registry = LeaseCandidates(r.server.Client(apitest.User{Name: "b"}).CoordinationV1beta1())
		})
		r.sleep(time.Minute)
		if errs := b.errors(); len(errs) != 1 || !errors.Is(errs[0], ErrMixedRegistries) {
			t.Errorf("told %v", errs)
		}
	})
}

// The keeper of a LeaseCandidate sends 6 writes an hour and nothing else.
func TestUpkeepBudget(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.elect(a)
		r.sleep(time.Minute)
		r.server.ResetJournal()
		r.sleep(time.Hour)
		if n := len(r.server.Requests(apitest.Match{Resource: "leasecandidates", Verb: "update"})); n < 5 || n > 7 {
			t.Errorf("%d renewals in an hour, want 6", n)
		}
		if n := len(r.server.Requests(apitest.Match{Resource: "leasecandidates", Verb: "get,list,create,delete,patch"})); n != 0 {
			t.Errorf("%d other requests", n)
		}
	})
}

// Without permission to watch it is polled, and pings are answered in time.
func TestUpkeepWithoutWatch(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Status: statuserr.Forbidden("things", "", "no")})
		a := r.start("a")
		r.sleep(5 * time.Second)
		ping := metav1.NewMicroTime(time.Now())
		a.editRecord(func(lc *coordinationv1beta1.LeaseCandidate) { lc.Spec.PingTime = &ping })
		r.sleep(4 * time.Second)
		if a.record().Spec.RenewTime.Before(&ping) {
			t.Error("not acked")
		}
		r.elect(a)
		r.sleep(20 * time.Second) // a poller can't know that it missed no other leader
		r.expectLeader(a)
	})
}
