// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The tests in this file end clusters in every possible way. No process or file may be left behind.

func TestEndOfTest(t *testing.T) {
	t.Parallel()
	var s status
	t.Run("cluster", func(t *testing.T) {
		s = Start(t, bare).status
		assertRuns(t, s)
	})
	if s.Dir == "" {
		t.Skip(skipMessage)
	}
	assertGone(t, s, 0) // Start's clean-up has waited for it
}

func TestKilledTest(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Env = append(os.Environ(), victimVariable+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var s status
	err = json.NewDecoder(stdout).Decode(&s)
	if err == nil {
		assertRuns(t, s)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	assertGone(t, s, patience)
}

func TestKilledLauncher(t *testing.T) {
	t.Parallel()
	c := startUnowned(t)
	if err := c.launcher.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	assertGone(t, c.status, patience)
	if err := c.launcher.call(request{Op: "status"}, nil); err == nil {
		t.Error("the dead launcher has answered")
	}
}

func TestSignalledLauncher(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c := startUnowned(t)
			if err := c.launcher.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			select {
			case <-c.launcher.exited:
			case <-time.After(patience):
				t.Fatal("the launcher still runs")
			}
			if c.launcher.err != nil {
				t.Errorf("the launcher ended with %v", c.launcher.err)
			}
			assertGone(t, c.status, 0) // the launcher waits for its janitor
		})
	}
}

// TestPausedComponentsEndToo: a stopped process reacts to no signal except SIGKILL.
func TestPausedComponentsEndToo(t *testing.T) {
	t.Parallel()
	c := startUnowned(t)
	c.Pause(t, APIServer)
	c.Pause(t, Etcd)
	if err := c.launcher.stop(); err != nil {
		t.Error(err)
	}
	assertGone(t, c.status, 0)
}

func TestFailedStart(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	o := bare
	o.ExtraArgs = map[string][]string{APIServer: {"--no-such-flag"}}
	began := time.Now()
	_, err := start(o)
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("the error doesn't show what the API server says: %v", err)
	}
	// The error does not wait for a timeout, because the component has ended.
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("failed after %s", d)
	}
	if _, err := start(Options{Version: "1.2"}); err == nil || !strings.Contains(err.Error(), `no Kubernetes version "1.2"`) {
		t.Errorf("error %v", err)
	}
}

func TestSideBySide(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	clusters := make([]*Cluster, 2)
	var wg sync.WaitGroup
	for i := range clusters {
		wg.Go(func() {
			var err error
			if clusters[i], err = start(bare); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range clusters {
		if c != nil {
			t.Cleanup(func() {
				if err := c.launcher.stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if t.Failed() {
		return
	}
	a, b := clusters[0], clusters[1]
	if a.Dir() == b.Dir() || a.Server() == b.Server() {
		t.Fatalf("the same cluster twice: %s %s", a.Server(), b.Server())
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "only-here"}}
	if _, err := newClient(t, a.AdminConfig()).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, b.AdminConfig()).CoreV1().Namespaces().Get(t.Context(), ns.Name, metav1.GetOptions{}); err == nil {
		t.Error("an object of one cluster is in the other")
	}
	// The credentials of one cluster are invalid in the other.
	stranger := a.AdminConfig()
	stranger.Host = b.Server()
	stranger.CAData = b.AdminConfig().CAData
	if _, err := newClient(t, stranger).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("one accepts the other's admin")
	}
}

func needsClusters(t *testing.T) {
	t.Helper()
	if !Enabled() {
		t.Skip(skipMessage)
	}
}

// startUnowned starts a cluster that the test itself ends.
func startUnowned(t *testing.T) *Cluster {
	t.Helper()
	needsClusters(t)
	c, err := start(bare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.launcher.stop() })
	assertRuns(t, c.status)
	return c
}

// patience bounds the time until a cluster is gone if its owner was killed.
const patience = 40 * time.Second

func assertRuns(t *testing.T, s status) {
	t.Helper()
	for _, component := range s.Components {
		if !alive(component.PID) {
			t.Errorf("%s does not run", component.Name)
		}
	}
	if len(s.Components) == 0 {
		t.Error("nothing runs")
	}
}

// assertGone checks that within d the directory is removed and all processes have ended.
func assertGone(t *testing.T, s status, d time.Duration) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		left = nil
		for _, component := range s.Components {
			if alive(component.PID) {
				left = append(left, component.Name)
			}
		}
		if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
			left = append(left, s.Dir)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left after %s: %q", d, left)
		}
	}
}

// alive reports whether a process is alive. A zombie, which process 1 may reap later, is not.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
