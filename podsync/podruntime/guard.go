// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"runtime/debug"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/podsync"
)

// A guard is a Runtime whose panics are errors: a fault in it concerns one call of
// one pod, and not the process. It has no CheckPod and no Check, since podsync contains
// the calls of the Provider that they are part of; a launch contains its own.
type guard struct {
	runtime Runtime
	capabilities
	*panics
}

// guarded returns a Runtime and its capabilities with their panics contained.
func guarded(r Runtime) (Runtime, capabilities) {
	has := capabilitiesOf(r)
	g := guard{r, has, &panics{}}
	if has.watcher != nil {
		has.watcher = g
	}
	if has.execer != nil {
		has.execer = g
	}
	if has.tailer != nil {
		has.tailer = g
	}
	if has.puller != nil {
		has.puller = g
	}
	if has.sandboxer != nil {
		has.sandboxer = g
	}
	if has.resizer != nil {
		has.resizer = g
	}
	if has.podResizer != nil {
		has.podResizer = g
	}
	if has.meter != nil {
		has.meter = g
	}
	return g, has
}

// panics report the panics of callbacks: those of one callback once, and again each hour while
// there are some.
type panics struct{ groups sync.Map } // *apierr.Group by callback

// contain calls f and returns a panic in it as a *podsync.PanicError.
func (s *panics) contain(ctx context.Context, callback string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &podsync.PanicError{Callback: callback, Value: v, Stack: debug.Stack()}
			group, _ := s.groups.LoadOrStore(callback, &apierr.Group{})
			group.(*apierr.Group).Fail(ctx, nil, &apierr.Member{}, p, "A callback panicked", "stack", string(p.Stack))
			err = p
		}
	}()
	return f()
}

func (g guard) List(ctx context.Context, pod types.UID) (list []Container, err error) {
	err = g.contain(ctx, "Runtime.List", func() error { list, err = g.runtime.List(ctx, pod); return err })
	return list, err
}

func (g guard) Start(ctx context.Context, spec ContainerSpec) error {
	return g.contain(ctx, "Runtime.Start", func() error { return g.runtime.Start(ctx, spec) })
}

func (g guard) Stop(ctx context.Context, id ContainerID, opts StopOptions) error {
	return g.contain(ctx, "Runtime.Stop", func() error { return g.runtime.Stop(ctx, id, opts) })
}

func (g guard) Remove(ctx context.Context, id ContainerID) error {
	return g.contain(ctx, "Runtime.Remove", func() error { return g.runtime.Remove(ctx, id) })
}

func (g guard) Watch(ctx context.Context, changed func(types.UID)) error {
	return g.contain(ctx, "Watcher.Watch", func() error { return g.watcher.Watch(ctx, changed) })
}

func (g guard) Exec(ctx context.Context, id ContainerID, command []string) (result ExecResult, err error) {
	err = g.contain(ctx, "Execer.Exec", func() error { result, err = g.execer.Exec(ctx, id, command); return err })
	return result, err
}

func (g guard) LogTail(ctx context.Context, id ContainerID, size int64) (tail []byte, err error) {
	err = g.contain(ctx, "LogTailer.LogTail", func() error { tail, err = g.tailer.LogTail(ctx, id, size); return err })
	return tail, err
}

func (g guard) Pull(ctx context.Context, pod *corev1.Pod, container *corev1.Container) error {
	return g.contain(ctx, "Puller.Pull", func() error { return g.puller.Pull(ctx, pod, container) })
}

func (g guard) SetUpPod(ctx context.Context, spec SandboxSpec) (box Sandbox, err error) {
	err = g.contain(ctx, "Sandboxer.SetUpPod", func() error { box, err = g.sandboxer.SetUpPod(ctx, spec); return err })
	return box, err
}

func (g guard) TearDownPod(ctx context.Context, pod types.UID) error {
	return g.contain(ctx, "Sandboxer.TearDownPod", func() error { return g.sandboxer.TearDownPod(ctx, pod) })
}

func (g guard) RemovePod(ctx context.Context, pod types.UID) error {
	return g.contain(ctx, "Sandboxer.RemovePod", func() error { return g.sandboxer.RemovePod(ctx, pod) })
}

func (g guard) ListPods(ctx context.Context, pod types.UID) (list []Sandbox, err error) {
	err = g.contain(ctx, "Sandboxer.ListPods", func() error { list, err = g.sandboxer.ListPods(ctx, pod); return err })
	return list, err
}

func (g guard) Resize(ctx context.Context, id ContainerID, pod *corev1.Pod, container *corev1.Container) error {
	return g.contain(ctx, "Resizer.Resize", func() error { return g.resizer.Resize(ctx, id, pod, container) })
}

func (g guard) ResizePod(ctx context.Context, pod *corev1.Pod, grow bool) error {
	return g.contain(ctx, "PodResizer.ResizePod", func() error { return g.podResizer.ResizePod(ctx, pod, grow) })
}

func (g guard) DiskUsage(ctx context.Context, pod types.UID) (usage map[string]int64, err error) {
	err = g.contain(ctx, "DiskMeter.DiskUsage", func() error { usage, err = g.meter.DiskUsage(ctx, pod); return err })
	return usage, err
}
