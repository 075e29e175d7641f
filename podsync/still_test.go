// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

var errFailed = errors.New("it failed")

// A still is a Controller that does not run: a test calls its drivers itself. It keeps what the
// Controller reports.
type still struct {
	*Controller
	told, dropped   []string // the errors, and the reasons of Hooks.Dropped
	masses          []MassOrphans
	calls, requests int // of which the hooks were called
	recorder        *events.FakeRecorder
}

// atRest returns a still of the node n.
func atRest(t *testing.T, edit ...func(*Config)) *still {
	t.Helper()
	c := &still{recorder: events.NewFakeRecorder(100)}
	cfg := Config{
		Client: &api{}, Provider: &lists{}, NodeName: "n", EventRecorder: c.recorder,
		ErrorHandler: func(_ context.Context, err error, _ string) { c.told = append(c.told, err.Error()) },
		Hooks: Hooks{
			Dropped:      func(d Dropped) { c.dropped = append(c.dropped, d.Reason) },
			MassOrphans:  func(m MassOrphans) { c.masses = append(c.masses, m) },
			ProviderCall: func(ProviderCall) { c.calls++ },
			APICall:      func(APICall) { c.requests++ },
		},
	}
	for _, f := range edit {
		f(&cfg)
	}
	var err error
	if c.Controller, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	c.run.callCtx = klog.NewContext(t.Context(), klog.Logger{}) // which prints nothing
	c.run.apiCtx = c.run.callCtx
	return c
}

// gated gives a Controller a gate that is open.
func gated(cfg *Config) { cfg.Gate = func(context.Context, string) error { return nil } }

// podOf returns a pod of the node n with a resourceVersion.
func podOf(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// seen adds a pod that the informer shows.
func (c *still) seen(pod *corev1.Pod, saved core.Saved) *entry {
	t := c.pods.add(RefOf(pod), core.New(&c.pods.rules, c.pods.now(), c.pods.tick(), saved))
	c.apply(t, core.Seen{Version: core.Cached(pod)})
	return t
}

// runs adds a pod that runs, and that a List has shown.
func (c *still) runs(pod *corev1.Pod) *entry {
	t := c.seen(pod, core.Saved{})
	c.says(t, &core.Report{})
	c.apply(t, core.ListEnded{Seq: c.pods.tick(), Shown: true, First: true, Open: true})
	return t
}

// due adds a pod of which a call of Start and a PATCH are due at the moment that is returned.
func (c *still) due(pod *corev1.Pod) (*entry, core.Moment) {
	t := c.seen(pod, core.Saved{})
	c.apply(t, core.ListEnded{Seq: c.pods.tick(), First: true, Open: true})
	return t, c.in(time.Minute)
}

// orphan adds an instance of a pod that nothing has shown. It was started for a node, or for "".
func (c *still) orphan(pod *corev1.Pod, node string) *entry {
	return c.pods.add(RefOf(pod), core.NewOrphan(&c.pods.rules, c.pods.now(), c.pods.tick(), core.Saved{}, node))
}

// apply applies an event to a pod, now.
func (c *still) apply(t *entry, event core.Event) core.News {
	return c.pods.apply(t, c.pods.moment(), event)
}

// says applies a report of the provider, which has news.
func (c *still) says(t *entry, report *core.Report) {
	seq := c.pods.tick()
	c.apply(t, core.Reported{Seq: seq, Report: report, FP: seq})
}

// sends begins a request.
func (c *still) sends(t *entry, op core.Op) *core.Call {
	c.loop.writer.running++
	return c.apply(t, core.Sent{Action: core.Action{Op: op}}).Call
}

// missed shows that a list of the informer has left out a pod.
func (c *still) missed(pod *corev1.Pod) { c.intake.onDelete(cache.DeletedFinalStateUnknown{Obj: pod}) }

// in returns the moment after d.
func (c *still) in(d time.Duration) core.Moment {
	at := c.pods.moment()
	return core.Moment{Since: at.Since + d, Wall: at.Wall.Add(d)}
}

// clean makes no pod dirty, as after a round of the loop.
func (c *still) clean() {
	for _, t := range c.pods.dirty {
		t.dirty = false
	}
	c.pods.dirty = nil
}

// flush calls the effects that wait, as a round of the loop does. It returns the events.
func (c *still) flush() (events []string) {
	effects := c.pods.effects
	c.pods.effects = nil
	for _, effect := range effects {
		effect()
	}
	for len(c.recorder.Events) > 0 {
		events = append(events, <-c.recorder.Events)
	}
	return events
}

// woken reports whether ch was woken.
func woken(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// lists is a provider that can list only.
type lists struct {
	Provider
	list func(context.Context) ([]State, error)
}

func (p *lists) List(ctx context.Context) ([]State, error) { return p.list(ctx) }

// A memory is a Checkpoint in memory.
type memory struct {
	records map[types.UID][]byte
	err     error
}

func (m *memory) Load(context.Context) (map[types.UID][]byte, error) { return m.records, m.err }

func (m *memory) Save(_ context.Context, uid types.UID, record []byte) error {
	if m.err == nil {
		m.records[uid] = record
	}
	return m.err
}

func (m *memory) Remove(_ context.Context, uid types.UID) error {
	if m.err == nil {
		delete(m.records, uid)
	}
	return m.err
}

// An api is a client whose requests are answered by functions.
type api struct {
	corev1client.PodInterface
	get    func() (*corev1.Pod, error)
	list   func(metav1.ListOptions) (*corev1.PodList, error)
	delete func(metav1.DeleteOptions) error
	patch  func(body []byte) (*corev1.Pod, error)
}

func (a *api) Pods(string) corev1client.PodInterface { return a }

func (a *api) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) { return a.get() }

func (a *api) List(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	return a.list(opts)
}

func (a *api) Patch(_ context.Context, _ string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Pod, error) {
	return a.patch(body)
}

func (a *api) Delete(_ context.Context, _ string, opts metav1.DeleteOptions) error {
	return a.delete(opts)
}
