// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 1\n"))
	if err != nil || got != 2*time.Second {
		t.Errorf("%v, %v, want 2s", got, err)
	}
	for _, bad := range []string{"", "12 (a) S 1", "12 (a) S 1 2 3 4 5 6 7 8 9 10 x 50"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestParseStatus(t *testing.T) {
	got, err := parseStatus([]byte("Name:\tfleet\nVmHWM:\t    9999 kB\nVmRSS:\t    2048 kB\nThreads:\t9\n"))
	if err != nil || got != 2<<20 {
		t.Errorf("%d, %v, want 2 MiB", got, err)
	}
	for _, bad := range []string{"", "VmRSS:\tmuch\n"} {
		if got, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%q was read as %d", bad, got)
		}
	}
}

func TestOfThisProcess(t *testing.T) {
	if _, err := cpuTime(os.Getpid()); err != nil {
		t.Error(err)
	}
	if n, err := residentSize(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("resident: %d, %v", n, err)
	}
	if m := thisMachine(); m.Cores < 1 || m.MemoryMiB < 1 {
		t.Errorf("%+v", m)
	}
}

func TestFindNumber(t *testing.T) {
	const profile = "heap profile: 1: 2 [3: 4]\n# HeapSys = 9\n# HeapAlloc = 123456\n# HeapAlloc = 7\n"
	if n, err := findNumber(strings.NewReader(profile), "# HeapAlloc = "); err != nil || n != 123456 {
		t.Errorf("%d, %v, want the first", n, err)
	}
	for _, prefix := range []string{"goroutine", "heap profile: "} {
		if n, err := findNumber(strings.NewReader(profile), prefix); err == nil {
			t.Errorf("%q: found %d", prefix, n)
		}
	}
}
