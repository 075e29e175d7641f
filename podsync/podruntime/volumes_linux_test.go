// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync/podenv"
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

// The rules of the kubelet: a token is the user's alone if there is one user, and an fsGroup can
// read every file.
func TestOwnersAndModesOfFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	files := map[string]podenv.File{
		"token": {Mode: 0o600, User: new(int64(7))}, "secret": {Mode: 0o400}, "dir/config": {Mode: 0o644}, "none": {Mode: 0},
	}
	for group, want := range map[int]string{
		-1: "dir drwxr-xr-x 0 0, dir/config -rw-r--r-- 0 0, none ---------- 0 0, secret -r-------- 0 0, token -rw------- 7 0",
		9:  "dir dgrwxr-xr-x 0 9, dir/config -rw-r--r-- 0 9, none -r--r----- 0 9, secret -r--r----- 0 9, token -rw-r----- 7 9",
	} {
		dir := t.TempDir()
		if err := writeFiles(dir, files, group); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == dir {
				return err
			}
			info, err := d.Info()
			st := info.Sys().(*syscall.Stat_t)
			got = append(got, fmt.Sprint(path[len(dir)+1:], " ", info.Mode(), " ", st.Uid, " ", st.Gid))
			return err
		})
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%v, %v\nwant %v", strings.Join(got, ", "), err, want)
		}
	}
}

// TestSecretsAndTokensAreInMemory unless the process may not mount: then they are on the disk, with all else.
func TestSecretsAndTokensAreInMemory(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}}}}
	for range 2 { // the second Provider finds it mounted
		if err := mountSecrets(t.Context(), pod, dir); err != nil {
			t.Fatal(err)
		}
	}
	points, err := mounts.Below(dir)
	if err != nil || len(points) > 1 {
		t.Fatalf("mounts %q, %v, want one", points, err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(memoryPath(dir), &st); err != nil {
		t.Fatal(err)
	}
	const tmpfs = 0x01021994
	if mounted := len(points) == 1; mounted && st.Type != tmpfs {
		t.Errorf("the file system has the type %x", st.Type)
	}
	if info, err := os.Stat(memoryPath(dir)); err != nil || info.Mode() != fs.ModeDir|0o755 { // no user but root writes in it
		t.Errorf("it has the mode %v, %v", info.Mode(), err)
	}
	for name, tc := range map[string]struct {
		source corev1.VolumeSource
		secret bool
	}{
		"Secret":     {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, true},
		"ConfigMap":  {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, false},
		"fields":     {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, false},
		"emptyDir":   {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
		"token":      {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}, true},
		"projection": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{}}}}}, false},
		"both":       {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{}}, {Secret: &corev1.SecretProjection{}}}}}, true},
	} {
		path := dataPath(dir, &corev1.Volume{Name: "v", VolumeSource: tc.source})
		if in := strings.HasPrefix(path, memoryPath(dir)+"/"); in != (tc.secret && len(points) == 1) {
			t.Errorf("%s is at %s", name, path)
		}
	}
}
