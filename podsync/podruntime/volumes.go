// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/internal/rmtree"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// Where a container finds a volume, below the directory of its pod:
//
//	emptyDir                        volumes/NAME, on which medium Memory mounts a tmpfs
//	configMap, downwardAPI          volumes/NAME
//	secret, and a projected volume  memory/NAME in a tmpfs of the pod if this process may mount;
//	with a Secret, a token or a     otherwise volumes/NAME: see dataPath
//	certificate
//	another projected volume        volumes/NAME
//	of Config.Volumes               volumes/NAME, where the plugin mounts it
//	hostPath                        the path of the node itself
//	a subPath                       subpaths/CONTAINER/N; of data from the API it is .pinned beside the volume
//
// A volume with data from the API is a directory that containers can have mounted
// while its content is replaced:
//
//	..data -> ..1          the version in force, a symbolic link
//	..1/etc/key            the files of that version
//	etc -> ..data/etc      one symbolic link for each first element of a path
//
// A rename replaces ..data, so a reader sees all files of one version.
const (
	dataLink      = "..data"
	versionPrefix = "..data-"
	// pinned is the directory beside the volumes with what containers have of them by
	// subPath: no volume has a name with a dot.
	pinned = ".pinned"
)

// volumePath returns the path of a volume of a pod.
func volumePath(dir, name string) string { return filepath.Join(dir, "volumes", name) }

// memoryPath returns the mount point of the file system in memory with a pod's Secrets,
// tokens and certificates.
func memoryPath(dir string) string { return filepath.Join(dir, "memory") }

// dataPath returns the path of a volume with data from the API.
func dataPath(dir string, v *corev1.Volume) string {
	if memory := memoryPath(dir); hasSecrets(v) && isMountPoint(memory) {
		return filepath.Join(memory, v.Name)
	}
	return volumePath(dir, v.Name)
}

// maxFile is the size of the largest file that ReadFile reads: that of a Secret, which
// is the other source of such variables.
const maxFile = corev1.MaxSecretSize

// ReadFile returns a function for [podenv.Config.ReadFile] that reads files in the
// volumes of the pods of a Provider with this Root. A file that is not regular or is
// larger than 1 MiB is an error, because containers make the files.
func ReadFile(root string) func(ctx context.Context, pod *corev1.Pod, volume, path string) ([]byte, error) {
	return func(_ context.Context, pod *corev1.Pod, volume, path string) ([]byte, error) {
		dir, err := os.OpenRoot(volumePath(store{root}.pod(pod.UID), volume))
		if err != nil {
			return nil, err
		}
		defer func() { _ = dir.Close() }()
		// Opening a FIFO blocks otherwise, until a process writes to it.
		f, err := dir.OpenFile(filepath.FromSlash(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, cmp.Or(err, fmt.Errorf("%s is not a regular file", path))
		}
		data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
		if err == nil && len(data) > maxFile {
			err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
		}
		return data, err
	}
}

// makeVolumes makes the volumes of a pod, except for emptyDir volumes in memory.
func makeVolumes(ctx context.Context, resolved *podenv.Pod, pod *corev1.Pod, dir string) error {
	errs := []error{fillAbsent(ctx, resolved, pod, dir)}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.EmptyDir != nil:
			errs = append(errs, makeShared(volumePath(dir, v.Name), 0o777, fsGroup(pod)))
		case v.HostPath != nil:
			errs = append(errs, checkHostPath(v.HostPath))
		}
	}
	return errors.Join(errs...)
}

