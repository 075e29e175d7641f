// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests of this file start this test binary again, as an agent that can be
// killed: TestMain calls runChild, which follows the environment.

const childEnv = "CONFIGCHECKPOINT_CHILD"

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+role+":"+dir)
	return cmd
}

// runChild is the main function of the children. It returns the exit status.
func runChild() int {
	role, dir, _ := strings.Cut(os.Getenv(childEnv), ":")
	run := map[string]func(string) error{"boot": childBoot, "agent": childAgent}[role]
	if err := run(dir); err != nil {
		fmt.Println("error:", err)
		if errors.Is(err, ErrRestart) {
			return 75
		}
		return 1
	}
	return 0
}

func childConfig(dir string) Config[string] {
	return Config[string]{
		Dir: dir, Codec: testCodec(), Source: make(feed), Build: "test",
		ErrorHandler: func(context.Context, error, string) {},
	}
}

func childBoot(dir string) error {
	c, err := New(childConfig(dir))
	if err != nil {
		return err
	}
	_, err = c.Boot(context.Background())
	return err
}

// childAgent is an agent that does what its configuration says.
func childAgent(dir string) error {
	source, err := File(filepath.Join(filepath.Dir(dir), "source"), 10*time.Millisecond)
	if err != nil {
		return err
	}
	cfg := childConfig(dir)
	cfg.Source, cfg.Trial = source, Trial{Soak: time.Second}
	cfg.Codec.Decode = decodeDeadly
	c, err := New(cfg)
	if err != nil {
		return err
	}
	c.codec.Limit, c.shutdownTimeout = 100*time.Millisecond, 100*time.Millisecond
	a, err := c.Boot(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("started", a.Config)
	switch a.Config {
	case "panic":
		panic("as told")
	case "exit":
		os.Exit(0)
	case "abort":
		return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGABRT), errors.New("still here"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-c.Ready().Done() // the delivery was handled
		for c.Status().Phase == PhaseTrial {
			time.Sleep(10 * time.Millisecond)
		}
		if c.Status().Phase != PhaseStaged {
			cancel()
		}
	}()
	err = c.Run(ctx)
	fmt.Println("ended", c.Status().Reason)
	return errors.Join(err, c.Close(nil))
}

// decodeDeadly does what some payloads say.
func decodeDeadly(data []byte) (string, error) {
	switch string(data) {
	case "decode: exit":
		os.Exit(3)
	case "decode: overflow":
		debug.SetMaxStack(1 << 16)
		return fmt.Sprint(overflow(1)), nil
	case "decode: hang":
		select {}
	}
	return string(data), nil
}

//lint:ignore SA5007 ends the process by a stack overflow
func overflow(n int) int { return overflow(n+1) + 1 }

// TestPayloadThatEndsTheProcessIsRejected: a payload that ended the process while
// it was decoded killed the good process at every delivery. The supervisor knows
// nothing but to start it again.
func TestPayloadThatEndsTheProcessIsRejected(t *testing.T) {
	for payload, want := range map[string]struct {
		deaths int
		reason Reason
	}{
		"decode: exit":     {DefaultAttempts, ReasonCrashLoop},
		"decode: overflow": {DefaultAttempts, ReasonCrashLoop},
		"decode: hang":     {0, ReasonDecodeFailed},
	} {
		t.Run(payload, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			assign := func(text string) {
				if err := os.WriteFile(filepath.Join(base, "source"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			life := func() (said string, ok bool) {
				out, err := child(t, "agent", filepath.Join(base, "store")).Output()
				return string(out), err == nil
			}
			assign("good")
			life()
			if said, ok := life(); !ok || !strings.Contains(said, "ended Good") {
				t.Fatalf("before it: %s", said)
			}
			assign(payload)
			deaths := 0
			said, ok := life()
			for ; !ok && deaths < 12; said, ok = life() {
				deaths++
			}
			if deaths != want.deaths || !strings.HasPrefix(said, "started good") || !strings.Contains(said, "ended "+string(want.reason)) {
				t.Errorf("%d deaths, want %d; then: %s", deaths, want.deaths, said)
			}
		})
	}
}

// TestCrashLoopingProcess lets real processes die of their configuration in
// each way, under a supervisor that knows nothing but to start them again.
func TestCrashLoopingProcess(t *testing.T) {
	for _, death := range []string{"panic", "exit", "abort"} {
		t.Run(death, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			dir := filepath.Join(base, "store")
			assign := func(text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(base, "source"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			life := func() (said string, status int) {
				t.Helper()
				out, err := child(t, "agent", dir).Output()
				var exit *exec.ExitError
				if err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				line, _, _ := strings.Cut(string(out), "\n")
				if exit != nil {
					return line, exit.ExitCode()
				}
				return line, 0
			}
			assign("good")
			if said, status := life(); said != "started default" || status != 75 {
				t.Fatalf("%q, status %d", said, status)
			}
			if said, status := life(); said != "started good" || status != 0 {
				t.Fatalf("%q, status %d", said, status)
			}
			assign(death)
			if said, status := life(); said != "started good" || status != 75 {
				t.Fatalf("%q, status %d", said, status)
			}
			starts := 0
			for {
				said, _ := life()
				if said == "started good" {
					break
				}
				if starts++; said != "started "+death || starts > DefaultAttempts {
					t.Fatalf("%q, start %d", said, starts)
				}
			}
			if starts != DefaultAttempts {
				t.Errorf("%d starts, want %d", starts, DefaultAttempts)
			}
		})
	}
}
