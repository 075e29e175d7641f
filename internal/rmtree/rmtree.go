// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rmtree deletes directories that hostile programs have filled.
//
// [os.RemoveAll] has a file descriptor open for each level, so that a tree of some
// hundred thousand levels takes all descriptors of the process, and it gives up at a
// directory that its owner has made read-only, as Go's module cache is. Remove makes
// writable what it may, and moves deep directories up to the first level before it
// empties them, so that it never looks deeper than two levels.
package rmtree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
)

// batch is the number of names that are read at once.
const batch = 1024

// Remove deletes the file or directory at name and everything below it. It follows no
// symbolic link. A missing name is no error.
//
// It deletes what it can. If something can't be deleted, such as an immutable file,
// Remove returns an error that names the first of it; what is left may be at the first
// level below name, under another name.
//
// No program may write below name in the meantime. If one does, Remove still deletes
// nothing elsewhere.
func Remove(name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return os.Remove(name)
	}
	if info.Mode().Perm()&0o700 != 0o700 {
		_ = os.Chmod(name, 0o700) // if it matters, what follows fails
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	t := tree{root: root, stuck: map[string]bool{}}
	t.empty(".")
	// What was moved up is deleted in turn, until a pass deletes nothing.
	for t.moved {
		t.moved = false
		t.empty(".")
	}
	if err := errors.Join(t.err, root.Close()); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return os.Remove(name)
}

// A tree is a directory that is being deleted.
type tree struct {
	root  *os.Root
	next  int             // the number of the next name of a directory that is moved up
	moved bool            // a directory was moved up since the pass began
	stuck map[string]bool // names at the first level that can't be deleted
	err   error           // the first error
}

// fail records an error.
func (t *tree) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// empty deletes the files and empty directories in dir, and moves other directories
// up to the first level, or empties them if they are there.
func (t *tree) empty(dir string) {
	d, err := t.root.Open(dir)
	if err != nil {
		t.fail(err)
		return
	}
	defer func() { _ = d.Close() }()
	for {
		// What is moved up during this pass may be among the names or not; the next
		// pass finds it.
		entries, err := d.ReadDir(batch)
		if len(entries) == 0 {
			if !errors.Is(err, io.EOF) {
				t.fail(err)
			}
			return
		}
		for _, e := range entries {
			t.remove(path.Join(dir, e.Name()), e.IsDir())
		}
	}
}

// remove deletes a file, or a directory as empty does.
func (t *tree) remove(name string, isDir bool) {
	if t.stuck[name] {
		return
	}
	if !isDir {
		if err := t.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.fail(err)
			t.stuck[name] = true
		}
		return
	}
	if t.root.Remove(name) == nil {
		return // it was empty
	}
	// To move a directory is to write the name of its parent into it.
	if info, err := t.root.Lstat(name); err == nil && info.IsDir() && info.Mode().Perm()&0o700 != 0o700 {
		_ = t.root.Chmod(name, 0o700)
	}
	if path.Dir(name) != "." {
		t.moveUp(name)
		return
	}
	t.empty(name)
	if err := t.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.fail(err)
		t.stuck[name] = true
	}
}

// moveUp moves a directory to the first level.
func (t *tree) moveUp(name string) {
	for {
		t.next++
		to := ".rmtree-" + strconv.Itoa(t.next)
		if _, err := t.root.Lstat(to); err == nil {
			continue // the name is taken
		}
		if err := t.root.Rename(name, to); err != nil {
			t.fail(err)
			t.stuck[name] = true
			return
		}
		t.moved = true
		return
	}
}
