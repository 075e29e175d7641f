// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
)

func validConfig() Config {
	clients := apitest.New(apitest.Options{}).Client(apitest.User{})
	return Config{
		Client: clients.CoordinationV1(), Lease: types.NamespacedName{Namespace: "default", Name: "x"},
		Self: Peer{Identity: "a"}, Lead: func(context.Context, Term) error { return nil },
	}
}

// All that is wrong is reported at once, and by name.
func TestEveryWrongFieldIsReported(t *testing.T) {
	many := map[string]string{"a": strings.Repeat("x", maxPeerBytes)}
	_, err := New(Config{
		Lease:       types.NamespacedName{Namespace: "kube-node-lease", Name: "Not_A_Name"},
		Self:        Peer{BinaryVersion: "v1.2", EmulationVersion: "2", Attributes: many},
		Strategy:    StrategyFunc("mine", nil),
		Timing:      Timing{LeaseDuration: 1500 * time.Millisecond, RenewInterval: -1},
		Registry:    LeaseCandidates(nil),
		CallTimeout: -1, ShutdownTimeout: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"election: invalid config: ", "Client: Required", "Lead: Required", "Registry: Required", "Lease.Namespace: Invalid", "Lease.Name: Invalid",
		"Self.Identity: Required", "Self.BinaryVersion: Invalid", "Self.EmulationVersion: Invalid", "Self: Too long",
		"Strategy: Invalid", "Timing.LeaseDuration: Invalid", "Timing.RenewInterval: Invalid", "CallTimeout: Invalid", "ShutdownTimeout: Invalid",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

func TestInvalidConfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"emulates what it is not": {func(c *Config) { c.Self.BinaryVersion, c.Self.EmulationVersion = "1.1.0", "1.2.0" }, "at most BinaryVersion"},
		"a pre-release":           {func(c *Config) { c.Self.BinaryVersion, c.Self.EmulationVersion = "1.33.0-alpha.1", "1.33.0" }, "a pre-release is lower"},
		"not eligible":            {func(c *Config) { c.Strategy = rejects{First()} }, "Self: Invalid value: \"a\": is not eligible"},
		"oldest without version":  {func(c *Config) { c.Strategy = OldestEmulationVersion() }, "Self.BinaryVersion: Required value: the strategy OldestEmulationVersion compares it"},
		"newest without version":  {func(c *Config) { c.Strategy = HighestPriority(NewestVersion()) }, "Self.BinaryVersion: Required value"},
		"a negative deadline":     {func(c *Config) { c.Timing.RenewDeadline = -5 * time.Second }, "election: invalid config: Timing.RenewDeadline: Invalid value: \"-5s\": must be at least 1ms, or 0 for the default of 10s"},
		"no namespace":            {func(c *Config) { c.Lease.Namespace = "" }, "Lease.Namespace: Required value: for example the namespace of the replicas"},
		"no name":                 {func(c *Config) { c.Lease.Name = "" }, "Lease.Name: Required value"},
		"identity of an address": {func(c *Config) {
			c.Registry = LeaseCandidates(apitest.New(apitest.Options{}).Client(apitest.User{}).CoordinationV1beta1())
			c.Self.Identity, c.Self.BinaryVersion = "10.0.0.1:80", "1.0.0"
		}, "Self.Identity: Invalid"},
		"native without version": {func(c *Config) {
			c.Registry = LeaseCandidates(apitest.New(apitest.Options{}).Client(apitest.User{}).CoordinationV1beta1())
		}, "Self.BinaryVersion: Required"},
		"not text":           {func(c *Config) { c.Self.Identity = "a\xff" }, "valid UTF-8"},
		"a record too long":  {func(c *Config) { c.Self.Identity = strings.Repeat("\x01", 200) }, "Self: Too long"},
		"long identity":      {func(c *Config) { c.Self.Identity = strings.Repeat("x", 201) }, "Self.Identity: Too long"},
		"long strategy name": {func(c *Config) { c.Strategy = HighestPriority(StrategyFunc("a/"+strings.Repeat("x", 60), nil)) }, "Strategy: Invalid"},
		"long calls":         {func(c *Config) { c.CallTimeout = 7 * time.Second }, "1.1 RenewInterval + CallTimeout < RenewDeadline must hold, but 3.3s + 7s >= 10s"},
	} {
		cfg := validConfig()
		tc.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// rejects is a Strategy that rejects all candidates.
type rejects struct{ Strategy }

func (rejects) Eligible(Peer) bool { return false }

// An address is a valid identity if no object has its name.
func TestAnyIdentityOnTheLease(t *testing.T) {
	cfg := validConfig()
	cfg.Self.Identity = "10.0.0.1:80/ü"
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
}

// TestLeaderElectionConfigValidation has the name of a test of client-go, which accepts
// 15/14/2 because it leaves RetryPeriod out.
func TestLeaderElectionConfigValidation(t *testing.T) {
	s := time.Second
	for name, tc := range map[string]struct {
		timing Timing
		want   string
	}{
		"defaults":                   {Timing{}, ""},
		"long outages":               {LongOutageTiming(), ""},
		"the shortest":               {Timing{LeaseDuration: 2 * s}, ""},
		"OpenShift's":                {Timing{LeaseDuration: 137 * s, RenewDeadline: 107 * s, RenewInterval: 26 * s}, ""},
		"15/14/2":                    {Timing{LeaseDuration: 15 * s, RenewDeadline: 14 * s, RenewInterval: 2 * s}, "RenewDeadline + Drain < LeaseDuration must hold, but 14s + 3s >= 15s: there would be two leaders; less than 1s is left for Drain"},
		"deadline of the lease":      {Timing{LeaseDuration: 15 * s, RenewDeadline: 15 * s}, "RenewDeadline + Drain < LeaseDuration"},
		"too long a drain":           {Timing{Drain: 5 * s}, "but 10s + 5s >= 15s"},
		"a drain that just fits":     {Timing{Drain: 4999 * time.Millisecond}, ""},
		"the CSI sidecars'":          {Timing{LeaseDuration: 15 * s, RenewDeadline: 10 * s, RenewInterval: 5 * s}, ""},
		"renewals too far apart":     {Timing{RenewInterval: 8 * s}, "1.1 RenewInterval + a fifth of RenewDeadline < RenewDeadline must hold, but 8.8s + 2s >= 10s"},
		"fractions":                  {Timing{LeaseDuration: 2500 * time.Millisecond}, "whole seconds"},
		"a second":                   {Timing{LeaseDuration: s}, "at least 2s"},
		"negative":                   {Timing{LeaseDuration: -s}, "Timing.LeaseDuration"},
		"longer than the API allows": {Timing{LeaseDuration: 1 << 31 * s}, "at most"},
		"an hour":                    {Timing{LeaseDuration: time.Hour}, ""},
		"more than an hour":          {Timing{LeaseDuration: time.Hour + s}, "at most 1h"},
		"busy":                       {Timing{RenewInterval: time.Millisecond}, "at least 100ms"},
		"negative tenure":            {Timing{MinTenure: -1}, "Timing.MinTenure"},
	} {
		err := tc.timing.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if err == nil && tc.timing.RateTolerance() <= 0 {
			t.Errorf("%s: tolerance %v", name, tc.timing.RateTolerance())
		}
	}
}

// The rule has the call that is set; the default follows from the other two.
func TestTheTimeOfACallIsTheOneThatIsSet(t *testing.T) {
	for name, tc := range map[string]struct {
		interval, call time.Duration
		want           time.Duration // of a call; 0 if the Config is invalid
	}{
		"the default Timing":         {0, 0, 3350 * time.Millisecond},
		"CSI sidecars":               {5 * time.Second, 0, 2250 * time.Millisecond},
		"CSI sidecars, a short call": {5 * time.Second, 2 * time.Second, 2 * time.Second},
		"CSI sidecars, a long call":  {5 * time.Second, 4500 * time.Millisecond, 0},
		"a short call is room":       {8 * time.Second, time.Second, time.Second},
	} {
		cfg := validConfig()
		cfg.Timing.RenewInterval, cfg.CallTimeout = tc.interval, tc.call
		c, err := New(cfg)
		if (err == nil) != (tc.want > 0) || err != nil && !strings.Contains(err.Error(), "CallTimeout") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && c.cfg.CallTimeout != tc.want {
			t.Errorf("%s: a call may take %v, want %v", name, c.cfg.CallTimeout, tc.want)
		}
	}
}

func TestTimingBounds(t *testing.T) {
	if got, want := (Timing{}).WithDefaults(), (Timing{15 * time.Second, 10 * time.Second, 3 * time.Second, 3 * time.Second, 30 * time.Second}); got != want {
		t.Errorf("defaults %+v", got)
	}
	long := LongOutageTiming()
	if long.MaxOutage() < 60*time.Second || long.CrashFailover() > 163*time.Second {
		t.Errorf("long outages: %v, %v", long.MaxOutage(), long.CrashFailover())
	}
	for _, timing := range []Timing{{}, long, {LeaseDuration: 4 * time.Second}} {
		timing = timing.WithDefaults()
		r := timing.RateTolerance()
		held := time.Duration(float64(timing.RenewDeadline+timing.Drain) / (1 - r))
		waited := time.Duration(float64(timing.LeaseDuration) / (1 + r))
		if diff := waited - held; diff < -time.Microsecond || diff > time.Microsecond {
			t.Errorf("%+v: at the tolerance a slow leader has stopped after %v, a fast one begins after %v", timing, held, waited)
		}
	}
}

func TestUpdateIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(validConfig())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Update(func(p *Peer) { p.BinaryVersion = "x" }); err == nil || !strings.Contains(err.Error(), "Self.BinaryVersion") {
			t.Errorf("error %v", err)
		}
		attributes := map[string]string{"load": "1"}
		if err := c.Update(func(p *Peer) { p.Identity, p.Attributes = "other", attributes }); err != nil {
			t.Error(err)
		}
		attributes["load"] = "2"
		if p := c.peer(); p.Identity != "a" || p.Attributes["load"] != "1" {
			t.Errorf("peer %+v", p)
		}
	})
}

