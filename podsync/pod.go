// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// An instant is a time since the controller was made: eight bytes instead of
// twenty-four, for records of which there may be a hundred thousand.
type instant = time.Duration

// noDeadline is later than every instant.
const noDeadline instant = 1<<63 - 1

// horizon limits durations to 73 years, so that the sum of an instant and two of
// them does not overflow.
const horizon time.Duration = 1 << 61

// rules are the configuration on which decisions about a pod depend.
type rules struct {
	policy       Policy
	relist       time.Duration
	pendingAfter time.Duration
	retry        backoff.Policy
	epoch        time.Time // the instant 0

	updates, releases, admits, inspects, annotates bool // capabilities of the provider

	checkpoints bool // Config.Checkpoint is set
}

// stopSlack is the time after the grace period at which Stop is called again if the
// provider has not said that the pod has stopped.
const stopSlack = 2 * time.Second

// goneAfter is the time after which the API is asked again about a pod that a request
// did not find and the informer still has, and after which a DELETE is repeated.
const goneAfter = 30 * time.Second

// writeInterval is the time between two writes of a pod's status, after a burst
// of writeBurst. Final statuses and deletions do not wait.
const (
	writeInterval = time.Second
	writeBurst    = 10
)

// pinnedTries is the number of conflicts after which a change of the phase is written
// without a resourceVersion, if the phase has not changed in between.
const pinnedTries = 3

// unansweredCap is the longest time between two requests of a pod while no answer comes. With
// the deadline of a request it bounds how much later than the lease, which is renewed every
// ten seconds, a pod recovers from a connection that drops everything.
const unansweredCap = 10 * time.Second

// minGrace is the shortest grace period that is passed on. It is the kubelet's.
const minGrace = time.Second

// A podState is everything that the Controller knows of one pod. decide*
// methods choose the next action, and the methods in pod_events.go apply events.
// Both are free of goroutines, clients and clocks. Controller.mu guards the
// whole struct.
//
// TestSoak asserts the invariants: those that span the groups here, and those of
// each group beside it.
//
//   - Invariant: an instance that has stopped implies a termination.
//   - Invariant: a call of Start or Update implies no termination when it began.
//   - Invariant: a DELETE is sent only with a final status, and a final status
//     is written only of a stopped instance.
//   - Invariant: a pod that is not listed has no write under way, and no call
//     that began after the Controller began to wait for a List.
type podState struct {
	ref  Ref
	next *podState // the next pod of the same namespace and name

	api      apiState
	provider providerState
	end      *termination // why and how the pod ends; nil while it does not end
	call     callState
	write    writeState
	sched    schedState

	illegal string // the last step that become refused; "": none
}

// A presence says whether the API has the object.
type presence uint8

const (
	presencePresent presence = iota
	presenceMissing          // a LIST or an answer left the object out; the API is asked
	presenceGone             // the object existed and is gone
	presenceOrphan           // an instance without an object, not yet verified
)

// apiState is the API's view of the pod.
//
// Invariant: pod is nil only for an instance that the informer never showed.
// Invariant: node and deleting are those of pod.
// Invariant: presenceOrphan implies a nil pod.
// Invariant: the version of pod goes back only if the API server was restored.
type apiState struct {
	pod      *version // the newest version; nil if none was seen
	node     string   // spec.nodeName
	deleting bool     // metadata.deletionTimestamp is set
	// cachedVersion is the resourceVersion that the informer had last.
	cachedVersion string
	presence      presence
	cached        bool    // the informer has the object
	restored      bool    // it is missing since the API server was restored: no other pod of its name proves anything
	since         instant // first seen; or lost and due to start again
	notFoundAt    instant // the first "no such pod" in answer to a write; 0: none
	goingAt       instant // first seen deleted with grace 0 and no finalizers; 0: never
}

// An instanceState is the state of the provider's instance of the pod.
type instanceState uint8

const (
	instanceNone      instanceState = iota // no instance is known
	instanceHeld                           // Start was called, or the provider listed it
	instanceRunning                        // Start has succeeded, or the instance was adopted
	instanceStopped                        // nothing runs; the provider keeps exit codes or logs
	instanceForgotten                      // nothing runs, and the provider keeps nothing
)

