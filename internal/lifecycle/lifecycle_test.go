// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOnce(t *testing.T) {
	var o Once
	if o.Begun() {
		t.Error("Begun before Begin")
	}
	if !o.Begin() {
		t.Error("the first Begin was refused")
	}
	if o.Begin() {
		t.Error("the second Begin was allowed")
	}
	if !o.Begun() {
		t.Error("not Begun after Begin")
	}
}

func TestShutdownOutlivesItsParentForTheTimeoutOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), key{}, "kept"))
		cancelParent()
		ctx, cancel := Shutdown(parent, 5*time.Second)
		defer cancel()
		if ctx.Err() != nil || ctx.Value(key{}) != "kept" {
			t.Fatalf("err %v, value %v: want a live context with the parent's values", ctx.Err(), ctx.Value(key{}))
		}
		start := time.Now()
		<-ctx.Done()
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("done after %v, want 5s", got)
		}
	})
}

func TestReady(t *testing.T) {
	r := NewReady("lease")
	select {
	case <-r.Done():
		t.Fatal("done before Mark")
	default:
	}
	r.Mark()
	r.Mark()
	<-r.Done()
	if r.Name() != "lease" {
		t.Errorf("Name = %q", r.Name())
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress("lease", time.Minute)
		time.Sleep(time.Hour)
		if err := p.Check(); err != nil {
			t.Errorf("before the first beat: %v", err)
		}
		p.Beat()
		time.Sleep(time.Minute)
		if err := p.Check(); err != nil {
			t.Errorf("at the limit: %v", err)
		}
		time.Sleep(time.Second)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), "no progress for 1m1s") {
			t.Errorf("past the limit: %v", err)
		}
		p.Beat()
		if err := p.Check(); err != nil {
			t.Errorf("after a new beat: %v", err)
		}
		p.Stop()
		p.Beat() // from work that was still running
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), "Run has returned") {
			t.Errorf("after Stop: %v", err)
		}
	})
}

func TestInvalidConfigNamesEveryField(t *testing.T) {
	if err := InvalidConfig("lease", nil); err != nil {
		t.Errorf("no problems gave %v", err)
	}
	interval, workers := -time.Second, 0
	problems := []error{Missing("NodeName", "")}
	problems = append(problems, DefaultDuration("RenewInterval", &interval, 10*time.Second, time.Second)...)
	problems = append(problems, DefaultInt("Workers", &workers, 64, 1)...)
	err := InvalidConfig("lease", problems)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"lease: invalid config: ", "NodeName: Required value", `RenewInterval: Invalid value: "-1s": must be at least 1s, or 0 for the default of 10s`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	for _, problem := range problems {
		if !errors.Is(err, problem) {
			t.Errorf("%v does not wrap %v", err, problem)
		}
	}
	if workers != 64 {
		t.Errorf("Workers = %d, want the default", workers)
	}
}
