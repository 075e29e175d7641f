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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/internal/durable"
)

// TestHooks goes through all of them, in order.
func TestHooks(t *testing.T) { synctest.Test(t, testHooks) }
func testHooks(t *testing.T) {
	n := newNode(t)
	var log []string
	add := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	n.cfg.Hooks = Hooks{
		Delivered: func(i Delivered) { add("delivered %d bytes, %v", i.Ref.Size, i.Err) },
		Staged:    func(i Staged) { add("staged %d bytes, proven %v", i.Ref.Size, i.Proven) },
		Promoted:  func(i Promoted) { add("promoted %d bytes, verdict %v", i.Ref.Size, i.ByVerdict) },
		Rejected:  func(i Rejected) { add("rejected %d bytes, %s, %v", i.Ref.Size, i.Reason, i.RolledBack) },
		StatusChanged: func(s Status) {
			add("status %s", s.Reason)
			if got := n.c.Status(); got != s { // no lock is held
				t.Errorf("%+v, want %+v", got, s)
			}
		},
	}
	n.start()
	n.delivers("A")
	n.restarts()
	n.goes(DefaultSoak)
	n.delivers("bad %s")
	n.delivers("B1")
	n.restarts()
	if err := n.c.Verdict(errors.New("100% ill")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.delivers("C12")
	n.restarts()
	if err := n.c.Verdict(nil); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	n.yields(delivery{err: errors.New("away")})
	want := strings.Split(strings.TrimSpace(`
status Default
delivered 1 bytes, <nil>
staged 1 bytes, proven false
status Staged
status Trial
promoted 1 bytes, verdict false
status Good
delivered 6 bytes, <nil>
rejected 6 bytes, DecodeFailed, false
status DecodeFailed
delivered 2 bytes, <nil>
staged 2 bytes, proven false
status Staged
status Trial
rejected 2 bytes, Unhealthy, true
status Unhealthy
status Unhealthy
delivered 3 bytes, <nil>
staged 3 bytes, proven false
status Staged
status Trial
promoted 3 bytes, verdict true
status Good
delivered 0 bytes, away
status SourceFailed`), "\n")
	if !slices.Equal(log, want) {
		t.Errorf("got:\n%s", strings.Join(log, "\n"))
	}
}

// TestRedact: text that an error quotes goes no further than the error handler.
func TestRedact(t *testing.T) { synctest.Test(t, testRedact) }
func testRedact(t *testing.T) {
	const secret = "hunter2"
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Redact = func(error) string { return "redacted" }
	n.cfg.Trial.Health = func(context.Context) error { return errors.New(secret) }
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		if string(data) == "B" {
			return "", errors.New(secret)
		}
		return string(data), nil
	}
	n.cfg.Apply = func(_ context.Context, a Active[string]) error {
		if a.Config == "D" {
			return errors.New(secret)
		}
		n.active = a
		return nil
	}
	n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) {
		if string(p.Data) == "E" {
			return 0, fmt.Errorf("%w: %s", ErrRefused, secret)
		}
		return 0, nil
	}
	n.cfg.Hooks.Rejected = func(i Rejected) {
		if i.Message != "redacted" {
			t.Errorf("%+v", i)
		}
	}
	n.start()
	for _, text := range []string{"B", "C", "D", "E"} {
		n.delivers(text)
		n.goes(10 * time.Second)
		n.goes(DefaultGrace)
		if s := n.c.Status(); !strings.Contains(s.Message, "redacted") {
			t.Errorf("%s: %s", text, s.Message)
		}
	}
	n.stop(errors.New(secret))
	for _, s := range n.seen {
		if strings.Contains(s.Message, secret) {
			t.Error(s.Message)
		}
	}
	for _, name := range n.disk.Files() {
		if data, _ := n.disk.Data(name); strings.Contains(string(data), secret) {
			t.Errorf("%s holds the secret", name)
		}
	}
}

// TestSourceMisbehaves: it panics, ends, and fails in a loop.
func TestSourceMisbehaves(t *testing.T) { synctest.Test(t, testSourceMisbehaves) }
func testSourceMisbehaves(t *testing.T) {
	n := newNode(t)
	calls, yields := 0, 0
	n.cfg.Source = SourceFunc(func(ctx context.Context) iter.Seq2[Payload, error] {
		return func(yield func(Payload, error) bool) {
			if calls++; calls == 1 {
				panic("index out of range")
			}
			for ctx.Err() == nil {
				if yields++; !yield(Payload{}, errors.New("away")) {
					return
				}
			}
		}
	})
	n.start()
	n.goes(time.Hour)
	n.is("default", isTrue, PhaseDefault, ReasonSourceFailed)
	if calls != 2 || yields > 800 {
		t.Errorf("ranged over %d times, %d errors in an hour", calls, yields)
	}
	n.stop(nil)

	n.cfg.Source = SourceFunc(func(context.Context) iter.Seq2[Payload, error] {
		return func(yield func(Payload, error) bool) {
			data := []byte("A")
			yield(Payload{Data: data}, nil)
			data[0] = 'X' // the controller has a copy
		}
	})
	n.start()
	n.restarts()
	n.is("A", isTrue, PhaseTrial, ReasonTrial)
	n.goes(DefaultSoak) // the source has ended, and the trial goes on
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

// TestLateDisk: the volume is mounted after the boot.
func TestLateDisk(t *testing.T) { synctest.Test(t, testLateDisk) }
func testLateDisk(t *testing.T) {
	n := proven(t, "A")
	n.kill()
	late := &lateDisk{FS: n.disk}
	c, err := New(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.store = storeOn(late)
	a, err := c.Boot(t.Context())
	if err != nil || a.Config != "default" {
		t.Fatalf("%+v, %v", a, err)
	}
	n.c = c
	n.done = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	n.cancel = cancel
	done := n.done
	go func() {
		defer close(done)
		n.err = c.Run(ctx)
	}()
	n.goes(time.Hour)
	n.runs()
	late.mounted.Store(true)
	n.goes(storeRetry().Cap)
	n.restarts()
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

type lateDisk struct {
	durable.FS
	mounted atomic.Bool
}

func (d *lateDisk) Open() error {
	if !d.mounted.Load() {
		return errors.New("no such device")
	}
	return d.FS.Open()
}