// providerState is the provider's view of the pod.
//
// Invariant: an instance never leaves Stopped or Forgotten, except that a List
// shows that the provider runs it again.
// Invariant: at most one of status and mirror is set.
// Invariant: generation is at most api.pod.Generation.
type providerState struct {
	instance          instanceState
	nodeName          string // the node that the instance was started for; "" if unknown
	listed            bool   // the provider has said whether it holds the pod
	admitted          bool
	needsInspect      bool
	saved             savedRecord
	absences          uint8             // Lists in a row that left the instance out
	absentAt          instant           // the first of absences
	lostSince         instant           // when Lists first showed that the pod is lost, if too many are to believe it; 0: not lost
	status            *corev1.PodStatus // the last report, until the API has it
	mirror            *version          // the version of the pod that has the last report
	reports           reportedFields
	lost              *corev1.PodStatus         // the status of a lost pod that starts again, until it is stored
	conditions        []corev1.PodConditionType // the types in the last report
	withdrawn         []corev1.PodConditionType // the types that only earlier reports had, until that is stored
	losses            uint8                     // losses in a row without a List that shows the pod
	fp                uint64                    // the fingerprint of the last report
	seenSeq           uint64                    // the last proof that the provider holds it, in Controller.seq
	annotations       map[string]string         // that were reported last, and of which the API lacks unsaved
	unsaved           []string                  // the keys of annotations that the API does not have yet
	annotated         bool                      // Annotate has succeeded
	deletes           bool                      // a report had State.Delete and Stopped
	kept              *keptReport               // the last report of an instance that ended before the gate closed
	generation        int64                     // the generation that the provider has accepted
	resources         uint64                    // the fingerprint of the resources of the accepted spec; 0 if unknown
	refused           *RejectError              // the answer of Update to refusedGeneration
	refusedGeneration int64
	saysGeneration    bool        // the last report has State.Generation
	acceptedPod       *corev1.Pod // the accepted pod, if the API keeps no generations
}

// A keptReport is the last report of an instance that had ended when the gate closed. If the
// next List does not have the instance, nothing else remembers its exit codes.
type keptReport struct {
	status *corev1.PodStatus
	end    *termination // nil if it had not begun
}

// reportedFields are the fields that are derived unless the last report has them.
type reportedFields struct {
	resources bool // of any container
	hostIP    bool
	podIP     bool
}

// callState is the pod's lane of provider calls.
//
// Invariant: at most one call is in flight.
type callState struct {
	inflight *call
	failures int32
	retryAt  instant
	err      error // of the last call; nil after a success
}

// An endState says how far the end of the pod is written to the API. It leaves Final and
// Released only if another client undoes the end, or if the gate closes.
type endState uint8

const (
	endUnwritten endState = iota // the final status is not stored
	endInvalid                   // the API called it invalid: podstatus.Minimal is next
	endFinal                     // it is stored, or the API refuses podstatus.Minimal too
	endReleased                  // DELETE was sent, or finalizers are all that is left
)

// A readState says why a GET must come before the next write.
type readState uint8

const (
	readNothing readState = iota
	readUnsure            // a write may have been stored
	readRaced             // a write met a newer version
)

// A callFate says what the result of a call is worth. It only grows.
type callFate uint8

const (
	fateCounts   callFate = iota
	fateCanceled          // the call was in the way: an error of it says nothing
	fateStale             // the gate closed: only a List that begins later shows its effect
)

// writeState is the pod's lane of API requests.
//
// Invariant: at most one request is in flight.
// Invariant: storedSeq <= statusSeq.
type writeState struct {
	inflight    *call
	statusSeq   uint64    // the newest status
	storedSeq   uint64    // the newest status that the API has
	rejectedSeq uint64    // the status that the API called invalid
	stale       bool      // another client has written: the status may need a repair
	read        readState // why the pod must be read before the next write
	end         endState
	releasedAt  instant
	reportedAt  instant // the first report that is not stored yet
	failures    int32
	retryAt     instant
	conflicts   uint8           // conflicts in a row in which the phase in the API was contested
	contested   corev1.PodPhase // see conflicts
	repairs     uint8           // patches in a row that only other clients' writes caused
	repairedAt  instant
	quietSeq    uint64        // the newest status, if it and those before it that are not stored have details only
	spent       time.Duration // writeInterval for each recent write, less the time since
	lastAt      instant       // the last write
	notBefore   instant       // when the next status that is not final may be written
}

