// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package claimstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// childDir is the environment variable that makes the test binary a driver's process.
	childDir = "KUBEWRIGHT_CLAIMSTORE_CHILD"
	// olderBinary may have the path of this package's test binary of an older version. Then
	// TestProcessesShareADirectory is a rolling update.
	olderBinary = "KUBEWRIGHT_CLAIMSTORE_OLDER"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("violation:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child prepares and unprepares claims until it is killed, and prints a line for
// each. It returns an error if it sees what must not be.
func child(dir string) error {
	s, err := Open(context.Background(), nodeConfig(dir))
	if err != nil {
		return err
	}
	for round := 0; ; round++ {
		n := rand.IntN(4)
		device := "gpu-" + strconv.Itoa(n)
		// Two names for one device: two claims fight for it, and all processes for each.
		claim := testClaim(fmt.Sprintf("c%d-%d-%d", n, rand.IntN(2), round%50), device)
		name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		_, err := s.Prepare(context.Background(), claim, func(_ context.Context, begin func(partition) error) (partition, error) {
			state := partition{ID: device}
			if err := begin(state); err != nil {
				return state, err
			}
			file, err := os.OpenFile(filepath.Join(dir, "gpu", device), os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return state, fmt.Errorf("prepared twice: %w", err)
			}
			return state, file.Close()
		})
		_, held := errors.AsType[*DeviceHeldError](err)
		if err != nil && !held && !errors.Is(err, ErrNotInUse) {
			return err
		}
		if held {
			// The claim in the way was left by a process that was killed, or is in use.
			holder, _ := errors.AsType[*DeviceHeldError](err)
			name, claim.UID = holder.Holder.NamespacedName, holder.Holder.UID
		}
		if err := s.Unprepare(context.Background(), name, claim.UID); err != nil {
			return err
		}
		if err := childSweeps(dir, s, "gpu-"+strconv.Itoa(rand.IntN(4))); err != nil {
			return err
		}
		fmt.Println(round)
	}
}

// childSweeps returns an error if a device exists that Sweep says no claim uses: a driver
// records its claim before it makes the device.
func childSweeps(dir string, s *Store[partition], device string) error {
	err := s.Sweep(context.Background(), Device{Pool: "n1", Name: device}, func(context.Context) error {
		if _, err := os.Stat(filepath.Join(dir, "gpu", device)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it was swept and is in use: %w", err)
		}
		return nil
	})
	if _, held := errors.AsType[*DeviceHeldError](err); held || errors.Is(err, ErrIncomplete) && os.Getenv(olderBinary) != "" {
		return nil
	}
	return err
}

// TestProcessesShareADirectory runs several processes with one store and kills
// them with SIGKILL again and again.
func TestProcessesShareADirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "gpu"), 0o700); err != nil {
		t.Fatal(err)
	}
	kills := 30
	if testing.Short() {
		kills = 6
	}
	type process struct {
		cmd  *exec.Cmd
		done chan string // the violation that it printed
		seen chan struct{}
	}
	binaries := []string{os.Args[0]}
	if older := os.Getenv(olderBinary); older != "" {
		binaries = append(binaries, older)
	}
	started := 0
	start := func() *process {
		started++
		p := &process{cmd: exec.Command(binaries[started%len(binaries)]), done: make(chan string, 1), seen: make(chan struct{}, 1)}
		p.cmd.Env = append(os.Environ(), childDir+"="+dir)
		p.cmd.Stderr = os.Stderr
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			violation := ""
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if _, err := strconv.Atoi(lines.Text()); err != nil {
					violation += lines.Text() + "\n"
				}
				select {
				case p.seen <- struct{}{}:
				default:
				}
			}
			close(p.seen)
			p.done <- violation
		}()
		return p
	}
	running := []*process{start(), start(), start()}
	end := func(p *process) {
		_ = p.cmd.Process.Kill()
		if violation := <-p.done; violation != "" {
			t.Error(violation)
		}
		_ = p.cmd.Wait()
	}
	for i := range kills {
		p := running[i%len(running)]
		for range 1 + rand.IntN(20) {
			<-p.seen // closed after a violation
		}
		end(p)
		running[i%len(running)] = start()
	}
	for _, p := range running {
		end(p)
	}
	s, err := Open(t.Context(), nodeConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	seen := newSightings()
	for i := range 2 {
		if err := s.pass(t.Context(), at(time.Now().Add(time.Duration(i)*s.cfg.Interval)), seen); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "gpu"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v of the devices are in use: %v", left, err)
	}
	if lost := s.disk.takeLost(); len(lost) > 0 {
		t.Errorf("damaged records: %q", lost)
	}
}

func TestALockWaitsForItsOwnerInAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	// Each locks stands for a process: the locks of open files do not belong to one.
	first := &locks{open: opener(path), busy: map[string]chan struct{}{}}
	second := &locks{open: opener(path), busy: map[string]chan struct{}{}}
	unlock, err := first.lock(t.Context(), "a", "b", "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := second.lock(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := second.lock(ctx, "b", "c"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want DeadlineExceeded", err)
	}
	got := make(chan error)
	go func() {
		unlock, err := second.lock(t.Context(), "b", "c")
		if err == nil {
			unlock()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if len(first.busy)+len(second.busy) > 0 {
		t.Errorf("locks are left: %v %v", first.busy, second.busy)
	}
}

func TestALockWithoutAFileIsAnError(t *testing.T) {
	l := &locks{open: opener(filepath.Join(t.TempDir(), "missing", "lock")), busy: map[string]chan struct{}{}}
	if _, err := l.lock(t.Context(), "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want ErrNotExist", err)
	}
	if len(l.busy) > 0 {
		t.Errorf("locks are left: %v", l.busy)
	}
}