// makeDirs makes those directories of a pod that are missing: an administrator may remove empty ones.
func makeDirs(dir string) (err error) {
	for _, name := range []string{"volumes", "runs", "messages", "containers"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	return err
}

// fillAbsent fills the volumes with data from the API that have none: those of a new pod, and
// those in memory after a restart of the machine.
func fillAbsent(ctx context.Context, resolved *podenv.Pod, pod *corev1.Pod, dir string) error {
	if err := makeDirs(dir); err != nil {
		return err
	}
	if err := mountSecrets(ctx, pod, dir); err != nil {
		return err
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !podenv.IsData(v) {
			continue
		}
		if hasData(dataPath(dir, v)) {
			continue
		}
		files, err := resolved.Volume(ctx, v.Name)
		if err == nil {
			err = writeData(dataPath(dir, v), files, fsGroup(pod))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hasData reports whether a volume with data from the API was filled.
func hasData(volume string) bool {
	_, err := os.Readlink(filepath.Join(volume, dataLink))
	return err == nil
}

// mountSecrets makes sure that the Secrets of a pod, if it has some, have a file system in memory.
// Without the permission to mount they are on the disk. They stay there if a later process has it,
// because containers that run have the volumes on the disk mounted.
func mountSecrets(ctx context.Context, pod *corev1.Pod, dir string) error {
	secret := func(v corev1.Volume) bool { return hasSecrets(&v) }
	onDisk := func(v corev1.Volume) bool { return hasSecrets(&v) && hasData(volumePath(dir, v.Name)) }
	if !slices.ContainsFunc(pod.Spec.Volumes, secret) || slices.ContainsFunc(pod.Spec.Volumes, onDisk) {
		return nil
	}
	memory := memoryPath(dir)
	made := os.Mkdir(memory, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	if isMountPoint(memory) {
		return nil
	}
	mounted, err := mountMemory(memory, 0)
	if err != nil {
		return err
	}
	if !mounted {
		if made == nil { // else it was logged before
			klog.FromContext(ctx).Info("The Secrets and tokens of a pod are on the disk, because this process may not mount file systems")
		}
		return nil
	}
	return os.Chmod(memory, 0o755)
}

// makeShared makes a directory that every user can write to.
func makeShared(path string, mode fs.FileMode, group int) error {
	if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if group >= 0 && os.Chown(path, -1, group) == nil {
		mode |= fs.ModeSetgid
	}
	return os.Chmod(path, mode) // the umask has taken some of it away
}

// fsGroup returns the group that owns the volumes of a pod, or -1.
func fsGroup(pod *corev1.Pod) int {
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		return int(*s.FSGroup)
	}
	return -1
}

// restoreEmptyDirs makes the directories of the pod and the emptyDir volumes that are missing, because
// an administrator has removed them, and mounts the volumes with medium Memory that are not mounted.
// Without the permission they stay on the disk.
func restoreEmptyDirs(pod *corev1.Pod, dir string) error {
	if err := makeDirs(dir); err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil {
			continue
		}
		path := volumePath(dir, v.Name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			if err := makeShared(path, 0o777, fsGroup(pod)); err != nil {
				return err
			}
		}
		if v.EmptyDir.Medium != corev1.StorageMediumMemory {
			continue
		}
		if points, err := mounts.Below(path); err != nil || len(points) > 0 {
			if err != nil {
				return err
			}
			continue
		}
		var size int64
		if v.EmptyDir.SizeLimit != nil {
			size = v.EmptyDir.SizeLimit.Value()
		}
		mounted, err := mountMemory(path, size)
		if err != nil {
			return err
		}
		if mounted {
			if err := makeShared(path, 0o777|fs.ModeSticky, fsGroup(pod)); err != nil { // as the kernel makes it
				return err
			}
		}
	}
	return nil
}

// checkHostPath makes or checks the path of a hostPath volume as its type says.
func checkHostPath(h *corev1.HostPathVolumeSource) error {
	if h.Type == nil || *h.Type == corev1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(h.Path)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return err
	}
	wrong := absent
	switch *h.Type {
	case corev1.HostPathDirectoryOrCreate:
		if absent {
			return os.MkdirAll(h.Path, 0o755)
		}
		wrong = !info.IsDir()
	case corev1.HostPathFileOrCreate:
		if absent {
			f, err := os.OpenFile(h.Path, os.O_RDWR|os.O_CREATE, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		wrong = !info.Mode().IsRegular()
	case corev1.HostPathDirectory:
		wrong = absent || !info.IsDir()
	case corev1.HostPathFile:
		wrong = absent || !info.Mode().IsRegular()
	case corev1.HostPathSocket:
		wrong = absent || info.Mode()&fs.ModeSocket == 0
	case corev1.HostPathCharDev:
		wrong = absent || info.Mode()&fs.ModeCharDevice == 0
	case corev1.HostPathBlockDev:
		wrong = absent || info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0
	}
	if wrong {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, *h.Type)
	}
	return nil
}

// nextRenewal returns the time at which the first of the files must be renewed, or zero.
func nextRenewal(files map[string]podenv.File) (renew time.Time) {
	for _, f := range files {
		if !f.Renew.IsZero() && (renew.IsZero() || f.Renew.Before(renew)) {
			renew = f.Renew
		}
	}
	return renew
}

// writeData makes or replaces a volume with data from the API if its content differs.
func writeData(volume string, files map[string]podenv.File, group int) error {
	if err := os.Mkdir(volume, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(volume, 0o755); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(volume, dataLink))
	if old != "" && sameFiles(filepath.Join(volume, old), files) {
		// The process that made this version may have died before it made the links.
		return errors.Join(linkFirst(volume, files), dropVersions(volume, old))
	}
	fresh, err := os.MkdirTemp(volume, versionPrefix)
	if err != nil {
		return err
	}
	if err := writeFiles(fresh, files, group); err != nil {
		return err
	}
	link := filepath.Join(volume, dataLink)
	if err := os.RemoveAll(link + ".new"); err != nil { // left by a crash
		return err
	}
	if err := os.Symlink(filepath.Base(fresh), link+".new"); err != nil {
		return err
	}
	if err := os.Rename(link+".new", link); err != nil {
		return err
	}
	return errors.Join(linkFirst(volume, files), dropVersions(volume, filepath.Base(fresh)))
}

// writeFiles writes one version of a volume. As with the kubelet, its files can be read by the
// group if there is one, whatever their modes.
func writeFiles(dir string, files map[string]podenv.File, group int) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, f := range files {
		target := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, f.Data, 0o600); err != nil {
			return err
		}
		if f.User != nil {
			// A process that may not do this runs containers as its own user.
			if err := os.Chown(target, int(*f.User), -1); err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
		if err := os.Chmod(target, fs.FileMode(f.Mode)&fs.ModePerm); err != nil {
			return err
		}
	}
	if group < 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || os.Chown(path, -1, group) != nil { // it may not be allowed
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode() | 0o440
		if d.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}

// sameFiles reports whether a version of a volume has these files and no others.
// The modes do not change during the life of a pod.
func sameFiles(dir string, files map[string]podenv.File) bool {
	found := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := files[filepath.ToSlash(rel)]
		if !ok {
			return fs.ErrNotExist
		}
		found++
		data, err := os.ReadFile(path)
		if err == nil && !bytes.Equal(data, f.Data) {
			return fs.ErrInvalid
		}
		return err
	})
	return err == nil && found == len(files)
}

// linkFirst makes the symbolic links of a volume those of the version in force.
func linkFirst(volume string, files map[string]podenv.File) error {
	want := map[string]bool{}
	for path := range files {
		first, _, _ := strings.Cut(filepath.ToSlash(path), "/")
		want[first] = true
	}
	var errs []error
	for name := range want {
		link := filepath.Join(volume, name)
		if target, err := os.Readlink(link); err == nil && target == filepath.Join(dataLink, name) {
			continue
		}
		// A subPath may have made a directory of it.
		errs = append(errs, rmtree.Remove(link), os.Symlink(filepath.Join(dataLink, name), link))
	}
	entries, err := os.ReadDir(volume)
	errs = append(errs, err)
	for _, e := range entries {
		if !want[e.Name()] && e.Name() != dataLink && !strings.HasPrefix(e.Name(), versionPrefix) {
			errs = append(errs, rmtree.Remove(filepath.Join(volume, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// dropVersions deletes all versions of a volume but one.
func dropVersions(volume, keep string) error {
	entries, err := os.ReadDir(volume)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), versionPrefix) && e.Name() != keep {
			errs = append(errs, os.RemoveAll(filepath.Join(volume, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// mountsOf returns the mounts of a container. Directories for subPath are made. With
// bind, a subPath is mounted below dir if this process may mount; see bindBelow.
func mountsOf(pod *corev1.Pod, c *corev1.Container, env *podenv.Environment, dir string, bind bool) ([]Mount, error) {
	var mounts []Mount
	volumes := make(map[string]*corev1.Volume, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		volumes[pod.Spec.Volumes[i].Name] = &pod.Spec.Volumes[i]
	}
	vars := sync.OnceValue(func() map[string]string {
		vars := make(map[string]string, len(env.Vars))
		for _, v := range env.Vars {
			vars[v.Name] = v.Value
		}
		return vars
	})
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		v := volumes[m.Name]
		if v == nil {
			return nil, fmt.Errorf("volumeMounts[%d]: the pod has no volume %s", i, m.Name)
		}
		path := volumePath(dir, m.Name)
		switch {
		case v.HostPath != nil:
			path = v.HostPath.Path
		case podenv.IsData(v):
			path = dataPath(dir, v)
		}
		sub, err := subPathOf(m, vars)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Name, err)
		}
		if sub != "" {
			base, rel, err := below(path, sub)
			target := filepath.Join(c.Name, strconv.Itoa(i))
			switch path = filepath.Join(base, rel); {
			case err != nil:
			case podenv.IsData(v):
				// The version that it is in is dropped at the next change.
				target = filepath.Join(filepath.Dir(dataPath(dir, v)), pinned, target)
				err = pin(path, target)
				path = target
			case bind:
				var bound bool
				if bound, err = bindBelow(base, rel, filepath.Join(dir, "subpaths", target)); bound {
					path = filepath.Join(dir, "subpaths", target)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("volume %s: subPath %q: %w", m.Name, sub, err)
			}
		}
		mount := Mount{
			Volume: m.Name, HostPath: path, ContainerPath: m.MountPath,
			// Data from the API is the Provider's to write.
			ReadOnly: m.ReadOnly || podenv.IsData(v),
		}
		if m.MountPropagation != nil {
			mount.Propagation = *m.MountPropagation
		}
		if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
			mount.RecursiveReadOnly = mount.ReadOnly
		}
		mounts = append(mounts, mount)
	}
	slices.SortStableFunc(mounts, func(a, b Mount) int {
		return len(filepath.Clean(a.ContainerPath)) - len(filepath.Clean(b.ContainerPath))
	})
	return mounts, nil
}

// pin makes target the file or directory at path, in the file system of path, by links to the
// same files, and in place of an earlier one.
func pin(path, target string) error {
	if err := rmtree.Remove(target); err != nil {
		return err
	}
	return filepath.WalkDir(path, func(from string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, from)
		if err != nil {
			return err
		}
		to := filepath.Join(target, rel)
		if !d.IsDir() {
			return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Link(from, to))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return errors.Join(os.MkdirAll(to, 0o755), os.Chmod(to, info.Mode()))
	})
}

// maxSubPath is the length of the longest subPath. Linux knows no longer path, see PATH_MAX
// in limits.h, but makes one directory by directory; and variables can repeat in a subPathExpr.
const maxSubPath = 4096

// subPathOf returns the path in a volume that is mounted; empty for the volume. vars returns the
// variables of the container.
func subPathOf(m *corev1.VolumeMount, vars func() map[string]string) (string, error) {
	sub := m.SubPath
	left := maxSubPath // for variables; negative if they need more
	if m.SubPathExpr != "" {
		var missing []string
		sub = podenv.Expand(m.SubPathExpr, func(name string) (string, bool) {
			if left < 0 {
				return "", true
			}
			value, ok := vars()[name]
			if left -= len(value); left < 0 {
				return "", true
			}
			if !ok {
				missing = append(missing, name)
			}
			return value, ok
		})
		if len(missing) > 0 {
			return "", fmt.Errorf("subPathExpr %q: the container has no variable %s", m.SubPathExpr, strings.Join(missing, ", "))
		}
	}
	if left < 0 || len(sub) > maxSubPath {
		return "", fmt.Errorf("its subPath is longer than %d bytes", maxSubPath)
	}
	if sub == "" {
		return "", nil
	}
	if filepath.IsAbs(sub) || strings.HasPrefix(sub, "/") {
		return "", fmt.Errorf("subPath %q must not be an absolute path", sub)
	}
	if slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("subPath %q must not contain '..'", sub)
	}
	return sub, nil
}

// below returns the path of a volume and the path of sub in it, both without symbolic
// links, and makes a directory if nothing is there. A path that leads out of the volume
// is an error.
func below(volume, sub string) (base, rel string, err error) {
	root, err := os.OpenRoot(volume)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = root.Close() }()
	if _, err := root.Stat(sub); errors.Is(err, fs.ErrNotExist) {
		info, err := os.Stat(volume)
		if err != nil {
			return "", "", err
		}
		if err := root.MkdirAll(sub, info.Mode().Perm()); err != nil {
			return "", "", err
		}
		// Without the umask, and with the bits that keep files in the group of the
		// volume and with their owners.
		if err := root.Chmod(sub, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky)); err != nil {
			return "", "", err
		}
	} else if err != nil {
		return "", "", err
	}
	if base, err = filepath.EvalSymlinks(volume); err != nil {
		return "", "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(base, filepath.FromSlash(sub)))
	if err != nil {
		return "", "", err
	}
	if rel, err = filepath.Rel(base, path); err != nil || !filepath.IsLocal(rel) {
		return "", "", errors.New("it leads out of the volume")
	}
	return base, rel, nil
}

// hasSecrets reports whether a volume has data that must not be on a disk.
func hasSecrets(v *corev1.Volume) bool {
	return v.Secret != nil || hasCredentials(v) ||
		v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil })
}

// hasCredentials reports whether a volume has a token or a certificate.
func hasCredentials(v *corev1.Volume) bool {
	return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil || s.PodCertificate != nil
	})
}

