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

// A store is the folder of a kubelet:
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
type store struct {
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

// openStore makes the folder if need be and locks it.
func openStore(root string) (*store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	s := &store{root: root}
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
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
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

func (s *store) close() error { return s.lock.Close() }

func (s *store) pods() string               { return filepath.Join(s.root, "pods") }
func (s *store) trash() string              { return filepath.Join(s.root, "trash") }
func (s *store) pod(uid types.UID) string   { return filepath.Join(s.pods(), string(uid)) }
func (s *store) draft(uid types.UID) string { return filepath.Join(s.trash(), "new-"+string(uid)) }

// list returns the folders of all pods.
func (s *store) list() ([]string, error) {
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
func (s *store) create(pod *corev1.Pod, prepare func(dir string) error) (dir string, err error) {
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
func (s *store) remove(uid types.UID) error {
	gone := filepath.Join(s.trash(), string(uid))
	if err := os.Rename(s.pod(uid), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
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
