// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package child runs parts of a benchmark in separate processes, so that CPU
// time, heap and goroutines belong to one part. A child is the test binary
// itself with a role. It writes JSON to its standard output and ends when its
// input ends. BENCH_CPUPROFILE=directory makes each child write its CPU profile
// there.
package child

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"testing"
)

const (
	roleVariable    = "KUBEWRIGHT_BENCH_ROLE"
	profileVariable = "BENCH_CPUPROFILE"
)

// Main runs the tests of m in the parent process, and the part named by the
// role in a child. TestMain calls it.
func Main(m *testing.M, parts func(role string) error) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	stop, err := profile(role)
	if err == nil {
		err = parts(role)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// profile writes a CPU profile of a part until stop is called, if the
// environment names a directory for it.
func profile(role string) (stop func(), err error) {
	dir := os.Getenv(profileVariable)
	if dir == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s.%d.pprof", role, os.Getpid())))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}

// Process is a running child.
type Process struct {
	b   *testing.B
	in  io.WriteCloser
	out *json.Decoder
	cmd *exec.Cmd
}

// Start starts a child, which ends with the benchmark.
func Start(b *testing.B, role string, env ...string) *Process {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), env...), roleVariable+"="+role)
	cmd.Stderr = io.Discard // some peers log each of ten thousand failures
	if os.Getenv("BENCH_VERBOSE") != "" {
		cmd.Stderr = os.Stderr
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &Process{b, in, json.NewDecoder(bufio.NewReader(out)), cmd}
	b.Cleanup(p.Stop)
	return p
}

// Stop ends the child. It may be called more than once.
func (p *Process) Stop() {
	p.in.Close()
	if os.Getenv(profileVariable) == "" { // otherwise it ends on its own and writes its profile
		_ = p.cmd.Process.Kill() // it may already have ended
	}
	_ = p.cmd.Wait()
}

// Read reads one answer of the child.
func (p *Process) Read(into any) {
	p.b.Helper()
	if err := p.out.Decode(into); err != nil {
		p.b.Fatalf("a child of the benchmark has ended: %v (BENCH_VERBOSE=1 shows why)", err)
	}
}

// Ask sends a line to the child and reads its answer.
func (p *Process) Ask(word string, into any) {
	p.b.Helper()
	if _, err := fmt.Fprintln(p.in, word); err != nil {
		p.b.Fatal(err)
	}
	p.Read(into)
}
