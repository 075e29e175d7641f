// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Identity names a process for ever: a PID alone is reused.
type Identity struct {
	PID   int
	Start uint64 // in clock ticks since the machine booted; field 22 of /proc/PID/stat
}

// ErrNoProcess says that a process doesn't exist or is a zombie.
var ErrNoProcess = errors.New("no such process")

// Identify returns the identity of the living process pid.
func Identify(pid int) (Identity, error) {
	state, start, err := stat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Identity{}, err
	}
	if state == 'Z' || state == 'X' {
		return Identity{}, ErrNoProcess
	}
	return Identity{pid, start}, nil
}

// Alive reports whether the process lives. A zombie, which is adopted and reaped by whoever is process 1, doesn't.
func (id Identity) Alive() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Kill kills the process if it is still the one that was meant.
func (id Identity) Kill() {
	if id.Alive() {
		// Between the check and the signal the PID would have to be reused by a process that starts in this same tick.
		_ = syscall.Kill(id.PID, syscall.SIGKILL)
	}
}

// String returns a form that ParseIdentity reads.
func (id Identity) String() string { return fmt.Sprintf("%d %d", id.PID, id.Start) }

// ParseIdentity is the inverse of String.
func ParseIdentity(s string) (Identity, error) {
	var id Identity
	if _, err := fmt.Sscanf(s, "%d %d", &id.PID, &id.Start); err != nil {
		return Identity{}, fmt.Errorf("process identity %q: %w", s, err)
	}
	return id, nil
}

// stat reads the state and the start time from a stat file of procfs.
func stat(file string) (state byte, start uint64, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			err = ErrNoProcess
		}
		return 0, 0, err
	}
	// The second field is the command in parentheses, and may itself contain spaces and parentheses.
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	const stateField, startField = 0, 19 // proc_pid_stat(5) counts from 1, and the first two are cut off
	if i < 0 || len(fields) <= startField {
		return 0, 0, fmt.Errorf("%s: unknown format", file)
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return fields[stateField][0], start, err
}
