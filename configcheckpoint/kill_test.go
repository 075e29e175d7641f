// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package configcheckpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The tests of this file start this test binary again, as an agent that can be
// killed: TestMain has runChild do what the environment says.

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

// runChild is what the children do. It returns the exit status.
func runChild() int {
	role, dir, _ := strings.Cut(os.Getenv(childEnv), ":")
	run := map[string]func(string) error{"boot": childBoot, "commit": childCommit, "agent": childAgent}[role]
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

// childCommit changes the record as fast as it can and says after each commit
// that it was acknowledged.
func childCommit(dir string) error {
	c, err := New(childConfig(dir))
	if err != nil {
		return err
	}
	if _, err := c.Boot(context.Background()); err != nil {
		return err
	}
	l := &loop[string]{c: c, again: stoppedTimer(), store: stoppedTimer(), check: stoppedTimer()}
	for n := c.store.rec.Gen; ; n++ {
		l.payload = &Payload{Data: []byte(fmt.Sprint("config ", n)), Name: "child"}
		l.delivered(context.Background())
		if c.sit.store != nil {
			return c.sit.store
		}
		fmt.Println(c.store.rec.Gen, c.store.rec.Assigned.Digest)
	}
}

// TestKillNine kills processes that write, a thousand times: whatever they had
// acknowledged is there, and whole. It tests the calls that are really made
// and the lock; what a power cut does is TestCrashAtEveryChange's.
func TestKillNine(t *testing.T) {
	const disks, lives = 4, 250
	var commits atomic.Uint64
	var wg sync.WaitGroup
	for range disks {
		dir := filepath.Join(t.TempDir(), "store")
		wg.Go(func() {
			gen := uint64(0)
			for life := 0; life < lives && !t.Failed(); life++ {
				before := gen
				gen = liveAndDie(t, dir, gen)
				commits.Add(gen - before)
			}
		})
	}
	wg.Wait()
	t.Logf("%d commits in %d lives, none of those acknowledged lost", commits.Load(), disks*lives)
}

// liveAndDie runs one process until it is killed, and returns the generation
// that it left, which is at least the one it acknowledged last.
func liveAndDie(t *testing.T, dir string, gen uint64) uint64 {
	cmd := child(t, "commit", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return gen
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return gen
	}
	lines := bufio.NewReader(out)
	for range rand.IntN(12) { // wherever it then is
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Errorf("%v: %s", err, line)
			break
		}
		gen = acknowledged(t, line, gen)
	}
	for range rand.IntN(1000) {
		runtime.Gosched()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	rest, _ := io.ReadAll(lines)
	_ = cmd.Wait() // it was killed
	for line := range strings.Lines(string(rest)) {
		if strings.HasSuffix(line, "\n") {
			gen = acknowledged(t, line, gen)
		}
	}
	// No process may be started while the store is open here: until it has
	// become the other program it holds the lock, too.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s := &store{fs: &osFS{path: dir}}
	damage, err := s.open()
	if err != nil || damage != nil {
		t.Errorf("open: %v, %v", damage, err)
		return gen
	}
	if s.rec.Gen < gen || s.rec.Gen > gen+1 {
		t.Errorf("generation %d, and %d was acknowledged", s.rec.Gen, gen)
	}
	for _, ref := range s.rec.refs() {
		if _, err := s.load(ref.Digest); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	return s.rec.Gen
}

func acknowledged(t *testing.T, line string, gen uint64) uint64 {
	t.Helper()
	number, _, _ := strings.Cut(line, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n <= gen {
		t.Errorf("the child said %q after generation %d", line, gen)
	}
	return n
}

// childAgent is an agent that does what its configuration says.
func childAgent(dir string) error {
	source, err := File(filepath.Join(filepath.Dir(dir), "source"), 10*time.Millisecond)
	if err != nil {
		return err
	}
	cfg := childConfig(dir)
	cfg.Source, cfg.Trial = source, Trial{Soak: time.Second}
	c, err := New(cfg)
	if err != nil {
		return err
	}
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
		<-c.Ready().Done() // what the source says now has been dealt with
		for c.Status().Phase == PhaseTrial {
			time.Sleep(10 * time.Millisecond)
		}
		if c.Status().Phase != PhaseStaged {
			cancel()
		}
	}()
	err = c.Run(ctx)
	return errors.Join(err, c.Close(nil))
}

// TestCrashLoopingProcess lets real processes die of their configuration in
// each way, under a supervisor that knows nothing but to start them again.
func TestCrashLoopingProcess(t *testing.T) {
	for _, death := range []string{"panic", "exit", "abort"} {
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
			t.Errorf("%s: %d starts, want %d", death, starts, DefaultAttempts)
		}
	}
}
