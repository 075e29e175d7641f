// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A clock holds the offset of the wall clock of the kubelet and its shims, in
// nanoseconds, in a file that they and this process have mapped.
//
// A step of CLOCK_REALTIME changes time.Now but not the monotonic clock, which
// timers, deadlines and time differences use. Linux has no namespace for
// CLOCK_REALTIME, and a step of the machine's clock affects all its processes.
// So the kubelet is built with a package time whose Now adds the offset to the
// wall part of the runtime's reading, and changes nothing else.
type clock struct {
	path   string
	data   []byte
	offset *atomic.Int64
}

func newClock(path string) (*clock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(8); err != nil {
		return nil, err
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &clock{path, data, (*atomic.Int64)(unsafe.Pointer(&data[0]))}, nil
}

// step sets the difference between the clock and the true time.
func (c *clock) step(offset time.Duration) { c.offset.Store(int64(offset)) }

func (c *clock) close() error { return syscall.Munmap(c.data) }

// steppedSource is added to package time.
const steppedSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// chaosClock is the path of a file with the offset. The linker sets it.
var chaosClock string

var chaosOffset = mapChaosClock()

func mapChaosClock() *int64 {
	if chaosClock == "" {
		return nil
	}
	fd, err := syscall.Open(chaosClock, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("the clock of chaos: " + err.Error())
	}
	data, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("the clock of chaos: " + err.Error())
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&data[0]))
}

func steppedNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	if chaosOffset == nil {
		return sec, nsec, mono
	}
	wall := sec*1e9 + int64(nsec) + atomic.LoadInt64(chaosOffset)
	return wall / 1e9, int32(wall % 1e9), mono
}
`

// nowCall is the start of Now in package time, which reads the clock. If
// package time does not contain this text exactly once, buildKubelet fails,
// because the Go version is unknown.
const nowCall = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"

// buildKubelet builds examples/kubelet with a clock that c can step.
func buildKubelet(ctx context.Context, root, dir string, c *clock) (binary string, err error) {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	std := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		return "", err
	}
	if strings.Count(string(source), nowCall) != 1 {
		return "", errors.New("clock.go does not support this Go version: package time reads the clock in an unknown way")
	}
	patched := strings.Replace(string(source), nowCall, strings.Replace(nowCall, "runtimeNow", "steppedNow", 1), 1)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range map[string]string{"time.go": patched, "chaos.go": steppedSource} {
		file := filepath.Join(dir, "time-"+name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(std, name)] = file
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "kubelet")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", "examples/kubelet", "-o", binary, "-overlay="+list, "-ldflags=-X time.chaosClock="+c.path, ".")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build examples/kubelet: %w\n%s", err, out)
	}
	return binary, nil
}
