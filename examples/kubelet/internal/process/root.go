// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubewright/kubewright/internal/dirlock"
)

// A Root is the directory of a kubelet, which this process has for itself. Package
// podruntime keeps pods in it. Of each container of a pod there are:
//
//	pods/UID/containers/NAME/root     the volumes, as the container sees them
//	pods/UID/containers/NAME/N.log    the output of its run number N
//	pods/UID/containers/NAME/N        that run, a directory of package shim
type Root struct {
	root string
	lock *os.File
}

// Lock makes the directory if need be and locks it until Close. A kubelet calls it
// before anything else.
func Lock(path string) (*Root, error) {
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	s := &Root{root: root}
	s.lock, err = os.OpenFile(filepath.Join(root, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := dirlock.Wait(context.Background(), s.lock); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another kubelet: %w", root, err), s.lock.Close())
	}
	return s, nil
}

// Close lets another kubelet have the directory.
func (s *Root) Close() error { return s.lock.Close() }

// Path returns the absolute path of the directory.
func (s *Root) Path() string { return s.root }

// containers returns the directory of a container.
func (s *Root) containers(uid, name string) string {
	return filepath.Join(s.root, "pods", uid, "containers", name)
}

// eachDir calls f for each directory in the directories of a pod's containers, or of
// all containers if uid is empty. What is removed in the meantime may be left out. Any
// error ends it: what can't be read is not missing.
func (s *Root) eachDir(uid string, f func(uid, name, dir string) error) error {
	pods := []string{uid}
	if uid == "" {
		var err error
		if pods, err = dirsIn(filepath.Join(s.root, "pods")); err != nil {
			return err
		}
	}
	for _, uid := range pods {
		containers, err := dirsIn(s.containers(uid, ""))
		if err != nil {
			return err
		}
		for _, name := range containers {
			dirs, err := dirsIn(s.containers(uid, name))
			if err != nil {
				return err
			}
			for _, dir := range dirs {
				if err := f(uid, name, dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// dirsIn returns the names of the directories in a directory, which may be missing.
func dirsIn(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}
