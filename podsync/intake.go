// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// An intake takes what the informer shows. The lock of the table guards undecided, rivals
// and restored.
type intake struct {
	pods     *table
	gates    *gates
	observer *observer
	reports  *reports
	records  *records
	informer cache.SharedIndexInformer
	owns     func(pod *corev1.Pod) bool
	errors   *cacheErrors

	undecided map[types.UID]types.NamespacedName // pods about which Owns panicked
	rivals    map[string]bool                    // the field managers that were reported
	restored  bool                               // the informer's last list is older than the one before
}

// handlers returns the informer's event handlers. They record the pod and mark it
// dirty, so that many events at once do not block the informer.
func (i *intake) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: i.onUpdate,
		UpdateFunc: func(old, obj any) {
			// A relist shows a pod that was deleted and created again under its
			// name as a change.
			if a, b := versionOf(old), versionOf(obj); a != nil && b != nil && a.UID() != b.UID() {
				i.onReplaced(a, b)
			}
			i.onUpdate(obj)
		},
		DeleteFunc: i.onDelete,
	}
}

// onUpdate applies a pod that the informer has.
func (i *intake) onUpdate(obj any) {
	v := versionOf(obj)
	if v == nil {
		return
	}
	pod := v.Open()
	if pod.UID == "" {
		i.refuse(pod, ErrNoUID)
		return
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return // a kubelet made it of a static pod, which runs already
	}
	if i.isFresh(pod.UID) && !i.asksOwns(pod) {
		return // also if the provider holds it: see suspects.ask
	}
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	if i.pods.closed {
		return
	}
	t, at := i.pods.pods[pod.UID], i.pods.moment()
	if t == nil {
		t = i.pods.add(RefOf(pod), core.New(&i.pods.rules, at.Since, i.pods.tick(), i.records.claim(pod.UID, pod, at.Since)))
		i.supersede(t, at)
	}
	news := i.pods.apply(t, at, core.Seen{Seq: i.pods.tick(), Version: v})
	if news.Fought != "" {
		i.tellRival(t, news.Fought)
	}
	if !news.New {
		if !t.dirty {
			t.Rest()
		}
		return
	}
	if news.First {
		i.reports.join(t, at)
		if i.gates.joined(t) {
			i.pods.apply(t, at, core.Joined{})
		}
	}
	i.pods.markDirty(t)
}

// maxRivals bounds the memory that other clients cost.
const maxRivals = 100

