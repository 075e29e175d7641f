// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"maps"
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
	handler  report.Handler
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
		if i.pods.synced && i.gates.mayAct(t) {
			i.pods.apply(t, at, core.Joined{})
		}
	}
	i.pods.markDirty(t)
	wake(i.pods.kick)
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
		report.Tell(ctx, i.handler, err, "Another client writes the status of a pod again and again", "manager", manager, "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
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
	i.pods.mu.Lock()
	if err != nil {
		i.undecided[pod.UID] = nameOf(RefOf(pod))
	} else {
		delete(i.undecided, pod.UID)
	}
	i.pods.mu.Unlock()
	if err != nil {
		i.refuse(pod, err)
	}
	return yes && err == nil
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
	report.Tell(i.pods.run.callCtx, i.handler, explain("take", RefOf(pod), err), "Failed to take a pod", panicValues(err, "pod", klog.KObj(pod))...)
	i.pods.mu.Lock()
	defer i.pods.mu.Unlock()
	i.observer.dropped(RefOf(pod), DroppedRefused, err)
	wake(i.pods.kick)
}

// supersede records that other pods of the name of t are gone, because the API has t.
func (i *intake) supersede(t *entry, at core.Moment) {
	for other := t.next; other != nil; other = other.next {
		if other.Supersedable() {
			i.pods.apply(other, at, core.Vanished{})
			i.pods.markDirty(other)
		}
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
	if restored {
		wake(i.pods.verify)
	}
	i.pods.markDirty(t)
	wake(i.pods.kick)
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
		if tombstone {
			wake(i.pods.verify)
		}
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
	wake(i.pods.kick)
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
