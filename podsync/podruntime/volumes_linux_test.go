// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A container makes the files of its volumes: a start must neither wait for one nor
// read it into memory whatever its size.
func TestReadFileRefusesWhatBlocksOrIsLarge(t *testing.T) {
	root := t.TempDir()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	volume := volumePath(store{root}.pod("1"), "v")
	if err := os.MkdirAll(filepath.Join(volume, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(volume, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	const large = 64 << 20 // a hole, which takes no room
	for name, size := range map[string]int64{"most": 1 << 20, "more": 1<<20 + 1, "large": large} {
		path := filepath.Join(volume, name)
		write(t, path)
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	read := ReadFile(root)
	for name, want := range map[string]string{
		"pipe": "not a regular file", "dir": "not a regular file", "most": "", "more": "larger than 1048576 bytes", "large": "larger than 1048576 bytes",
	} {
		var data []byte
		var err error
		if took := allocated(func() { data, err = read(t.Context(), pod, "v", name) }); took > large/2 {
			t.Errorf("%s: it took %d bytes of memory", name, took)
		}
		if want == "" && (err != nil || len(data) != 1<<20) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d bytes, %v, want error %q", name, len(data), err, want)
		}
	}
}