// tellRival reports the field manager of a client that undoes what is written, once.
func (i *intake) tellRival(t *entry, manager string) {
	if i.rivals[manager] || len(i.rivals) >= maxRivals {
		return
	}
	i.rivals[manager] = true
	ctx, ref := i.pods.run.apiCtx, t.ref
	err := fmt.Errorf("podsync: field manager %q overwrites the status of pod %s that the provider reports: it is written again, and ever more rarely", manager, ref)
	i.pods.later(func() {
		report.Tell(ctx, i.pods.handler, err, "Another client writes the status of a pod again and again", "manager", manager, "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
}

// isFresh reports whether the informer has not shown the pod before.
func (i *intake) isFresh(uid types.UID) bool {
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	t := i.pods.pods[uid]
	return t == nil || !t.Seen()
}

// asksOwns calls Config.Owns, without a lock. If it panics the pod is not taken, and
// Owns is called again after the next List.
func (i *intake) asksOwns(pod *corev1.Pod) (yes bool) {
	err := contain("Owns", func() error {
		yes = i.owns(pod)
		return nil
	})
	if err != nil {
		i.pods.mu.Lock()
		i.undecided[pod.UID] = nameOf(RefOf(pod))
		i.pods.mu.Unlock()
		i.refuse(pod, err)
	}
	return yes
}

// askOwnsAgain shows the pods about which Config.Owns panicked to it again.
func (i *intake) askOwnsAgain() {
	i.pods.mu.Lock()
	undecided := maps.Clone(i.undecided)
	clear(i.undecided)
	i.pods.mu.Unlock()
	for _, name := range undecided {
		if obj, ok, _ := i.informer.GetIndexer().GetByKey(name.String()); ok {
			i.onUpdate(obj)
		}
	}
}

// refuse reports that a pod of the informer is not taken.
func (i *intake) refuse(pod *corev1.Pod, err error) {
	report.Tell(i.pods.run.callCtx, i.pods.handler, explain("take", RefOf(pod), err), "Failed to take a pod", panicValues(err, "pod", klog.KObj(pod))...)
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	i.observer.dropped(RefOf(pod), DroppedRefused, err)
}

// supersede records that other pods of the name of t are gone, because the API has t.
func (i *intake) supersede(t *entry, at core.Moment) {
	for other := t.next; other != nil; other = other.next {
		i.pods.apply(other, at, core.Vanished{Superseded: true})
		i.pods.markDirty(other)
	}
}

// onReplaced applies that a list has another pod of the same name instead of old. It is gone,
// unless the API server was restored from a backup: then the pod may have never been deleted,
// and the API is asked as for any pod that a list left out.
func (i *intake) onReplaced(old, next *core.Version) {
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	t := i.pods.pods[old.UID()]
	if i.pods.closed || t == nil || !t.Seen() {
		return
	}
	restored := i.restored || core.Older(next.ResourceVersion(), old.ResourceVersion())
	i.pods.apply(t, i.pods.moment(), core.Vanished{Doubtful: restored, Restored: restored})
	i.pods.markDirty(t)
}

// onDelete applies that the informer no longer has a pod.
func (i *intake) onDelete(obj any) {
	last, tombstone := obj.(cache.DeletedFinalStateUnknown)
	if tombstone {
		obj = last.Obj
	}
	v := versionOf(obj)
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	if i.pods.closed {
		return
	}
	// A tombstone is about a pod that a LIST left out, which is not as certain as an event.
	gone := core.Vanished{Last: v, Doubtful: tombstone, Restored: tombstone && i.restored}
	drop := func(t *entry) {
		i.pods.apply(t, i.pods.moment(), gone)
		i.pods.markDirty(t)
	}
	if v != nil {
		// An orphan is not ours, or it is too new to be seen: it is verified.
		if t := i.pods.pods[v.UID()]; t != nil && t.Seen() {
			drop(t)
		}
	} else if namespace, name, err := cache.SplitMetaNamespaceKey(last.Key); err == nil {
		for t := i.pods.names[types.NamespacedName{Namespace: namespace, Name: name}]; t != nil; t = t.next {
			if t.Cached() {
				drop(t)
			}
		}
	}
}

// ownInformer makes an informer of the pods bound to the node, and of no
// others: a node's credentials allow nothing else.
func (i *intake) ownInformer(client corev1client.PodsGetter, nodeName string, retries backoff.Policy) {
	pods := client.Pods(metav1.NamespaceAll)
	source := listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if opts.ResourceVersion == "0" {
				// A reflector begins with any state of the past, as an API
				// server may have it that is behind. Pods that are gone would
				// be in it, and be started (k/k #59848).
				opts.ResourceVersion = ""
			}
			start := time.Now()
			list, err := pods.List(ctx, opts)
			if err == nil && list.ResourceVersion == "" {
				list, err = nil, errAnswer // not a list without pods, which would end them all
			}
			i.observer.requested(OpList, Ref{}, time.Since(start), err)
			return list, err
		},
		Watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			start := time.Now()
			stream, err := pods.Watch(ctx, opts)
			i.observer.requested(OpWatch, Ref{}, time.Since(start), err)
			return stream, err
		},
		Client:        client,
		Listed:        i.listed,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName).String(),
		ListTimeout:   listTimeout,
		AnswerTimeout: callTimeout,
		Retries:       retries,
		Outcome:       i.errors.note,
	})
	i.informer = cache.NewSharedIndexInformerWithOptions(source, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	_ = i.informer.SetTransform(Compact) // fails only once it runs
}

