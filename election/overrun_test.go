// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/apitest"
)

// overruns collects the calls of OnOverrun, beside the time at which the work was cancelled.
type overruns struct {
	mu        sync.Mutex
	errs      []error
	last      time.Time
	cancelled time.Time
}

func (o *overruns) add(cfg *Config) {
	cfg.OnOverrun = func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.errs, o.last = append(o.errs, err), time.Now()
	}
}

// stubborn lets the work ignore the end of its context for a while.
func (o *overruns) stubborn(d time.Duration) func(*Config) {
	return func(cfg *Config) {
		cfg.Lead = func(ctx context.Context, _ Term) error {
			<-ctx.Done()
			o.mu.Lock()
			o.cancelled = time.Now()
			o.mu.Unlock()
			time.Sleep(d)
			return nil
		}
	}
}

// calls returns the errors that OnOverrun was called with.
func (o *overruns) calls() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.errs)
}

// at returns the time of the last call.
func (o *overruns) at() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// after returns the time between the end of the context and the last call.
func (o *overruns) after() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last.Sub(o.cancelled)
}

// silent tells whether the context has ended longer than Drain ago and nothing was said.
func (o *overruns) silent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs) == 0 && !o.cancelled.IsZero() && time.Since(o.cancelled) > DefaultDrain
}

// The leader is cut off, and its work ignores the end of the context: the function is
// called when Drain is over, before another candidate leads, and not again.
func TestWorkThatOutlivesTheLeaseIsReported(t *testing.T) {
	inRig(t, func(r *rig) {
		var over overruns
		log := r.logged("a", 0, over.add, over.stubborn(time.Minute))
		r.sleep(time.Minute)
		b := r.start("b")
		r.sleep(time.Second)
		defer r.isolate(apitest.Match{User: "a"})()
		for !b.IsLeader() {
			if over.silent() {
				t.Fatal("nothing was said when Drain was over")
			}
			time.Sleep(10 * time.Millisecond)
		}
		r.sleep(2 * time.Minute)
		if errs := over.calls(); len(errs) != 1 || !errors.Is(errs[0], ErrExpired) || over.after() != DefaultDrain {
			t.Errorf("%v, %v after the end of the context", errs, over.after())
		}
		if n := strings.Count(log(), "The work has outlived the lease"); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, log())
		}
	})
}

// Another client takes the lease away.
func TestWorkThatOutlivesALeaseThatWasTakenIsReported(t *testing.T) {
	inRig(t, func(r *rig) {
		var over overruns
		r.start("a", over.add, over.stubborn(time.Minute))
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "x" })
		r.sleep(2 * time.Minute)
		if errs := over.calls(); len(errs) != 1 || !errors.Is(errs[0], ErrLost) || over.after() != DefaultDrain {
			t.Errorf("%v, %v after the end of the context", errs, over.after())
		}
	})
}

// While the work drains, the lease is renewed, so nobody else leads, however long it takes.
// Work that returns in time overruns nothing.
func TestWorkThatKeepsTheLeaseIsNoOverrun(t *testing.T) {
	inRig(t, func(r *rig) {
		var over overruns
		a := r.start("a", over.add, over.stubborn(5*time.Minute))
		r.sleep(time.Minute)
		a.stop()
		b := r.start("b", over.add, over.stubborn(DefaultDrain-time.Millisecond))
		r.sleep(time.Minute)
		heal := b.isolate()
		r.sleep(time.Minute)
		heal()
		if errs := over.calls(); len(errs) != 0 {
			t.Errorf("%v", errs)
		}
	})
}

// The lease can't be renewed any more while the work drains, or while a hook hangs.
func TestAnOverrunIsReportedWhateverHangs(t *testing.T) {
	for name, hang := range map[string]func(*replica){
		"the API server, while the work drains": func(a *replica) {
			a.Resign()
			a.rig.sleep(30 * time.Second)
			a.isolate()
		},
		"a hook":                         func(a *replica) { a.hangHook(time.Hour) },
		"a hook, while the work drains":  func(a *replica) { a.Resign(); a.rig.sleep(time.Millisecond); a.hangHook(time.Hour) },
		"a hook, and then nothing again": func(a *replica) { a.hangHook(15 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				var over overruns
				a := r.start("a", over.add, over.stubborn(90*time.Second))
				r.sleep(time.Minute)
				began := time.Now()
				hang(a)
				r.sleep(50 * time.Second)
				if errs := over.calls(); len(errs) != 1 || !errors.Is(errs[0], ErrExpired) {
					t.Fatalf("%v", errs)
				}
				if after := over.at().Sub(began); after > 30*time.Second+DefaultRenewDeadline+DefaultDrain {
					t.Errorf("only after %v", after)
				}
				r.sleep(2 * time.Hour)
			})
		})
	}
}
