// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestInvalidConfigNamesEveryField(t *testing.T) {
	_, err := New(Config[string]{
		Dir: "../state", Build: "two\nlines",
		Trial: Trial{Soak: time.Millisecond, Attempts: -1, Every: -1, Grace: -1},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"configcheckpoint: invalid config: ", "Dir: Invalid value", "Codec.Decode: Required", "Source: Required", "Build: Invalid",
		"Trial.Soak: Invalid", "Trial.Attempts: Invalid", "Trial.Every: Invalid", "Trial.Grace: Invalid",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	for _, dir := range []string{"", "relative", "/a/../b", "/a//b", "/a/", "/a/./b", ".."} {
		if _, err := New(Config[string]{Dir: dir, Codec: testCodec(), Source: make(feed)}); err == nil || !strings.Contains(err.Error(), "Dir: ") {
			t.Errorf("Dir %q: %v", dir, err)
		}
	}
	c, err := New(Config[string]{Dir: "/a/b", Codec: testCodec(), Source: make(feed)})
	if err != nil {
		t.Fatal(err)
	}
	want := Trial{Soak: DefaultSoak, Attempts: DefaultAttempts, Every: DefaultEvery, Grace: DefaultGrace}
	if got := c.cfg.Trial; got.Soak != want.Soak || got.Attempts != want.Attempts || got.Every != want.Every || got.Grace != want.Grace {
		t.Errorf("%+v, want %+v", got, want)
	}
	if c.Name() != DefaultName {
		t.Errorf("%+v", c.cfg)
	}
}

func TestWrongOrder(t *testing.T) { synctest.Test(t, testWrongOrder) }
func testWrongOrder(t *testing.T) {
	n := newNode(t)
	c, err := New(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.store = storeOn(n.disk)
	is := func(what string, got, want error) {
		t.Helper()
		if !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	is("Verdict before Boot", c.Verdict(nil), ErrNotBooted)
	is("Forget before Boot", c.Forget(Digest{}), ErrNotBooted)
	if s := c.Status(); s != (Status{}) {
		t.Errorf("%+v", s)
	}
	is("Run before Boot", c.Run(t.Context()), ErrNotBooted)
	_, err = c.Boot(t.Context())
	is("Boot", err, nil)
	_, err = c.Boot(t.Context())
	is("the second Boot", err, ErrAlreadyBooted)
	is("Run after a Run", c.Run(t.Context()), ErrAlreadyRun)
	is("Verdict without a trial", c.Verdict(nil), ErrNoTrial)
	is("Close", c.Close(nil), nil)
	is("the second Close", c.Close(nil), nil)
	is("Verdict after Close", c.Verdict(nil), ErrClosed)
	is("Forget after Close", c.Forget(Digest{}), ErrClosed)
	_, err = c.Boot(t.Context())
	is("Boot after Close", err, ErrClosed)

	n.start()
	if err := n.c.Close(nil); err == nil {
		t.Error("Close while Run runs: no error")
	}
	is("the second Run", n.c.Run(t.Context()), ErrAlreadyRun)
}

func TestNoConfig(t *testing.T) { synctest.Test(t, testNoConfig) }
func testNoConfig(t *testing.T) {
	n := proven(t, "A")
	n.kill()
	n.spoil("A")
	for _, defaults := range []func() (string, error){
		nil,
		func() (string, error) { return "", errors.New("no such machine") },
		func() (string, error) { panic("no such machine") },
	} {
		n.cfg.Codec.Default = defaults
		c, err := New(n.cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.store = storeOn(n.disk)
		_, err = c.Boot(t.Context())
		var all *NoConfigError
		if !errors.Is(err, ErrNoConfig) || !errors.As(err, &all) || len(all.Causes) != 2 || !strings.Contains(err.Error(), "CheckpointCorrupt") {
			t.Errorf("Boot: %v", err)
		}
		if defaults != nil && !strings.Contains(err.Error(), "no such machine") {
			t.Errorf("Boot: %v", err)
		}
		if err := c.Forget(ref("A").Digest); !errors.Is(err, ErrNotBooted) {
			t.Errorf("Forget: %v", err)
		}
		if err := c.Close(nil); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseDuringBoot: Boot went on with a store that was closed, and started a
// configuration on trial whose start was not counted.
func TestCloseDuringBoot(t *testing.T) { synctest.Test(t, testCloseDuringBoot) }
func testCloseDuringBoot(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.stop(nil)
	decoding, decode := make(chan struct{}), make(chan struct{})
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		close(decoding)
		<-decode
		return string(data), nil
	}
	c, err := New(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.store = storeOn(n.disk)
	booted := make(chan error, 1)
	go func() {
		_, err := c.Boot(t.Context())
		booted <- err
	}()
	<-decoding
	if err := c.Close(nil); err == nil {
		t.Error("Close during Boot: no error")
	}
	close(decode)
	if err := <-booted; err != nil {
		t.Error(err)
	}
	if err := c.Verdict(nil); err != nil {
		t.Errorf("Verdict: %v", err)
	}
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
}

// TestVerdictOnDeadDisk: the roll-back is carried out although it can't be
// written, and holds.
func TestVerdictOnDeadDisk(t *testing.T) { synctest.Test(t, testVerdictOnDeadDisk) }
func testVerdictOnDeadDisk(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	n.disk.Break(errReadOnly)
	if err := n.c.Verdict(nil); !errors.Is(err, errReadOnly) {
		t.Errorf("a promotion that could not be written: %v", err)
	}
	n.is("B", isFalse, PhaseTrial, ReasonStoreReadOnly)
	if err := n.c.Verdict(errors.New("ill")); !errors.Is(err, errReadOnly) {
		t.Errorf("a rejection that could not be written: %v", err)
	}
	n.restarts()
	for range 5 {
		n.is("A", isFalse, PhaseDegraded, ReasonStoreReadOnly)
		n.goes(time.Hour)
		n.runs()
		n.kill()
		n.start()
	}
}

// TestRejectionIsWrittenLater: the disk comes back while the process runs.
func TestRejectionIsWrittenLater(t *testing.T) { synctest.Test(t, testRejectionIsWrittenLater) }
func testRejectionIsWrittenLater(t *testing.T) {
	n := hot(t, "A", takesAll)
	n.delivers("B")
	n.disk.Break(errReadOnly)
	if err := n.c.Verdict(errors.New("ill")); !errors.Is(err, errReadOnly) {
		t.Fatal(err)
	}
	synctest.Wait()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	n.goes(time.Hour)
	n.disk.Break(nil)
	n.goes(storeRetry().Cap)
	n.delivers("A")
	n.delivers("B")
	n.is("A", isFalse, PhaseGood, ReasonUnhealthy)
	n.stop(nil)
	n.start()
	n.delivers("B")
	n.is("A", isFalse, PhaseGood, ReasonUnhealthy)
}

func TestForget(t *testing.T) { synctest.Test(t, testForget) }
func testForget(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	if err := n.c.Forget(ref("never seen").Digest); err != nil {
		t.Error(err)
	}
	n.runs()
	if err := n.c.Forget(ref("B").Digest); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if s := n.c.Status(); s.Attempt != 1 {
		t.Errorf("start %d, want 1", s.Attempt)
	}
	// A payload that was rejected on delivery is inspected again, too.
	n.c.cfg.Codec.Validate = func(text string) error {
		if text == "C" {
			return errors.New("no such device")
		}
		return nil
	}
	n.delivers("C")
	n.is("B", isFalse, PhaseTrial, ReasonValidationFailed)
	n.c.cfg.Codec.Validate = nil // the device has been plugged in
	if err := n.c.Forget(ref("C").Digest); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.is("C", isTrue, PhaseTrial, ReasonTrial)
}

// TestForgetDuringARollBack: the configuration still runs while Apply replaces it,
// and so it was not tried again.
func TestForgetDuringARollBack(t *testing.T) { synctest.Test(t, testForgetDuringARollBack) }
func testForgetDuringARollBack(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Apply = func(context.Context, Active[string]) error {
		time.Sleep(2 * time.Second)
		return nil
	}
	n.start()
	n.delivers("B")
	n.goes(5 * time.Second)
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.goes(time.Second)
	if err := n.c.Forget(ref("B").Digest); err != nil {
		t.Fatal(err)
	}
	n.goes(5 * time.Second)
	if s := n.c.Status(); s.Active.Digest != ref("B").Digest || s.Phase != PhaseTrial {
		t.Errorf("%s is active, %s", s.Active, s.Phase)
	}
}
