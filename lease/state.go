// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// An instant is now on two clocks. The monotonic one schedules. The wall clock goes
// into RenewTime, and holds compares it with the monotonic one.
type instant struct {
	since time.Duration // since the controller was made
	wall  int64         // microseconds since 1970, the resolution of RenewTime
}

// never is before every instant.
const never = time.Duration(-1 << 62)

// state is the state of the lease of one node: enough to renew it with one PUT.
// There may be ten thousand in memory, so fields that only few need are behind a
// pointer.
type state struct {
	phase Phase

	// The lease that we hold, or believe to. A uid without a version is one
	// that must be read before it is written.
	uid     types.UID
	version string
	owner   metav1.OwnerReference // the Node it names; no UID for none
	extra   *coordinationv1.Lease // its other fields, which a write must keep, or nil

	renewTime   int64         // the highest RenewTime that was stored, as far as we know
	renewed     time.Duration // when the last write that was accepted was sent, or never
	renewedWall int64         // and the same on the wall clock
	held        bool          // no answer since then says that it is another's, or gone
	trouble     *trouble
}

// A process is the process that renews a lease.
type process struct {
	name  string // Config.Process
	start string // differs with each Controller
}

// processAnnotation is on the leases that this package writes: who renews it,
// as NAME/START.
const processAnnotation = "lease.kubewright.dev/process"

func (p process) String() string { return p.name + "/" + p.start }

// processOf returns the process that a lease names, or none.
func processOf(lease *coordinationv1.Lease) process {
	value := lease.Annotations[processAnnotation]
	i := strings.LastIndexByte(value, '/')
	if i < 0 {
		return process{name: value}
	}
	return process{name: value[:i], start: value[i+1:]}
}

// A party is the holder of a lease, as it is reported.
type party struct {
	holder  string // holderIdentity
	process string // Config.Process of that process, if the lease names it
}

func (p party) String() string {
	if p.process == "" {
		return strconv.Quote(p.holder)
	}
	return fmt.Sprintf("%q (process %q)", p.holder, p.process)
}

// partyOf returns the holder of a lease that was read in turn t. If the annotation is
// the one that we have written, the holder is a client that leaves it as it is.
func partyOf(t *turn, lease *coordinationv1.Lease) party {
	holder, by := ptr.Deref(lease.Spec.HolderIdentity, ""), processOf(lease)
	if by == t.process {
		return party{holder: holder}
	}
	return party{holder: holder, process: by.name}
}

// trouble is the state of a lease while calls fail or another client writes it.
type trouble struct {
	failures int
	err      error

	// RenewTimes of writes whose answer we did not get; zero for none.
	firstUnsure, lastUnsure int64
	unsureSent              instant // when the last of them was sent

	foreign struct {
		party
		renewTime int64
		since     time.Duration // when we first saw this renewTime
	}

	foreignWrites [contendedAfter]time.Duration // when another client wrote our lease, latest last
	contended     bool

	vanished      time.Duration // when the lease we held was last gone
	vanishedOwner types.UID     // and who owned it
	clockBehind   bool          // it was reported that our clock is behind
}

// contendedAfter is the number of foreign writes within one duration that make a
// contention. One or two may be a process that is being replaced by its successor.
const contendedAfter = 3

// inTrouble returns s.trouble, which it makes if necessary.
func (s *state) inTrouble() *trouble {
	if s.trouble == nil {
		s.trouble = &trouble{vanished: never}
		for i := range s.trouble.foreignWrites {
			s.trouble.foreignWrites[i] = never
		}
	}
	return s.trouble
}

// clearFailures ends the failures, and the trouble if none of it matters now.
func (s *state) clearFailures(now time.Duration, duration time.Duration) {
	t := s.trouble
	if t == nil {
		return
	}
	t.failures, t.err = 0, nil
	if now-t.foreignWrites[contendedAfter-1] > duration {
		t.contended = false
	}
	if t.contended || t.clockBehind || t.firstUnsure != 0 || t.foreign.holder != "" ||
		now-t.foreignWrites[contendedAfter-1] <= duration || now-t.vanished <= duration {
		return
	}
	s.trouble = nil
}

// unsure reports whether renewTime is that of a write of ours that may or may
// not have been stored.
func (s *state) unsure(renewTime int64) bool {
	t := s.trouble
	return t != nil && t.firstUnsure != 0 && t.firstUnsure <= renewTime && renewTime <= t.lastUnsure
}

