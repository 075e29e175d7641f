// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rundir manages the directories of running clusters. Neither they nor their processes outlive the launcher
// that owns them, even if it is killed.
//
// Three mechanisms ensure this. The launcher cleans up when it ends normally. A janitor, which runs in its own session
// and is started first, cleans up when the launcher has died: it notices at once, because a pipe from the launcher is
// closed. If both are killed, the next start of any cluster finds the directory unlocked and cleans up.
//
// A directory has a file "lock", which launcher and janitor lock, and a file "processes", which lists all started
// processes.
package rundir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/filelock"
	"github.com/kubewright/kubewright/test/controlplane/internal/process"
)

const (
	lockFile      = "lock"
	processesFile = "processes"
	rootLock      = ".lock" // held while directories are created, swept and removed
)

// Root returns the parent directory of all this user's cluster directories.
func Root() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("kubewright-%d", os.Getuid()))
}

// Dir is the directory of a cluster that this process owns.
type Dir struct {
	Path string
	lock *filelock.Lock
}

// validName matches names that are valid file names and differ from the package's own files.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// ErrRunning is returned by Create if a cluster of that name is running.
var ErrRunning = errors.New("a cluster of this name is running")

// Create creates and locks the directory of the cluster called name under root; "" selects a unique name. It first
// removes the remains of dead owners.
func Create(ctx context.Context, root, name string) (*Dir, error) {
	if name != "" && !validName.MatchString(name) {
		return nil, fmt.Errorf("cluster name %q: want at most 41 of a-z, 0-9 and -", name)
	}
	lock, err := lockRoot(ctx, root)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if err := sweep(ctx, root); err != nil {
		return nil, err
	}
	d := &Dir{}
	if name == "" {
		d.Path, err = os.MkdirTemp(root, "c")
	} else {
		d.Path = filepath.Join(root, name)
		err = os.Mkdir(d.Path, 0o700)
		if errors.Is(err, os.ErrExist) {
			err = fmt.Errorf("%s: %w", name, ErrRunning)
		}
	}
	if err != nil {
		return nil, err
	}
	d.lock, err = filelock.Try(filepath.Join(d.Path, lockFile))
	return d, err
}

// lockRoot creates root if it does not exist, and takes its lock.
func lockRoot(ctx context.Context, root string) (*filelock.Lock, error) {
	for {
		err := makeRoot(root)
		var lock *filelock.Lock
		if err == nil {
			lock, err = filelock.Acquire(ctx, filepath.Join(root, rootLock), nil)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return lock, err
		}
		// In the meantime the janitor of the last cluster has removed root.
	}
}

// removeEmptyRoot removes root if it has no cluster directories. The caller must hold its lock.
func removeEmptyRoot(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != rootLock {
		return err
	}
	if err := os.Remove(filepath.Join(root, rootLock)); err != nil {
		return err
	}
	// Another process that is creating a cluster may already have created a new lock.
	if err := os.Remove(root); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		return err
	}
	return nil
}

// makeRoot creates root. Its parent directory may be writable by other users, so root must belong to this user alone.
func makeRoot(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(root)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(s.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that belongs to this user alone", root)
	}
	return nil
}

// List returns the names of the clusters under root that have an owner.
func List(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && owned(filepath.Join(root, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// owned reports whether a process holds the lock of the directory dir.
func owned(dir string) bool {
	// Opening a missing lock file would create it.
	if _, err := os.Stat(filepath.Join(dir, lockFile)); err != nil {
		return false
	}
	lock, err := filelock.Try(filepath.Join(dir, lockFile))
	if err != nil {
		return errors.Is(err, filelock.ErrHeld)
	}
	lock.Release()
	return false
}

// sweep removes the directories under root that have no owner. The caller must hold root's lock.
func sweep(ctx context.Context, root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if !e.IsDir() || owned(dir) {
			continue
		}
		if err := killRecorded(ctx, dir); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// Record records that the cluster has started a process.
func (d *Dir) Record(id process.Identity) error {
	f, err := os.OpenFile(filepath.Join(d.Path, processesFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, id)
	return errors.Join(err, f.Close())
}

// recorded returns the recorded processes of the directory dir.
func recorded(dir string) ([]process.Identity, error) {
	data, err := os.ReadFile(filepath.Join(dir, processesFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(data), "\n")
	var ids []process.Identity
	for _, line := range lines[:len(lines)-1] { // a kill may have truncated the last line
		id, err := process.ParseIdentity(line)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// killPatience bounds the time until killed processes have ended.
const killPatience = 30 * time.Second

// killRecorded kills the recorded processes of the directory dir and waits until they have ended.
func killRecorded(ctx context.Context, dir string) error {
	ids, err := recorded(dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		id.Kill()
	}
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	for slices.ContainsFunc(ids, process.Identity.Alive) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes of %s don't end: %w", dir, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