// listed compares the version of a list with the last one that the informer had. If the
// list is older, the API server was restored from a backup.
func (i *intake) listed(version string) {
	last := i.informer.LastSyncResourceVersion()
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	i.restored = core.Older(version, last)
}

// watchEnded is the informer's error handler. cacheErrors reports the errors.
func watchEnded(ctx context.Context, _ *cache.Reflector, err error) {
	klog.FromContext(ctx).V(4).Info("Watch of pods ended", "err", err)
}

// A CompactPod is one version of a pod in its encoded form, which takes about a
// quarter of the memory of a *corev1.Pod. [Compact] makes it. It is immutable.
type CompactPod struct{ core core.Compact }

// Compact encodes a pod of an informer, and drops its managedFields. Give it to
// SetTransform of [Config.Informer] if only the Controller reads the informer:
// the informer's objects are then of type *CompactPod. Objects that are not pods
// are returned as they are. The informer of a Controller without Config.Informer
// uses it.
func Compact(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	encoded, err := core.Encode(pod)
	if err != nil {
		return nil, err
	}
	return &CompactPod{core: encoded}, nil
}

// GetObjectMeta returns the namespace, name, UID and resourceVersion of the pod, by
// which an informer identifies its objects.
func (p *CompactPod) GetObjectMeta() metav1.Object {
	return p.core.Meta()
}

// Pod returns the pod, a new copy at each call.
func (p *CompactPod) Pod() *corev1.Pod { return p.core.Pod() }

// versionOf returns the version that is an object of an informer, or nil if the object
// is no pod.
func versionOf(obj any) *core.Version {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return core.Cached(obj)
	case *CompactPod:
		return core.CachedCompact(&obj.core)
	}
	return nil
}

// earlyFor is the time that a report waits for its pod to be seen.
const earlyFor = 5 * time.Minute

// maxEarly is the number of reports that wait for their pods. It bounds the memory that a
// provider with unknown UIDs costs while List hangs.
const maxEarly = 10_000

// early is a report of a pod that was not seen yet.
type early struct {
	ref   Ref
	event core.Reported
	at    instant
}

// reports take what the provider says of pods. The lock of the table guards early
// and repeated.
type reports struct {
	pods     *table
	gates    *gates
	observer *observer
	prints   *fingerprints
	early    map[types.UID]early // by keyOf
	repeated core.Repeated       // the event that is being applied
}

// report returns the core's copy of a state, which shares the memory of st.
func (st *State) report() *core.Report {
	return &core.Report{Stopped: st.Stopped, Generation: st.Generation, Status: st.Status, Annotations: st.Annotations, Delete: st.Delete}
}

// take takes a report that did not come by List. Its node does not count.
func (r *reports) take(st State) {
	st.NodeName = ""
	fp := r.prints.of(&st)
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	if r.pods.closed {
		return
	}
	t, seq := r.pods.find(st.Ref), r.pods.tick()
	switch {
	case t == nil && (st.UID != "" || r.pods.names[nameOf(st.Ref)] == nil):
		key := keyOf(st.Ref)
		if _, known := r.early[key]; known || len(r.early) < maxEarly {
			own := st.private()
			r.early[key] = early{st.Ref, core.Reported{Seq: seq, Report: own.report(), FP: fp}, r.pods.now()}
			return
		}
		r.observer.dropped(st.Ref, DroppedUnknown, nil)
	case st.UID == "" && (t == nil || !t.MayBe(seq)):
		r.observer.dropped(st.Ref, DroppedAmbiguous, nil)
	default:
		r.apply(t, r.pods.moment(), &st, fp, seq, false)
	}
}