// Changes are published at once, and then every ten seconds at most.
func TestUpdatesAreRateLimited(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		r.server.ResetJournal()
		for i := range int32(100) {
			if err := b.Update(func(p *Peer) { p.Priority = i }); err != nil {
				t.Fatal(err)
			}
			r.sleep(time.Second)
		}
		r.sleep(11 * time.Second)
		stored := 0 // a write that meets a renewal is repeated
		for _, q := range r.server.Requests(apitest.Match{User: "b", Verb: "update"}) {
			if q.Code == http.StatusOK {
				stored++
			}
		}
		if n := len(r.server.Requests(apitest.Match{User: "b"})); stored < 10 || stored > 12 || n > 20 {
			t.Errorf("%d writes and %d requests for 100 changes in 100 s", stored, n)
		}
		if got := records(r.lease().Annotations)[b.Identity()].Priority; got != 99 {
			t.Errorf("priority %d", got)
		}
	})
}

// The loop goes on while the function of Update works. With a lock of both, this test would hang,
// because no time passes in a bubble while a goroutine waits for a lock.
func TestASlowUpdateCostsNoTerm(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Minute)
		r.expectLeader(a)
		updated := make(chan error)
		go func() {
			updated <- a.Update(func(p *Peer) { time.Sleep(5 * time.Minute); p.Priority = 7 })
		}()
		for range 4 {
			r.sleep(time.Minute)
			a.HolderGone("nobody") // wakes the loop
			r.expectLeader(a)
		}
		if err := <-updated; err != nil || a.peer().Priority != 7 {
			t.Errorf("%v, priority %d", err, a.peer().Priority)
		}
	})
}

