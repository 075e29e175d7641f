// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/internal/mounts"
)

func TestLimitsOfDiskUsage(t *testing.T) {
	limited := func(name, limit string) corev1.Container {
		c := corev1.Container{Name: name}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		return c
	}
	emptyDir := func(name, limit string) corev1.Volume {
		v := corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
		if limit != "" {
			q := resource.MustParse(limit)
			v.EmptyDir.SizeLimit = &q
		}
		return v
	}
	side := limited("s", "1Ki")
	side.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	type sizes = map[string]int64
	for name, tc := range map[string]struct {
		spec                corev1.PodSpec
		volumes, containers sizes
		want                string
	}{
		"no limit":              {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "")}, Containers: []corev1.Container{limited("a", "")}}, sizes{"v": 1 << 40}, sizes{"a": 1 << 40}, ""},
		"a volume at its limit": {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "1Ki")}}, sizes{"v": 1 << 10}, nil, ""},
		"above it":              {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("u", ""), emptyDir("v", "1Ki")}}, sizes{"u": 1 << 40, "v": 1<<10 + 1}, nil, `Usage of EmptyDir volume "v" exceeds the limit "1Ki".`},
		"a limit of zero":       {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "0")}}, sizes{"v": 1}, nil, ""},
		"a pod at its limit":    {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "")}, Containers: []corev1.Container{limited("a", "1Ki"), limited("b", "1Ki")}}, sizes{"v": 1 << 10}, sizes{"a": 1 << 9, "b": 1 << 9}, ""},
		"volumes count":         {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "")}, Containers: []corev1.Container{limited("a", "1Ki"), limited("b", "1Ki")}}, sizes{"v": 1<<10 + 1}, sizes{"a": 1 << 9, "b": 1 << 9}, "Pod ephemeral local storage usage exceeds the total limit of containers 2Ki."},
		"containers count":      {corev1.PodSpec{Containers: []corev1.Container{limited("a", "1Ki"), limited("b", "")}}, nil, sizes{"a": 1 << 9, "b": 1 << 10}, "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki."},
		"a container":           {corev1.PodSpec{Containers: []corev1.Container{limited("a", "1Ki"), limited("b", "1Ki")}}, nil, sizes{"a": 1<<10 + 1}, `Container a exceeded its local ephemeral storage limit "1Ki".`},
		"one at its limit":      {corev1.PodSpec{Containers: []corev1.Container{limited("a", "1Ki"), limited("b", "1Ki")}}, nil, sizes{"a": 1 << 10}, ""},
		"a sidecar":             {corev1.PodSpec{InitContainers: []corev1.Container{side}, Containers: []corev1.Container{limited("a", "1Ki")}}, nil, sizes{"s": 1<<10 + 1}, `Container s exceeded its local ephemeral storage limit "1Ki".`},
		"an init container":     {corev1.PodSpec{InitContainers: []corev1.Container{limited("i", "1Ki")}, Containers: []corev1.Container{limited("a", "2Ki")}}, nil, sizes{"i": 1<<10 + 1}, ""},
		"an ephemeral container": {corev1.PodSpec{Containers: []corev1.Container{limited("a", "2Ki")}, EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon(limited("e", "1"))}}}, nil, sizes{"e": 1 << 10}, ""},
		"a container without bytes": {corev1.PodSpec{Containers: []corev1.Container{limited("a", "0"), limited("b", "2Ki")}}, nil, sizes{"a": 1 << 10}, ""},
		"the volume comes first":    {corev1.PodSpec{Volumes: []corev1.Volume{emptyDir("v", "1Ki")}, Containers: []corev1.Container{limited("a", "1Ki")}}, sizes{"v": 1 << 20}, sizes{"a": 1 << 20}, `Usage of EmptyDir volume "v" exceeds the limit "1Ki".`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tc.spec}
			total, ok := LimitOf(pod, corev1.ResourceEphemeralStorage)
			if got := (diskUsage{volumes: tc.volumes, containers: tc.containers}).exceeds(pod, total, ok); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestDirUsageCountsBlocksOnce(t *testing.T) {
	dir := t.TempDir()
	usage := func() int64 {
		t.Helper()
		n, err := DirUsage(dir)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	fill := func(name string, size int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const size = 1 << 20
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := usage()
	fill("sub/file", size)
	full := usage()
	if grown := full - before; grown < size || grown > size+1<<16 {
		t.Errorf("a file of %d bytes takes %d", size, grown)
	}
	// Another name, a link out of the directory and a hole take nothing, or nearly so.
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "large"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, f := range map[string]func(string) error{
		"name": func(path string) error { return os.Link(filepath.Join(dir, "sub/file"), path) },
		"away": func(path string) error { return os.Symlink(outside, path) },
		"hole": func(path string) error { fill("hole", 0); return os.Truncate(path, 1<<30) },
	} {
		if err := f(filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
		if grown := usage() - full; grown > 1<<16 || grown < 0 {
			t.Errorf("%s: %d bytes more", link, grown)
		}
	}
	if _, err := DirUsage(filepath.Join(dir, "absent")); err == nil {
		t.Error("the usage of a directory that does not exist is no error")
	}
}

// One pod must not keep those of all others from being measured.
func TestDirUsageEndsInADeepDirectory(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const size, name = 1 << 20, 200
	path := "top"
	for range 30 { // longer than a path that the kernel takes, and so made from the root
		path = filepath.Join(path, strings.Repeat("d", name))
	}
	if err := root.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := DirUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	for at, counts := range map[int]bool{20: true, 21: false, 30: false} {
		file := filepath.Join(path[:len("top")+at*(name+1)], "file")
		if err := root.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		after, err := DirUsage(dir)
		if grown := after - before; err != nil || (grown >= size) != counts || grown > size+1<<16 {
			t.Errorf("a file of %d bytes %d levels deep takes %d, %v, want it counted %v", size, at, grown, err, counts)
		}
		if err := root.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDiskUsageIsMeasuredUntilTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dirUsage(t.TempDir(), ctx.Err); !errors.Is(err, context.Canceled) {
		t.Errorf("a measurement after the end returned %v", err)
	}
}

// TestVolumesInMemoryAreNotMeasured unless they are on the disk, because the process may not mount.
func TestVolumesInMemoryAreNotMeasured(t *testing.T) {
	dir := t.TempDir()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "m", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "d", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
	}}}
	measure := func() map[string]int64 {
		t.Helper()
		for _, name := range []string{"m", "d"} {
			if err := os.MkdirAll(volumePath(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(volumePath(dir, name), "file"), make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		usage, err := (&diskGuard{}).measure(t.Context(), diskPod{dir: dir, spec: pod}, true)
		if err != nil || usage.containers != nil {
			t.Errorf("%v, %v", usage, err)
		}
		return usage.volumes
	}
	if got := measure(); len(got) != 2 || got["m"] < 1<<20 || got["d"] < 1<<20 {
		t.Errorf("on the disk: %v", got)
	}
	if err := restoreEmptyDirs(pod, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	points, err := mounts.Below(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := measure(); len(points) > 0 && (len(got) != 1 || got["d"] < 1<<20) {
		t.Errorf("in memory: %v", got)
	}
}

func TestGracePeriods(t *testing.T) {
	const noLimit = longest / time.Second * time.Second
	for seconds, want := range map[int64]time.Duration{
		-1: 30 * time.Second, 0: time.Second, 1: time.Second, 5: 5 * time.Second, 10_000_000_000: noLimit, math.MaxInt64: noLimit,
	} {
		pod := &corev1.Pod{}
		if seconds >= 0 {
			pod.Spec.TerminationGracePeriodSeconds = &seconds
		}
		if got := grace(pod); got != want {
			t.Errorf("%d seconds: %v, want %v", seconds, got, want)
		}
	}
}
