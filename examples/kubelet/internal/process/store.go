// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/examples/kubelet/internal/record"
)

// A Root is the folder of a kubelet. What is in it, besides what others keep there:
//
//	lock                              held by the one kubelet that uses it
//	pods/UID/pod.json                 an accepted pod
//	pods/UID/stop.json                when its time is up
//	pods/UID/volumes/NAME             see volumes.go
//	pods/UID/containers/NAME/root     what the container sees of the volumes
//	pods/UID/containers/NAME/N.log    the output of its run number N
//	pods/UID/containers/NAME/N        that run, a folder of package shim
//	pods/UID/containers/NAME/N/run.json, health.json
//	trash                             what is being deleted
type Root struct {
	root string
	lock *os.File
}

// podRecord is the content of pod.json. The folder of a pod never exists
// without it.
type podRecord struct {
	Pod      *corev1.Pod `json:"pod"`
	Accepted time.Time   `json:"accepted"`
}

// stopRecord is the content of a pod's stop.json. With it nothing of the pod is
// started any more.
type stopRecord struct {
	Deadline time.Time `json:"deadline"`
}

// runRecord is the content of run.json.
type runRecord struct {
	// Waited is how long the run was held back.
	Waited time.Duration `json:"waited"`
}

// Lock makes the folder if need be, and has it for this process until Close. A
// kubelet does that before anything else.
func Lock(path string) (*Root, error) {
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	s := &Root{root: root}
	for _, dir := range []string{s.pods(), s.trash()} {
		// Secrets are below it.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	s.lock, err = os.OpenFile(filepath.Join(root, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(s.lock); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another kubelet: %w", root, err), s.lock.Close())
	}
	if err := os.RemoveAll(s.trash()); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	if err := os.Mkdir(s.trash(), 0o700); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	return s, nil
}

// lockPatience is how long the lock of a kubelet may outlive it. One that was
// killed while it forked has a child that holds everything open until exec.
const lockPatience = 3 * time.Second

// lockFile locks a file, until it is closed.
func lockFile(f *os.File) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(begin) > lockPatience {
			return err
		}
	}
}

// Close lets another kubelet have the folder.
func (s *Root) Close() error { return s.lock.Close() }

// Path returns the absolute path of the folder.
func (s *Root) Path() string { return s.root }

func (s *Root) pods() string               { return filepath.Join(s.root, "pods") }
func (s *Root) trash() string              { return filepath.Join(s.root, "trash") }
func (s *Root) pod(uid types.UID) string   { return filepath.Join(s.pods(), string(uid)) }
func (s *Root) draft(uid types.UID) string { return filepath.Join(s.trash(), "new-"+string(uid)) }

// list returns the folders of all pods.
func (s *Root) list() ([]string, error) {
	entries, err := os.ReadDir(s.pods())
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(s.pods(), e.Name()))
	}
	return dirs, nil
}

// create makes the folder of a pod with what prepare puts in it: whole or not at
// all.
func (s *Root) create(pod *corev1.Pod, prepare func(dir string) error) (dir string, err error) {
	dir = s.pod(pod.UID)
	draft := s.draft(pod.UID)
	if err := os.RemoveAll(draft); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(draft)
		}
	}()
	if err := os.Mkdir(draft, 0o700); err != nil {
		return "", err
	}
	if err := prepare(draft); err != nil {
		return "", err
	}
	if err := record.Write(filepath.Join(draft, "pod.json"), podRecord{Pod: pod, Accepted: time.Now()}); err != nil {
		return "", err
	}
	return dir, os.Rename(draft, dir)
}

// remove deletes the folder of a pod: for whoever lists them at once.
func (s *Root) remove(uid types.UID) error {
	gone := filepath.Join(s.trash(), string(uid))
	if err := os.Rename(s.pod(uid), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// removeAll deletes everything that matches a pattern.
func removeAll(pattern string) error {
	paths, err := filepath.Glob(pattern)
	for _, path := range paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// attempts returns the numbers of the runs in the folder of a container, in
// order.
func attempts(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers) // they were sorted as texts
	return numbers, nil
}