// forget drops the lease, but not the highest RenewTime: watchers of a lease of this
// name compare with it, also if the object is another one.
func (s *state) forget() {
	s.uid, s.version, s.owner, s.extra, s.held = "", "", metav1.OwnerReference{}, nil, false
}

// adopt takes the lease as the API server showed it in turn t.
func (s *state) adopt(t *turn, lease *coordinationv1.Lease) {
	s.uid, s.version = lease.UID, lease.ResourceVersion
	s.renewTime = max(s.renewTime, microseconds(lease.Spec.RenewTime))
	s.owner = metav1.OwnerReference{}
	if i := slices.IndexFunc(lease.OwnerReferences, isNode); i >= 0 {
		s.owner = lease.OwnerReferences[i]
	}
	if sameOwner(s.owner, t.owner) {
		s.owner = t.owner // its strings are in memory anyway
	}
	s.extra = extraOf(lease)
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
	delete(extra.Annotations, processAnnotation)
	extra.Spec.HolderIdentity, extra.Spec.LeaseDurationSeconds, extra.Spec.RenewTime = nil, nil, nil
	if len(extra.Labels) == 0 && len(extra.Annotations) == 0 && len(extra.Finalizers) == 0 &&
		len(extra.OwnerReferences) == 0 && extra.Spec == (coordinationv1.LeaseSpec{}) {
		return nil
	}
	return extra.DeepCopy()
}

func isNode(ref metav1.OwnerReference) bool {
	return ref.Kind == nodeKind && ref.APIVersion == nodeAPIVersion
}

func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion &&
		ptr.Equal(a.Controller, b.Controller) && ptr.Equal(a.BlockOwnerDeletion, b.BlockOwnerDeletion)
}

// object returns the lease to write. For a create it has no UID and version.
func (s *state) object(r *rules, t *turn, now instant) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if s.extra != nil {
		s.extra.DeepCopyInto(lease)
	}
	lease.Name, lease.Namespace = t.nodeName, corev1.NamespaceNodeLease
	lease.UID, lease.ResourceVersion = s.uid, s.version
	if owner := s.nextOwner(t); owner.UID != "" {
		// Only one Node can own the lease of a node: another one is a former
		// incarnation, and the garbage collector would act on it.
		lease.OwnerReferences = append(slices.DeleteFunc(lease.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return ref.Kind == owner.Kind && ref.APIVersion == owner.APIVersion
		}), owner)
	}
	t.renewTime = max(s.nextRenewTime(now), t.renewTime+1)
	t.sent = now
	if lease.Annotations == nil {
		lease.Annotations = make(map[string]string, 1)
	}
	lease.Annotations[processAnnotation] = t.process.String()
	lease.Spec.HolderIdentity = &t.holder
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(r.duration / time.Second))
	lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(t.renewTime)))
	if t.takeFrom != (party{}) {
		lease.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1)
		lease.Spec.AcquireTime = lease.Spec.RenewTime
	}
	return lease
}

// nextOwner returns the owner for a write in turn t: the one that Owner has returned,
// or, if Owner failed or returned none, the owner that the lease has.
func (s *state) nextOwner(t *turn) metav1.OwnerReference {
	if t.ownerErr != nil || t.owner.UID == "" {
		return s.owner
	}
	return t.owner
}

// nextRenewTime is the wall clock, but always more than in any write before the
// present turn: kube-controller-manager ignores a renewal whose RenewTime does not
// grow (k/k #113081), so a clock that is set back must not be followed.
func (s *state) nextRenewTime(now instant) int64 {
	last := s.renewTime
	if s.trouble != nil {
		last = max(last, s.trouble.lastUnsure)
	}
	return max(now.wall, last+1)
}

// microseconds is a RenewTime as an integer; 0 for none.
func microseconds(t *metav1.MicroTime) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

// expired returns the lease as ShutdownExpire leaves it.
func (s *state) expired(nodeName string) *coordinationv1.Lease {
	t := &turn{nodeName: nodeName}
	lease := s.object(&rules{duration: time.Second}, t, instant{})
	lease.Spec.HolderIdentity = nil
	delete(lease.Annotations, processAnnotation)
	lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(s.renewTime)))
	return lease
}
