// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/apitest"
)

// overruns collects the calls of OnOverrun.
type overruns struct {
	errs []error
	at   time.Time
}

func (o *overruns) add(cfg *Config) {
	cfg.OnOverrun = func(err error) { o.errs, o.at = append(o.errs, err), time.Now() }
}

// stubborn returns work that ignores its context for a while.
func stubborn(d time.Duration, cancelled *time.Time) LeadFunc {
	return func(ctx context.Context, _ Term) error {
		<-ctx.Done()
		*cancelled = time.Now()
		time.Sleep(d)
		return nil
	}
}

// The leader is cut off, and its work ignores the end of the context: the function is
// called when Drain is over, before another candidate leads, and not again.
func TestWorkThatOutlivesTheLeaseIsReported(t *testing.T) {
	inRig(t, func(r *rig) {
		var over overruns
		var cancelled time.Time
		log := r.logged("a", 0, over.add, func(cfg *Config) { cfg.Lead = stubborn(time.Minute, &cancelled) })
		r.sleep(time.Minute)
		b := r.start("b")
		r.sleep(time.Second)
		defer r.isolate(apitest.Match{User: "a"})()
		for !b.IsLeader() {
			if len(over.errs) == 0 && !cancelled.IsZero() && time.Since(cancelled) > DefaultDrain {
				t.Fatalf("nothing was said %v after the end of the context", time.Since(cancelled))
			}
			time.Sleep(10 * time.Millisecond)
		}
		r.sleep(2 * time.Minute)
		if len(over.errs) != 1 || !errors.Is(over.errs[0], ErrExpired) || over.at.Sub(cancelled) != DefaultDrain {
			t.Errorf("%v, %v after the end of the context", over.errs, over.at.Sub(cancelled))
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
		var cancelled time.Time
		r.start("a", over.add, func(cfg *Config) { cfg.Lead = stubborn(time.Minute, &cancelled) })
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "x" })
		r.sleep(2 * time.Minute)
		if len(over.errs) != 1 || !errors.Is(over.errs[0], ErrLost) || over.at.Sub(cancelled) != DefaultDrain {
			t.Errorf("%v, %v after the end of the context", over.errs, over.at.Sub(cancelled))
		}
	})
}

// While the work drains, the lease is renewed, so nobody else leads, however long it takes.
// Work that returns in time overruns nothing.
func TestWorkThatKeepsTheLeaseIsNoOverrun(t *testing.T) {
	inRig(t, func(r *rig) {
		var over overruns
		var cancelled time.Time
		a := r.start("a", over.add, func(cfg *Config) { cfg.Lead = stubborn(5*time.Minute, &cancelled) })
		r.sleep(time.Minute)
		a.stop()
		b := r.start("b", over.add, func(cfg *Config) { cfg.Lead = stubborn(DefaultDrain-time.Millisecond, &cancelled) })
		r.sleep(time.Minute)
		heal := b.isolate()
		r.sleep(time.Minute)
		heal()
		if len(over.errs) != 0 {
			t.Errorf("%v", over.errs)
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
				var cancelled time.Time
				a := r.start("a", over.add, func(cfg *Config) { cfg.Lead = stubborn(90*time.Second, &cancelled) })
				r.sleep(time.Minute)
				began := time.Now()
				hang(a)
				r.sleep(50 * time.Second)
				if len(over.errs) != 1 || !errors.Is(over.errs[0], ErrExpired) {
					t.Fatalf("%v", over.errs)
				}
				if after := over.at.Sub(began); after > 30*time.Second+DefaultRenewDeadline+DefaultDrain {
					t.Errorf("only after %v", after)
				}
				r.sleep(2 * time.Hour)
			})
		})
	}
}
