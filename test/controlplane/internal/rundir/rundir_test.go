// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/process"
)

// The test binary also runs as the launcher, with the commands "own ROOT NAME [janitor]" and JanitorCommand.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(m.Run())
	}
	var err error
	switch os.Args[1] {
	case JanitorCommand:
		err = RunJanitor(os.Args[2], os.Stdin)
	case "own":
		err = own(os.Args[2], os.Args[3], len(os.Args) > 4)
	case "sleep":
		time.Sleep(time.Hour)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// own creates a directory and starts a process that would outlive this one, prints its identity, and waits to be
// killed.
func own(root, name string, janitor bool) error {
	d, err := Create(context.Background(), root, name)
	if err != nil {
		return err
	}
	if janitor {
		if _, err := d.StartJanitor(); err != nil {
			return err
		}
	}
	cmd := exec.Command(os.Args[0], "sleep") // not with package process, because the kernel would kill it
	if err := cmd.Start(); err != nil {
		return err
	}
	id, err := process.Identify(cmd.Process.Pid)
	if err != nil {
		return err
	}
	if err := d.Record(id); err != nil {
		return err
	}
	fmt.Println(id)
	time.Sleep(time.Hour)
	return nil
}

// killedOwner kills an owner and returns the identity of the process that it left behind.
func killedOwner(t *testing.T, root, name string, args ...string) process.Identity {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable, append([]string{"own", root, name}, args...)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id, err := process.ParseIdentity(line)
	if err != nil {
		t.Fatal(err)
	}
	// While its owner lives, the cluster is listed, its name is taken, and sweep does not remove it.
	if names, err := List(root); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("clusters %q, %v", names, err)
	}
	if _, err := Create(t.Context(), root, name); !errors.Is(err, ErrRunning) {
		t.Errorf("created a second time: %v", err)
	}
	if !id.Alive() {
		t.Error("the process of a living cluster was killed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return id
}

func TestJanitorCleansUpAfterAKilledOwner(t *testing.T) {
	root := t.TempDir()
	id := killedOwner(t, root, "mine", "janitor")
	deadline := time.Now().Add(20 * time.Second)
	for dir := filepath.Join(root, "mine"); ; time.Sleep(time.Millisecond) {
		_, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the directory is still there")
		}
	}
	if id.Alive() {
		t.Error("its process still lives")
	}
}

func TestCreateSweepsWhatDeadOwnersLeft(t *testing.T) {
	root := t.TempDir()
	id := killedOwner(t, root, "dead")
	if !id.Alive() {
		t.Fatal("no janitor killed its process")
	}
	if names, err := List(root); err != nil || len(names) != 0 {
		t.Errorf("clusters %q, %v", names, err)
	}
	// The name of a dead cluster is free again.
	d, err := Create(t.Context(), root, "dead")
	if err != nil {
		t.Fatal(err)
	}
	if id.Alive() {
		t.Error("its process still lives")
	}
	if entries, _ := os.ReadDir(d.Path); len(entries) != 1 {
		t.Errorf("in the new directory: %v", entries)
	}
}

func TestCleanUpInOrder(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	d, err := Create(t.Context(), root, "")
	if err != nil {
		t.Fatal(err)
	}
	j, err := d.StartJanitor()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(d.Path, "etcd", "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.CleanUp(); err != nil {
		t.Fatal(err)
	}
	// It was the last cluster.
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of all clusters is still there: %v", err)
	}
}

// TestManyAtOnce creates and removes clusters concurrently; the removal of the last one sometimes removes the root
// directory too.
func TestManyAtOnce(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 3 {
				d, err := Create(t.Context(), root, "")
				if err != nil {
					t.Error(err)
					return
				}
				j, err := d.StartJanitor()
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(d.Path, lockFile)); err != nil {
					t.Errorf("swept away by another: %v", err)
				}
				if err := j.CleanUp(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of all clusters is still there: %v", err)
	}
}

func TestNames(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{".lock", "a/b", "..", "A", "-a", strings.Repeat("a", 42)} {
		if _, err := Create(t.Context(), root, name); err == nil {
			t.Errorf("name %q accepted", name)
		}
	}
}

func TestRootMustBePrivate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), root, "x"); err == nil {
		t.Error("a world-writable directory was accepted")
	}
}

func TestRecordedIgnoresACutLine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, processesFile), []byte("12 34\n56 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, err := recorded(dir)
	if err != nil || !slices.Equal(ids, []process.Identity{{PID: 12, Start: 34}}) {
		t.Errorf("recorded %v, %v", ids, err)
	}
}
