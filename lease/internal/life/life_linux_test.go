// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"
)

// TestARealProcess looks at a child while it runs, as a zombie, and after it was waited for.
func TestARealProcess(t *testing.T) {
	s := Here()
	self := s.Self()
	if self == "" {
		t.Fatal("this process has no words")
	}
	if s.Dead(self) {
		t.Error("this process is dead")
	}
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := s.Start(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	here, err := s.here()
	if err != nil {
		t.Fatal(err)
	}
	words := here + strconv.Itoa(child.Process.Pid) + "/" + start
	if s.Dead(words) {
		t.Error("a child that runs is dead")
	}
	if !s.Dead(words + "0") {
		t.Error("a process with its number, that started at another time, is not dead")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatal(n, err)
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if !s.Dead(words) {
		t.Error("a child that has ended is not dead")
	}
}

func TestParseStat(t *testing.T) {
	fields := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 700 20 21"
	for stat, want := range map[string]string{
		"7 (a program) S" + fields:  "700",
		"7 (a ) Z 1 (b) R" + fields: "700",
	} {
		if got, err := parseStat([]byte(stat)); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", stat, got, err, want)
		}
	}
	for _, state := range []string{"Z", "X"} {
		if _, err := parseStat([]byte("7 (a) " + state + fields)); !errors.Is(err, errGone) {
			t.Errorf("state %s: %v, want a process that is gone", state, err)
		}
	}
	if _, err := parseStat([]byte("7 (a) S 1 2")); err == nil || errors.Is(err, errGone) {
		t.Errorf("half a line: %v", err)
	}
}
