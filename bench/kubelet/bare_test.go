// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubelet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kubewright/kubewright/test/conformance/rig"
)

func buildBare(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "bare")
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", program, "./bare")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the kubelets are built
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the bare client: %v\n%s", err, out)
	}
	return program
}

// bare measures the client in directory bare. atOnce is the number of pods that it starts at the
// same time, 0 for all.
func (m *measurement) bare(t *testing.T, program string, r *rig.Runtime, atOnce int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "--endpoint", r.Endpoint(), "--image", rig.PauseImage, "--cgroup-parent", r.CgroupParent(),
		"--logs", filepath.Join(r.Dir, "bare"), "--pods", strconv.Itoa(m.pods), "--at-once", strconv.Itoa(atOnce))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	step := func() (times []time.Duration) {
		begin := time.Now()
		if _, err := io.WriteString(input, "\n"); err != nil {
			t.Fatal(err)
		}
		for len(times) < m.pods {
			if !lines.Scan() {
				t.Fatalf("the bare client has ended after %d of %d pods: %v", len(times), m.pods, lines.Err())
			}
			times = append(times, time.Since(begin))
		}
		return times
	}
	time.Sleep(settle)
	m.empty = resident(t, cmd.Process.Pid)
	cpu := cpuTime(t, cmd.Process.Pid)
	m.running = step()
	m.full = resident(t, cmd.Process.Pid)
	m.gone = step()
	m.cpu = cpuTime(t, cmd.Process.Pid) - cpu
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(fmt.Errorf("the bare client: %w", err))
	}
}
