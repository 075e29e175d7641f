// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestTheFilesOfTheKernelAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cpu  100 20 3 9999 9999 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nbtime 1700000000\n")
	busy, booted, err := cpuBusy(path)
	if want := 138 * 10 * time.Millisecond; err != nil || busy != want || booted.Unix() != 1_700_000_000 {
		t.Errorf("cpuBusy = %v, %v, %v, want %v", busy, booted, err, want)
	}
	write("MemTotal:       100 kB\nMemAvailable:    40 kB\n")
	if n, err := meminfo(path, "MemAvailable:"); err != nil || n != 40<<10 {
		t.Errorf("meminfo = %d, %v, want %d", n, err, 40<<10)
	}
	if _, err := meminfo(path, "Other:"); err == nil {
		t.Error("meminfo found a line that is missing")
	}
	if _, _, err := cpuBusy(path); err == nil {
		t.Error("cpuBusy found a CPU time in another file")
	}
}

func TestTheMachineHasCapacityAndUsage(t *testing.T) {
	capacity, err := Capacity(t.TempDir(), 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q := capacity[name]; q.Sign() <= 0 {
			t.Errorf("the capacity of %s is %v", name, &q)
		}
	}
	if q := capacity[corev1.ResourcePods]; q.Value() != 7 {
		t.Errorf("the capacity of pods is %v, want 7", &q)
	}
	usage, err := ReadUsage()
	if total := capacity[corev1.ResourceMemory]; err != nil || usage.CPU <= 0 || usage.Booted.IsZero() || usage.Memory == 0 || usage.Memory >= uint64(total.Value()) {
		t.Errorf("the usage is %+v, %v", usage, err)
	}
	if _, err := Capacity("/does/not/exist", 1); err == nil {
		t.Error("a missing directory has a capacity")
	}
}

func TestResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# comment\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a b\noptions ndots:2 rotate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dns, err := ReadResolvConf(path)
	if err != nil || len(dns.Servers) != 2 || len(dns.Searches) != 2 || len(dns.Options) != 2 {
		t.Errorf("%+v, %v", dns, err)
	}
	if _, err := ReadResolvConf(path + "x"); err != nil {
		t.Errorf("a machine without a file: %v", err)
	}
}