// An empty map of attributes is the same as none, because the Lease shows none.
func TestAnEmptyMapOfAttributesIsNoChange(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a")
		r.sleep(time.Second)
		r.start("b", func(cfg *Config) { cfg.Self.Attributes = map[string]string{} })
		r.sleep(time.Minute)
		r.server.ResetJournal()
		r.sleep(5 * time.Minute)
		if n := len(r.server.Requests(apitest.Match{User: "b", Verb: "get,update"})); n != 0 {
			t.Errorf("%d requests of a candidate whose record is up to date", n)
		}
	})
}

// What can be refused is; sums of such durations must not overflow.
func TestDurationsBeyondAllBounds(t *testing.T) {
	for _, tm := range []Timing{{RenewDeadline: math.MaxInt64}, {RenewInterval: math.MaxInt64}, {Drain: math.MaxInt64}, {RenewDeadline: math.MaxInt64, RenewInterval: time.Second}} {
		if err := tm.Validate(); err == nil {
			t.Errorf("%+v is accepted", tm)
		}
	}
	cfg := validConfig()
	cfg.CallTimeout = math.MaxInt64
	if _, err := New(cfg); err == nil {
		t.Error("CallTimeout is accepted")
	}
}

// The longest duration is a natural value of these, and must not come out as never.
func TestNeverIsNotAtOnce(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Timing.MinTenure, cfg.Strategy = math.MaxInt64, HighestPriority(nil) }
		a := r.start("a")
		r.sleep(time.Second)
		r.start("b", func(cfg *Config) { cfg.Self.Priority = 1 })
		r.sleep(time.Hour)
		r.expectLeader(a)
	})
	inRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) { cfg.ShutdownTimeout = math.MaxInt64 })
		r.sleep(time.Second)
		a.stop()
		if h := spec.HolderOf(r.lease()); h != "" {
			t.Errorf("not released: %q", h)
		}
	})
}
