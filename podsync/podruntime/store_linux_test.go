// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
)

// TestFilesThatStayKeepNothingDown: a user of a pod has made a file that can't be
// deleted. The pod goes, the next process starts, and a pod of that UID can come again.
func TestFilesThatStayKeepNothingDown(t *testing.T) {
	s := store{root: t.TempDir()}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	accept := func() string {
		t.Helper()
		if _, err := s.open(); err != nil {
			t.Fatal(err)
		}
		dir, err := s.create(pod, time.Now(), makeDirs)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	write := func(name string) {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stuck := filepath.Join(accept(), "volumes", "stuck")
	write(stuck)
	undo := rmtreetest.Immutable(t, stuck)
	for range 2 {
		write(filepath.Join(accept(), "volumes", "other"))
		remove, err := s.discard("1")
		if err != nil {
			t.Fatalf("the pod can't be released: %v", err)
		}
		_ = remove() // the first one can't remove all
		if _, err := os.Stat(s.pod("1")); !os.IsNotExist(err) {
			t.Errorf("the pod is still there: %v", err)
		}
		if err := s.emptyTrash(); err == nil {
			t.Error("the file was deleted")
		}
	}
	undo()
	if err := s.emptyTrash(); err != nil {
		t.Error(err)
	}
}

// TestAContainerOfAnyUserMayWriteItsTerminationMessage: the umask must not take the
// permission from a file that is new and empty.
func TestAContainerOfAnyUserMayWriteItsTerminationMessage(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	path := filepath.Join(t.TempDir(), "message")
	for name, before := range map[string]func() error{
		"absent file, empty data": func() error { return os.Remove(path) },
		"another message":         func() error { return os.WriteFile(path, []byte("old"), 0o600) },
	} {
		if err := before(); err != nil && !os.IsNotExist(err) {
			t.Fatal(name, err)
		}
		if err := rewrite(path, nil, 0o666); err != nil {
			t.Fatal(name, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 || info.Size() != 0 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}
