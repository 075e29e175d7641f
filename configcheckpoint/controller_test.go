// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
	"github.com/kubewright/kubewright/internal/testlog"
)

// feed is a Source that a test speaks through.
type feed chan delivery

func (f feed) Payloads(ctx context.Context) iter.Seq2[Payload, error] {
	return func(yield func(Payload, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case a := <-f:
				if !yield(a.payload, a.err) {
					return
				}
			}
		}
	}
}

// node is a machine with a disk, on which a process runs or does not.
type node struct {
	t    *testlog.T
	disk *slottest.Disk
	cfg  Config[string]
	boot string // the machine's boot ID

	feed   feed
	c      *Controller[string]
	active Active[string]
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run
	seen   []Status
}

// newNode makes a node inside a bubble.
func newNode(t *testing.T) *node {
	n := &node{t: testlog.New(t), disk: slottest.New(), boot: "boot 1", feed: make(feed)}
	n.cfg = Config[string]{
		Dir: "/crashfs", Codec: testCodec(), Source: n.feed, Build: "1",
		ErrorHandler: func(_ context.Context, err error, msg string) { n.t.Notef("%s: %v", msg, err) },
		Hooks:        Hooks{StatusChanged: func(s Status) { n.seen = append(n.seen, s) }},
	}
	t.Cleanup(func() {
		if n.cancel != nil {
			n.cancel()
			<-n.done
		}
	})
	return n
}

// start starts a process, as a supervisor does.
func (n *node) start() Active[string] {
	n.t.Helper()
	c, err := New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	c.store, c.bootID = storeOn(n.disk), func() string { return n.boot }
	c.check = func(s *rollout.State, err error) {
		if err = errors.Join(err, s.Check()); err != nil {
			n.t.Error(err)
		}
	}
	n.c = c
	n.active, err = c.Boot(n.t.Context())
	if err != nil {
		n.t.Fatalf("Boot: %v", err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	n.cancel, n.done = cancel, done
	go func() {
		defer close(done)
		n.err = c.Run(ctx)
	}()
	synctest.Wait()
	return n.active
}

// kill ends the process without a word.
func (n *node) kill() {
	n.t.Helper()
	n.cancel()
	<-n.done
	n.cancel = nil
	if err := n.c.store.Close(); err != nil {
		n.t.Error(err)
	}
}

// stop ends the process in good order; why is the reason.
func (n *node) stop(why error) {
	n.t.Helper()
	n.cancel()
	<-n.done
	n.cancel = nil
	if err := n.c.Close(why); err != nil {
		n.t.Error(err)
	}
}

// restarts waits for the restart that Run asks for and carries it out.
func (n *node) restarts() Active[string] {
	n.t.Helper()
	synctest.Wait()
	select {
	case <-n.done:
	default:
		n.t.Fatalf("Run goes on, want a restart: %+v", n.c.Status())
	}
	if !errors.Is(n.err, ErrRestart) {
		n.t.Fatalf("Run returned %v, want ErrRestart", n.err)
	}
	n.stop(nil)
	return n.start()
}

// delivers has the source yield a payload; "" is that nothing is assigned.
func (n *node) delivers(text string) {
	n.t.Helper()
	p := Payload{Name: "test"}
	if p.Unassign = text == ""; !p.Unassign {
		p.Data = []byte(text)
	}
	n.yields(delivery{payload: p})
}

func (n *node) yields(a delivery) {
	n.t.Helper()
	select {
	case n.feed <- a:
	case <-n.done:
		n.t.Fatalf("Run has returned %v", n.err)
	case <-time.After(time.Hour):
		n.t.Fatal("nobody takes what the source yields")
	}
	synctest.Wait()
}

// goes lets time pass.
func (n *node) goes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// is checks what runs and the condition.
func (n *node) is(config string, ok bool, phase Phase, reason Reason) {
	n.t.Helper()
	s := n.c.Status()
	if s.OK != ok || s.Phase != phase || s.Reason != reason {
		n.t.Errorf("the status is %t %s %s (%s), want %t %s %s", s.OK, s.Phase, s.Reason, s.Message, ok, phase, reason)
	}
	if n.active.Config != config {
		n.t.Errorf("runs %q, want %q", n.active.Config, config)
	}
}

// runs checks that Run goes on.
func (n *node) runs() {
	n.t.Helper()
	synctest.Wait()
	select {
	case <-n.done:
		n.t.Errorf("Run has returned %v", n.err)
	default:
	}
}

// has a node with one configuration proven and running.
func proven(t *testing.T, text string) *node {
	t.Helper()
	n := newNode(t)
	n.start()
	n.delivers(text)
	n.restarts()
	n.goes(DefaultSoak)
	n.is(text, true, PhaseGood, ReasonGood)
	return n
}

const (
	isTrue  = true
	isFalse = false
)

// TestRollout is the whole way of a good configuration.
func TestRollout(t *testing.T) { synctest.Test(t, testRollout) }
func testRollout(t *testing.T) {
	n := newNode(t)
	if a := n.start(); a.Role != RoleDefault || a.Trial || !a.Ref.Digest.IsZero() {
		t.Errorf("%+v", a)
	}
	n.is("default", isTrue, PhaseDefault, ReasonDefault)
	n.delivers("A")
	if got := n.c.Status(); got.Phase != PhaseStaged || got.Reason != ReasonStaged || got.OK != isTrue || got.Assigned.Name != "test" {
		t.Errorf("before the restart: %+v", got)
	}
	if a := n.restarts(); a.Config != "A" || a.Role != RoleAssigned || !a.Trial {
		t.Errorf("%+v", a)
	}
	n.is("A", isTrue, PhaseTrial, ReasonTrial)
	n.delivers("A") // as an informer does at first
	n.goes(DefaultSoak - time.Second)
	n.is("A", isTrue, PhaseTrial, ReasonTrial)
	n.goes(time.Second)
	n.is("A", isTrue, PhaseGood, ReasonGood)
	before := n.disk.Changes()
	n.goes(30 * 24 * time.Hour)
	if after := n.disk.Changes(); after != before { // an ancestor wrote what was good every ten seconds
		t.Errorf("%d changes of the disk in a month", after-before)
	}
	n.stop(nil)
	if n.err != nil {
		t.Errorf("Run returned %v", n.err)
	}
	if a := n.start(); a.Config != "A" || a.Trial {
		t.Errorf("%+v", a)
	}
}

// TestTransitionMatrix goes from each kind of configuration to each other one.
// The bad ones never cause a restart.
func TestTransitionMatrix(t *testing.T) {
	kinds := map[string]struct {
		text   string
		reason Reason
	}{
		"default":      {"", ReasonDefault},
		"good":         {"good 1", ReasonGood},
		"other":        {"good 2", ReasonGood},
		"not decoding": {"bad 1", ReasonDecodeFailed},
		"not valid":    {"invalid 1", ReasonValidationFailed},
		"not admitted": {"foreign 1", ReasonNotAdmitted},
		"empty":        {"\x00", ReasonGood},
		"too large":    {strings.Repeat("x", MaxPayloadSize+1), ReasonTooLarge},
	}
	for from, a := range kinds {
		for to, b := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNode(t)
					n.cfg.Codec.Validate = func(s string) error {
						if strings.HasPrefix(s, "invalid") {
							return errors.New("not valid")
						}
						return nil
					}
					n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) {
						if strings.HasPrefix(string(p.Data), "foreign") {
							return 0, fmt.Errorf("%w: not signed", ErrRefused)
						}
						return 0, nil
					}
					n.start()
					running := "default"
					for _, kind := range []struct {
						text   string
						reason Reason
					}{a, b} {
						n.delivers(kind.text)
						switch {
						case kind.reason == ReasonGood && running != kind.text:
							running = kind.text
							n.restarts()
							n.goes(DefaultSoak)
						case kind.reason == ReasonDefault && running != "default":
							running = "default"
							n.restarts()
						}
						n.goes(time.Hour)
						n.runs()
						if s := n.c.Status(); s.Reason != kind.reason || (s.OK == isTrue) != (kind.reason == ReasonGood || kind.reason == ReasonDefault) {
							t.Errorf("%+v, want %s", s, kind.reason)
						}
						if n.active.Config != running {
							t.Errorf("runs %.20q, want %.20q", n.active.Config, running)
						}
					}
				})
			})
		}
	}
}