// schedState is the driver's bookkeeping.
//
// Invariant: dirty means that the pod is in Controller.dirty, wakeIndex > 0 that
// it is in Controller.wakes, queued[q] that it is in Controller.queues[q].
type schedState struct {
	stage             Stage // as last published
	dirty             bool
	queued            [queueCount]bool
	blocking          bool // as last published to the pods of its name
	listNo            uint32
	wakeAt            instant
	wakeIndex         int32 // place in the heap plus one; 0: not in the heap
	callErrs, apiErrs report.Member
	warned            string  // the last event
	problems          string  // the invalid fields that were last logged
	suspectAt         instant // when the API is due to be asked about a suspect
	suspectWait       time.Duration
	goneSince         instant // when the API first said that the suspect's pod is gone; 0: never
	unsure            bool    // the API did not answer the last question about the suspect
	illegalTold       bool    // podState.illegal was reported
	relist            bool    // a List must decide between a report and a result
	reported          bool    // it was reported that the orphan is kept
	born              uint64  // when it was first seen, in Controller.seq
}

// A termination says why and how a pod ends.
//
// Invariant: grace and passed never grow.
type termination struct {
	reason   StopReason
	failure  *podstatus.Failure // nil: the exit codes decide
	since    instant
	grace    time.Duration // the shortest grace period requested
	stops    int           // calls of Stop
	passed   time.Duration // the grace period of the last call
	accepted instant       // when Stop last succeeded; 0: never
	killAt   instant       // when the grace period of the first success ends
	recheck  instant       // when to call Stop again
}

// A call is a provider call or an API request under way.
type call struct {
	op          Op
	since       instant
	seq         uint64            // when it began, in Controller.seq
	grace       time.Duration     // of Stop
	want        uint64            // of a PATCH: the statusSeq that it stores
	over        bool              // of a PATCH: it stores the final status; of Stop: the pod had stopped
	pod         *corev1.Pod       // the argument
	annotations map[string]string // of a PATCH
	fate        callFate
	lostSince   instant // of OpSave
	saved       bool    // of OpStart: the Checkpoint has the pod
	cancel      func()
}

// held reports whether the provider has, or may have, an instance.
func (t *podState) held() bool {
	i := t.provider.instance
	return i == instanceHeld || i == instanceRunning || i == instanceStopped
}

// The legal steps of an instance. A gate that closes drops what is known, which is no step.
var instanceSteps = [...][]instanceState{
	instanceNone:      {instanceHeld, instanceForgotten},
	instanceHeld:      {instanceNone, instanceRunning, instanceStopped},
	instanceRunning:   {instanceHeld, instanceStopped},
	instanceStopped:   {instanceHeld, instanceForgotten},
	instanceForgotten: {instanceHeld},
}

// become changes the state of the instance. It refuses a step that is not legal: the state stays as
// it is, and check and the driver say so.
func (t *podState) become(next instanceState) {
	from := t.provider.instance
	switch {
	case from == next:
	case slices.Contains(instanceSteps[from], next):
		t.provider.instance = next
	default:
		t.illegal = fmt.Sprintf("instance %d can't become %d", from, next)
	}
}

// final reports whether the API has the final status, or never will.
func (t *podState) final() bool { return t.write.end >= endFinal }

// released reports whether DELETE was sent, or only finalizers keep the object.
func (t *podState) released() bool { return t.write.end == endReleased }

// becomeFinal records that the final status needs no further write.
func (t *podState) becomeFinal() { t.write.end = max(t.write.end, endFinal) }

// becomeInvalid records that the API called the final status invalid, in full or in its
// minimal form.
func (t *podState) becomeInvalid() {
	if t.write.end < endFinal {
		t.write.end++
	}
}

// becomeReleased records that the object goes. If another client has undone the end in the
// meantime, the end is written again first.
func (t *podState) becomeReleased(now instant) {
	if t.final() {
		t.write.end, t.write.releasedAt = endReleased, now
	}
}

// becomeUnwritten records that another client has undone the end.
func (t *podState) becomeUnwritten() { t.write.end = endUnwritten }

// running reports whether Start has succeeded and the pod has not stopped since.
func (t *podState) running() bool { return t.provider.instance == instanceRunning }

