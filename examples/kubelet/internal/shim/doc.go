// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package shim runs one command so that its exit code survives the program that
// asked for it, and that nothing of it is left behind.
//
// A shim is a small process between the kubelet and a container's command: the
// same binary, started again under another name ([Name]), with the kubelet gone
// from its ancestors as soon as that dies. It is a subreaper, so that whatever
// descends from the command stays below it, also what leaves the process group
// or becomes a daemon. When the command ends, the shim kills all of that, writes
// the exit code to a file, and ends.
//
// A run is a folder. What is in it, in the order of its life:
//
//	alive         a FIFO whose only writer is the shim: end of file means that it is dead
//	control       a FIFO whose only reader is the shim: when the command, which is
//	              asked to end now, is to be killed
//	starting      the command may run from now on
//	running.json  the command runs
//	exit.json     it has ended, and nothing of it is left
//
// The writing end of alive is opened before the shim is forked and handed to it,
// so that at no moment a shim exists that does not hold it: a kubelet that finds
// nobody there knows that nobody will come. No process is ever found by its
// number, which another one may have by then.
//
// A shim that can't write to its folder, because the disk is full, lives on until it
// can.
//
// If the shim itself is killed, which nobody has a reason to do but the
// kernel when memory runs out, its command is killed by the kernel
// (PR_SET_PDEATHSIG), and what descends from that by [Run.Follow], which knows it
// by a variable in its environment. A process that has daemonized and has wiped
// its environment and whose shim was killed is the one case that is missed.
package shim
