// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/test/conformance/rig"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestNothingIsLeftOfAKilledRuntime kills containerd again and again while it makes
// sandboxes and containers, so that it forgets some.
func TestNothingIsLeftOfAKilledRuntime(t *testing.T) {
	binaries, before := needsRuntime(t), ofTheMachine(t)
	var r *rig.Runtime
	orphan := make(chan error, 1)
	t.Run("run", func(t *testing.T) {
		r = rig.StartRuntime(t, binaries)
		for n := range 12 {
			killed := make(chan struct{})
			go func() {
				time.Sleep(time.Duration(n+1) * 60 * time.Millisecond)
				r.Kill()
				close(killed)
			}()
			if err := runContainer(t, r.Client(t), r, n); err == nil {
				t.Logf("container %d runs", n)
			}
			<-killed
			r.Start(t)
		}
		// A process of a container that containerd does not know.
		if err := runContainer(t, r.Client(t), r, 100); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "100000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { orphan <- cmd.Wait() }()
		for _, dir := range cgroups.Kernel.Dirs(r.CgroupParent() + "/pod100") {
			if filepath.Base(dir) != "pod100" {
				continue
			}
			below := filepath.Join(dir, "forgotten")
			if err := os.Mkdir(below, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // a cpuset of version 1 needs them
				if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
					if err := os.WriteFile(filepath.Join(below, file), text, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d shims, %d cgroups", len(r.Shims()), len(cgroups.Kernel.Dirs(r.CgroupParent())))
	})
	if err := <-orphan; err == nil {
		t.Error("the forgotten process has ended on its own")
	}
	nothingIsLeftOf(t, r, before)
}

// TestNothingIsLeftOfAContainerThatStarts ends while containerd starts a container: it
// waits for a reader of the container's log, which is a pipe.
func TestNothingIsLeftOfAContainerThatStarts(t *testing.T) {
	binaries, before := needsRuntime(t), ofTheMachine(t)
	var r *rig.Runtime
	t.Run("run", func(t *testing.T) {
		r = rig.StartRuntime(t, binaries)
		if err := syscall.Mkfifo(filepath.Join(r.Dir, "log"), 0o600); err != nil {
			t.Fatal(err)
		}
		client := r.Client(t)
		id, err := createContainer(t, client, r, 1)
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
				started <- err
			}()
		}
		if err := <-started; err == nil || !strings.Contains(err.Error(), "already in starting state") {
			t.Errorf("%v, want that the container is starting", err)
		}
	})
	nothingIsLeftOf(t, r, before)
}

// needsRuntime builds what a runtime needs, or skips the test.
func needsRuntime(t *testing.T) rig.Binaries {
	t.Helper()
	if !harness.Enabled() {
		t.Skip(`needs containers: run "make e2e-containers"`)
	}
	if os.Getenv(variable) == "1" {
		t.Skip("only specs are run")
	}
	if missing := rig.Missing(); missing != "" {
		t.Skip(missing)
	}
	return rig.Build(t)
}

// nothingIsLeftOf checks that the machine has only what it had before.
func nothingIsLeftOf(t *testing.T, r *rig.Runtime, before []string) {
	t.Helper()
	if dirs := cgroups.Kernel.Dirs(r.CgroupParent()); len(dirs) > 0 {
		t.Errorf("cgroups are left: %q", dirs)
	}
	if points, err := mounts.Below(r.Dir); err != nil || len(points) > 0 {
		t.Errorf("mounts are left: %q, %v", points, err)
	}
	if _, err := os.Stat(r.Dir); err == nil {
		t.Errorf("%s is left", r.Dir)
	}
	if pids := processesOf(t, r); len(pids) > 0 {
		t.Errorf("processes are left: %q", pids)
	}
	// The kernel removes the devices of a network namespace a moment after its last process.
	eventually(t, "all network namespaces and devices to be gone", func() bool {
		for _, name := range ofTheMachine(t) {
			if !slices.Contains(before, name) {
				return false
			}
		}
		return true
	})
}

// runContainer runs a sandbox and a container with CRI.
func runContainer(t *testing.T, client runtimeapi.RuntimeServiceClient, r *rig.Runtime, n int) error {
	t.Helper()
	id, err := createContainer(t, client, r, n)
	if err != nil {
		return err
	}
	_, err = client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// createContainer runs a sandbox and creates a container in it, whose log is r.Dir/log.
func createContainer(t *testing.T, client runtimeapi.RuntimeServiceClient, r *rig.Runtime, n int) (id string, err error) {
	t.Helper()
	name := fmt.Sprint("pod", n)
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, LogDirectory: r.Dir,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: r.CgroupParent() + "/" + name},
	}
	box, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", err
	}
	made, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: rig.BusyboxImage},
		LogPath: "log", Command: []string{"sleep", "100000"}, Linux: &runtimeapi.LinuxContainerConfig{},
	}})
	if err != nil {
		return "", err
	}
	return made.ContainerId, nil
}

// ofTheMachine returns the names of the named network namespaces and of the network
// devices.
func ofTheMachine(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/*", "/sys/class/net/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// processesOf returns the command lines of processes with files or arguments in the
// directory of a runtime.
func processesOf(t *testing.T, r *rig.Runtime) (found []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if strings.Contains(string(line), r.Dir) || strings.Contains(string(groups), r.CgroupParent()) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
