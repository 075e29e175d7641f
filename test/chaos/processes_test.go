// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// command starts a process with the mark of a run, in its own session, and
// returns when it has executed its program.
func command(t *testing.T, run string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo; read x")
	cmd.Env = []string{mark + run, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestProcessTable(t *testing.T) {
	root := t.TempDir()
	table := processTable{root: root}
	scan := func() []process {
		t.Helper()
		found, err := table.scan()
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := scan(); len(found) > 0 {
		t.Fatalf("found %v before there is anything", found)
	}
	first := command(t, root+"/pods/u/containers/c/0")
	command(t, root+"/pods/u/containers/d/0")
	command(t, root+"-of-somebody-else/pods/u/containers/c/0")
	found := scan()
	if len(found) != 2 {
		t.Fatalf("found %v, want two processes", found)
	}
	if pairs := overlapsOf(found, root, process.lives); len(pairs) > 0 {
		t.Errorf("two containers are taken for one: %v", pairs)
	}
	second := command(t, root+"/pods/u/containers/c/1")
	found = scan()
	pairs := overlapsOf(found, root, process.lives)
	if len(pairs) != 1 || pairs[0].A.Session == pairs[0].B.Session {
		t.Fatalf("overlaps %v, want one", pairs)
	}
	for _, i := range []instance{pairs[0].A, pairs[0].B} {
		if i != (instance{"u", "c", "0", first.Process.Pid}) && i != (instance{"u", "c", "1", second.Process.Pid}) {
			t.Errorf("an instance is %+v", i)
		}
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if pairs := overlapsOf(found, root, process.lives); len(pairs) > 0 {
		t.Errorf("one that has ended before the other one was asked about is taken for doubled: %v", pairs)
	}
	if found := scan(); len(found) != 2 {
		t.Errorf("found %v after one has ended", found)
	}
}

func TestInstance(t *testing.T) {
	for run, want := range map[string]bool{
		"/r/pods/u/containers/c/0":        true,
		"/r/pods/u/containers/c/12":       true,
		"/r/pods/u/containers/c/exec-123": false,
		"/r/pods/u/containers/c":          false,
		"/s/pods/u/containers/c/0":        false,
	} {
		if i, ok := (process{Run: run, Session: 5}).instance("/r"); ok != want || ok && (i.UID != "u" || i.Container != "c" || i.Session != 5) {
			t.Errorf("%s: %+v, %t", run, i, ok)
		}
	}
	if _, ok := (process{Run: "/r/pods/u/containers/c/0", Shim: true}).instance("/r"); ok {
		t.Error("a shim is taken for the command")
	}
}

// The clock can patch package time of this Go version.
func TestTimeIsReadAsExpected(t *testing.T) {
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), nowCall); n != 1 {
		t.Errorf("%d times, want once: buildKubelet has to be changed", n)
	}
}

// A session of 0 would be another run of the container.
func TestAProcessThatEndsWhileItIsReadIsNoOtherRun(t *testing.T) {
	root := t.TempDir()
	cmd := command(t, root+"/pods/u/containers/c/0")
	table := processTable{root: root, after: func(int) {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}}
	found, err := table.scan()
	if err != nil || len(found) > 0 {
		t.Errorf("found %v (%v), and it has ended", found, err)
	}
}
