// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// NewCoordinator makes a coordinator.Controller, which this package can't import.
var NewCoordinator func(kubernetes.Interface) (Runner, error)

// Runner is the part of a coordinator.Controller that the soak uses.
type Runner interface {
	Run(ctx context.Context) error
}

var (
	soakSeed = flag.Uint64("soak.seed", 1, "first seed of the soak tests")
	soakTime = flag.Duration("soak.time", 80_000*time.Second, "virtual time of all soak tests together")
)

// soakRuns is the number of bubbles that share soakTime. Short tests run a
// fifth of them, because each takes at least a quarter of an hour of virtual time.
const soakRuns = 20

// lateCommit is the longest time from the timeout of a client to the commit of its
// write.
const lateCommit = 8 * time.Second

// soak is a fleet of candidates with all kinds of trouble: processes that are cut off,
// killed, started and cloned, writes that land late, clocks that step and run at any
// tolerated rate, watches that stall, API server outages, hooks that hang, work that
// stops slowly, edits by hand, and restored backups.
// The office checks at every moment that at most one candidate leads, from the call of
// Lead to its return. After each time of trouble there must be a leader again within
// the bound.
type soak struct {
	*rig
	rng      *rand.Rand
	timing   Timing
	fleet    []*replica
	made     int
	worst    time.Duration // from the end of trouble to a leader
	crashes  int
	failover time.Duration // the longest, after a crash without other trouble
	undo     []func()
	tamper   func(*Candidate) // breaks a rule, to see that this is noticed
}

func TestSoak(t *testing.T)                    { soakAll(t, false, testing.Short()) }
func TestSoakWithLeaseCandidates(t *testing.T) { soakAll(t, true, testing.Short()) }

func soakAll(t *testing.T, native, short bool) {
	share, runs := *soakTime/soakRuns, soakRuns/2
	if short {
		share, runs = share/10, runs/5
	}
	for i := range runs {
		seed := *soakSeed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSoak(t, seed, native)
				s.run(share)
				t.Logf("%d terms of %d candidates, a leader again at most %v after trouble, %v after %d plain crashes",
					len(s.office.stays()), s.made, s.worst, s.failover, s.crashes)
			})
		})
	}
}

// The soak notices if a rule is broken that keeps two leaders apart.
func TestSoakNoticesBrokenRules(t *testing.T) {
	for name, tamper := range map[string]func(*Candidate){
		"leads longer than the lease":  func(c *Candidate) { c.cfg.Timing.RenewDeadline = 20 * time.Second },
		"claims before the lease ends": func(c *Candidate) { c.cfg.Timing.LeaseDuration = 7 * time.Second },
		"clocks beyond the tolerance": func(c *Candidate) {
			if c.clock.rate > 1 {
				c.clock.rate *= 1.5
			} else {
				c.clock.rate /= 1.5
			}
		},
		"work that takes too long to stop": func(c *Candidate) {
			lead := c.cfg.Lead
			c.cfg.Lead = func(ctx context.Context, term Term) error {
				longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
				stop := context.AfterFunc(ctx, func() {
					time.Sleep(4 * c.cfg.Timing.Drain)
					cancel(context.Cause(ctx))
				})
				defer stop()
				return lead(longer, term)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSoak(t, 1, false)
				s.office.doomed = true
				s.tamper = tamper
				s.disturb(3000 * time.Second)
			})
		})
	}
}

