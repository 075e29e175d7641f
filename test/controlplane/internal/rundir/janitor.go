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

// JanitorCommand is the launcher command that runs RunJanitor with the next argument.
const JanitorCommand = "janitor"

// Janitor is the process that cleans up after this one.
type Janitor struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// StartJanitor starts the janitor of d. From now on the janitor removes the directory and kills its processes soon
// after this process ends.
func (d *Dir) StartJanitor() (*Janitor, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(executable, JanitorCommand, d.Path)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{d.lock.File()} // the directory stays locked until the janitor is done
	// Its own session, so that neither Ctrl-C nor a signal to the process group reaches it.
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

// CleanUp makes the janitor clean up now and waits for it.
func (j *Janitor) CleanUp() error {
	j.pipe.Close()
	if err := j.cmd.Wait(); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// RunJanitor waits for the end of owner, then kills the processes of the cluster directory dir and removes the
// directory.
func RunJanitor(dir string, owner io.Reader) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	// A read error means the same as the end of the pipe.
	_, _ = io.Copy(io.Discard, owner)
	ctx := context.Background()
	if err := killRecorded(ctx, dir); err != nil {
		return err
	}
	// Removal must not run concurrently with sweep, which would treat a half-removed directory as one without an owner.
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
