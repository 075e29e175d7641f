// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Here returns the system of this process.
func Here() *System {
	return &System{Boot: boot, Namespaces: namespaces, PID: os.Getpid(), Start: start}
}

func boot() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// namespaces returns those of processes and of time: the time of a start is shown in the
// time namespace of the reader.
func namespaces() (string, error) {
	// In another process namespace's /proc, the numbers of processes are other ones.
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return "", err
	}
	if self != strconv.Itoa(os.Getpid()) {
		return "", fmt.Errorf("/proc is that of another process namespace: this process is %s there", self)
	}
	pid, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	clock, err := os.Readlink("/proc/self/ns/time")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // before Linux 5.6
		return "", err
	}
	return digits(pid) + "-" + digits(clock), nil
}

// digits returns the number in a name such as pid:[4026531836].
func digits(name string) string {
	return strings.TrimFunc(name, func(r rune) bool { return r < '0' || r > '9' })
}

// start returns when a process started, in ticks since boot.
func start(pid int) (string, error) {
	// The option hidepid of /proc hides processes of other users; a signal finds them.
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return "", errGone
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err // it may be hidden
	}
	return parseStat(stat)
}

// parseStat returns field 22 of proc_pid_stat(5). The name of the program, in parentheses,
// may have any characters.
func parseStat(stat []byte) (string, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("life: can't parse %q", stat)
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return "", errGone // it acts no more
	}
	return fields[19], nil
}
