// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// role makes the test binary run as the child process of a test.
const role = "KUBEWRIGHT_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "sleeper": // runs until a signal ends it
		fmt.Println("sleeping")
		time.Sleep(time.Hour)
	case "polite": // ends cleanly on SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("sleeping")
		<-c
		os.Exit(0)
	case "parent": // starts a sleeper and prints its identity
		os.Setenv(role, "sleeper")
		p, err := NewSpawner().Start(Spec{Name: "sleeper", Path: os.Args[0], Log: os.Args[1]})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Identity)
		time.Sleep(time.Hour)
	}
}

// startRole starts the test binary in a role and waits for its first output.
func startRole(t *testing.T, name string) *Process {
	t.Helper()
	t.Setenv(role, name)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	p, err := NewSpawner().Start(Spec{Name: name, Path: executable, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	await(t, "its first line", func() bool {
		data, err := os.ReadFile(log)
		return err == nil && strings.HasSuffix(string(data), "\n")
	})
	return p
}

// await waits for an effect of another process.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("no sign of %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestKill(t *testing.T) {
	p := startRole(t, "sleeper")
	if !p.Alive() || p.HasExited() {
		t.Error("it does not live")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() || !p.HasExited() || p.Err() == nil || p.Err().Error() != "signal: killed" {
		t.Errorf("alive %t, exited %t, %v", p.Alive(), p.HasExited(), p.Err())
	}
	if err := p.Kill(); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if err := p.Pause(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("pausing the dead: %v", err)
	}
}

func TestTerminate(t *testing.T) {
	p := startRole(t, "polite")
	if err := p.Terminate(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if p.Err() != nil {
		t.Errorf("it ended with %v", p.Err())
	}
}

func TestTerminateGivesUp(t *testing.T) {
	p := startRole(t, "polite")
	if err := p.Pause(); err != nil { // a stopped process handles no signal
		t.Fatal(err)
	}
	if err := p.Terminate(10 * time.Millisecond); err == nil {
		t.Error("no error although it runs")
	}
	if err := KillAll([]*Process{p}); err != nil || !p.HasExited() {
		t.Errorf("a stopped process can't be killed: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	p := startRole(t, "polite")
	for range 20 {
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		if !p.Paused() {
			t.Fatal("not paused")
		}
		if err := p.Resume(); err != nil {
			t.Fatal(err)
		}
		if p.Paused() {
			t.Fatal("still paused")
		}
	}
	if err := p.Terminate(20 * time.Second); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewSpawner().Start(Spec{Name: "none", Path: filepath.Join(dir, "none"), Log: filepath.Join(dir, "log")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestChildrenDieWithTheirParent kills a parent that has no chance to clean up.
func TestChildrenDieWithTheirParent(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(executable, filepath.Join(t.TempDir(), "log"))
	parent.Env = append(os.Environ(), role+"=parent")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := ParseIdentity(line)
	if err != nil {
		t.Fatal(err)
	}
	if !child.Alive() {
		t.Fatal("the child does not live")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	_ = parent.Wait()
	await(t, "the child's end", func() bool { return !child.Alive() })
}

func TestIdentity(t *testing.T) {
	me, err := Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseIdentity(me.String()); err != nil || back != me {
		t.Errorf("%v became %v, %v", me, back, err)
	}
	// A process that reuses the PID of a dead one is another process.
	other := me
	other.Start--
	if !me.Alive() || other.Alive() {
		t.Errorf("alive: %t and %t", me.Alive(), other.Alive())
	}
	other.Kill() // must not kill this process
	if _, err := ParseIdentity("12 x"); err == nil {
		t.Error("nonsense parsed")
	}
}

// TestZombiesAreDead checks that zombies count as dead: killed daemons may wait to be reaped by the process that
// adopted them.
func TestZombiesAreDead(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the zombie", func() bool {
		_, err := Identify(cmd.Process.Pid)
		return errors.Is(err, ErrNoProcess)
	})
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", cmd.Process.Pid)); err != nil {
		t.Errorf("it was no zombie: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{
		"PATH=/bin", "HOME=/", "ETCD_NAME=x", "KUBE_FEATURE_WatchListClient=false", "KUBECONFIG=/x",
		"KUBERNETES_SERVICE_HOST=x", "HTTPS_PROXY=x", "no_proxy=x", "GOMAXPROCS=2", "EMPTY=",
	})
	if want := []string{"PATH=/bin", "HOME=/", "GOMAXPROCS=2", "EMPTY="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
