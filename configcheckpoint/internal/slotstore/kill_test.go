// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package slotstore_test

import (
	"bufio"
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

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// childEnv makes the test binary a process that commits to the store in the
// directory that it names, until it is killed.
const childEnv = "SLOTSTORE_CHILD"

func runChild() int {
	s := slotstore.New(config(slotstore.Dir(os.Getenv(childEnv))))
	if _, err := s.Open(); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	for {
		gen := slottest.Generation(s.Record())
		if err := put(s, fmt.Sprint("payload ", gen)); err != nil {
			fmt.Println("error:", err)
			return 1
		}
		fmt.Println(gen + 1)
		if err := s.Prune(); err != nil {
			fmt.Println("error:", err)
			return 1
		}
	}
}

// TestKillNine kills processes that write, a thousand times: everything that they
// acknowledged is there and whole. It tests the system calls and the lock; a
// power cut is the subject of TestCrashAtEveryChange.
func TestKillNine(t *testing.T) {
	disks, lives := 4, 125
	if testing.Short() {
		lives = 25
	}
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
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
		return gen
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
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
	// No process may be started while the store is open here: a child holds the
	// lock too, until it has become the other program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s := slotstore.New(config(slotstore.Dir(dir)))
	damage, err := s.Open()
	if err != nil || damage != nil {
		t.Errorf("open: %v, %v", damage, err)
		return gen
	}
	left := slottest.Generation(s.Record())
	if left < gen || left > gen+1 {
		t.Errorf("generation %d, and %d was acknowledged", left, gen)
	}
	if err := holds(s); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return left
}

func acknowledged(t *testing.T, line string, gen uint64) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err != nil || n <= gen {
		t.Errorf("the child printed %q after generation %d", line, gen)
	}
	return n
}