// apply applies a report to its pod. seq is the time of the report, or of the beginning of
// the List that has it. The lock of the table must be held.
func (r *reports) apply(t *entry, at core.Moment, st *State, fp, seq uint64, fromList bool) {
	if t.Repeats(fp, st.Stopped) {
		r.repeated = core.Repeated{Seq: seq, FromList: fromList, NodeName: st.NodeName}
		if r.pods.apply(t, at, &r.repeated).Changed {
			r.pods.markDirty(t)
		}
		return
	}
	// A report that is not stored yet is kept. It must not keep the whole List.
	own := st.private()
	before := r.observer.before(t)
	news := r.pods.apply(t, at, core.Reported{
		Seq: seq, FromList: fromList, Report: own.report(), FP: fp, NodeName: st.NodeName,
		Joined: r.gates.joined(t),
	})
	if news.Dropped != "" {
		r.observer.dropped(t.ref, news.Dropped, nil)
	}
	r.observer.starts(t, before)
	r.pods.markDirty(t)
}

// join applies the report that came before its pod was added to the table. One without a UID
// is of an earlier pod of the name unless t had started. The lock of the table must be held.
func (r *reports) join(t *entry, at core.Moment) {
	if len(r.early) == 0 {
		return // no key is made
	}
	for _, key := range [...]types.UID{keyOf(Ref{Namespace: t.ref.Namespace, Name: t.ref.Name}), t.ref.UID} {
		e, ok := r.early[key]
		if !ok {
			continue
		}
		delete(r.early, key)
		if e.ref.UID == "" && !t.MayBe(e.event.Seq) {
			r.observer.dropped(e.ref, DroppedAmbiguous, nil)
			continue
		}
		r.pods.apply(t, at, e.event)
	}
}

// keep keeps the last report of an instance that the provider has forgotten before its pod was
// seen: nothing else remembers its exit codes. The lock of the table must be held.
func (r *reports) keep(t *entry) {
	if last, fp := t.Unclaimed(); last != nil && len(r.early) < maxEarly {
		r.early[keyOf(t.ref)] = early{t.ref, core.Reported{Seq: r.pods.tick(), Report: last, FP: fp}, r.pods.now()}
	}
}

// expire drops the reports of pods that did not appear in time. The lock of the table must
// be held.
func (r *reports) expire(now instant) {
	for key, e := range r.early {
		if now-e.at > earlyFor {
			delete(r.early, key)
			r.observer.dropped(e.ref, DroppedUnknown, nil)
		}
	}
}

// fingerprints detect reports without news. A fingerprint takes eight bytes instead of
// the last report, and computing it does not allocate. Two different reports have the
// same fingerprint once in 2^64 cases.
type fingerprints struct {
	seed    maphash.Seed
	buffers sync.Pool // of *[]byte
}

func newFingerprints() *fingerprints {
	return &fingerprints{seed: maphash.MakeSeed(), buffers: sync.Pool{New: func() any { return new([]byte) }}}
}

// of returns the fingerprint of a state. It is never 0.
func (f *fingerprints) of(st *State) uint64 {
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	size := st.Status.Size()
	if cap(*buffer) < size {
		*buffer = make([]byte, 0, 2*size)
	}
	b := (*buffer)[:size]
	// The encoding is the API's own, with maps in order of their keys. It can't fail: the buffer has
	// the size asked for.
	n, _ := st.Status.MarshalToSizedBuffer(b)
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.Write(b[size-n:])
	// The encoding does not tell a nil list of conditions from an empty one, and
	// an empty one takes conditions off the pod.
	tail := [9]byte{0: bit(st.Stopped) | bit(st.Status.Conditions != nil)<<1 | bit(st.Delete)<<2}
	for i := range 8 {
		tail[1+i] = byte(st.Generation >> (8 * i))
	}
	_, _ = h.Write(tail[:])
	if len(st.Annotations) > 0 { // else nothing is allocated
		for _, key := range slices.Sorted(maps.Keys(st.Annotations)) {
			_, _ = h.WriteString(key + "=" + st.Annotations[key] + "\n")
		}
	}
	return h.Sum64() | 1
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