func newSoak(t *testing.T, seed uint64, native bool) *soak {
	opts := apitest.Options{}
	if native && seed%3 != 0 { // else the gate is off, and preferredHolder is dropped
		opts.Gates = map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true}
	}
	s := &soak{rig: newRig(t, opts), rng: rand.New(rand.NewPCG(seed, 7)), timing: Timing{}.WithDefaults()}
	switch seed % 4 {
	case 2:
		s.timing = LongOutageTiming()
	case 3:
		s.timing = Timing{LeaseDuration: 6 * time.Second}.WithDefaults()
	}
	s.native, s.quiet = native, true
	fleet, err := NewSharedWatch(s.server.Client(apitest.User{Name: "watch"}).CoordinationV1(), theLease.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	s.config = func(cfg *Config) {
		switch seed % 4 {
		case 1: // each is a process of its own
			cfg.Watch, _ = NewSharedWatch(cfg.Client, theLease.Namespace)
		case 2:
			cfg.Watch = fleet
		}
		cfg.Timing = s.timing
		cfg.ErrorHandler = func(context.Context, error, string) {}
		if !native {
			cfg.Strategy = HighestPriority(NewestVersion())
		}
	}
	if native {
		s.startController()
	}
	return s
}

// startController runs a Controller, which is also cut off at times.
func (s *soak) startController() {
	clients := s.server.Client(apitest.User{Name: "controller"})
	c, err := NewCoordinator(clients)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(s.Context(), klog.Logger{}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			s.Error(err)
		}
	}()
	s.Cleanup(func() { cancel(); <-done })
}

func (s *soak) run(total time.Duration) {
	began := time.Now()
	for range 5 {
		s.join()
	}
	s.calm("the start")
	for time.Since(began) < total {
		for range 1 + s.rng.IntN(8) {
			s.trouble()
			s.pass(30)
		}
		s.heal()
		s.calm("trouble")
		s.pass(60)
		s.crash()
		switch s.rng.IntN(3) {
		case 0:
			s.restore()
		case 1:
			s.clone()
		}
	}
	s.heal()
	for _, c := range s.fleet {
		if err := c.stop(); err != nil {
			s.Errorf("Run = %v", err)
		}
	}
}

// disturb makes trouble until the office notices a broken rule.
func (s *soak) disturb(total time.Duration) {
	for range 5 {
		s.join()
	}
	for began := time.Now(); time.Since(began) < total && len(s.office.faults()) == 0; {
		s.trouble()
		s.pass(30)
		s.server.ResetJournal() // which the soak does not read
	}
	s.heal()
}

// pass lets up to so many seconds pass.
func (s *soak) pass(seconds float64) { time.Sleep(s.upTo(seconds)) }

func (s *soak) upTo(seconds float64) time.Duration {
	return time.Duration(s.rng.Float64() * seconds * float64(time.Second))
}

// restore restores a backup of the API server. No process starts for some time, since
// it can't notice that: see "Not covered" in DESIGN.md.
func (s *soak) restore() {
	restore := s.server.Backup()
	s.pass(60)
	restore()
	s.office.restore()
	time.Sleep(s.bound())
	s.calm("a restored backup")
}

// clone starts a second process with the identity of the leader, and ends one of the
// two after some time. They lead together until the first learns of the second.
func (s *soak) clone() {
	i := slices.IndexFunc(s.fleet, (*replica).leads)
	if i < 0 {
		return
	}
	c := s.fleet[i]
	s.join(func(twin *replica) {
		twin.identity = c.identity
		twin.self.Store(c.self.Load())
		s.office.twins(c.user, twin.user)
	})
	time.Sleep(s.bound())
	s.calm("a process was cloned")
	if limit := slowest(s.timing.Drain, s.timing) + time.Second; s.office.longestOverlap() > limit {
		s.Errorf("twins led together for %v", s.office.longestOverlap())
	}
	if c.leads() {
		i = len(s.fleet) - 1
	}
	loser := s.fleet[i]
	s.fleet = slices.Delete(s.fleet, i, i+1)
	loser.stop()
}

