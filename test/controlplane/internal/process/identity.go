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

// Identity identifies a process uniquely. A PID alone is not enough, because PIDs are reused.
type Identity struct {
	PID   int
	Start uint64 // in clock ticks since the machine booted; field 22 of /proc/PID/stat
}

// ErrNoProcess means that a process does not exist or is a zombie.
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

// Alive reports whether the process is alive. A zombie is not, although its parent or process 1 has not reaped it yet.
func (id Identity) Alive() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Kill kills the process if its PID still belongs to it.
func (id Identity) Kill() {
	if id.Alive() {
		// A race remains only if the PID is reused between the check and the signal by a process that starts in the
		// same clock tick.
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
	const stateField, startField = 0, 19 // proc_pid_stat(5) counts from 1, and the first two fields are cut off
	if i < 0 || len(fields) <= startField {
		return 0, 0, fmt.Errorf("%s: unknown format", file)
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return fields[stateField][0], start, err
}