// hasFields reports whether a volume has fields of the pod, which may change without
// an Update.
func hasFields(v *corev1.Volume) bool {
	return v.DownwardAPI != nil || v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.DownwardAPI != nil })
}

// minRefresh is the shortest time between two tries to renew credentials.
const minRefresh = 10 * time.Second

// shortestLife returns the shortest life that the credentials of v may have: that of a
// token is chosen by the pod, and no signer may issue a certificate for less than an
// hour.
func shortestLife(v *corev1.Volume) time.Duration {
	shortest := time.Hour
	for _, s := range v.Projected.Sources {
		if t := s.ServiceAccountToken; t != nil && t.ExpirationSeconds != nil {
			shortest = min(shortest, time.Duration(*t.ExpirationSeconds)*time.Second)
		}
	}
	return shortest
}

// nextRead returns when a volume is read again, if its first credential must be renewed at
// renew; zero: none must.
func nextRead(renew, now time.Time) time.Time {
	switch soonest, latest := now.Add(minRefresh), now.Add(volumeRefresh); {
	case renew.IsZero() || renew.After(latest):
		return latest
	case renew.Before(soonest):
		return soonest
	}
	return renew
}

// ownVolume reports whether this package has the volumes of this kind, without a plugin.
func ownVolume(v *corev1.Volume) bool {
	return podenv.IsData(v) || v.EmptyDir != nil || v.HostPath != nil
}

