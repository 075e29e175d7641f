// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// What a pod of a few kilobytes can make of itself and of one object, in bytes. The API
// server limits a pod and each object to about 1.5 MB, but references and items can repeat
// the same text, and references to references multiply it.
const (
	// maxContainer is for what references and sources, such as a ConfigMap, add to env, command and args
	// of one container. Linux starts no process with more than 6 MiB of them, and by default
	// none with more than 2 MiB; see execve(2), "Limits on size of arguments and environment".
	maxContainer = 8 << 20
	// maxContainers is for all containers of a pod, in equal shares, because all of them may
	// start at once.
	maxContainers = 32 << 20
	// maxEnvFile is for a file with variables. An init container makes it.
	maxEnvFile = 1 << 20
	// maxVolume is for the files of one volume. Only a projected volume has more than 1 MiB
	// without repetition.
	maxVolume = 32 << 20
	// maxVolumes is for all volumes of a pod, in equal shares, because Secrets are in memory for
	// as long as the pod. A pod of 64 volumes still has 2 MiB for each.
	maxVolumes = 128 << 20
	// overhead is for the record of each variable, which may have no content.
	overhead = 64
	// fileOverhead is for a file, which has whole pages of a file system in memory.
	fileOverhead = 4096
)

// volumeLimit returns the limit for each volume of a pod.
func volumeLimit(spec *corev1.PodSpec) int {
	n := 0
	for i := range spec.Volumes {
		if IsData(&spec.Volumes[i]) {
			n++
		}
	}
	return min(maxVolume, maxVolumes/max(n, 1))
}

// containerLimit returns the limit for each container of a pod.
func containerLimit(spec *corev1.PodSpec) int {
	n := len(spec.Containers) + len(spec.InitContainers) + len(spec.EphemeralContainers)
	return min(maxContainer, maxContainers/max(n, 1))
}

// A budget is what is left of a limit in bytes.
type budget struct {
	limit, used int
	exceeded    bool // nothing more is added
}

// spend reports whether n bytes more are within the limit.
func (b *budget) spend(n int) bool {
	if b.exceeded || n > b.limit-b.used {
		b.exceeded = true
		return false
	}
	b.used += n
	return true
}

// err returns the error of a limit that is exceeded: no other object can help, because the
// pod asks for too much.
func (b *budget) err(container, field, what string) error {
	return &SourceError{Container: container, Field: field, Err: fmt.Errorf("%s more than the %d bytes that are allowed", what, b.limit)}
}
