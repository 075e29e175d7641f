// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"errors"
	"syscall"
	"testing"
)

// system is a System with some processes.
func system(pid int, processes map[int]string) *System {
	return &System{
		Boot:       func() (string, error) { return "boot", nil },
		Namespaces: func() (string, error) { return "1-2", nil },
		PID:        pid,
		Start: func(pid int) (string, error) {
			switch start, ok := processes[pid]; {
			case !ok:
				return "", errGone
			case start == "hidden":
				return "", syscall.EPERM
			default:
				return start, nil
			}
		},
	}
}

func TestDead(t *testing.T) {
	s := system(1, map[int]string{1: "700", 5: "50", 6: "hidden"})
	if got, want := s.Self(), "boot/1-2/1/700"; got != want {
		t.Fatalf("Self = %q, want %q", got, want)
	}
	for words, want := range map[string]bool{
		"boot/1-2/1/700":  false, // this process
		"boot/1-2/1/300":  true,  // pid 1 of the container before, in a namespace with the same number
		"boot/1-2/5/50":   false,
		"boot/1-2/5/49":   true, // its number is used again
		"boot/1-2/7/1":    true,
		"boot/1-2/6/1":    false, // it can't be seen
		"other/1-2/7/1":   false, // another machine, or a sandbox with a kernel of its own
		"boot/9-2/7/1":    false,
		"boot/1-9/7/1":    false, // its clock may be another one
		"":                false,
		"ended":           false,
		"boot/1-2/7/":     false,
		"boot/1-2/x/1":    false,
		"boot/1-2/-7/1":   false,
		"boot/1-2/0/1":    false,
		"boot/1-2/":       false,
		"boot/1-2/7":      false,
		"boot/1-2/70/1/2": true,
	} {
		if got := s.Dead(words); got != want {
			t.Errorf("Dead(%q) = %t, want %t", words, got, want)
		}
	}
}

func TestWithoutProcNothingIsDead(t *testing.T) {
	for _, hide := range []func(*System){
		func(s *System) { s.Boot = func() (string, error) { return "", errors.New("no /proc") } },
		func(s *System) { s.Namespaces = func() (string, error) { return "", errors.New("no /proc") } },
	} {
		s := system(1, map[int]string{1: "700"})
		hide(s)
		if s.Self() != "" || s.Dead("boot/1-2/7/1") || s.Dead("/1-2/7/1") || s.Dead("boot//7/1") {
			t.Error("something was compared")
		}
	}
	if s := system(2, nil); s.Self() != "" {
		t.Error("a process that can't see itself has words")
	}
}
