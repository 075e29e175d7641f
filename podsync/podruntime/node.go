// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/podsync"
)

// A node is what the pods of a Provider share.
type node struct {
	cfg     Config
	caps    capabilities
	gate    gate
	room    *room
	bound   bool            // the containers end with the process
	wg      sync.WaitGroup  // the goroutines of Run and of the pods
	report  func(types.UID) // makes Watch report a pod
	checked func(error)     // of tests; nil: no invariant is checked
	panics  panics
	groups  [activities]apierr.Group
	reports reports // about what is done for all pods
}

// An activity is something that may fail for many pods at once, which is reported once.
type activity int

const (
	relisting activity = iota
	watching
	stopping
	removing
	straying
	mounting
	sandboxing
	refreshing
	recording
	remembering
	measuring
	evicting
	breaking // of invariants; it has no end
	activities
)

// works is what the log says at the end of the failures of an activity.
var works = [activities]string{
	relisting:   "The containers can be listed again",
	watching:    "The watch of the runtime works again",
	stopping:    "Containers can be stopped again",
	removing:    "Old runs can be removed again",
	straying:    "Containers without a pod can be removed again",
	mounting:    "Volumes are mounted again",
	sandboxing:  "Sandbox calls work again",
	refreshing:  "Volumes are refreshed again",
	recording:   "Records can be written again",
	remembering: "What containers have read can be written again",
	measuring:   "The disk usage of pods can be measured again",
	evicting:    "Evictions because of disk usage work again",
}

// reports report the failures of a pod, of a container, or of the node, to the log.
type reports struct {
	groups  *[activities]apierr.Group // of the node
	members [activities]apierr.Member
}

func (r *reports) fail(ctx context.Context, a activity, err error, msg string, keysAndValues ...any) {
	r.groups[a].Fail(ctx, nil, &r.members[a], err, msg, keysAndValues...)
}

func (r *reports) ok(ctx context.Context, a activity) {
	r.groups[a].OK(ctx, &r.members[a], works[a])
}

// A listing is what the Runtime lists of one pod; the zero value if that is nothing.
type listing struct {
	runs    []Container // by name and attempt
	sandbox *Sandbox    // the newest one
	err     error       // not nil: nothing is known of the pod; see ListError
}

// equal reports whether two lists of a pod are known and the same.
func (l listing) equal(other listing) bool {
	if l.err != nil || other.err != nil || (l.sandbox == nil) != (other.sandbox == nil) {
		return false
	}
	if a, b := l.sandbox, other.sandbox; a != nil && (a.ID != b.ID || a.Ready != b.Ready || !slices.Equal(a.IPs, b.IPs)) {
		return false
	}
	return slices.EqualFunc(l.runs, other.runs, func(a, b Container) bool {
		if !a.StartedAt.Equal(b.StartedAt) || !a.FinishedAt.Equal(b.FinishedAt) {
			return false
		}
		a.StartedAt, a.FinishedAt = b.StartedAt, b.FinishedAt
		return a == b
	})
}

// listPod lists one pod. An error means that nothing is known of it.
func (n *node) listPod(ctx context.Context, uid types.UID) (listing, error) {
	all, err := n.listRuntime(ctx, uid)
	if err == nil {
		err = all[uid].err
	}
	return all[uid], err
}

// listRuntime lists one pod, or all. The error is nil if something is known of at least one pod.
func (n *node) listRuntime(ctx context.Context, uid types.UID) (map[types.UID]listing, error) {
	all, unknown := map[types.UID]listing{}, map[types.UID]error{}
	// complete reports whether the list is, but for the pods of a ListError.
	complete := func(err error) bool {
		some := (*ListError)(nil)
		if errors.As(err, &some) {
			maps.Copy(unknown, some.Pods)
			return true
		}
		return err == nil
	}
	list, err := n.cfg.Runtime.List(ctx, uid)
	if !complete(err) {
		return nil, err
	}
	for _, c := range list {
		l := all[c.ID.Pod]
		l.runs = append(l.runs, c)
		all[c.ID.Pod] = l
	}
	for _, l := range all {
		slices.SortFunc(l.runs, func(a, b Container) int {
			return cmp.Or(cmp.Compare(a.ID.Name, b.ID.Name), cmp.Compare(a.ID.Attempt, b.ID.Attempt))
		})
	}
	if n.caps.sandboxer != nil {
		boxes, err := n.caps.sandboxer.ListPods(ctx, uid)
		if !complete(err) {
			return nil, err
		}
		for i := range boxes {
			l := all[boxes[i].Pod]
			l.sandbox = &boxes[i]
			all[boxes[i].Pod] = l
		}
	}
	for uid, err := range unknown {
		all[uid] = listing{err: err}
	}
	return all, nil
}

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

// A gate lets a number of callers through at once: pods that have a sandbox first, so
// that one runs before the next is begun, and among those the oldest one.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting []*ticket // the next one first
}

type ticket struct {
	created time.Time // the pod
	begun   bool      // the pod has a sandbox
	ready   chan struct{}
}

// before reports whether a ticket goes before another one that is waiting.
func (t *ticket) before(other *ticket) bool {
	if t.begun != other.begun {
		return t.begun
	}
	return t.created.Before(other.created)
}

// enter waits for a place, until ctx ends.
func (g *gate) enter(ctx context.Context, t ticket) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	t.ready = make(chan struct{})
	at := slices.IndexFunc(g.waiting, t.before)
	if at < 0 {
		at = len(g.waiting)
	}
	g.waiting = slices.Insert(g.waiting, at, &t)
	g.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.waiting, &t); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	} else {
		g.pass() // the place came at the same time
	}
	return ctx.Err()
}

// leave gives a place back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// pass hands a place on. g.mu must be held.
func (g *gate) pass() {
	if len(g.waiting) == 0 {
		g.free++
		return
	}
	close(g.waiting[0].ready)
	g.waiting = slices.Delete(g.waiting, 0, 1)
}

// sleep waits, and reports whether ctx has not ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