// hasPluginVolumes reports whether a plugin must mount a volume of a pod.
func hasPluginVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return !ownVolume(&v) })
}

// sourceName returns the name of the source of a volume in the API, or nothing for one that this
// version of the API does not have.
func sourceName(v *corev1.Volume) (name string) {
	data, _ := json.Marshal(v.VolumeSource)
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(data, &fields)
	for name = range fields { // there is one
	}
	return name
}

// plugins are the plugins of Config.Volumes.
type plugins struct {
	of map[string]VolumePlugin // by the name of the volume source
	*panics
}

// mount mounts the volumes of a pod that this package does not have.
func (p plugins) mount(ctx context.Context, pod *corev1.Pod, dir string) error {
	if slices.ContainsFunc(containersOf(&pod.Spec), func(c spec) bool { return len(c.VolumeDevices) > 0 }) {
		return &StartError{Reason: reasonFailedMount, Err: errors.New("block devices (volumeDevices) are not supported on this node")}
	}
	return p.each(pod, func(v *corev1.Volume, plugin VolumePlugin) error {
		err := fmt.Errorf("no plugin of this node mounts %s", sourceName(v))
		if plugin != nil {
			err = p.contain(ctx, "VolumePlugin.Mount", func() error { return plugin.Mount(ctx, pod.DeepCopy(), v.DeepCopy(), volumePath(dir, v.Name)) })
		}
		if err != nil {
			err = &StartError{Reason: reasonFailedMount, Err: fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)}
		}
		return err
	})
}

