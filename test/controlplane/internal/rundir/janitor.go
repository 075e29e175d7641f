// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/kubewright/kubewright/test/controlplane/internal/filelock"
)

// JanitorCommand is the launcher's command that runs RunJanitor with the next argument.
const JanitorCommand = "janitor"

// Janitor is the process that cleans up after this one.
type Janitor struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// StartJanitor starts the janitor of d. From now on the directory and its processes are gone soon after this process.
func (d *Dir) StartJanitor() (*Janitor, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(executable, JanitorCommand, d.Path)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{d.lock.File()} // the directory stays locked until the janitor is done
	// Its own session: neither Ctrl-C nor the kill of a whole process group reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the janitor: %w", err)
	}
	return &Janitor{cmd, pipe}, nil
}

// CleanUp has the janitor do its work now and waits for it.
func (j *Janitor) CleanUp() error {
	j.pipe.Close()
	if err := j.cmd.Wait(); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// RunJanitor waits for the end of owner, then kills the processes of the cluster directory dir and removes it.
func RunJanitor(dir string, owner io.Reader) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	// An error of the pipe means the same as its end.
	_, _ = io.Copy(io.Discard, owner)
	ctx := context.Background()
	if err := killRecorded(ctx, dir); err != nil {
		return err
	}
	// Removal is serialized with sweep, which might otherwise take the half removed directory for one without owner.
	root := filepath.Dir(dir)
	lock, err := filelock.Acquire(ctx, filepath.Join(root, rootLock), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return removeEmptyRoot(root)
}