// stopped reports whether nothing of the pod runs, and nothing will.
func (t *podState) stopped() bool { return t.provider.instance >= instanceStopped }

// removed reports whether the API does not have the object.
func (t *podState) removed() bool { return t.api.presence != presencePresent }

// orphan reports whether t is an instance without a pod that the API has not
// been asked about.
func (t *podState) orphan() bool { return t.api.presence == presenceOrphan }

// deleted reports whether the object has a deletionTimestamp.
func (t *podState) deleted() bool { return t.api.deleting }

// pod returns the newest version of the object, nil if none was seen.
func (t *podState) pod() *corev1.Pod {
	if t.api.pod == nil {
		return nil
	}
	return t.api.pod.open()
}

// report returns the last report, or the status that the API has stored of it; nil if
// there is none.
func (t *podState) report() *corev1.PodStatus {
	if t.provider.mirror != nil {
		return &t.provider.mirror.open().Status
	}
	return t.provider.status
}

// setReport replaces the last report.
func (t *podState) setReport(status *corev1.PodStatus) {
	t.provider.status, t.provider.mirror = status, nil
}

// setMirror records that the newest version of the object has the last report, so
// that the report need not be kept.
func (t *podState) setMirror() { t.provider.status, t.provider.mirror = nil, t.api.pod }

// close drops decoded versions of the pod unless a lane is using them.
func (t *podState) close() {
	if t.call.inflight != nil || t.write.inflight != nil || t.sched.dirty {
		return
	}
	if t.api.pod != nil {
		t.api.pod.close()
	}
	if t.provider.mirror != nil {
		t.provider.mirror.close()
	}
}

// atOnce reports whether the object is deleted with a grace period of 0.
func (t *podState) atOnce() bool {
	return t.deleted() && t.pod().DeletionGracePeriodSeconds != nil && *t.pod().DeletionGracePeriodSeconds == 0
}

// finalized reports whether only finalizers keep the object.
func (t *podState) finalized() bool { return t.atOnce() && len(t.pod().Finalizers) > 0 }

// hold records that the provider has, or may have, an instance.
func (t *podState) hold() {
	if t.provider.instance == instanceNone {
		t.become(instanceHeld)
	}
}

// forgotten records that the provider keeps nothing of the pod.
func (t *podState) forgotten() {
	if t.stopped() {
		t.become(instanceForgotten)
	} else {
		t.become(instanceNone)
	}
}

// An action is the next step of one lane of a pod.
type action struct {
	op     Op            // "": nothing, until wake or something happens
	grace  time.Duration // of OpStop
	cancel bool          // the call under way is in the way
	wake   instant       // when to ask again; never: only after an event
}

// stage returns the stage of the pod.
func (t *podState) stage() Stage {
	switch {
	case !t.provider.listed:
		return StageUnsynced
	case t.orphan() && !t.stopped():
		return StageOrphaned
	case t.released(), t.stopped() && t.final() && !t.deleted() && !t.removed():
		return StageReleased // it may disappear, or stays as completed
	case t.stopped() && (t.final() || t.removed()):
		return StageFinal
	case t.stopped():
		return StageStopped
	case t.end != nil:
		return StageTerminating
	case t.running():
		return StageRunning
	case t.call.inflight != nil && t.call.inflight.op == OpStart || t.held():
		return StageStarting
	}
	return StageWaiting
}

// blocksName reports whether another pod of the same name must wait for t.
func (t *podState) blocksName() bool { return !t.stopped() && (t.held() || !t.provider.listed) }

// clockCheck is the longest time between two comparisons of a pod's deadline with the wall
// clock, which may be set, and which goes on while the machine is suspended.
const clockCheck = 30 * time.Second