func TestFallbackToLastKnownGood(t *testing.T) { synctest.Test(t, testFallbackToLastKnownGood) }
func testFallbackToLastKnownGood(t *testing.T) {
	n := proven(t, "A")
	n.cfg.Trial.Health = func(context.Context) error { return errors.New("no network") }
	n.delivers("B")
	n.restarts()
	n.goes(DefaultGrace - time.Second)
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if s := n.c.Status(); !strings.Contains(s.Message, "no network") || s.Attempt != 1 || s.Attempts != 3 {
		t.Errorf("%+v", s)
	}
	n.goes(time.Second)
	if a := n.restarts(); a.Role != RoleLastKnownGood || a.Trial {
		t.Errorf("%+v", a)
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	if s := n.c.Status(); !strings.Contains(s.Message, "no network") {
		t.Errorf("the message does not say why: %s", s.Message)
	}
	n.delivers("B") // again and again
	n.goes(24 * time.Hour)
	n.runs()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	n.delivers("A") // the operator reverts
	n.runs()
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

// TestUnassignWithoutDefault keeps what runs, because there is nothing else.
func TestUnassignWithoutDefault(t *testing.T) { synctest.Test(t, testUnassignWithoutDefault) }
func testUnassignWithoutDefault(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Codec.Default = nil
	n.start()
	n.delivers("")
	n.goes(time.Hour)
	n.runs()
	n.is("A", isFalse, PhaseGood, ReasonNoDefault)
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

func TestSourceErrorsKeepConfig(t *testing.T) { synctest.Test(t, testSourceErrorsKeepConfig) }
func testSourceErrorsKeepConfig(t *testing.T) {
	n := proven(t, "A")
	since := n.c.Status().Since
	for range 100 {
		n.yields(delivery{err: errors.New("gone")})
	}
	n.is("A", isTrue, PhaseGood, ReasonSourceFailed)
	if s := n.c.Status(); !strings.Contains(s.Message, "gone") || s.Since != since {
		t.Errorf("%+v, want the transition of %v", s, since)
	}
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
	n.runs()
}
