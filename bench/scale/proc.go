// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// cpuTime returns the CPU time that a process has used.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := processStat(pid)
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// residentSize returns the resident memory of a process, in bytes.
func residentSize(pid int) (uint64, error) {
	stat, err := processStat(pid)
	return uint64(stat.ResidentMemory()), err
}

func processStat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
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