// join starts a candidate whose clocks are wrong.
func (s *soak) join(change ...func(*replica)) {
	s.made++
	name := fmt.Sprintf("p%d", s.made)
	rate := 1 + s.timing.RateTolerance()*0.999*(2*s.rng.Float64()-1)
	if s.rng.IntN(2) == 0 { // the limit
		rate = 1 + s.timing.RateTolerance()*0.999*float64(1-2*s.rng.IntN(2))
	}
	step := s.upTo(7200) - time.Hour
	linger := time.Duration(s.rng.Float64() * float64(s.timing.Drain-20*time.Millisecond) / rate)
	c := s.new(name, func(cfg *Config) {
		cfg.Self.Priority = s.rng.Int32N(4)
		cfg.Self.BinaryVersion = fmt.Sprintf("1.%d.0", 35+s.rng.IntN(3))
		cfg.Lead = s.office.lead(name, linger)
	})
	c.clock.rate = rate
	c.setStep(step)
	if s.tamper != nil {
		s.tamper(c.Candidate)
	}
	for _, f := range change {
		f(c)
	}
	s.fleet = append(s.fleet, c.start())
}

func (s *soak) any() *replica { return s.fleet[s.rng.IntN(len(s.fleet))] }

// until calls undo within the given seconds, or at the end of the trouble.
func (s *soak) until(seconds float64, undo func()) {
	timer := time.AfterFunc(s.upTo(seconds), undo)
	s.undo = append(s.undo, func() {
		if timer.Stop() {
			undo()
		}
	})
}

// trouble causes one failure.
func (s *soak) trouble() {
	c := s.any()
	if s.rng.IntN(2) == 0 { // the leader is the most interesting
		if i := slices.IndexFunc(s.fleet, (*replica).leads); i >= 0 {
			c = s.fleet[i]
		}
	}
	user := apitest.Match{User: c.user}
	if s.native && s.rng.IntN(6) == 0 {
		user.User = "controller"
	}
	switch s.rng.IntN(14) {
	case 0: // a partition
		s.until(60, s.isolate(user))
	case 1: // a partition that refuses, and breaks the watches
		s.server.BreakWatches(user)
		s.until(60, s.server.Inject(apitest.Fault{Match: user, Err: apitest.ErrConnRefused}))
	case 2: // the API server is gone
		s.server.BreakWatches(apitest.Match{})
		s.until(60, s.server.Inject(s.outage(apitest.Match{})))
	case 3: // writes that land late
		m := apitest.Match{Verb: "update,create,patch", User: user.User}
		for range 1 + s.rng.IntN(3) {
			s.server.Inject(apitest.Fault{Match: m, Times: 1, For: 10 * time.Second, CommitAfter: s.upTo((DefaultCallTimeout + lateCommit).Seconds())})
		}
	case 4: // and any
		s.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "update,create"}, Times: 2, For: 10 * time.Second, CommitAfter: s.upTo((DefaultCallTimeout + lateCommit).Seconds())})
	case 5: // answers that are lost
		s.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "update,create", User: user.User}, Times: 1 + s.rng.IntN(3), For: 30 * time.Second, LoseResponse: true})
	case 6: // watches that stall
		s.until(60, s.server.StallWatches(user))
	case 7: // watches that have lost their place
		s.server.ExpireWatches(apitest.Match{})
	case 8: // a step of a wall clock
		c.setStep(s.upTo(7200) - time.Hour)
	case 9: // a process ends, another begins
		i := slices.Index(s.fleet, c)
		s.fleet = slices.Delete(s.fleet, i, i+1)
		if err := c.stop(); err != nil {
			s.Errorf("Run = %v", err)
		}
		s.join()
	case 10:
		c.Resign()
	case 11:
		if err := c.Update(func(p *Peer) { p.Priority, p.LastResort = s.rng.Int32N(4), s.rng.IntN(4) == 0 }); err != nil {
			s.Error(err)
		}
	case 12: // an edit by hand
		s.editByHand()
	case 13: // which no watch shows
		resume := s.server.StallWatches(apitest.Match{})
		s.pass(20)
		s.editByHand()
		s.server.ExpireWatches(apitest.Match{})
		resume()
	}
	if s.rng.IntN(10) == 0 {
		c.hangHook(s.upTo(20))
	}
}

