// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// unmountAtEnd unmounts everything below a directory before it is deleted.
func unmountAtEnd(t *testing.T, dir string) {
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
}

// write makes files with their names as content.
func write(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(filepath.Base(path)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// A container swaps a directory of its volume for a link after the subPath was checked.
func TestASubPathThatBecomesALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	base, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	write(t, filepath.Join(base, "a/b/inside"), filepath.Join(outside, "b/secret"), filepath.Join(outside, "secret"))
	for link, target := range map[string]string{"up": outside, "a/up": "../../outside", "here": "a"} {
		if err := os.Symlink(target, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	for rel, ok := range map[string]bool{
		"a": true, "a/b": true, "a/b/inside": true, ".": true,
		"up": false, "up/b": false, "a/up": false, "a/up/secret": false, "here/b": false, "absent": false,
	} {
		t.Run(rel, func(t *testing.T) {
			fd, isDir, err := openBelow(base, rel)
			if (err == nil) != ok {
				t.Fatalf("%v, want success %v", err, ok)
			}
			if err != nil {
				return
			}
			defer func() { _ = syscall.Close(fd) }()
			if isDir == (rel == "a/b/inside") {
				t.Errorf("a directory: %v", isDir)
			}
		})
	}
}

func TestASubPathIsMountedByDescriptor(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	unmountAtEnd(t, dir)
	volume := volumePath(dir, "v")
	write(t, filepath.Join(volume, "a/b/inside"), filepath.Join(outside, "b/inside"), filepath.Join(outside, "b/secret"))
	pod := &corev1.Pod{}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{
		{Name: "v", MountPath: "/d", SubPath: "a/b"}, {Name: "v", MountPath: "/file", SubPath: "a/b/inside"}, {Name: "v", MountPath: "/whole"},
	}}
	mount := func() map[string]string {
		t.Helper()
		list, err := mountsOf(pod, c, &podenv.Environment{}, dir, true)
		if err != nil {
			t.Fatal(err)
		}
		paths := map[string]string{}
		for _, m := range list {
			paths[m.ContainerPath] = m.HostPath
		}
		return paths
	}
	paths := mount()
	if paths["/d"] == filepath.Join(volume, "a/b") {
		t.Skip("this process may not mount")
	}
	if paths["/whole"] != volume {
		t.Errorf("a mount without a subPath is of %s", paths["/whole"])
	}
	// The runtime mounts the path later. Until then a container changes the volume.
	if err := errors.Join(os.Rename(filepath.Join(volume, "a"), filepath.Join(volume, "moved")), os.Symlink(outside, filepath.Join(volume, "a"))); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(paths["/d"], "inside")); got != "inside" {
		t.Errorf("the directory has %q", got)
	}
	if _, err := os.Stat(filepath.Join(paths["/d"], "secret")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount leads out of the volume: %v", err)
	}
	if got := content(t, paths["/file"]); got != "inside" {
		t.Errorf("the file has %q", got)
	}
	if _, err := mountsOf(pod, c, &podenv.Environment{}, dir, true); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("the next start of the container: %v", err)
	}
	// The next run finds another directory there, and then a file.
	if err := os.Remove(filepath.Join(volume, "a")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(volume, "a/b/new"), filepath.Join(volume, "a/b/inside"))
	if got := content(t, filepath.Join(mount()["/d"], "new")); got != "new" {
		t.Errorf("the next run has %q", got)
	}
	if err := os.RemoveAll(filepath.Join(volume, "a/b")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(volume, "a/b"))
	c.VolumeMounts = c.VolumeMounts[:1]
	if got := content(t, mount()["/d"]); got != "b" {
		t.Errorf("a file in the place of the directory has %q", got)
	}
	if points, err := mounts.Below(dir); err != nil || len(points) != 2 {
		t.Errorf("mounts %q, %v", points, err)
	}
	// Deleting the pod takes the mounts away, and nothing of the volume before that.
	if err := mounts.UnmountBelow(dir); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(volume, "a/b")); got != "b" {
		t.Errorf("the volume has %q", got)
	}
}

// A mount of the host below a directory shows up below its bind mounts, and stays on the
// host when those go.
func TestUnmountingLeavesTheMountsOfTheHost(t *testing.T) {
	host, dir := t.TempDir(), t.TempDir()
	if mounted, err := mountMemory(host, 1<<20); err != nil || !mounted {
		t.Skipf("this process may not mount: %v", err)
	}
	unmountAtEnd(t, host)
	unmountAtEnd(t, dir)
	if err := syscall.Mount("", host, "", syscall.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(host, "d/inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "subpaths/c/0")
	if bound, err := bindBelow(host, "d", target); err != nil || !bound {
		t.Fatalf("%v, %v", bound, err)
	}
	if mounted, err := mountMemory(inner, 1<<20); err != nil || !mounted {
		t.Fatal(err)
	}
	write(t, filepath.Join(inner, "file"))
	if got := content(t, filepath.Join(target, "inner/file")); got != "file" {
		t.Errorf("the mount of the host is not propagated: %q", got)
	}
	if err := mounts.UnmountBelow(dir); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(inner, "file")); got != "file" {
		t.Errorf("the mount of the host has %q", got)
	}
	if points, err := mounts.Below(dir); err != nil || len(points) > 0 {
		t.Errorf("mounts %q, %v", points, err)
	}
}
