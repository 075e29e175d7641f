// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/internal/callback/callbacktest"
)

// TestAPanicInAHookChangesNothing: the same configurations run, and the same hooks are
// called, as without it.
func TestAPanicInAHookChangesNothing(t *testing.T) {
	var want []string
	for _, name := range []string{
		"", "Hooks.Delivered", "Hooks.Staged", "Hooks.Promoted", "Hooks.Rejected", "Hooks.StatusChanged",
		"ErrorHandler", "Redact",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := testHooksThatPanic(t, name)
				if name == "" {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("hooks called\n%v, want\n%v", got, want)
				}
			})
		})
	}
}

// testHooksThatPanic leads a node through all hooks and returns their calls. The
// callback of the name panics.
func testHooksThatPanic(t *testing.T, name string) []string {
	n := newNode(t)
	var log []string
	call := func(hook string) {
		if hook != "ErrorHandler" {
			log = append(log, hook)
		}
		if hook == name {
			panic("boom")
		}
	}
	n.cfg.Hooks = Hooks{
		Delivered:     func(Delivered) { call("Hooks.Delivered") },
		Staged:        func(Staged) { call("Hooks.Staged") },
		Promoted:      func(Promoted) { call("Hooks.Promoted") },
		Rejected:      func(Rejected) { call("Hooks.Rejected") },
		StatusChanged: func(Status) { call("Hooks.StatusChanged") },
	}
	if name == "Redact" {
		n.cfg.Redact = func(error) string { panic("boom") }
	}
	var errs []error
	n.cfg.ErrorHandler = func(_ context.Context, err error, _ string) {
		errs = append(errs, err)
		call("ErrorHandler")
	}
	n.start()
	n.delivers("A")
	n.restarts()
	n.goes(DefaultSoak)
	n.delivers("bad")
	n.yields(delivery{err: errors.New("away")})
	n.goes(time.Minute)
	n.delivers("B")
	n.restarts()
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	if err := n.c.Check(nil); err != nil {
		t.Errorf("Check = %v", err)
	}
	n.stop(nil)
	if shown := strings.Contains(n.c.Status().Message, "ill"); shown == (name == "Redact") {
		t.Errorf("the status says %q", n.c.Status().Message)
	}
	if len(errs) == 0 {
		t.Error("the scenario has no error")
	}
	if name != "" && name != "ErrorHandler" {
		callbacktest.WantPanic(t, errs, name)
	}
	return log
}

// TestAPanicIsTheErrorOfItsCallback: the configuration that it was about does not run,
// or the next delivery runs if it was about none.
func TestAPanicIsTheErrorOfItsCallback(t *testing.T) {
	boom := func(about string) {
		if about == "B" {
			panic("boom")
		}
	}
	for name, c := range map[string]struct {
		change func(*node)
		reason Reason
	}{
		"Codec.Decode": {func(n *node) {
			n.cfg.Codec.Decode = func(data []byte) (string, error) { boom(string(data)); return string(data), nil }
		}, ReasonDecodeFailed},
		"Codec.Validate": {func(n *node) {
			n.cfg.Codec.Validate = func(config string) error { boom(config); return nil }
		}, ReasonValidationFailed},
		"Apply": {func(n *node) {
			n.cfg.Apply = func(_ context.Context, a Active[string]) error { boom(a.Config); n.active = a; return nil }
		}, ReasonApplyFailed},
		"Trial.Health": {func(n *node) {
			n.cfg.Apply = func(_ context.Context, a Active[string]) error { n.active = a; return nil }
			n.cfg.Trial.Health = func(context.Context) error { boom(n.active.Config); return nil }
		}, ReasonUnhealthy},
		"Admit": {func(n *node) {
			n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) { boom(string(p.Data)); return 0, nil }
		}, ReasonWaiting},
		"Source": {func(n *node) {
			n.cfg.Source = SourceFunc(func(ctx context.Context) iter.Seq2[Payload, error] {
				return func(yield func(Payload, error) bool) {
					for p, err := range n.feed.Payloads(ctx) {
						boom(string(p.Data))
						if !yield(p, err) {
							return
						}
					}
				}
			})
		}, ReasonSourceFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := proven(t, "A")
				n.stop(nil)
				var errs []error
				n.cfg.ErrorHandler = func(_ context.Context, err error, _ string) { errs = append(errs, err) }
				c.change(n)
				n.start()
				n.delivers("B")
				n.goes(time.Hour)
				n.runs()
				if s := n.c.Status(); s.Reason != c.reason || n.active.Config != "A" {
					t.Errorf("%s runs, and the status is %+v", n.active.Config, s)
				}
				callbacktest.WantPanic(t, errs, name)
				if strings.Contains(fmt.Sprint(n.c.Status()), "goroutine") {
					t.Errorf("the status has the stack: %v", n.c.Status())
				}
				n.stop(nil)
			})
		})
	}
}
