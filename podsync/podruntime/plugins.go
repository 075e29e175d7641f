// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podenv"
)

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
