// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// setPod takes a version of the object: from the informer, or the answer to a
// request. It reports whether the version is new. That the object exists is for the
// informer to say: an answer may come after the object was deleted.
func (t *State) setPod(now Instant, next *Version) bool {
	before := t.api.pod
	if next.cached {
		defer func() { t.api.cachedVersion = next.ResourceVersion() }()
	}
	if before != nil {
		if Older(next.ResourceVersion(), before.ResourceVersion()) && !t.rewound(next) {
			return false
		}
		if before.ResourceVersion() == next.ResourceVersion() && Stands(before.Open(), next.Open()) {
			*before = *next // the same version from the other source: keep the informer's
			return false
		}
	}
	var old *corev1.Pod
	if before != nil {
		old = before.Open()
	}
	pod := next.Open()
	t.api.pod, t.api.node, t.api.deleting = next, pod.Spec.NodeName, pod.DeletionTimestamp != nil
	switch {
	case old != nil && !Stands(old, pod):
		t.dispute()
	case t.provider.generation > pod.Generation:
		t.dispute() // it was reported before the pod was seen
	}
	if t.write.read != readNothing {
		t.write.read, t.write.retryAt = readNothing, 0
	}
	wasDeleted, grace := old != nil && old.DeletionTimestamp != nil, graceOf(pod)
	if t.atOnce() && !t.finalized() && t.api.goingAt == 0 {
		t.api.goingAt = now
	}
	if t.deleted() {
		t.beginTermination(now, StopDeleted, nil, grace)
	}
	if old == nil || old.Generation != pod.Generation || t.deleted() != wasDeleted ||
		pod.Generation == 0 && mutableChanged(&old.Spec, &pod.Spec) {
		t.call.retryAt, t.call.failures = 0, 0 // the call may succeed now
	}
	switch {
	case podstatus.IsTerminal(pod.Status.Phase):
		t.beginTermination(now, StopCompleted, nil, SpecGrace(pod))
	case t.final():
		// Another client has undone the end. It is written again.
		t.becomeUnwritten()
	}
	t.write.news.overwritten = true
	return true
}

// rewound reports whether v, which is older than the newest version, was stored later
// anyway, because the API server was restored from a backup. An informer never
// goes back to an older version than it had, and a GET returns none that is older
// than those seen before it was sent. Answers to writes prove nothing: the
// informer may lag behind them.
func (t *State) rewound(v *Version) bool {
	switch {
	case v.cached:
		return Older(v.ResourceVersion(), t.api.cachedVersion)
	case t.write.inflight != nil && t.write.inflight.Op == Get:
		return Older(v.ResourceVersion(), t.write.inflight.Pod.ResourceVersion)
	}
	return false
}

// markDeleted records that the object is gone.
func (t *State) markDeleted(now Instant) {
	if t.Gone() && t.api.presence != missing {
		return
	}
	t.api.presence = gone
	t.call.retryAt = 0
	if t.end == nil { // a termination under way keeps its grace period
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}

// markMissing records that the API seems to have no such object. A pod that ends
// anyway, or that the provider does not hold, is gone with that.
func (t *State) markMissing(now Instant) {
	if t.Gone() {
		return
	}
	if t.end != nil || t.Known() && !t.Held() {
		t.markDeleted(now)
		return
	}
	t.doubt(now)
}

// vanishedGrace returns the grace period of a pod that is gone from the API without having
// been marked as deleted: that of its spec.
func (t *State) vanishedGrace() time.Duration {
	if t.api.pod == nil {
		return MinGrace
	}
	return SpecGrace(t.Pod())
}

// answer applies the object in the answer to a request. If the watch was faster, the
// informer has the same version, and the answer is dropped: it would be a second copy
// of every pod.
func (t *State) answer(now Instant, pod *corev1.Pod) {
	if t.lacks(pod) {
		t.setPod(now, Known(pod))
	}
}

// lacks reports whether pod is not the newest version that is known.
func (t *State) lacks(pod *corev1.Pod) bool {
	return t.api.pod == nil || t.api.pod.ResourceVersion() != pod.ResourceVersion
}

// mutableChanged compares the fields of a spec that the API lets change.
func mutableChanged(a, b *corev1.PodSpec) bool {
	images := func(x, y []corev1.Container) bool {
		if len(x) != len(y) {
			return true
		}
		for i := range x {
			if x[i].Image != y[i].Image || !equality.Semantic.DeepEqual(x[i].Resources, y[i].Resources) {
				return true
			}
		}
		return false
	}
	return images(a.Containers, b.Containers) || images(a.InitContainers, b.InitContainers) ||
		!equality.Semantic.DeepEqual(a.EphemeralContainers, b.EphemeralContainers) ||
		!equality.Semantic.DeepEqual(a.Resources, b.Resources) ||
		!equality.Semantic.DeepEqual(a.ActiveDeadlineSeconds, b.ActiveDeadlineSeconds) ||
		!equality.Semantic.DeepEqual(a.Tolerations, b.Tolerations)
}