// advance makes the transitions that depend on the time only. wall is the wall clock, by
// which status.startTime was taken. advance reports whether the pod's deadline has expired just
// now, and when to call it again.
func (t *podState) advance(r *rules, now instant, wall time.Time) (expired bool, wake instant) {
	wake = noDeadline
	if !t.provider.listed {
		return false, wake
	}
	if t.end != nil && !t.stopped() && !t.held() && t.call.inflight == nil {
		t.markStopped(r, now) // the provider was never called for it
	}
	if t.api.pod == nil || t.removed() {
		return false, wake
	}
	if t.stopped() && t.final() && t.finalized() {
		t.becomeReleased(now) // the owners of the finalizers remove the object
	}
	if limit := t.pod().Spec.ActiveDeadlineSeconds; limit != nil && t.end == nil {
		at := t.api.since + seconds(*limit)
		if start := t.pod().Status.StartTime; start != nil {
			at = now + min(start.Add(seconds(*limit)).Sub(wall), horizon) // Sub stops at 292 years
		}
		if now < at {
			wake = min(at, now+clockCheck)
		} else {
			expired = true
			t.beginTermination(now, StopDeadline, &podstatus.Failure{Reason: ReasonDeadlineExceeded, Message: messageDeadline}, specGrace(t.pod()))
		}
	}
	return expired, wake
}

// decideCall returns the provider call that is due. nameFree says that no other pod of
// the same name blocks it.
func (t *podState) decideCall(r *rules, now instant, nameFree bool) action {
	switch {
	case !t.provider.listed && !t.provider.needsInspect && !(t.suspectedLoss() && t.unsaved(r)):
		return action{wake: noDeadline}
	case t.call.inflight != nil:
		return action{wake: noDeadline, cancel: t.call.inflight.fate == fateCounts && t.inTheWay()}
	}
	var s action
	switch {
	case t.provider.listed:
		s = t.wantedCall(r, now, nameFree)
	case t.unsaved(r):
		s = action{op: OpSave, wake: noDeadline}
	default:
		s = t.decideInspect()
	}
	if s.op != "" && now < t.call.retryAt {
		return action{wake: t.call.retryAt}
	}
	return s
}

// inTheWay reports whether the call in flight keeps Stop from being called, or from
// being called with a shorter grace period.
func (t *podState) inTheWay() bool {
	switch t.call.inflight.op {
	case OpAdmit, OpAnnotate, OpStart, OpUpdate, OpInspect:
		return t.end != nil
	case OpStop:
		return !t.stopped() && t.end.grace < t.call.inflight.grace
	}
	return false
}

func (t *podState) wantedCall(r *rules, now instant, nameFree bool) action {
	idle := action{wake: noDeadline}
	switch {
	case t.orphan():
		return idle // until it is verified
	case t.stopped() && t.provider.saved.exists && (t.final() || t.removed()):
		return action{op: OpRemove, wake: noDeadline}
	case t.stopped():
		return t.decideRelease(r)
	case t.end != nil:
		return t.decideStop(now)
	case !t.running():
		switch {
		case t.removed():
			return idle // until it is certain that the pod is there
		case !nameFree:
			return idle
		case r.admits && !t.provider.admitted:
			return action{op: OpAdmit, wake: noDeadline}
		case r.annotates && !t.provider.annotated:
			return action{op: OpAnnotate, wake: noDeadline}
		case r.annotates && len(t.provider.unsaved) > 0:
			return idle // until the API has them
		}
		return action{op: OpStart, wake: noDeadline}
	case t.unsaved(r):
		return action{op: OpSave, wake: noDeadline}
	case t.provider.needsInspect:
		return t.decideInspect()
	case r.updates && t.changed(r):
		return action{op: OpUpdate, wake: noDeadline}
	}
	return idle
}

// decideInspect returns the question to the Inspector.
func (t *podState) decideInspect() action { return action{op: OpInspect, wake: noDeadline} }

// decideStop returns when Stop is due, and its grace period, which never grows: after
// the first success it is the rest of that call's grace period.
func (t *podState) decideStop(now instant) action {
	e := t.end
	grace := e.grace
	if e.accepted > 0 {
		grace = min(grace, max(minGrace, e.killAt-now))
	}
	if e.accepted > 0 && e.grace >= e.passed && now < e.recheck {
		return action{wake: e.recheck}
	}
	return action{op: OpStop, grace: grace, wake: noDeadline}
}

// decideRelease returns the call that makes the provider forget a stopped pod, which
// is due when the API no longer needs the pod.
func (t *podState) decideRelease(r *rules) action {
	idle := action{wake: noDeadline}
	if !t.held() || !t.removed() && !t.released() {
		return idle
	}
	switch {
	case r.releases:
		return action{op: OpRelease, wake: noDeadline}
	case !t.removed():
		return idle
	}
	// It ended on its own, and the provider kept it for its logs.
	return action{op: OpStop, grace: minGrace, wake: noDeadline}
}