// reasonFailedMount is the kubelet's reason of events about volumes.
const reasonFailedMount = "FailedMount"

// unmount undoes mount.
func (p plugins) unmount(ctx context.Context, pod *corev1.Pod, dir string) error {
	return p.each(pod, func(v *corev1.Volume, plugin VolumePlugin) error {
		if plugin == nil {
			return nil
		}
		err := p.contain(ctx, "VolumePlugin.Unmount", func() error { return plugin.Unmount(ctx, pod.DeepCopy(), v.DeepCopy(), volumePath(dir, v.Name)) })
		if err != nil {
			err = fmt.Errorf("UnmountVolume.TearDown failed for volume %q: %w", v.Name, err)
		}
		return err
	})
}

// each calls f for each volume that this package does not have, with its plugin, or nil.
func (p plugins) each(pod *corev1.Pod, f func(*corev1.Volume, VolumePlugin) error) error {
	var errs []error
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; !ownVolume(v) {
			errs = append(errs, f(v, p.of[sourceName(v)]))
		}
	}
	return errors.Join(errs...)
}

// volumeRefresh is the time between two reads of the ConfigMaps, Secrets and pod fields in volumes.
// Tokens and certificates are kept until they must be renewed.
const volumeRefresh = time.Minute

// scheduleRefresh sets when the volumes with data from the API are read next. The
// age of the credentials of an adopted pod is not known; they are as old as the pod.
func (p *pod) scheduleRefresh(now time.Time) {
	for i := range p.spec.Spec.Volumes {
		v := &p.spec.Spec.Volumes[i]
		if !podenv.IsData(v) {
			continue
		}
		wait := volumeRefresh
		if hasCredentials(v) {
			wait = min(wait, max(shortestLife(v)*8/10-max(now.Sub(p.accepted), 0), 0))
		}
		p.refreshDue[v.Name] = now.Add(wait)
	}
}

