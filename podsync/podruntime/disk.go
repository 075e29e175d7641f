// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

const (
	// diskInterval is the time between two measurements, if they take less than their share.
	diskInterval = 10 * time.Second
	// diskShare is the part of the time that measurements may take: one in diskShare.
	diskShare = 10
	// systemCritical is the priority from which on a pod is never evicted for its
	// disk usage, as with the kubelet.
	systemCritical = 2_000_000_000
	// maxPath is the length of the longest path of a directory, relative to the measured
	// one, that is read: PATH_MAX of Linux, at which the kubelet's walk ends too. Each
	// directory is opened element by element, so a deep tree costs the square of its depth.
	maxPath = 4096
)

// A diskGuard evicts pods that exceed one of their limits of disk usage.
type diskGuard struct {
	meter DiskMeter // nil: containers are not measured
	evict func(podsync.Ref, podsync.Eviction) error
	// pods returns the pods that run, with the resources in force.
	pods   func() []diskPod
	panics *panics
}

// A diskPod is a pod that is measured.
type diskPod struct {
	ctx     context.Context // for logs
	reports *reports
	ref     podsync.Ref
	dir     string
	spec    *corev1.Pod
}

// run measures the pods, one after the other, until ctx is done.
func (g *diskGuard) run(ctx context.Context) {
	for wait := diskInterval; sleep(ctx, wait); {
		began := time.Now()
		for _, pod := range g.pods() {
			if ctx.Err() == nil {
				g.check(ctx, pod)
			}
		}
		wait = max(diskInterval, diskShare*time.Since(began))
	}
}

// check measures one pod and evicts it if it exceeds a limit.
func (g *diskGuard) check(ctx context.Context, pod diskPod) {
	total, limited := LimitOf(pod.spec, corev1.ResourceEphemeralStorage)
	if priority(pod.spec) >= systemCritical || !limited && !slices.ContainsFunc(pod.spec.Spec.Volumes, hasSizeLimit) {
		return
	}
	usage, err := g.measure(ctx, pod, limited)
	if err != nil {
		if ctx.Err() == nil {
			pod.reports.fail(pod.ctx, measuring, err, "The disk usage of a pod can't be measured")
		}
		return
	}
	pod.reports.ok(pod.ctx, measuring)
	message := usage.exceeds(pod.spec, total, limited)
	if message == "" {
		pod.reports.ok(pod.ctx, evicting)
		return
	}
	err = g.panics.contain(pod.ctx, "Config.Evict", func() error {
		return g.evict(pod.ref, podsync.Eviction{Message: message, Grace: time.Second, OwnLimit: true})
	})
	if err != nil && !errors.Is(err, podsync.ErrNotFound) {
		pod.reports.fail(pod.ctx, evicting, err, "A pod that exceeds a limit of disk usage can't be evicted yet", "limit", message)
	} else {
		pod.reports.ok(pod.ctx, evicting)
	}
}

// A diskUsage is the disk usage of a pod in bytes, by the names of emptyDir volumes and
// of containers. Volumes in memory are left out: the kernel limits them. files is that of
// /etc/hosts and of the termination messages, to which containers can write (CVE-2020-8557).
type diskUsage struct {
	volumes, containers map[string]int64
	files               int64
}

// measure returns the disk usage of a pod, that of its containers only if containers
// is set.
func (g *diskGuard) measure(ctx context.Context, pod diskPod, containers bool) (u diskUsage, err error) {
	u.volumes = map[string]int64{}
	for i := range pod.spec.Spec.Volumes {
		v := &pod.spec.Spec.Volumes[i]
		if v.EmptyDir == nil {
			continue
		}
		path := volumePath(pod.dir, v.Name)
		if v.EmptyDir.Medium == corev1.StorageMediumMemory {
			if points, err := mounts.Below(path); err != nil || len(points) > 0 {
				if err != nil {
					return u, err
				}
				continue
			}
		}
		if u.volumes[v.Name], err = dirUsage(path, ctx.Err); err != nil {
			return u, fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	if !containers {
		return u, nil
	}
	if u.files, err = dirUsage(messagePath(pod.dir, ""), ctx.Err); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, fmt.Errorf("termination messages: %w", err)
	}
	if info, err := os.Lstat(hostsPath(pod.dir)); err == nil { // a pod in the network of the node may have none
		size, _, _ := diskSize(info)
		u.files += size
	}
	if g.meter == nil {
		return u, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u.containers, err = g.meter.DiskUsage(ctx, pod.ref.UID)
	return u, err
}

// exceeds returns the kubelet's message for the first limit that is exceeded, or nothing:
// that of a volume, that of the pod, which is total, or that of a container.
func (u diskUsage) exceeds(pod *corev1.Pod, total resource.Quantity, limited bool) string {
	all := u.files
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		used := u.volumes[v.Name]
		if all += used; hasSizeLimit(*v) && v.EmptyDir.SizeLimit.CmpInt64(used) < 0 {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q.", v.Name, v.EmptyDir.SizeLimit)
		}
	}
	if !limited {
		return ""
	}
	for _, used := range u.containers {
		all += used
	}
	if total.CmpInt64(all) < 0 {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s.", &total)
	}
	for _, c := range containersOf(&pod.Spec) {
		q, ok := c.Resources.Limits[corev1.ResourceEphemeralStorage]
		if ok && q.Sign() > 0 && (c.kind == core.Regular || c.kind == core.Sidecar) && q.CmpInt64(u.containers[c.Name]) < 0 {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q.", c.Name, &q)
		}
	}
	return ""
}

// hasSizeLimit reports whether the size of a volume is limited.
func hasSizeLimit(v corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() > 0
}

// DirUsage returns the bytes that a directory takes on its disk with everything below
// it, for implementations of [DiskMeter]. Holes in files do not count, and a file with
// several names counts once. Symbolic links are not followed, and no other directory
// is read if a process makes one of them in the meantime. An entry that can't be read
// does not count, nor does the content of a directory whose path below the measured one
// is longer than 4096 bytes.
func DirUsage(path string) (bytes int64, err error) {
	return dirUsage(path, func() error { return nil })
}

// dirUsage is DirUsage until ended returns an error.
func dirUsage(path string, ended func() error) (bytes int64, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	seen := map[inode]bool{}
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err := ended(); err != nil {
			return err
		}
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if err != nil {
			if path == "." {
				return err
			}
			return nil
		}
		size, id, names := diskSize(info)
		if several := names > 1 && !info.IsDir(); !several || !seen[id] {
			bytes += size
			seen[id] = several
		}
		if info.IsDir() && len(path) > maxPath {
			return fs.SkipDir
		}
		return nil
	})
	return bytes, err
}

// An inode identifies a file of the machine.
type inode struct{ device, number uint64 }
