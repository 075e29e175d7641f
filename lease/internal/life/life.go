// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package life tells the end of a process from the words that it wrote about itself.
//
// The words are BOOT/NAMESPACES/PID/START: the boot ID of the kernel, its namespaces of
// processes and of time, the number of the process and the time at which it started,
// since boot. A number is used again, also in a namespace whose own number is used again:
// pid 1 of a container that was restarted. So the time of the start decides. Words of
// another kernel or namespace say nothing, because the process can't be looked up here.
package life

import (
	"errors"
	"strconv"
	"strings"
)

// A System is what a process can learn from its kernel.
type System struct {
	// Boot and Namespaces identify the kernel and the namespaces of this process. An error
	// means that nothing can be compared.
	Boot, Namespaces func() (string, error)
	// PID is the number of this process.
	PID int
	// Start returns when a process started. It returns errGone only if there is certainly
	// no such process, or one that has ended and was not waited for.
	Start func(pid int) (string, error)
}

// errGone means that a process does not exist.
var errGone = errors.New("life: there is no such process")

// Self returns the words of this process, or "" if nothing can be compared.
func (s *System) Self() string {
	here, err := s.here()
	if err != nil {
		return ""
	}
	start, err := s.Start(s.PID)
	if err != nil {
		return ""
	}
	return here + strconv.Itoa(s.PID) + "/" + start
}

// here returns the words that all processes share that can be compared with this one.
func (s *System) here() (string, error) {
	boot, err := s.Boot()
	if err != nil {
		return "", err
	}
	namespaces, err := s.Namespaces()
	if err != nil {
		return "", err
	}
	return boot + "/" + namespaces + "/", nil
}

// Dead reports whether the process with these words has certainly ended.
func (s *System) Dead(words string) bool {
	here, err := s.here()
	if err != nil {
		return false
	}
	rest, ok := strings.CutPrefix(words, here)
	if !ok {
		return false
	}
	number, started, _ := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 0 || started == "" {
		return false
	}
	start, err := s.Start(pid)
	if errors.Is(err, errGone) {
		return true
	}
	return err == nil && start != started
}