// refresh reads the volumes that are due, one after the other, and returns when the
// next one is.
func (p *pod) refresh(now time.Time) (again time.Time) {
	if p.refreshing || p.deadline != nil {
		return time.Time{}
	}
	name := ""
	for _, n := range slices.Sorted(maps.Keys(p.refreshDue)) {
		if due := p.refreshDue[n]; name == "" || due.Before(again) {
			name, again = n, due
		}
	}
	if name == "" || again.After(now) {
		return again
	}
	at := slices.IndexFunc(p.spec.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	v, spec, ctx := &p.spec.Spec.Volumes[at], p.spec, p.starting
	if hasFields(v) {
		spec = p.labelled(spec)
	}
	p.refreshing = true
	p.node.wg.Go(func() {
		var files map[string]podenv.File
		err := p.node.panics.contain(ctx, "Config.Environment", func() (err error) {
			files, err = p.node.cfg.Environment.Refresh(spec, p.memory).Volume(ctx, name)
			return err
		})
		if err == nil {
			err = p.replaceData(spec, v, files)
		}
		renew := nextRenewal(files)
		p.do(func() {
			p.refreshing = false
			p.refreshDue[name] = nextRead(renew, time.Now())
			if err != nil && ctx.Err() == nil {
				p.unfresh[name] = true
				p.reports.fail(p.ctx, refreshing, err, "A volume is not refreshed", "volume", name)
				p.event(corev1.EventTypeWarning, "FailedMount", "Mounting", "MountVolume.SetUp failed for volume %q: %v", name, err)
			} else if delete(p.unfresh, name); len(p.unfresh) == 0 {
				p.reports.ok(p.ctx, refreshing)
			}
		})
	})
	return time.Time{}
}

// fillAbsent fills the volumes that the restart of the machine has emptied.
func (p *pod) fillAbsent(ctx context.Context, resolved *podenv.Pod, spec *corev1.Pod) error {
	p.prepare.Lock() // containers of a pod share its volumes
	defer p.prepare.Unlock()
	return fillAbsent(ctx, resolved, spec, p.dir)
}

// replaceData replaces the content of a volume of spec. After a restart of the machine it may come
// before the first start, which would mount the memory for Secrets.
func (p *pod) replaceData(spec *corev1.Pod, v *corev1.Volume, files map[string]podenv.File) error {
	p.prepare.Lock()
	defer p.prepare.Unlock()
	p.keepInputs()
	if err := mountSecrets(p.ctx, spec, p.dir); err != nil {
		return err
	}
	return writeData(dataPath(p.dir, v), files, fsGroup(spec))
}

// keepInputs writes what the containers have read, if it has changed. p.prepare must be held.
// If it can't be written, the containers run anyway: it is for an API server that is away.
func (p *pod) keepInputs() {
	version := p.memory.Version()
	if version == p.keptInputs {
		return
	}
	err := p.node.panics.contain(p.ctx, "Config.Sealer", func() error { return keepInputs(p.dir, p.memory, p.node.cfg.Sealer) })
	if err != nil {
		p.reports.fail(p.ctx, remembering, err, "What the containers of a pod have read is not on disk")
		return
	}
	p.reports.ok(p.ctx, remembering)
	p.keptInputs = version
}

// recallInputs returns what the containers of a pod have read in an earlier process. What can't
// be read is read from the API again.
func (n *node) recallInputs(ctx context.Context, dir string) *podenv.Memory {
	data, err := os.ReadFile(inputsFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return &podenv.Memory{}
	}
	memory := &podenv.Memory{}
	if err == nil {
		err = n.panics.contain(ctx, "Config.Sealer", func() (err error) {
			memory, err = n.cfg.Environment.Remember(data, n.cfg.Sealer)
			return err
		})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "A part of what the containers of a pod had read can't be recalled")
	}
	return memory
}