// editByHand changes the Lease like a user who does not delete it, does not forge a
// release and does not shorten the duration of a holder.
func (s *soak) editByHand() {
	if s.lease() == nil {
		return
	}
	s.edit(func(l *coordinationv1.Lease) {
		switch s.rng.IntN(4) {
		case 0:
			l.Spec.HolderIdentity, l.Spec.AcquireTime = nil, nil
		case 1:
			l.Spec.HolderIdentity, l.Spec.AcquireTime = ptr.To(s.any().Identity()), nil
			l.Spec.LeaseDurationSeconds = ptr.To(int32(s.timing.LeaseDuration / time.Second))
		case 2:
			l.Spec.LeaseDurationSeconds = ptr.To(int32(s.timing.LeaseDuration/time.Second) + s.rng.Int32N(20))
		case 3:
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.AcquireTime = ptr.To(""), ptr.To(1+s.rng.Int32N(30)), nil
		}
	})
}

// outage returns one kind of an API server outage.
func (s *soak) outage(m apitest.Match) apitest.Fault {
	switch s.rng.IntN(4) {
	case 0:
		return apitest.Fault{Match: m, Hang: true}
	case 1:
		return apitest.Fault{Match: m, Err: apitest.ErrConnRefused}
	case 2:
		return apitest.Fault{Match: m, Status: statuserr.Unavailable(0)}
	default:
		return apitest.Fault{Match: m, Status: statuserr.TooManyRequests(1)}
	}
}

// heal ends all trouble.
func (s *soak) heal() {
	for _, undo := range s.undo {
		undo()
	}
	s.undo = nil
}

// bound returns the longest time to a leader after the end of trouble: a write may land
// late and look like a renewal, and a request may hang or wait for its retry.
func (s *soak) bound() time.Duration {
	b := s.timing.CrashFailover() + 2*s.timing.LeaseDuration + 20*time.Second // after an edit by hand
	if s.native {
		b += s.timing.LeaseDuration + 30*time.Second // the fallback, and a keeper that backs off
	}
	return slowest(b, s.timing) + lateCommit + 2*DefaultCallTimeout + machine.StandbyRetry + 20*time.Second // of a hook
}

// slowest returns the longest time for d by a tolerated clock.
func slowest(d time.Duration, timing Timing) time.Duration {
	return time.Duration(float64(d) / (1 - timing.RateTolerance()))
}

// calm waits for a leader.
func (s *soak) calm(after string) {
	_, took := s.awaitLeaderEvery(50*time.Millisecond, s.bound(), after)
	s.worst = max(s.worst, took)
}

// crash kills the leader at a time without other trouble and without its consequences.
func (s *soak) crash() {
	time.Sleep(s.bound())
	i := slices.IndexFunc(s.fleet, (*replica).leads)
	if i < 0 || s.fleet[i].peer().LastResort {
		return
	}
	c := s.fleet[i]
	for _, other := range s.fleet {
		other.hangHook(0) // which may wait for the next term to begin
	}
	c.crash()
	s.fleet = slices.Delete(s.fleet, i, i+1)
	limit := slowest(s.timing.CrashFailover(), s.timing) + 100*time.Millisecond
	if s.native {
		limit = s.bound()
	}
	_, took := s.awaitLeaderEvery(10*time.Millisecond, limit, "a crash")
	s.crashes++
	s.failover = max(s.failover, took)
	c.stop()
	s.join()
}

func (s *soak) awaitLeaderEvery(tick, limit time.Duration, after string) (string, time.Duration) {
	s.Helper()
	began := time.Now()
	for {
		if who := s.office.current(); who != "" {
			return who, time.Since(began)
		}
		if time.Since(began) > limit {
			s.Fatalf("at %v: nobody leads %v after %s; lease %+v", time.Now().Format(time.TimeOnly), limit, after, s.lease())
		}
		time.Sleep(tick)
	}
}
