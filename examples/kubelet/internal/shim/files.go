// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/internal/record"
)

// The files of a run.
const (
	aliveFile    = "alive"
	controlFile  = "control"
	inputFile    = "input"
	startingFile = "starting"
	runningFile  = "running.json"
	exitFile     = "exit.json"
	outputFile   = "shim.log" // the output of the shim itself, if it panics
)

// A Command describes a process to run.
type Command struct {
	// Args are the program and its arguments. The program is looked for in the
	// PATH of Env.
	Args []string
	// Env are the variables, NAME=value.
	Env []string
	// Dir is the working directory.
	Dir string
	// Log is the file that output is appended to, by package crilog.
	Log string
	// Stdin gives the command an input that [Run.Input] writes to. Otherwise its
	// input is empty.
	Stdin bool
	// TTY runs the command in a terminal. The log then has one stream.
	TTY bool
	// CPUs are the numbers of those that the command may run on. Empty: all that
	// the kubelet may.
	CPUs []int
	// Bound ends the command when the process that started it dies. It is for
	// commands whose result only that process needs, such as probes.
	Bound bool
}

// Running says that a command runs.
type Running struct {
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
}

// Exit says how a command has ended.
type Exit struct {
	// Code is the exit code; 128 and the signal's number if a signal ended the
	// command, as in a shell.
	Code int32 `json:"code"`
	// Signal is the signal that ended the command, or 0.
	Signal int32 `json:"signal,omitempty"`
	// Reason is one of the Reason… constants.
	Reason string `json:"reason"`
	// Message says more, for people.
	Message    string    `json:"message,omitempty"`
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt"`
}

// The reasons of an Exit.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonStartError = "StartError"
	// ReasonUnknown: the shim was killed before it could see the end.
	ReasonUnknown = "ContainerStatusUnknown"
)

// order is a message through control. One of its fields is set.
type order struct {
	Stop     *stop `json:"stop,omitempty"`
	Size     *Size `json:"size,omitempty"`
	EndInput bool  `json:"endInput,omitempty"`
}

// Size is the size of a terminal in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// stop ends the command.
type stop struct {
	Deadline time.Time `json:"deadline"`
}

// Status is the state of a run, read from its files.
type Status struct {
	// MayHaveStarted is false if the command has certainly not run.
	MayHaveStarted bool
	// Running is not nil once the command runs, also after its end.
	Running *Running
	// Exit is not nil once the command has ended.
	Exit *Exit
}

// Read returns the status of the run in a folder.
func Read(dir string) (Status, error) {
	var st Status
	var running Running
	var exit Exit
	// From the last file to the first, since they come while they are read.
	ended, err := record.Read(filepath.Join(dir, exitFile), &exit)
	if err != nil {
		return st, err
	}
	runs, err := record.Read(filepath.Join(dir, runningFile), &running)
	if err != nil {
		return st, err
	}
	_, err = os.Stat(filepath.Join(dir, startingFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, err
	}
	st.MayHaveStarted = ended || runs || err == nil
	if runs {
		st.Running = &running
	}
	if ended {
		st.Exit = &exit
	}
	return st, nil
}
