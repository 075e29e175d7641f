// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestOfThisProcess(t *testing.T) {
	for used := time.Duration(0); used == 0; { // the unit is 10 ms
		var err error
		if used, err = cpuTime(os.Getpid()); err != nil || used > time.Hour {
			t.Fatalf("CPU time: %v, %v", used, err)
		}
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
