// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// containerConfig returns the configuration of a container for CreateContainer.
func (r *Runtime) containerConfig(ctx context.Context, spec *podruntime.ContainerSpec, image *runtimeapi.Image) (*runtimeapi.ContainerConfig, error) {
	pod, c := spec.Pod, spec.Container
	security, err := r.containerSecurity(pod, c, image)
	if err != nil {
		return nil, err
	}
	if err := r.target(ctx, spec, security.NamespaceOptions); err != nil {
		return nil, err
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(spec.ID.Attempt)},
		Image:      &runtimeapi.ImageSpec{Image: image.Id, UserSpecifiedImage: c.Image},
		Command:    spec.Environment.Command,
		Args:       spec.Environment.Args,
		WorkingDir: c.WorkingDir,
		// Without the annotations of the pod, which the sandbox has: runtimes take devices from
		// those of a container.
		Labels:  labelsOf(pod, r.cfg.Node),
		LogPath: logName(spec.ID),
		Stdin:   c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{Resources: resources(pod, c, r.cfg.Memory), SecurityContext: security},
	}
	cfg.Labels[labelContainer] = c.Name
	devices, err := r.cfg.Claims.Devices(pod, c)
	for _, name := range devices {
		cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	for _, v := range spec.Environment.Vars {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	for _, m := range spec.Mounts {
		cfg.Mounts = append(cfg.Mounts, mount(m))
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		cfg.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value[string(*l.StopSignal)])
	}
	return cfg, err
}

// labelsOf returns the labels of a sandbox or a container.
func labelsOf(pod *corev1.Pod, node string) map[string]string {
	return map[string]string{labelNode: node, labelNamespace: pod.Namespace, labelPod: pod.Name, labelUID: string(pod.UID)}
}

func mount(m podruntime.Mount) *runtimeapi.Mount {
	out := &runtimeapi.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly}
	switch m.Propagation {
	case corev1.MountPropagationHostToContainer:
		out.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		out.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return out
}

// target puts an ephemeral container into the PID namespace of the container that it
// looks at.
func (r *Runtime) target(ctx context.Context, spec *podruntime.ContainerSpec, namespaces *runtimeapi.NamespaceOption) error {
	at := slices.IndexFunc(spec.Pod.Spec.EphemeralContainers, func(e corev1.EphemeralContainer) bool { return e.Name == spec.ID.Name })
	if at < 0 || spec.Pod.Spec.EphemeralContainers[at].TargetContainerName == "" {
		return nil
	}
	name := spec.Pod.Spec.EphemeralContainers[at].TargetContainerName
	list, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: spec.Sandbox.ID, LabelSelector: map[string]string{labelContainer: name},
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return err
	}
	if len(list.Containers) == 0 {
		return fmt.Errorf("the target container %s does not run", name)
	}
	namespaces.Pid, namespaces.TargetId = runtimeapi.NamespaceMode_TARGET, list.Containers[0].Id
	return nil
}
