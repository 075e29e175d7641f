// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright"
)

// An act records what the controllers of a test do.
type act struct {
	mu    sync.Mutex
	begun time.Time
	log   []string
}

func (a *act) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, fmt.Sprintf("%v ", time.Since(a.begun))+fmt.Sprintf(format, args...))
}

func (a *act) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.log, "\n")
}

// A stub is a controller that takes a while to return.
type stub struct {
	*act
	name  string
	takes time.Duration
	run   func(ctx context.Context) error // nil: until ctx is done
}

func (s *stub) Name() string { return s.name }

func (s *stub) Run(ctx context.Context) error {
	if s.run != nil {
		return s.run(ctx)
	}
	<-ctx.Done()
	s.note("%s is stopped", s.name)
	time.Sleep(s.takes)
	s.note("%s returns", s.name)
	return nil
}

type actor struct {
	*stub
	gated bool
}

func (a *actor) Gated() bool { return a.gated }

type holder struct{ *stub }

func (holder) Holds(context.Context, string) error { return nil }

func TestRunStopsTheLastFirst(t *testing.T) {
	for name, c := range map[string]struct {
		takes []time.Duration // first, second, third
		want  string
		err   string
	}{
		"in time": {[]time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, `
1m0s third is stopped
1m3s third returns
1m3s second is stopped
1m5s second returns
1m5s first is stopped
1m6s first returns`, ""},
		"the last is late": {[]time.Duration{time.Second, 2 * time.Second, 12 * time.Second}, `
1m0s third is stopped
1m8s second is stopped
1m10s second returns
1m12s third returns
1m12s first is stopped
1m13s first returns`, ""},
		"the last hangs": {[]time.Duration{time.Second, 2 * time.Second, time.Hour}, `
1m0s third is stopped
1m8s second is stopped
1m10s second returns
1m16s first is stopped
1m17s first returns`, "kubewright: third has not returned"},
		"two are late": {[]time.Duration{time.Second, 7 * time.Second, 7 * time.Second}, `
1m0s third is stopped
1m7s third returns
1m7s second is stopped
1m14s second returns
1m14s first is stopped
1m15s first returns`, ""},
		"the first hangs": {[]time.Duration{time.Hour, 0, 0}, `
1m0s third is stopped
1m0s third returns
1m0s second is stopped
1m0s second returns
1m0s first is stopped`, "kubewright: first has not returned"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &act{begun: time.Now()}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := kubewright.Run(ctx, &stub{act: a, name: "first", takes: c.takes[0]}, &stub{act: a, name: "second", takes: c.takes[1]}, &stub{act: a, name: "third", takes: c.takes[2]})
				if (c.err == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				if took := time.Since(a.begun) - time.Minute; took > 24*time.Second {
					t.Errorf("the end took %v", took)
				}
				if got := "\n" + a.String(); got != c.want {
					t.Errorf("got %s\nwant %s", got, c.want)
				}
				time.Sleep(2 * time.Hour) // what hangs
			})
		})
	}
}

func TestRunEndsWithTheFirstThatReturns(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		run  func(ctx context.Context) error
		want string
	}{
		"with an error": {func(context.Context) error { return boom }, "kubewright: second: boom"},
		"with nil":      {func(context.Context) error { return nil }, "kubewright: second returned before it was stopped"},
		"by Goexit":     {func(context.Context) error { runtime.Goexit(); return nil }, "kubewright: second ended its goroutine with runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &act{begun: time.Now()}
				err := kubewright.Run(t.Context(), &stub{act: a, name: "first"}, &stub{act: a, name: "second", run: c.run}, &stub{act: a, name: "third"})
				if err == nil || err.Error() != c.want {
					t.Errorf("%v, want %s", err, c.want)
				}
				if got, want := a.String(), "0s third is stopped\n0s third returns\n0s first is stopped\n0s first returns"; got != want {
					t.Errorf("got %s", got)
				}
			})
		})
	}
}

// The errors of those that were stopped are not lost.
func TestRunReturnsAllErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(err error) func(context.Context) error {
			return func(ctx context.Context) error { <-ctx.Done(); return err }
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		one, two := errors.New("one"), errors.New("two")
		err := kubewright.Run(ctx, &stub{name: "first", run: fails(one)}, &stub{name: "second", run: fails(two)})
		if !errors.Is(err, one) || !errors.Is(err, two) {
			t.Errorf("%v", err)
		}

		// The error of the one that has returned on its own is the reason, and comes first.
		err = kubewright.Run(t.Context(), &stub{name: "first", run: fails(one)}, &stub{name: "second", run: func(context.Context) error { return two }})
		if want := "kubewright: second: two\nkubewright: first: one"; err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	})
}

// A panic stops the others, also those that hang, and is raised again.
func TestRunRaisesAPanicAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &act{begun: time.Now()}
		boom := errors.New("boom")
		defer func() {
			err, ok := recover().(error)
			if !ok || !errors.Is(err, boom) || !strings.Contains(err.Error(), "panic in second") || !strings.Contains(err.Error(), "run_test.go") {
				t.Errorf("recovered %v", err)
			}
			if took := time.Since(a.begun); took > 24*time.Second {
				t.Errorf("the end took %v", took)
			}
			if got := a.String(); !strings.Contains(got, "first returns") {
				t.Errorf("got %s", got)
			}
			time.Sleep(2 * time.Hour)
		}()
		_ = kubewright.Run(t.Context(), &stub{act: a, name: "first"}, &stub{act: a, name: "second", run: func(context.Context) error { panic(boom) }}, &stub{act: a, name: "third", takes: time.Hour})
		t.Error("no panic")
	})
}

func TestRunStartsNothing(t *testing.T) {
	a := &act{}
	started := &stub{act: a, name: "lease", run: func(context.Context) error { a.note("started"); return nil }}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := kubewright.Run(done, started); err != nil {
		t.Errorf("with a context that is done: %v", err)
	}
	if err := kubewright.Run(done); err != nil {
		t.Errorf("nothing: %v", err)
	}
	if err := kubewright.Run(t.Context(), started, (*stub)(nil)); err == nil || err.Error() != "kubewright: controller 1 is nil" {
		t.Errorf("with nil: %v", err)
	}
	pods := &actor{stub: &stub{act: a, name: "podsync"}}
	if err := kubewright.Run(t.Context(), holder{started}, pods); err == nil || !strings.HasPrefix(err.Error(), "kubewright: podsync has no Gate") {
		t.Errorf("without a gate: %v", err)
	}
	if log := a.String(); log != "" {
		t.Errorf("%s", log)
	}
	pods.gated = true
	if err := kubewright.Run(t.Context(), holder{started}, pods); err == nil || err.Error() != "kubewright: lease returned before it was stopped" {
		t.Errorf("with a gate: %v", err)
	}
	pods.gated = false
	if err := kubewright.Run(done, started, pods); err != nil {
		t.Errorf("without a lease: %v", err)
	}
}
