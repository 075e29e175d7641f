// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"maps"
	"math"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The Leases that a candidate writes. Each is what was seen last with what the
// candidate is responsible for; the resourceVersion makes the write fail where
// somebody was faster. What others have put on the Lease stays.

// editable returns a copy of the Lease as it was seen last, or one to create.
func (m *machine) editable() *coordinationv1.Lease {
	var l *coordinationv1.Lease
	if m.lease != nil {
		l = m.lease.DeepCopy()
	} else {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: m.name}}
	}
	l.Annotations = maps.Clone(l.Annotations)
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	return l
}

// renewTime returns the time to write as that of a renewal: the wall clock, and
// never the same twice, because a change is what others go by.
func renewTime(l *coordinationv1.Lease, wall time.Time) *metav1.MicroTime {
	t := metav1.NewMicroTime(wall.Truncate(time.Microsecond))
	if before := l.Spec.RenewTime; before != nil && before.Time.Equal(t.Time) {
		t.Time = t.Add(time.Microsecond)
	}
	return &t
}

// claimedLease begins a term.
func (m *machine) claimedLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	previous := holderOf(l)
	assigned := previous == m.id && l.Spec.AcquireTime != nil && l.Spec.RenewTime != nil && l.Spec.AcquireTime.Equal(l.Spec.RenewTime)
	switch {
	case m.lease == nil:
		l.Spec.LeaseTransitions = ptr.To[int32](0)
	case !assigned || sameTerm(pulseIn(l), m.past): // who has chosen us has counted already
		l.Spec.LeaseTransitions = ptr.To(nextTransition(transitionsOf(l)))
	}
	l.Spec.HolderIdentity = ptr.To(m.id)
	l.Spec.LeaseDurationSeconds = m.seconds()
	l.Spec.RenewTime = renewTime(l, now.wall)
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, handoverAnnotation)
	delete(l.Annotations, offerAnnotation)
	if m.native {
		return l
	}
	l.Spec.Strategy = nil
	if previous != "" && previous != m.id {
		// It was silent for the whole of its lease, and those who come before
		// us have let their turns pass. Who is alive all the same comes back.
		delete(l.Annotations, recordKey(previous))
		for id, r := range m.records {
			if id != m.id && compare(m.strategy, r.peer(), m.asPeer(), "") < 0 {
				delete(l.Annotations, recordKey(id))
			}
		}
	}
	if m.observer() {
		delete(l.Annotations, recordKey(m.worst().ID))
	}
	m.putRecord(now.mono, l.Annotations)
	return l
}

// renewedLease renews it.
func (m *machine) renewedLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	l.Spec.LeaseDurationSeconds = m.seconds()
	l.Spec.RenewTime = renewTime(l, now.wall)
	if m.native {
		return l
	}
	delete(l.Annotations, offerAnnotation)
	if m.term.offer != nil {
		l.Annotations[offerAnnotation] = m.term.offer.encode()
	}
	m.dropRecords(now.mono, l.Annotations)
	m.putRecord(now.mono, l.Annotations)
	return l
}

// nextTransition returns the leaseTransitions of the term that follows. No number
// is greater than the greatest, and the API takes none below 0, but any other one
// tells two terms apart.
func nextTransition(transitions int32) int32 {
	if transitions < 0 || transitions == math.MaxInt32 {
		return 0
	}
	return transitions + 1
}

// handoverSeconds is the leaseDurationSeconds of a lease that is handed over,
// until its new holder confirms it: that long nobody leads if the new holder has
// died in the meantime. client-go's candidates look every two to five seconds.
const handoverSeconds = 5

// givenLease gives it to a candidate, or to nobody.
func (m *machine) givenLease(now instant, to string) *coordinationv1.Lease {
	l := m.editable()
	l.Spec.RenewTime = renewTime(l, now.wall)
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	// Not nil: controllers of the API server up to 1.37 can't do with a
	// holder that is missing.
	l.Spec.HolderIdentity = ptr.To(to)
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, offerAnnotation)
	delete(l.Annotations, handoverAnnotation)
	if to == "" {
		l.Spec.LeaseDurationSeconds = ptr.To[int32](releaseSeconds)
	} else {
		l.Spec.LeaseDurationSeconds = ptr.To(min(*m.seconds(), handoverSeconds))
		l.Spec.LeaseTransitions = ptr.To(nextTransition(transitionsOf(l)))
		l.Annotations[handoverAnnotation] = m.id
	}
	if !m.native {
		m.putRecord(now.mono, l.Annotations)
	}
	return l
}

// seconds returns LeaseDuration as the API has it.
func (m *machine) seconds() *int32 {
	return ptr.To(int32(m.timing.LeaseDuration / time.Second))
}

// tokenOf returns the fencing token of a term that began with this Lease.
func tokenOf(l *coordinationv1.Lease) uint64 {
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func resourceVersionOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return l.ResourceVersion
}
