// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Resolver reads, for any number of pods, what their containers need from the API.
// It is safe for concurrent use.
type Resolver struct {
	cfg      Config
	reads    reads
	services serviceCache
	requests requests
	shelf    shelf
}

// New returns a Resolver. It makes no request; it returns an error that names
// every field of cfg that can't be used.
func New(cfg Config) (*Resolver, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	r := &Resolver{cfg: cfg}
	r.reads.timeout = cfg.CallTimeout
	return r, nil
}

// Pod returns the inputs of pod. It makes no request, and copies pod.
func (r *Resolver) Pod(pod *corev1.Pod) *Pod {
	return &Pod{resolver: r, pod: pod.DeepCopy(), objects: map[objectKey]any{}}
}

// Recall is Pod for a pod whose objects were read before: while the API server can't be
// reached, those in memory take their places, and so do its tokens. A request that the API
// server itself answers with 403 or 404 fails as usual. What is read is stored in memory for the next time.
func (r *Resolver) Recall(pod *corev1.Pod, memory *Memory) *Pod {
	p := r.Pod(pod)
	p.memory = memory
	return p
}

// sharedAge is the greatest age of an object that a pod of Refresh gets from another pod.
const sharedAge = 30 * time.Second

// Refresh is Recall for the volumes of containers that run already. [Pod.Volume] asks for a new
// token or certificate only when that in memory must be renewed, by the wall clock, and takes
// objects that were read for another pod in the last half minute. So it can be called once
// a minute: an object costs two requests a minute at most, however many pods have it.
func (r *Resolver) Refresh(pod *corev1.Pod, memory *Memory) *Pod {
	p := r.Recall(pod, memory)
	p.refresh = true
	return p
}

// Remember returns the Memory that Encode made data of. If a part of it can't be read, such
// as what is sealed without a sealer, it returns the rest along with an error.
func (r *Resolver) Remember(data []byte, sealer Sealer) (*Memory, error) {
	m := &Memory{}
	err := m.decode(data, sealer, func(key objectKey, obj any) *held { return r.shelf.share(key, obj, time.Time{}) })
	return m, err
}
