// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU time in /proc: USER_HZ, which is 100 on all
// platforms that Go supports.
const clockTick = time.Second / 100

// cpuTime returns the CPU time that a process has used.
func cpuTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(data)
}

// parseStat reads the CPU time from the content of /proc/PID/stat: fields 14
// and 15, counted from the name in parentheses, which may contain anything.
func parseStat(data []byte) (time.Duration, error) {
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat: %q is too short", data)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// residentSize returns the resident memory of a process, in bytes.
func residentSize(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseStatus(data)
}

// parseStatus reads VmRSS from the content of /proc/PID/status.
func parseStatus(data []byte) (uint64, error) {
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("status: no VmRSS")
}

// goroutines returns the number of goroutines of a program.
func goroutines(ctx context.Context, base string) (int, error) {
	n, err := getNumber(ctx, base+"/debug/pprof/goroutine?debug=1", "goroutine profile: total ")
	return int(n), err
}

// heap returns the heap size of a program: all of it, or the part that remains
// after a collection.
func heap(ctx context.Context, base string, collect bool) (uint64, error) {
	url := base + "/debug/pprof/heap?debug=1"
	if collect {
		url += "&gc=1"
	}
	return getNumber(ctx, url, "# HeapAlloc = ")
}

// getNumber gets url and returns the number that follows prefix.
func getNumber(ctx context.Context, url, prefix string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return findNumber(resp.Body, prefix)
}

// findNumber reads all of r, and returns the number in the first line that
// begins with prefix.
func findNumber(r io.Reader, prefix string) (n uint64, err error) {
	found := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), prefix); ok && !found {
			found = true
			if n, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64); err != nil {
				return 0, err
			}
		}
	}
	if lines.Err() == nil && !found {
		return 0, fmt.Errorf("no line begins with %q", prefix)
	}
	return n, lines.Err()
}
