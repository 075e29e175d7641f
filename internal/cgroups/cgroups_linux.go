// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// unlimited is the value of a limit that does not exist.
const unlimited = math.MaxInt64

// Set makes a cgroup, unless it exists, and sets its limits. If grow is true, Set leaves
// limits alone that would shrink, and changes nothing if the memory in use is more than
// the new limit: see CheckMemory.
//
// The kernel of version 1 has no cgroup with a larger quota than the cgroup above it. So
// the upper one must grow before those below, and shrink after them.
func (t Tree) Set(path string, l Limits, grow bool) error {
	if grow {
		if err := t.CheckMemory(path, l.Memory); err != nil {
			return err
		}
	}
	quota, memory := l.Quota, l.Memory
	if quota == 0 {
		quota = unlimited
	}
	if memory == 0 {
		memory = unlimited
	}
	if t.unified() {
		if err := t.enable(path); err != nil {
			return err
		}
		dir := filepath.Join(string(t), path)
		return errors.Join(
			set(dir, "cpu.weight", min(1+(l.Shares-2)*9999/262142, 10_000), "", grow),
			set(dir, "cpu.max", quota, "max", grow),
			set(dir, "memory.max", memory, "max", grow),
		)
	}
	cpu := filepath.Join(string(t), "cpu", path)
	return errors.Join(
		set(cpu, "cpu.shares", l.Shares, "", grow),
		set(cpu, "cpu.cfs_quota_us", quota, "-1", grow),
		set(filepath.Join(string(t), "memory", path), "memory.limit_in_bytes", memory, "-1", grow),
	)
}

// CheckMemory returns an error if a cgroup has a larger memory limit than limit, and uses
// more. The kernel of version 2 would kill its processes. Zero: no limit. A cgroup that
// does not exist uses nothing.
func (t Tree) CheckMemory(path string, limit int64) error {
	dir, files := filepath.Join(string(t), path), [2]string{"memory.max", "memory.current"}
	if !t.unified() {
		dir, files = filepath.Join(string(t), "memory", path), [2]string{"memory.limit_in_bytes", "memory.usage_in_bytes"}
	}
	var values [2]int64
	for i, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		values[i], _ = parse(string(text))
	}
	if had, used := values[0], values[1]; limit > 0 && limit < had && limit <= used {
		return fmt.Errorf("cgroups: memory limit (%d) below current usage (%d)", limit, used)
	}
	return nil
}

// unified reports whether the cgroups are those of version 2.
func (t Tree) unified() bool {
	_, err := os.Stat(filepath.Join(string(t), "cgroup.controllers"))
	return err == nil
}

// enable lets a cgroup of version 2 have limits: each one above it must hand down the
// controllers.
func (t Tree) enable(path string) error {
	dir := string(t)
	for name := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory"), 0o644); err != nil {
			return err
		}
		dir = filepath.Join(dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// set writes a value to a file of a cgroup, which it makes, or the word for unlimited.
func set(dir, file string, value int64, none string, grow bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, file)
	if grow {
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if had, ok := parse(string(old)); ok && had >= value {
			return nil
		}
	}
	text := strconv.FormatInt(value, 10)
	if value == unlimited {
		text = none
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// parse returns the value in a file of a cgroup. A second number is the period.
func parse(text string) (int64, bool) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return 0, false
	}
	if fields[0] == "max" || fields[0] == "-1" {
		return unlimited, true
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	return n, err == nil
}

// Dirs returns the directories of a cgroup, of all controllers, and of those below it.
// A directory comes before the one that it is in.
func (t Tree) Dirs(path string) (dirs []string) {
	tops, _ := filepath.Glob(filepath.Join(string(t), "*", path))
	for _, top := range append(tops, filepath.Join(string(t), path)) {
		_ = filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil // a directory may vanish
		})
	}
	slices.Reverse(dirs)
	return dirs
}

// Remove kills everything in a cgroup and below it, and removes the cgroup. If that
// takes longer than ctx, Remove returns syscall.EBUSY. A cgroup that does not exist is no
// error.
func (t Tree) Remove(ctx context.Context, path string) error {
	if filepath.Clean("/"+path) == "/" {
		return fmt.Errorf("cgroups: %q is the cgroup of the machine", path)
	}
	for {
		dirs := t.Dirs(path)
		errs := []error{kill(dirs)}
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		err := errors.Join(errs...)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill sends SIGKILL to all processes of cgroups.
func kill(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			errs = append(errs, err)
		}
		for text := range strings.FieldsSeq(string(list)) {
			// 0 is a process that this one can't see.
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}