// changed reports whether the spec is newer than the one that the provider accepted.
func (t *podState) changed(r *rules) bool {
	if accepted := t.provider.acceptedPod; r.policy.UpdateMetadata && accepted != nil &&
		(!maps.Equal(accepted.Labels, t.pod().Labels) || !maps.Equal(accepted.Annotations, t.pod().Annotations)) {
		return true
	}
	if t.pod().Generation > 0 {
		return t.pod().Generation > t.provider.generation && t.pod().Generation > t.provider.refusedGeneration
	}
	// API servers before 1.34 keep no generation: compare the mutable fields. The
	// spec of an adopted instance is unknown.
	return t.provider.acceptedPod == nil || t.provider.acceptedPod != t.pod() && mutableChanged(&t.provider.acceptedPod.Spec, &t.pod().Spec)
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
		!equality.Semantic.DeepEqual(a.ActiveDeadlineSeconds, b.ActiveDeadlineSeconds) ||
		!equality.Semantic.DeepEqual(a.Tolerations, b.Tolerations)
}

// forgettable reports whether neither the API nor the provider has the pod.
func (t *podState) forgettable() bool {
	if !t.provider.listed || !t.removed() || t.api.presence == presenceMissing || t.api.cached || !t.stopped() || t.call.inflight != nil || t.write.inflight != nil {
		return false
	}
	return !t.held() && !t.provider.saved.exists
}

// decideWrite returns the API request that is due, and whether it is urgent.
func (t *podState) decideWrite(r *rules, now instant) (s action, urgent bool) {
	s = action{wake: noDeadline}
	if !t.provider.listed || t.api.pod == nil || t.removed() || t.orphan() || t.write.inflight != nil {
		return s, false
	}
	if t.api.notFoundAt > 0 {
		if at := max(t.api.notFoundAt+goneAfter, t.write.retryAt); now < at {
			return action{wake: at}, false
		}
		return action{op: OpGet, wake: noDeadline}, false
	}
	if t.write.read != readNothing {
		if now < t.write.retryAt {
			return action{wake: t.write.retryAt}, false
		}
		return action{op: OpGet, wake: noDeadline}, true
	}
	var at instant
	switch {
	case !t.stopped():
		if t.write.statusSeq == t.write.storedSeq && !t.write.stale || t.write.statusSeq == t.write.rejectedSeq || t.final() {
			return s, false
		}
		s.op, at, urgent = OpPatch, max(t.mergeUntil(r), t.write.notBefore), t.pod().Status.Phase == corev1.PodPending || len(t.provider.unsaved) > 0
	case !t.final():
		s.op, urgent = OpPatch, true
	case t.unreleased():
		s.op, urgent = OpDelete, true
		if t.api.goingAt > 0 {
			at = t.api.goingAt + goneAfter // the API server is removing it
		}
	case t.deleted() && len(t.pod().Finalizers) == 0:
		// The deletion did not finish; another DELETE finishes it.
		s.op, at = OpDelete, t.write.releasedAt+goneAfter
	default:
		return s, false
	}
	if at = max(at, t.write.retryAt); now < at {
		return action{wake: at}, false
	}
	return s, urgent
}

// unreleased reports whether the object must be deleted once its final status is stored:
// because it is being deleted, or because the provider asks for it and a controller will
// make another one.
func (t *podState) unreleased() bool {
	return !t.released() && (t.deleted() || t.provider.deletes && metav1.GetControllerOfNoCopy(t.pod()) != nil)
}

// mergeUntil returns the instant until which a status waits for the next one, so that
// one write has both.
func (t *podState) mergeUntil(r *rules) instant {
	switch {
	case len(t.provider.unsaved) > 0:
		return 0
	case t.write.quietSeq == t.write.statusSeq:
		return t.write.reportedAt + r.pendingAfter
	case t.end != nil:
		return t.end.since + r.pendingAfter
	case !t.running():
		return t.api.since + r.pendingAfter
	case t.pod().Status.StartTime == nil && (t.report() == nil || podstatus.Phase(&t.pod().Spec, t.report()) == corev1.PodPending):
		return t.api.since + r.pendingAfter
	}
	return 0
}
