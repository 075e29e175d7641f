// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// How an owner reference names the kind of a Node.
const (
	NodeAPIVersion = "v1"
	NodeKind       = "Node"
)

// adopt takes the lease as the API server showed it in this turn.
func (l *Lease) adopt(lease *coordinationv1.Lease) {
	l.known, l.uid, l.version = current, lease.UID, lease.ResourceVersion
	l.renewTime = max(l.renewTime, microseconds(lease.Spec.RenewTime))
	l.owner = metav1.OwnerReference{}
	if i := slices.IndexFunc(lease.OwnerReferences, isNode); i >= 0 {
		l.owner = lease.OwnerReferences[i]
	}
	if sameOwner(l.owner, l.turn.owner) {
		l.owner = l.turn.owner // its strings are in memory anyway
	}
	l.extra = extraOf(lease)
}

// extraOf returns the fields of a lease that a write must keep and the state does not
// have: those of other clients. It returns nil if there are none. managedFields are
// left out: an update without them keeps those of the server.
func extraOf(lease *coordinationv1.Lease) *coordinationv1.Lease {
	extra := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Labels:          lease.Labels,
			Annotations:     maps.Clone(lease.Annotations),
			Finalizers:      lease.Finalizers,
			OwnerReferences: slices.DeleteFunc(slices.Clone(lease.OwnerReferences), isNode),
		},
		Spec: lease.Spec,
	}
	delete(extra.Annotations, ProcessAnnotation)
	delete(extra.Annotations, LifeAnnotation)
	extra.Spec.HolderIdentity, extra.Spec.LeaseDurationSeconds, extra.Spec.RenewTime = nil, nil, nil
	if len(extra.Labels) == 0 && len(extra.Annotations) == 0 && len(extra.Finalizers) == 0 &&
		len(extra.OwnerReferences) == 0 && extra.Spec == (coordinationv1.LeaseSpec{}) {
		return nil
	}
	return extra.DeepCopy()
}

func isNode(ref metav1.OwnerReference) bool {
	return ref.Kind == NodeKind && ref.APIVersion == NodeAPIVersion
}

func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion &&
		ptr.Equal(a.Controller, b.Controller) && ptr.Equal(a.BlockOwnerDeletion, b.BlockOwnerDeletion)
}

// object returns the lease to write in this turn. For a create it has no UID and
// version.
func (l *Lease) object(r *Rules, now Instant) *coordinationv1.Lease {
	t := l.turn
	lease := l.base()
	if owner := l.nextOwner(); owner.UID != "" {
		// Only one Node can own the lease of a node: another one is a former
		// incarnation, and the garbage collector would act on it.
		lease.OwnerReferences = append(slices.DeleteFunc(lease.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return ref.Kind == owner.Kind && ref.APIVersion == owner.APIVersion
		}), owner)
	}
	name(r, lease, r.Life)
	lease.Spec.HolderIdentity = ptr.To(t.holder)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(r.Duration / time.Second))
	lease.Spec.RenewTime = microTime(l.nextRenewTime(now))
	if t.takeFrom != (Party{}) {
		// The API has no negative ones, so 0 follows the largest number.
		lease.Spec.LeaseTransitions = ptr.To(max(0, ptr.Deref(lease.Spec.LeaseTransitions, 0)+1))
		lease.Spec.AcquireTime = lease.Spec.RenewTime
	}
	return lease
}

// name names this process in a lease.
func name(r *Rules, lease *coordinationv1.Lease, life string) {
	if lease.Annotations == nil {
		lease.Annotations = make(map[string]string, 2)
	}
	lease.Annotations[ProcessAnnotation] = r.Process.String()
	if r.Shared && life != "" {
		lease.Annotations[LifeAnnotation] = life
	}
}

// base returns the lease with the fields of other clients only.
func (l *Lease) base() *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if l.extra != nil {
		l.extra.DeepCopyInto(lease)
	}
	lease.Name, lease.Namespace = l.turn.nodeName, corev1.NamespaceNodeLease
	lease.UID, lease.ResourceVersion = l.uid, l.version
	return lease
}

// signed returns the lease as it is, but for the words that this process has ended.
func (l *Lease) signed(r *Rules) *coordinationv1.Lease {
	lease := l.base()
	if l.owner.UID != "" {
		lease.OwnerReferences = append(lease.OwnerReferences, l.owner)
	}
	name(r, lease, LifeAnnotationOf(r.Process, ended))
	lease.Spec.HolderIdentity = ptr.To(l.turn.holder)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(r.Duration / time.Second))
	lease.Spec.RenewTime = microTime(l.renewTime)
	return lease
}

// shortest is the duration of a lease that its holder has given up.
const shortest = time.Second

// expired returns the lease without a holder, and with the shortest duration: another
// process need not wait. RenewTime stays, because a new one would report the node as
// alive.
func (l *Lease) expired() *coordinationv1.Lease {
	lease := l.base()
	if l.owner.UID != "" {
		lease.OwnerReferences = append(lease.OwnerReferences, l.owner)
	}
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(shortest / time.Second))
	lease.Spec.RenewTime = microTime(l.renewTime)
	return lease
}

// nextOwner returns the owner for a write in this turn: the one that Owner has
// returned, or, if Owner failed or returned none, the owner that the lease has.
func (l *Lease) nextOwner() metav1.OwnerReference {
	if l.turn.ownerErr != nil || l.turn.owner.UID == "" {
		return l.owner
	}
	return l.turn.owner
}

// nextRenewTime is the wall clock, but always more than in any write before:
// kube-controller-manager ignores a renewal whose RenewTime does not grow (k/k
// #113081), so a clock that is set back must not be followed.
func (l *Lease) nextRenewTime(now Instant) int64 {
	last := max(l.renewTime, l.turn.sent.renewTime)
	if l.trouble != nil {
		last = max(last, l.trouble.unsure[1].renewTime)
	}
	return max(now.Wall, last+1)
}

// microseconds is a RenewTime as an integer; 0 for none.
func microseconds(t *metav1.MicroTime) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

func microTime(micros int64) *metav1.MicroTime {
	return ptr.To(metav1.NewMicroTime(time.UnixMicro(micros)))
}
