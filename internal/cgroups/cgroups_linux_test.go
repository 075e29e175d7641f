// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tree returns a directory of ordinary files like cgroups of a version.
func tree(t *testing.T, version int) Tree {
	t.Helper()
	dir := t.TempDir()
	if version == 2 {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Tree(dir)
}

// expect compares the files of cgroups.
func (t Tree) expect(test *testing.T, want map[string]string) {
	test.Helper()
	for file, text := range want {
		if got, err := os.ReadFile(filepath.Join(string(t), file)); err != nil || string(got) != text {
			test.Errorf("%s is %q, %v, want %q", file, got, err, text)
		}
	}
}

func TestLimitsOfVersion1(t *testing.T) {
	c := tree(t, 1)
	if err := c.Set("/all/pod1", Limits{Shares: 512, Quota: 50_000, Memory: 1 << 20}, false); err != nil {
		t.Fatal(err)
	}
	c.expect(t, map[string]string{
		"cpu/all/pod1/cpu.shares": "512", "cpu/all/pod1/cpu.cfs_quota_us": "50000", "memory/all/pod1/memory.limit_in_bytes": "1048576",
	})
	if err := c.Set("/all/pod1", Limits{Shares: 2}, false); err != nil {
		t.Fatal(err)
	}
	c.expect(t, map[string]string{
		"cpu/all/pod1/cpu.shares": "2", "cpu/all/pod1/cpu.cfs_quota_us": "-1", "memory/all/pod1/memory.limit_in_bytes": "-1",
	})
}

func TestLimitsOfVersion2(t *testing.T) {
	c := tree(t, 2)
	if err := c.Set("/all/pod1", Limits{Shares: 1024, Quota: 50_000, Memory: 1 << 20}, false); err != nil {
		t.Fatal(err)
	}
	c.expect(t, map[string]string{
		"cgroup.subtree_control": "+cpu +memory", "all/cgroup.subtree_control": "+cpu +memory",
		"all/pod1/cpu.weight": "39", "all/pod1/cpu.max": "50000", "all/pod1/memory.max": "1048576",
	})
	if _, err := os.Stat(filepath.Join(string(c), "all/pod1/cgroup.subtree_control")); err == nil {
		t.Error("the cgroup hands down controllers, and is no leaf")
	}
	if err := c.Set("/all/pod1", Limits{Shares: 2}, false); err != nil {
		t.Fatal(err)
	}
	c.expect(t, map[string]string{"all/pod1/cpu.weight": "1", "all/pod1/cpu.max": "max", "all/pod1/memory.max": "max"})
}

func TestLimitsThatGrowDoNotShrink(t *testing.T) {
	for version, files := range map[int][2]string{1: {"cpu/pod1/cpu.cfs_quota_us", "memory/pod1/memory.limit_in_bytes"}, 2: {"pod1/cpu.max", "pod1/memory.max"}} {
		c := tree(t, version)
		none := map[int]string{1: "-1", 2: "max"}[version]
		for _, step := range []struct {
			limits        Limits
			grow          bool
			quota, memory string
		}{
			{Limits{2, 5000, 100}, true, "5000", "100"}, // a new one
			{Limits{2, 6000, 90}, true, "6000", "100"},
			{Limits{2, 4000, 0}, true, "6000", none},
			{Limits{2, 4000, 90}, true, "6000", none},
			{Limits{2, 4000, 90}, false, "4000", "90"},
			{Limits{2, 4000, 90}, true, "4000", "90"},
		} {
			if err := c.Set("pod1", step.limits, step.grow); err != nil {
				t.Fatal(err)
			}
			c.expect(t, map[string]string{files[0]: step.quota, files[1]: step.memory})
		}
	}
	if had, ok := parse("6000 100000\n"); had != 6000 || !ok {
		t.Errorf("the kernel's cpu.max has the value %d, %v", had, ok)
	}
}

func TestMemoryInUseIsNotTakenAway(t *testing.T) {
	for version, files := range map[int][2]string{1: {"memory/pod1/memory.limit_in_bytes", "memory/pod1/memory.usage_in_bytes"}, 2: {"pod1/memory.max", "pod1/memory.current"}} {
		c := tree(t, version)
		if err := c.CheckMemory("pod1", 1); err != nil {
			t.Errorf("a cgroup that does not exist: %v", err)
		}
		if err := c.Set("pod1", Limits{Shares: 2, Quota: 5000, Memory: 100}, true); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(string(c), files[1]), []byte("90\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for memory, fits := range map[int64]bool{0: true, 100: true, 200: true, 91: true, 90: false, 1: false} {
			if err := c.CheckMemory("pod1", memory); (err == nil) != fits {
				t.Errorf("version %d: %d of 100 bytes: %v", version, memory, err)
			}
		}
		if err := os.WriteFile(filepath.Join(string(c), files[1]), []byte("100\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.CheckMemory("pod1", 100); err != nil {
			t.Errorf("a limit that does not change: %v", err)
		}
		quota := map[int]string{1: "cpu/pod1/cpu.cfs_quota_us", 2: "pod1/cpu.max"}[version]
		if err := c.Set("pod1", Limits{Shares: 2, Quota: 6000, Memory: 90}, true); err == nil || !strings.Contains(err.Error(), "memory limit (90) below current usage (100)") {
			t.Errorf("Set: %v", err)
		}
		c.expect(t, map[string]string{files[0]: "100", quota: "5000"})
	}
}

func TestTheCgroupOfTheMachineIsNotRemoved(t *testing.T) {
	for _, path := range []string{"", "/", ".", "/a/.."} {
		if err := tree(t, 2).Remove(t.Context(), path); err == nil || !strings.Contains(err.Error(), "is the cgroup of the machine") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestRemoveKillsWhatIsBelow(t *testing.T) {
	path := "/kubewright-test-" + strconv.Itoa(os.Getpid())
	if err := Kernel.Set(path, Limits{Shares: 2}, false); err != nil {
		t.Skipf("needs cgroups that can be written: %v", err)
	}
	t.Cleanup(func() { _ = Kernel.Remove(context.Background(), path) })
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, dir := range Kernel.Dirs(path) {
		below := filepath.Join(dir, "below")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := Kernel.Remove(ctx, path); err != nil {
		t.Fatal(err)
	}
	if exit := (*exec.ExitError)(nil); !errors.As(<-ended, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v, want SIGKILL", exit)
	}
	if dirs := Kernel.Dirs(path); len(dirs) > 0 {
		t.Errorf("%q are left", dirs)
	}
	if err := Kernel.Remove(ctx, path); err != nil {
		t.Errorf("the second Remove: %v", err)
	}
}
