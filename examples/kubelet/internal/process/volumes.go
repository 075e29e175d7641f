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
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// rootVariable tells a container where its volumes are: below this folder, each
// at its mountPath. Windows HostProcess containers, which have no mount
// namespace either, have the same variable.
const rootVariable = "CONTAINER_SANDBOX_MOUNT_POINT"

// volumePath is where a volume of a pod is. For data from the API it is a
// symbolic link, which can be replaced at once.
func volumePath(dir, name string) string { return filepath.Join(dir, "volumes", name) }

// fillVolumes makes the volumes of a pod.
func fillVolumes(ctx context.Context, resolved *podenv.Pod, spec *corev1.Pod, dir string) error {
	var errs []error
	if err := os.MkdirAll(filepath.Join(dir, "volumes"), 0o700); err != nil {
		return err
	}
	for i := range spec.Spec.Volumes {
		v := &spec.Spec.Volumes[i]
		path := volumePath(dir, v.Name)
		switch {
		case podenv.IsData(v):
			_, err := fillData(ctx, resolved, v.Name, dir)
			errs = append(errs, err)
		case v.HostPath != nil:
			if t := v.HostPath.Type; t != nil && *t == corev1.HostPathDirectoryOrCreate {
				errs = append(errs, os.MkdirAll(v.HostPath.Path, 0o755))
			}
			errs = append(errs, os.Symlink(v.HostPath.Path, path))
		default: // Admit has let nothing else in
			errs = append(errs, os.Mkdir(path, 0o777))
		}
	}
	return errors.Join(errs...)
}

// fillData makes or replaces a volume with data from the API, and returns when
// the first part of it expires, or zero.
func fillData(ctx context.Context, resolved *podenv.Pod, name, dir string) (expires time.Time, err error) {
	files, err := resolved.Volume(ctx, name)
	if err != nil {
		return expires, err
	}
	fresh, err := os.MkdirTemp(filepath.Join(dir, "volumes"), ".data-")
	if err != nil {
		return expires, err
	}
	for path, f := range files {
		if !f.Expires.IsZero() && (expires.IsZero() || f.Expires.Before(expires)) {
			expires = f.Expires
		}
		target := filepath.Join(fresh, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return expires, err
		}
		if err := os.WriteFile(target, f.Data, fs.FileMode(f.Mode)&fs.ModePerm); err != nil {
			return expires, err
		}
	}
	// A relative link is right also after the folder was moved.
	path := volumePath(dir, name)
	old, _ := os.Readlink(path)
	if err := os.RemoveAll(path + ".new"); err != nil { // left by a crash
		return expires, err
	}
	if err := os.Symlink(filepath.Base(fresh), path+".new"); err != nil {
		return expires, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return expires, err
	}
	if old != "" {
		err = os.RemoveAll(filepath.Join(dir, "volumes", old))
	}
	return expires, err
}

// linkVolumes makes the root of a container: a symbolic link for each mount.
func linkVolumes(spec *corev1.Pod, c *corev1.Container, dir string) error {
	root := filepath.Join(dir, "containers", c.Name, "root")
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(filepath.Clean("/"+c.TerminationMessagePath))), 0o700); err != nil {
		return err
	}
	mounts := slices.Clone(c.VolumeMounts)
	slices.SortFunc(mounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	for _, m := range mounts {
		if !filepath.IsLocal(filepath.Join(".", m.SubPath)) {
			return fmt.Errorf("container %s: the subPath %q leads out of the volume", c.Name, m.SubPath)
		}
		link := filepath.Join(root, filepath.Clean("/"+m.MountPath))
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return err
		}
		// Relative, because the folder of the pod is moved to its place when
		// it is complete.
		up, err := filepath.Rel(filepath.Dir(link), volumePath(dir, m.Name))
		if err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(up, m.SubPath), link); err != nil {
			return err
		}
	}
	return nil
}

// workingDir returns the working directory of the container: below its root if
// that is where it is, else that of the machine; the root if it asks for none.
func (c *container) workingDir() string {
	below := filepath.Join(c.root(), filepath.Clean("/"+c.WorkingDir))
	if info, err := os.Stat(below); err == nil && info.IsDir() {
		return below
	}
	return c.WorkingDir
}

// minRefresh is the shortest time between two tries to renew a token.
const minRefresh = 10 * time.Second

// keepTokens makes the volumes with tokens anew before they expire, until the pod
// stops. ConfigMaps and Secrets stay as they were when the pod was started.
func (p *pod) keepTokens() {
	for i := range p.spec.Spec.Volumes {
		v := &p.spec.Spec.Volumes[i]
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
			p.provider.wg.Go(func() { p.keepToken(v) })
		}
	}
}

// keepToken replaces one volume again and again. Nobody has written down how old
// the token of an adopted pod is; the first one is as old as the pod.
func (p *pod) keepToken(v *corev1.Volume) {
	life := shortestToken(v)
	wait := life*8/10 - max(time.Since(p.accepted), 0)
	for {
		select {
		case <-time.After(max(wait, 0)):
		case <-p.starting.Done():
			return
		}
		expires, err := fillData(p.starting, p.provider.cfg.Environment.Pod(p.spec), v.Name, p.dir)
		// The clock may be behind that of the API server, which says when it expires.
		if wait = min(time.Until(expires), life) * 8 / 10; err != nil || wait < minRefresh {
			wait = minRefresh
		}
		if err != nil && p.starting.Err() == nil {
			klog.FromContext(p.ctx).Error(err, "The token of a volume is not renewed", "volume", v.Name)
		}
	}
}

// shortestToken returns the shortest life that v asks for a token.
func shortestToken(v *corev1.Volume) time.Duration {
	shortest := time.Hour
	for _, s := range v.Projected.Sources {
		if t := s.ServiceAccountToken; t != nil && t.ExpirationSeconds != nil {
			shortest = min(shortest, time.Duration(*t.ExpirationSeconds)*time.Second)
		}
	}
	return shortest
}
