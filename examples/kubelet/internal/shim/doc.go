// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package shim runs one command so that its exit code survives the program that
// started it, and that no process of the command is left behind.
//
// A shim is a small process between the kubelet and a container's command: the
// same binary, started again under another name ([Name]). It outlives the kubelet.
// It is a subreaper, so all descendants of the command stay below it, including
// those that leave the process group or become daemons. When the command ends, the
// shim kills its descendants, writes the exit code to a file, and ends.
//
// The shim copies the output of the command to the log, with the time and the
// stream of each line (package crilog), and closes the log before it writes the exit
// code. A command can have an input ([Input]) and a terminal.
//
// The shim keeps what it was told to run in a file in memory, not on the disk, since the
// environment may hold secrets. [Environ] reads it there.
//
// A run is a directory. Its files, in the order of its life:
//
//	alive         a FIFO that only the shim writes to: end of file means that it is dead
//	control       a FIFO that only the shim reads: stops, terminal sizes, end of input
//	input         a FIFO that the command reads, if it has an input
//	starting      the command may run from now on
//	running.json  the command runs
//	exit.json     it has ended, and no process of it is left
//
// The writing end of alive is opened before the shim is forked and passed to it, so
// no shim exists without it: a kubelet that finds alive without a writer knows that
// there is no shim and will be none. A process is never found by its number, which
// another process may have by then.
//
// A shim that can't write to its directory, because the disk is full, lives until it
// can. Output that the disk does not take is lost.
//
// If the shim itself is killed, usually by the kernel when memory runs out, the
// kernel kills its command (PR_SET_PDEATHSIG), and [Run.Follow] kills the
// descendants, which it recognizes by a variable in their environment. A process
// that has become a daemon, and has cleared its environment or written its title over it, is
// missed if its shim is killed.
package shim
