// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A State is everything that is known of one pod. Use New, NewOrphan or NewLeftover to make
// one. Apply changes it; all other methods that are exported only read, except Rest.
//
//   - Invariant: an instance that has stopped implies a termination.
//   - Invariant: a call of Start or Update implies no termination when it began.
//   - Invariant: a DELETE is sent only with a final status, and a final status
//     is written only of a stopped instance.
//   - Invariant: a pod of which nothing is known from the provider has no request under way
//     that counts, and no call that counts except Inspect and Save.
type State struct {
	rules *Rules

	api      apiState
	provider providerState
	end      *termination // why and how the pod ends; nil while it does not end
	call     callState
	write    writeState
	suspect  suspectState

	illegal string // the last step that was refused; "": none
}

// A presence says whether the API has the object.
type presence uint8

const (
	present presence = iota
	missing          // a LIST or an answer left the object out; the API is asked
	gone             // the object existed and is gone
	orphan           // an instance without an object, not yet verified
)

// apiState is the API's view of the pod.
//
// Invariant: pod is nil only for an instance that the informer never showed.
// Invariant: node and deleting are those of pod.
// Invariant: orphan implies a nil pod.
// Invariant: recorded implies a pod that the informer does not have.
// Invariant: the version of pod goes back only if the API server was restored.
type apiState struct {
	pod      *Version // the newest version; nil if none was seen
	node     string   // spec.nodeName
	deleting bool     // metadata.deletionTimestamp is set
	// cachedVersion is the resourceVersion that the informer had last.
	cachedVersion string
	presence      presence
	cached        bool    // the informer has the object
	restored      bool    // it is missing since the API server was restored: no other pod of its name proves anything
	recorded      bool    // pod is from the checkpoint, and the informer has not shown it
	since         Instant // first seen; or lost and due to start again
	notFoundAt    Instant // the first "no such pod" in answer to a write; 0: none
	goingAt       Instant // first seen deleted with grace 0 and no finalizers; 0: never
}

// An instance is the state of the provider's instance of the pod.
type instance uint8

const (
	none      instance = iota // no instance is known
	held                      // Start was called, or the provider listed it
	running                   // Start has succeeded, or the instance was adopted
	stopped                   // nothing runs; the provider keeps exit codes or logs
	forgotten                 // nothing runs, and the provider keeps nothing
)

// A sight is what Lists have shown of the pod. In the first two states nothing is known of
// the provider: no List that counts says whether it holds the pod.
type sight uint8

const (
	unlisted sight = iota // no List counts yet
	doubted               // a List leaves out the pod, which had started; too many are to believe it
	listed                // it is known whether the provider holds the pod
	missed                // it was known, and Lists leave out the pod since; too many are to believe it
)

// providerState is the provider's view of the pod.
//
// Invariant: an instance never leaves stopped or forgotten, except that a List
// shows that the provider runs it again, or that it was never started and the API has it again.
// Invariant: doubted or missed implies no termination, and is what lostSince means.
// Invariant: at most one of status and mirror is set.
// Invariant: generation is at most api.pod.Generation.
// Invariant: kept waits for a List.
type providerState struct {
	lasting
	born         uint64 // only a List that began later counts, in the order of events
	instance     instance
	sight        sight
	needsInspect bool
	// annotated says that Annotate has succeeded. It is not lasting: while the gate is closed
	// another process may start the pod, with annotations of its own.
	annotated bool
	deletes   bool // a report had Delete and Stopped

	losses    uint8   // losses in a row without a List that shows the pod
	absentAt  Instant // when Lists first left the instance out; 0: the last proof is newer
	lostSince Instant // when Lists first left out the pod that is doubted or missed; 0: neither

	status     *corev1.PodStatus // the last report, until the API has it
	mirror     *Version          // the version of the pod that has the last report
	fp         uint64            // the fingerprint of the last report
	seenSeq    uint64            // the last proof that the provider holds it, in the order of events
	reports    reportedFields
	lost       *corev1.PodStatus         // the status of a lost pod that starts again, until it is stored
	conditions []corev1.PodConditionType // the types in the last report
	withdrawn  []corev1.PodConditionType // the types that only earlier reports had, until that is stored

	annotations map[string]string // that were reported last, and of which the API lacks unsaved
	unsaved     []string          // the keys of annotations that the API does not have yet

	generation     int64       // the generation that the provider has accepted; 0 if unknown
	saysGeneration bool        // the last report has a generation
	resources      uint64      // the fingerprint of the resources of the accepted spec; 0 if unknown
	refused        *refusal    // the last answer of Update; nil: it was no refusal
	acceptedPod    *corev1.Pod // the accepted pod, if the API keeps no generations
}

// lasting is what of the provider's view outlives a gate that closes: it is not about what the
// provider holds at the moment, or only this process knows it.
type lasting struct {
	nodeName string      // the node that the instance was started for, whose gate it is; "" if unknown
	admitted bool        // Admit is called once
	disputed bool        // it may run a generation of before a restore, so status.observedGeneration proves nothing
	kept     *keptReport // the last report of an instance that ended before the gate closed
	saved    Saved
}

// A Saved is what the checkpoint has of the pod.
type Saved struct {
	Exists     bool    // it has a record
	Unsure     bool    // it may have a record: Save was called and did not succeed
	Lost       bool    // it says that the loss of the pod is not believed yet
	Generation int64   // of the saved pod; NoGeneration: of none that the API has
	LostSince  Instant // of the process before; 0: none
	End        *End    // it says that the pod ends; nil: it does not
}

// NoGeneration is the generation of a record whose pod the API does not have.
const NoGeneration = -1

// mayExist reports whether the checkpoint has, or may have, a record of the pod.
func (s *Saved) mayExist() bool { return s.Exists || s.Unsure }

// An End is why and how a pod ends, as the checkpoint has it.
type End struct {
	Reason  StopReason         `json:"reason"`            // why
	Failure *podstatus.Failure `json:"failure,omitempty"` // what the status says of it; nil: nothing
	Grace   time.Duration      `json:"grace"`             // the shortest grace period requested
}

// A keptReport is the last report of an instance that had ended when the gate closed. If the
// next List does not have the instance, nothing else remembers its exit codes, or that Stop
// has ended it, and why.
type keptReport struct {
	status      *corev1.PodStatus // nil if there is none
	annotations map[string]string // that the API lacks
	deletes     bool              // a report had Delete and Stopped
	end         *termination      // nil if it had not begun
}

// A refusal is an answer of Update that would be given again.
type refusal struct {
	generation int64  // of the spec that was refused
	answer     string // the reason
}

// reportedFields are the fields that are derived, or say why Start fails, unless the last report has them.
type reportedFields struct {
	any       bool // the provider has reported a status
	resources bool // of any container
	hostIP    bool
	podIP     bool
	reason    bool // or a message
}

// laneState is what the two lanes of a pod have in common.
//
// Invariant: at most one call or request is in flight.
type laneState struct {
	inflight *Call
	retryAt  Instant
	failures int32 // in a row
}

// callState is the pod's lane of provider calls.
//
// Invariant: failures implies an error.
type callState struct {
	laneState
	err error // of the last call, or *NameTaken until the next one begins; nil after a success
}

// A fate is what the result of a call is worth. It only grows.
type fate uint8

const (
	counts   fate = iota
	canceled      // the call was in the way: an error of it says nothing
	stale         // the gate closed: only a List that begins later shows its effect
)

// Counts reports whether the result of the call counts: no gate has closed since it began.
func (c *Call) Counts() bool { return c.fate != stale }

// An endState says how far the end of the pod is written to the API. It leaves endFinal and
// endReleased only if another client undoes the end, or if the gate closes.
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

// writeState is the pod's lane of API requests.
//
// Invariant: endReleased implies releasedAt.
type writeState struct {
	laneState
	end  endState
	read readState // why the pod must be read before the next write
	// unread says that a DELETE may have been stored or has met another version, and that no answer
	// since shows the pod with its end. Only a GET proves that: a DELETE names the UID, which the pod
	// also has if it lives again because the API server was restored, and the informer may lag.
	unread     bool
	releasedAt Instant
	news       newsState
	rivals     rivalState
	pace       paceState
}

// newsState is what the API lacks of the status. A status has a number, and a newer one a
// larger one.
//
// Invariant: storedSeq, rejectedSeq and quietSeq are at most statusSeq.
// Invariant: contestedAt implies overwritten.
type newsState struct {
	statusSeq   uint64  // the newest status
	storedSeq   uint64  // the newest status that the API has
	rejectedSeq uint64  // the status that the API called invalid
	quietSeq    uint64  // the newest status, if it and those before it that are not stored have details only
	overwritten bool    // another client has written: the status may need a repair
	contestedAt uint64  // when the status of another client was seen that no later report contradicts; 0: none
	asked       bool    // for a List that may contradict it
	reportedAt  Instant // the first report that is not stored yet; 0: none
}

// rivalState is about other clients that write the pod.
type rivalState struct {
	conflicts  uint8           // in a row, in which the phase in the API was contested
	repairs    uint8           // patches in a row that only other clients' writes caused
	contested  corev1.PodPhase // see conflicts
	repairedAt Instant
}

// paceState limits the statuses that are not final.
type paceState struct {
	spent     time.Duration // writeInterval for each recent write, less the time since
	lastAt    Instant       // the last write
	notBefore Instant       // when the next status that is not final may be written
}

// suspectState is about a pod that may be gone from the API: an orphan or a missing pod.
type suspectState struct {
	at        Instant       // when the API is due to be asked
	wait      time.Duration // between the last two questions about an orphan
	goneSince Instant       // when the API first said that the pod is gone; 0: never
	unsure    bool          // the API did not answer the last question
}

// A termination says why and how a pod ends.
//
// Invariant: grace and passed never grow, and are at least MinGrace.
type termination struct {
	reason   StopReason
	failure  *podstatus.Failure // nil: the exit codes decide
	since    Instant
	grace    time.Duration // the shortest grace period requested
	stops    int           // calls of Stop
	passed   time.Duration // the grace period of the last call
	accepted Instant       // when Stop last succeeded; 0: never
	killAt   Instant       // when the grace period of the first success ends
	recheck  Instant       // when to call Stop again; 0 if it was not accepted

	unstarted bool // nothing of the pod was started, as far as is known
}

// record returns what the checkpoint keeps of the termination.
func (e *termination) record() *End {
	if e == nil {
		return nil
	}
	return &End{Reason: e.reason, Failure: e.failure, Grace: e.grace}
}

// New returns the state of a pod that is first known at now. seq is that moment in the
// order of events.
func New(rules *Rules, now Instant, seq uint64, saved Saved) State {
	t := State{rules: rules}
	t.api.since, t.provider.born, t.provider.saved, t.write.news.statusSeq = now, seq, saved, 1
	t.provider.disputed = saved.Exists && saved.Generation == NoGeneration
	return t
}

// NewOrphan returns the state of an instance without a pod. It was started for nodeName, if
// that is known.
func NewOrphan(rules *Rules, now Instant, seq uint64, saved Saved, nodeName string) State {
	t := New(rules, now, seq, saved)
	t.api.presence, t.provider.sight, t.provider.nodeName = orphan, listed, nodeName
	t.suspect.wait = rules.OrphanDelay
	t.suspect.at = now + t.suspect.wait
	return t
}

// NewLeftover returns the state of an instance of an earlier pod that must be stopped.
func NewLeftover(rules *Rules, now Instant, seq uint64, nodeName string) State {
	t := New(rules, now, seq, Saved{})
	t.api.presence, t.provider.sight, t.provider.nodeName = gone, listed, nodeName
	t.becomeHeld()
	t.beginTermination(now, StopOrphaned, nil, MinGrace)
	return t
}

// Apply takes in an event. An error says that the event would take an illegal step: the state
// of the instance is then as it was.
func (t *State) Apply(at Moment, event Event) (news News, err error) {
	illegal, missing := t.illegal, t.missing()
	now := at.Since
	switch ev := event.(type) {
	case Seen:
		news = t.seen(now, ev)
	case Vanished:
		if ev.Superseded && (t.api.restored || !t.api.cached && !t.missing()) {
			break // it proves nothing
		}
		if ev.Last != nil {
			t.setPod(now, ev.Last)
		}
		t.api.cached, t.api.restored = false, ev.Restored
		if ev.Doubtful {
			t.markMissing(now)
		} else {
			t.markDeleted(now)
		}
	case Recorded:
		t.setPod(now, Known(ev.Pod))
		t.api.cachedVersion, t.api.recorded = ev.Pod.ResourceVersion, true
		t.resume(now)

	case Reported:
		news = t.reported(at, ev)
	case *Repeated:
		t.startedFor(ev.NodeName)
		t.provider.seenSeq = max(t.provider.seenSeq, ev.Seq)
		lost := t.mayBeLost()
		t.shown(ev.FromList)
		news.Changed = t.confirmed(ev.Seq) || lost // its record may say that it is lost
	case Joined:
		switch {
		case t.unsettled():
		case t.Held() || t.stopped() || !t.evidence():
			t.classify(at)
		default:
			// It ran before. A List that begins now shows whether the provider still
			// holds it.
			news.Relist = true
		}
	case ListEnded:
		switch {
		case !ev.Shown && t.Known():
			held := t.Held()
			news.Lost = t.absent(at, ev.Seq, false)
			news.Changed = news.Lost || t.provider.needsInspect || held != t.Held() || t.Forgettable()
		case !t.Known() && t.Seen() && ev.Open && !t.unsettled() && (ev.First || t.provider.born < ev.Seq || t.Held()):
			news.Lost = t.classify(at)
			news.Changed = true
		}
	case LossBelieved:
		if t.mayBeLost() && !t.asked() {
			news.Lost = t.markLost(at)
		}
	case LossQuestioned:
		t.provider.needsInspect = t.mayBeLost()

	case Called:
		news.Call = t.callStarted(now, ev.Seq, ev.Action)
		news.FirstStop = ev.Action.Op == Stop && t.end.stops == 1
	case Canceled:
		t.call.inflight.fate = max(t.call.inflight.fate, canceled)
	case NotMade:
		t.lane(ev.Lane).inflight = nil
	case Returned:
		news = t.callReturned(at, ev)
	case RetryNow:
		if l := t.lane(ev.Lane); l.failures > 0 {
			l.retryAt = 0
		}
	case Sent:
		news.Call = t.writeStarted(now, ev.Action.Op, at.Wall)
	case Stored, StatusRefused, AnnotationsRefused, NotFound, DeleteSent, Conflicted, Read, WriteFailed:
		if t.write.inflight.fate == stale {
			t.write.inflight, news.Stale = nil, true // the informer shows its effect
			break
		}
		news = t.answered(now, ev)

	case GateClosed:
		t.reset(now)
		news.Abort = true
	case GateOpened:
		t.provider.born = ev.Seq
	case Evicted:
		t.beginTermination(now, StopEvicted, ev.Failure, ev.Grace)
	case SuspectAnswered:
		news.Back = t.suspectAnswered(now, ev.Answer)
	case SuspectHeld:
		t.holdSuspect(now)
	case SuspectBelieved:
		news.Superfluous = t.stopSuspect(now)
	case NameWanted:
		t.suspect.at = min(t.suspect.at, now)
	case *NameTaken:
		if before := t.nameTaken(); before == nil || *before != *ev {
			t.call.err = ev
			t.write.news.statusSeq++
		}
	case Passed:
		news.Expired, news.Wake = t.advance(at)
		news.Unapplied = t.Seen() && t.unapplied()
	}
	news.Relist = t.asksAgain(now) || news.Relist
	news.Verify = t.missing() && !missing
	if t.illegal != illegal {
		err = errors.New(t.illegal)
	}
	return news, err
}

// seen applies a version of the informer.
func (t *State) seen(now Instant, ev Seen) (news News) {
	v := ev.Version
	news.First = !t.Seen()
	t.api.cached = true
	recorded, back := t.api.recorded, false
	t.api.recorded = false
	if news.First || !Older(v.ResourceVersion(), t.api.pod.ResourceVersion()) || t.rewound(v) {
		back = t.gone()
		t.revive()
		t.api.presence, t.api.restored, t.suspect.goneSince = present, false, 0
	}
	if recorded {
		t.setPod(now, v) // what the record has of the status counts for nothing
		news.New = true  // the status has waited for this
	} else {
		news.New = t.foreign(now, ev.Seq, v)
		if news.New && t.write.news.contestedAt == ev.Seq && t.write.rivals.repairs >= repairsAtOnce {
			news.Fought = v.Writer()
		}
	}
	if recorded && t.provider.lost != nil {
		t.provider.lost = new(podstatus.Lost(&t.Pod().Status)) // with the history that the record does not have
	}
	news.New = news.New || back // calls and requests have waited for it
	if !news.New || !news.First {
		return news
	}
	t.look(unlisted, 0)
	t.resume(now)
	if t.provider.status != nil {
		t.nameContainer(t.provider.status) // it was reported before the pod was seen
	}
	return news
}

// revive takes back the end of a pod that a LIST left out by mistake before anything of it was
// started: nothing has happened to it.
func (t *State) revive() {
	if t.api.presence != gone || t.provider.instance != forgotten || t.provider.seenSeq > 0 || t.write.inflight != nil || t.final() {
		return
	}
	if e := t.end; e.reason != StopDeleted || !e.unstarted || t.deleted() {
		return // it ends for another reason
	}
	t.end = nil
	t.step(none)
}

// startedFor records the node that the instance was started for; "" if it was not said.
func (t *State) startedFor(nodeName string) {
	if nodeName != "" {
		t.provider.nodeName = nodeName
	}
}

// shown records that the provider holds the pod.
func (t *State) shown(fromList bool) {
	t.provider.absentAt, t.provider.needsInspect = 0, false
	t.found()
	if fromList {
		t.provider.losses = 0
	}
}

// reported applies a report.
func (t *State) reported(at Moment, ev Reported) (news News) {
	t.startedFor(ev.NodeName)
	if ev.FromList && t.rules.Gated && !t.Known() && ev.Seq < t.provider.born {
		return news // it is from before the gate opened
	}
	news.Dropped = t.observe(at.Since, ev.Seq, ev.Report, ev.FP, ev.FromList)
	t.confirmed(ev.Seq)
	if !t.Known() && ev.Joined && t.Seen() && t.Held() && !t.unsettled() {
		t.classify(at)
	}
	return news
}

// answered applies an answer to a request.
func (t *State) answered(now Instant, event Event) (news News) {
	c, n := t.write.inflight, &t.write.news
	switch ev := event.(type) {
	case Stored:
		if ev.Pod != nil {
			news.Lag = now - n.reportedAt
			news.Fresh = n.reportedAt > 0 && n.statusSeq == c.want && n.storedSeq != c.want
		}
		t.statusStored(now, c, ev.Pod, ev.Same)
		if news.Fresh {
			n.reportedAt = 0
		}
	case StatusRefused:
		t.statusRejected(c)
	case AnnotationsRefused:
		t.annotationsRejected(c)
	case NotFound:
		t.notFound(now)
	case DeleteSent:
		t.deleteSent(now)
		if ev.NotFound {
			t.notFound(now)
		}
	case Conflicted:
		t.conflicted(now)
	case Read:
		t.finishGet(now, ev.Seq, ev.Pod)
	case WriteFailed:
		t.writeFailed(now, ev)
	}
	return news
}

// advance makes the transitions that depend on the time only. Its wall clock is that by
// which status.startTime was taken. advance reports whether the pod's deadline has expired just
// now, and when to call it again.
func (t *State) advance(at Moment) (expired bool, wake Instant) {
	now := at.Since
	wake = Never
	if !t.Known() {
		return false, wake
	}
	if t.end != nil && !t.stopped() && !t.Held() && t.call.inflight == nil {
		t.markStopped(now) // the provider was never called for it
	}
	if t.api.pod == nil || t.gone() {
		return false, wake
	}
	if t.stopped() && t.finalized() {
		t.becomeReleased(now) // the owners of the finalizers remove the object
	}
	if limit := t.Pod().Spec.ActiveDeadlineSeconds; limit != nil && t.end == nil {
		due := t.api.since + seconds(*limit)
		if start := t.Pod().Status.StartTime; start != nil {
			due = now + min(start.Add(seconds(*limit)).Sub(at.Wall), Horizon) // Sub stops at 292 years
		}
		if now < due {
			wake = min(due, now+clockCheck)
		} else {
			expired = true
			t.beginTermination(now, StopDeadline, &podstatus.Failure{Reason: ReasonDeadlineExceeded, Message: MessageDeadline}, SpecGrace(t.Pod()))
		}
	}
	return expired, wake
}

// Repeats reports whether a report with this fingerprint has no news, so that the event
// Repeated is enough.
func (t *State) Repeats(fp uint64, isStopped bool) bool {
	return t.provider.fp == fp && t.stopped() == isStopped && (t.Held() || t.stopped())
}

// MayBe reports whether an instance without a UID, from a List that began at
// seq, may be t's: if t was started before, or is an instance without a UID.
// Otherwise the instance is that of an earlier pod of the name.
func (t *State) MayBe(seq uint64) bool {
	if call := t.call.inflight; call != nil && call.Op == Start {
		return call.seq < seq
	}
	return t.api.pod == nil || t.Held() && t.provider.born < seq || t.stopped() || t.evidence()
}

// LastReport returns the last report of the provider, or the status that the API has stored
// of it; nil if there is none. It must not be changed.
func (t *State) LastReport() *corev1.PodStatus { return t.report() }

// Unclaimed returns the last report of an instance that the provider has forgotten before its
// pod was seen, if it has exit codes, and its fingerprint; nil if there is none. It must not be
// changed.
func (t *State) Unclaimed() (last *Report, fp uint64) {
	if !t.Orphan() || !t.stopped() || t.provider.status == nil {
		return nil, 0
	}
	ended := func(c corev1.ContainerStatus) bool { return c.State.Terminated != nil }
	if !slices.ContainsFunc(t.provider.status.ContainerStatuses, ended) {
		return nil, 0
	}
	return &Report{
		Stopped: t.end.reason != StopLost, Status: *t.provider.status,
		Annotations: t.provider.annotations, Delete: t.provider.deletes,
	}, t.provider.fp
}

// LastStatus returns the status that the next report is compared with: the last report, or
// else the stored status; nil if there is neither. It must not be changed.
func (t *State) LastStatus() *corev1.PodStatus {
	if report := t.report(); report != nil || t.api.pod == nil {
		return report
	}
	return &t.base().Status
}

// observe applies a report of the provider. seq is the time of the report, in
// the order of events; fromList says that it is from a List that began then. st is private
// to t, and fp is its fingerprint. observe returns the reason if it drops the report.
func (t *State) observe(now Instant, seq uint64, st *Report, fp uint64, fromList bool) (dropped string) {
	if fromList && seq < t.provider.seenSeq {
		return "" // a newer report is known
	}
	if t.stopped() && !st.Stopped {
		if !fromList {
			return DroppedAfterStop
		}
		// The provider broke its promise: stop it again.
		t.becomeHeld()
		t.provider.seenSeq, t.provider.fp = seq, fp
		t.end.accepted, t.end.recheck, t.end.passed = 0, 0, 0
		return DroppedAfterStop
	}
	t.provider.seenSeq = seq
	t.shown(fromList)
	if t.provider.instance == none {
		t.becomeHeld()
	}
	if fp == t.provider.fp && st.Stopped == t.stopped() {
		return ""
	}
	t.provider.fp = fp
	t.takeAnnotations(st.Annotations)
	if t.echoes(&st.Status) {
		t.takeEcho(now, st)
	} else {
		t.take(now, st)
	}
	t.provider.deletes = t.provider.deletes || st.Stopped && st.Delete
	if st.Stopped {
		t.markStopped(now)
	}
	return ""
}

// markStopped records that nothing runs and nothing will.
func (t *State) markStopped(now Instant) {
	if t.stopped() {
		return
	}
	unstarted := t.Seen() && !t.running() && !t.started()
	t.provider.needsInspect = false
	t.becomeEnded()
	t.call.retryAt, t.call.failures = 0, 0
	t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	t.end.unstarted = t.end.unstarted || unstarted
	if !t.rules.Releases && t.end.stops > 0 {
		t.becomeForgotten() // Stop was all there is
	}
	t.write.news.statusSeq++
}

// absent records that a List that began at seq left the pod out or, if sure is true,
// that the Inspector does not know it. It reports whether the pod is lost.
func (t *State) absent(at Moment, seq uint64, sure bool) (lost bool) {
	now := at.Since
	if !t.Held() || t.call.inflight != nil || t.provider.seenSeq >= seq {
		return false
	}
	if t.stopped() || t.Orphan() {
		// The provider has forgotten the pod on its own.
		if t.Orphan() {
			t.beginTermination(now, StopLost, nil, MinGrace) // unless it had stopped
		}
		t.markStopped(now)
		t.becomeForgotten()
		return false
	}
	if t.provider.absentAt == 0 {
		t.provider.absentAt = now
	}
	// Two lists that follow each other at once are one observation.
	twice := now-t.provider.absentAt >= t.rules.Relist/2
	switch {
	case t.end != nil && t.end.stops == 0:
		return false // the result of Stop decides
	case t.end != nil:
		// An accepted Stop has had its effect. If Stop keeps failing, two Lists
		// prove more.
		if t.end.accepted > 0 || twice {
			t.markStopped(now)
			t.becomeForgotten()
		}
		return false
	case !t.running():
		return false // Start is being retried, and decides
	case sure || twice && t.rules.CompleteList:
		return t.markLost(at)
	case twice:
		t.look(missed, t.provider.absentAt)
		return false
	}
	t.provider.needsInspect = t.rules.Inspects
	return false
}

// markLost decides about a pod that had started and that the provider does not
// hold. It reports false if the pod had ended before, and so is not lost.
func (t *State) markLost(at Moment) (lost bool) {
	now := at.Since
	t.look(listed, 0)
	if t.end == nil && t.endedBy(&corev1.PodStatus{}) {
		// It had ended, and the API knows how: only its phase is not written.
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
		t.markStopped(now)
		t.becomeForgotten()
		return false
	}
	again := t.rules.Lost == LostRestart ||
		t.rules.Lost == LostByRestartPolicy && (t.Pod().Spec.RestartPolicy == corev1.RestartPolicyAlways || t.Pod().Spec.RestartPolicy == "")
	if !again {
		t.beginTermination(now, StopLost, &podstatus.Failure{Reason: ReasonLost, Message: MessageLost}, MinGrace)
		t.mayRun()
		return true
	}
	status, _ := podstatus.Next(t.base(), t.update(at.Wall))
	t.provider.lost = new(podstatus.Lost(&status))
	t.setReport(nil)
	t.provider.fp = 0
	// Start may succeed again and again, and List not show the pod.
	t.call.retryAt = now + t.rules.Retry.Delay(int(t.provider.losses))
	t.provider.losses = min(t.provider.losses+1, 250)
	if t.running() {
		t.becomeHeld()
	}
	t.api.since = now
	t.write.news.statusSeq++
	return true
}

// classify adopts the pod, finds it lost, or lets it start, once the provider has said
// whether it holds an instance. It reports whether the pod is lost.
func (t *State) classify(at Moment) (lost bool) {
	now := at.Since
	if t.Held() || t.end != nil {
		t.provider.needsInspect = false
	}
	if podstatus.IsTerminal(t.Pod().Status.Phase) {
		t.becomeFinal() // the status needs no further write
	}
	if t.recall(now) {
		t.look(listed, 0)
		return false
	}
	if t.Held() {
		t.look(listed, 0)
		t.provider.admitted = true
		if !t.stopped() {
			t.becomeRunning()
			if t.provider.generation == 0 && !t.provider.disputed {
				t.accept(t.Pod().Status.ObservedGeneration)
			}
			if t.rules.UpdateMetadata && t.provider.acceptedPod == nil && t.Pod().Generation > 0 {
				t.provider.acceptedPod = t.Pod() // what changed before is not known
			}
			if t.end == nil && t.ended() {
				t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
			}
		}
		return false
	}
	if t.end != nil && t.started() && !t.final() {
		t.mayRun()
	}
	if t.end == nil && t.started() {
		t.provider.admitted = true
		if t.rules.CompleteList {
			return t.markLost(at)
		}
		t.look(doubted, now)
		return false
	}
	t.look(listed, 0)
	return false
}

// mayRun makes Stop be called for a pod that had started, that ends, and that a List leaves out
// at the first sight: the List may be a mistake.
func (t *State) mayRun() {
	if t.provider.instance == none && !t.rules.CompleteList {
		t.becomeHeld()
	}
}

// keepResult keeps the result of a call that has ended the instance while the gate is closed. What
// was kept before of the instance stays unless the result says something else.
func (t *State) keepResult(c *Call, st *Report) {
	kept := &keptReport{}
	if before := t.provider.kept; before != nil {
		*kept = *before
	}
	if kept.end == nil {
		kept.end = c.end
	}
	if !equality.Semantic.DeepEqual(&st.Status, &corev1.PodStatus{}) {
		t.nameContainer(&st.Status)
		if kept.status != nil {
			addUnsaid(&st.Status, kept.status)
		}
		kept.status = &st.Status
	}
	for key, value := range st.Annotations {
		if kept.annotations == nil {
			kept.annotations = map[string]string{}
		}
		kept.annotations[key] = value
	}
	kept.deletes = kept.deletes || st.Delete
	t.provider.kept = kept
}

// recall applies the kept report to a pod that the provider no longer holds. It reports false
// if there is none.
func (t *State) recall(now Instant) bool {
	kept := t.provider.kept
	t.provider.kept = nil
	if kept == nil || t.Held() {
		return false
	}
	t.setReport(kept.status)
	t.takeAnnotations(kept.annotations)
	t.provider.deletes = kept.deletes
	if kept.end != nil {
		t.beginTermination(now, kept.end.reason, kept.end.failure, kept.end.grace)
	} else {
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	}
	return true
}

// reset drops the reports of the provider and all state derived from them. Results of
// calls and requests in flight will not count. An eviction is kept: Evict was its only cause.
// So is what only the checkpoint says of a pod.
func (t *State) reset(now Instant) {
	for _, c := range [...]*Call{t.call.inflight, t.write.inflight} {
		if c != nil {
			c.fate = stale
		}
	}
	pod, presence := t.api.pod, t.api.presence
	switch report, stopped := t.report(), t.stopped(); {
	case pod == nil:
	case report != nil && (stopped || t.ended()),
		stopped && t.end != nil && t.end.stops > 0: // what Stop has ended is not started again
		t.provider.kept = &keptReport{ // not the whole pod that has the report
			status: report.DeepCopy(), annotations: t.newAnnotations(), deletes: t.provider.deletes, end: t.end,
		}
	}
	p := &t.provider
	*p = providerState{lasting: p.lasting}
	t.call = callState{laneState: laneState{inflight: t.call.inflight}}
	w := t.write
	t.write = writeState{laneState: laneState{inflight: w.inflight}, unread: w.unread || w.inflight != nil && w.inflight.Op == Delete, news: newsState{statusSeq: 1}}
	if e := t.end; pod != nil && e != nil && e.reason == StopEvicted {
		t.end = &termination{reason: e.reason, failure: e.failure, since: e.since, grace: e.grace}
	} else {
		t.end = nil
	}
	if pod == nil { // an orphan: it is verified again
		t.api.presence, p.instance, p.sight = orphan, held, listed
		t.suspect.at, t.suspect.goneSince, t.suspect.unsure = now+t.suspect.wait, 0, false
		return
	}
	t.api.pod = nil
	t.setPod(now, pod)
	t.resume(now)
	switch presence {
	case missing:
		t.doubt(now) // what was not confirmed is not certain now either
	case gone:
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}

// take records a report until the API has stored it.
func (t *State) take(now Instant, st *Report) {
	t.provider.saysGeneration = st.Generation > 0
	if st.Generation > 0 && (!t.running() || !t.rules.Updates) {
		// It counts until Start has succeeded; from then on only the results of
		// Update do, if the provider has it.
		t.accept(st.Generation)
	}
	if t.final() || equality.Semantic.DeepEqual(&st.Status, &corev1.PodStatus{}) {
		return // too late, or no opinion
	}
	t.nameContainer(&st.Status)
	if before := t.provider.status; before != nil {
		addUnsaid(&st.Status, before)
	}
	quiet := t.quiet(&st.Status)
	t.setReport(&st.Status)
	t.takeConditions(st.Status.Conditions)
	t.provider.reports = reportedFields{
		any:       true,
		resources: hasResources(st.Status.ContainerStatuses) || hasResources(st.Status.InitContainerStatuses),
		hostIP:    st.Status.HostIP != "" || len(st.Status.HostIPs) > 0,
		podIP:     st.Status.PodIP != "" || len(st.Status.PodIPs) > 0,
		reason:    st.Status.Reason != "" || st.Status.Message != "",
	}
	stored := t.write.news.statusSeq == t.write.news.storedSeq
	if stored || t.write.news.reportedAt == 0 {
		t.write.news.reportedAt = now
	}
	quiet = quiet && (stored || t.write.news.quietSeq == t.write.news.statusSeq)
	t.write.news.statusSeq++
	if quiet {
		t.write.news.quietSeq = t.write.news.statusSeq
	}
	t.write.rivals.repairs = 0
	if t.end == nil && t.api.pod != nil && t.ended() {
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	}
}

// nameContainer gives the status of the only container of a pod that container's name. A
// backend that has one container for a pod often knows it by a name of its own.
func (t *State) nameContainer(status *corev1.PodStatus) {
	if t.api.pod == nil || len(status.ContainerStatuses) != 1 || len(t.Pod().Spec.Containers) != 1 {
		return
	}
	spec, name := &t.Pod().Spec, status.ContainerStatuses[0].Name
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return
		}
	}
	status.ContainerStatuses[0].Name = spec.Containers[0].Name
}

// takeAnnotations records the annotations that are new since the last report and that the
// API does not have.
func (t *State) takeAnnotations(annotations map[string]string) {
	if t.final() {
		return
	}
	for key, value := range annotations {
		last, known := t.provider.annotations[key]
		if known && last == value {
			continue
		}
		if t.provider.annotations == nil {
			t.provider.annotations = map[string]string{}
		}
		t.provider.annotations[key] = value
		if t.api.pod != nil {
			if stored, ok := t.Pod().Annotations[key]; ok && stored == value {
				continue
			}
		}
		if !known || !slices.Contains(t.provider.unsaved, key) {
			t.provider.unsaved = append(t.provider.unsaved, key)
		}
		t.write.news.statusSeq++
	}
}

// unreported returns the annotations of a call that no report during the call has another value
// of: nothing may repeat them, also no List.
func (t *State) unreported(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(key, _ string) bool {
		_, reported := t.provider.annotations[key]
		return reported
	})
	return out
}

// newAnnotations returns the annotations that the API does not have yet.
func (t *State) newAnnotations() map[string]string {
	if len(t.provider.unsaved) == 0 {
		return nil
	}
	out := make(map[string]string, len(t.provider.unsaved))
	for _, key := range t.provider.unsaved {
		out[key] = t.provider.annotations[key]
	}
	return out
}

// annotationsSettled records that the API has stored the annotations, or will never store
// them.
func (t *State) annotationsSettled(settled map[string]string) {
	t.provider.unsaved = slices.DeleteFunc(t.provider.unsaved, func(key string) bool {
		value, ok := settled[key]
		return ok && value == t.provider.annotations[key]
	})
}

// quiet reports whether a report may wait for the next one: no container has started,
// ended or changed its readiness since the last report. The addresses of a pod come
// between its first status and Running, for example. The last containers of a pod that
// is stopped are no news either, because the final status follows.
func (t *State) quiet(next *corev1.PodStatus) bool {
	last := t.report()
	if last == nil {
		return false
	}
	lists := [][2][]corev1.ContainerStatus{
		{last.InitContainerStatuses, next.InitContainerStatuses},
		{last.ContainerStatuses, next.ContainerStatuses},
		{last.EphemeralContainerStatuses, next.EphemeralContainerStatuses},
	}
	if t.end != nil && !slices.ContainsFunc(lists, func(l [2][]corev1.ContainerStatus) bool {
		return slices.ContainsFunc(l[1], func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
	}) {
		return true
	}
	for _, l := range lists {
		if !slices.EqualFunc(l[0], l[1], sameProgress) {
			return false
		}
	}
	unsaid := func(last, next string) bool { return next == "" || next == last }
	return unsaid(string(last.Phase), string(next.Phase)) && unsaid(last.Reason, next.Reason) && unsaid(last.Message, next.Message) &&
		t.sameConditions(last.Conditions, next.Conditions)
}

// sameProgress reports whether two statuses of a container differ in details only.
func sameProgress(last, next corev1.ContainerStatus) bool {
	reason := func(w *corev1.ContainerStateWaiting) string {
		if w == nil {
			return ""
		}
		return w.Reason
	}
	a, b := last.State, next.State
	return last.Name == next.Name && last.Ready == next.Ready && last.RestartCount == next.RestartCount &&
		(next.Started == nil || last.Started != nil && *last.Started == *next.Started) &&
		(a.Running == nil) == (b.Running == nil) && (a.Terminated == nil) == (b.Terminated == nil) && reason(a.Waiting) == reason(b.Waiting)
}

// sameConditions reports whether two reports have the same conditions, without that of
// the sandbox.
func (t *State) sameConditions(last, next []corev1.PodCondition) bool {
	missing := func(a, b []corev1.PodCondition) bool {
		return slices.ContainsFunc(a, func(c corev1.PodCondition) bool {
			return c.Type != corev1.PodReadyToStartContainers && !slices.ContainsFunc(b, func(o corev1.PodCondition) bool {
				return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason
			})
		})
	}
	own := ownConditions(t.provider.conditions, last)
	return !missing(own, next) && !missing(next, own)
}

// hasResources reports whether the status of a container has resources.
func hasResources(list []corev1.ContainerStatus) bool {
	return slices.ContainsFunc(list, func(cs corev1.ContainerStatus) bool { return cs.Resources != nil || cs.AllocatedResources != nil })
}

// takeConditions keeps the types of the reported conditions, and those that an
// earlier report had and this one has not: they are withdrawn from the API.
func (t *State) takeConditions(conditions []corev1.PodCondition) {
	reported := make([]corev1.PodConditionType, len(conditions))
	for i := range conditions {
		reported[i] = conditions[i].Type
	}
	isReported := func(typ corev1.PodConditionType) bool { return slices.Contains(reported, typ) }
	for _, typ := range t.provider.conditions {
		if !slices.Contains(t.provider.withdrawn, typ) {
			t.provider.withdrawn = append(t.provider.withdrawn, typ)
		}
	}
	t.provider.withdrawn = slices.DeleteFunc(t.provider.withdrawn, isReported)
	t.provider.conditions = reported
}

// base returns the pod as the API will have it once everything before the last
// report is stored: with the containers of a lost instance ended.
func (t *State) base() *corev1.Pod {
	lost := t.provider.lost
	if lost == nil {
		return t.Pod()
	}
	pod := *t.Pod()
	pod.Status.InitContainerStatuses = lost.InitContainerStatuses
	pod.Status.ContainerStatuses = lost.ContainerStatuses
	pod.Status.EphemeralContainerStatuses = lost.EphemeralContainerStatuses
	return &pod
}

// ended reports whether the pod's work is done by the last report.
func (t *State) ended() bool {
	report := t.report()
	return report != nil && (t.rules.TrustPhase && podstatus.IsTerminal(report.Phase) || t.endedBy(report))
}

// endedBy reports whether the pod's work is done: by a report, and for a container that the
// report leaves out by the end that is stored. The last termination of a container that waits
// counts only if the report has it: the stored one may be that of a lost instance.
func (t *State) endedBy(report *corev1.PodStatus) bool {
	stored := &t.base().Status
	return podstatus.Ended(&t.Pod().Spec, &corev1.PodStatus{
		InitContainerStatuses: addMissing(report.InitContainerStatuses, stored.InitContainerStatuses, true),
		ContainerStatuses:     addMissing(report.ContainerStatuses, stored.ContainerStatuses, true),
	})
}

// placesOf returns the places of containers in a list, by name: the first one, if a provider
// has reported a name twice.
func placesOf(list []corev1.ContainerStatus) map[string]int {
	places := make(map[string]int, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		places[list[i].Name] = i
	}
	return places
}

// addUnsaid adds to a report what the one before says of containers, which is not stored. A container
// that only that one has keeps its state, or an exit code would be lost.
func addUnsaid(next, before *corev1.PodStatus) {
	next.InitContainerStatuses = addMissing(next.InitContainerStatuses, before.InitContainerStatuses, false)
	next.ContainerStatuses = addMissing(next.ContainerStatuses, before.ContainerStatuses, false)
	next.EphemeralContainerStatuses = addMissing(next.EphemeralContainerStatuses, before.EphemeralContainerStatuses, false)
}

// addMissing returns list with the containers of other that it lacks, has
// without a state, or of which it has forgotten the end; with endsOnly those that have ended.
func addMissing(list, other []corev1.ContainerStatus, endsOnly bool) []corev1.ContainerStatus {
	if len(other) == 0 {
		return list
	}
	places := placesOf(list)
	out, copied := list, false
	for i := range other {
		if other[i].State == (corev1.ContainerState{}) || endsOnly && other[i].State.Terminated == nil {
			continue
		}
		at, ok := places[other[i].Name]
		if ok && list[at].State != (corev1.ContainerState{}) && !podstatus.Forgets(&list[at], &other[i]) {
			continue
		}
		if !copied {
			out, copied = slices.Clone(list), true
		}
		if ok {
			out[at] = other[i]
		} else {
			out = append(out, other[i])
		}
	}
	return out
}

// ownConditions returns the conditions of the types that the provider reports.
func ownConditions(own []corev1.PodConditionType, all []corev1.PodCondition) (conditions []corev1.PodCondition) {
	for i := range all {
		for _, typ := range own {
			if all[i].Type == typ {
				conditions = append(conditions, all[i])
			}
		}
	}
	return conditions
}

// callStarted records a provider call.
func (t *State) callStarted(now Instant, seq uint64, s Action) *Call {
	c := &Call{Op: s.Op, Since: now, seq: seq, Grace: s.Grace, Pod: t.Pod(), LostSince: t.provider.lostSince}
	t.call.inflight = c
	if _, waited := t.call.err.(*NameTaken); waited {
		t.call.err, t.call.failures = nil, 0
	}
	switch s.Op {
	case Start:
		if t.provider.instance == none {
			t.provider.born = seq // a List that began before has nothing of it
		}
		t.becomeHeld()
	case Save:
		c.End, t.provider.saved.Unsure = t.end.record(), true
	case Stop:
		c.Over, c.Reason, c.end = t.stopped(), t.end.reason, t.end
		t.end.stops++
		t.end.passed = s.Grace
	}
	return c
}

// callReturned applies the result of a provider call.
func (t *State) callReturned(at Moment, ev Returned) (news News) {
	now := at.Since
	c := t.call.inflight
	t.call.inflight = nil
	t.provider.saved.Unsure = t.provider.saved.Unsure || ev.Saved
	news.Canceled = c.fate != counts
	if c.fate == stale {
		// The gate was closed during the call: only a List that begins now shows its
		// effect.
		t.provider.born = ev.Seq
		if ev.Result == Succeeded && ev.Report.Stopped && !t.rules.Releases && !t.Known() {
			t.keepResult(c, ev.Report)
		}
		news.Stale, news.Relist = true, true
		return news
	}
	switch {
	case ev.Result == Succeeded, ev.Result == NoSuchPod && c.Op != Inspect:
		t.call.failures, t.call.err = 0, nil
		t.callSucceeded(now, c, ev, &news)
	case c.Op == Inspect:
		t.provider.needsInspect = false // the next List decides
		switch {
		case ev.Result != NoSuchPod:
		case t.mayBeLost():
			news.Lost = t.markLost(at)
		default:
			news.Lost = t.absent(at, c.seq, true) // a report since then is newer
		}
	case ev.Result == Refused && c.Op != Stop && c.Op != Release && !t.stands(c):
		// It is about a spec that the API does not have: the call is repeated with the newest.
		t.call.failures, t.call.err = 0, nil
	case ev.Result == Refused && c.Op == Update:
		// It would be refused again. The pod keeps running unchanged.
		t.call.failures, t.call.err = 0, ev.Err
		t.provider.refused = &refusal{generation: c.Pod.Generation, answer: ev.Err.Error()}
		if c.Pod.Generation == 0 {
			t.provider.acceptedPod = c.Pod // there is no number by which to know it
		}
		t.write.news.statusSeq++
	case ev.Result == Refused && (c.Op == Start || c.Op == Admit || c.Op == Annotate):
		t.call.err, news.Rejected = ev.Err, t.end == nil
		t.beginTermination(now, StopRejected, &podstatus.Failure{Reason: ev.Rejection.Reason, Message: messageRejected + ev.Rejection.Message}, MinGrace)
		t.end.unstarted = !t.started()
	case c.fate == canceled:
		t.call.retryAt = 0 // it failed because it was canceled
	default:
		t.call.failures++
		delay := t.rules.Retry.Delay(int(t.call.failures))
		if ev.After > 0 {
			delay = min(ev.After, Horizon)
		}
		t.call.retryAt = now + delay
		if c.Op == Save && t.end != nil && t.end.recheck > now {
			t.call.retryAt = min(t.call.retryAt, t.end.recheck) // Stop does not wait for it
		}
		if t.call.err == nil || t.call.err.Error() != ev.Err.Error() {
			t.write.news.statusSeq++ // the message in the status changes
		}
		t.call.err = ev.Err
	}
	return news
}

// callSucceeded applies the result of a call that returned no error.
func (t *State) callSucceeded(now Instant, c *Call, ev Returned, news *News) {
	st := ev.Report
	switch c.Op {
	case Admit:
		t.provider.admitted = t.stands(c)
		return
	case Save:
		t.provider.saved = Saved{Exists: true, Generation: t.savedGeneration(c), Lost: c.LostSince != 0, End: c.End}
		return
	case Remove:
		t.provider.saved = Saved{}
		return
	case Annotate:
		t.provider.annotated = true
		t.takeAnnotations(st.Annotations)
		return
	case Release:
		if t.stopped() { // else a List shows that it runs again: it is stopped, and released once more
			t.becomeForgotten()
		}
		return
	case Start, Update:
		if t.stands(c) {
			t.provider.generation, t.provider.disputed = max(t.provider.generation, c.Pod.Generation), false
		} else {
			t.dispute()
		}
		if ev.Saved {
			t.provider.saved = Saved{Exists: true, Generation: t.savedGeneration(c)}
		}
		if !t.stopped() {
			t.becomeRunning()
		}
		t.write.news.statusSeq++
		t.provider.refused = nil
		t.provider.resources = resourcesOf(c.Pod)
		if c.Pod.Generation == 0 || t.rules.UpdateMetadata {
			t.provider.acceptedPod = c.Pod
		}
	case Stop:
		if ev.Result == NoSuchPod {
			st = &Report{Stopped: true}
		}
		if c.Over && t.stopped() {
			t.becomeForgotten()
			return
		}
	}
	if t.provider.seenSeq <= c.seq || st.Stopped {
		t.observe(now, ev.Seq, st, ev.FP, false)
		t.confirmed(c.seq)
	} else if ev.FP != t.provider.fp {
		news.Relist = true // a report came during the call: which is newer, a List says
		t.takeAnnotations(t.unreported(st.Annotations))
	}
	if c.Op == Stop && !t.stopped() {
		t.stopAccepted(now, c)
	}
}

// savedGeneration returns the generation of the record that a call has made.
func (t *State) savedGeneration(c *Call) int64 {
	if !t.stands(c) {
		return NoGeneration
	}
	return c.Pod.Generation
}

// stopAccepted records that the provider is stopping the pod.
func (t *State) stopAccepted(now Instant, c *Call) {
	e := t.end
	killAt := now + c.Grace
	if e.accepted == 0 {
		e.killAt, e.recheck = killAt, killAt+stopSlack
	} else {
		// After the grace period, Stop is called again each Relist.
		e.killAt = min(e.killAt, killAt)
		e.recheck = max(e.killAt+stopSlack, now+t.rules.Relist)
	}
	e.accepted = now
}

// Next returns the next step of a lane. Passed must have been applied for now. nameFree says that
// no other pod of the same name blocks this one.
func (t *State) Next(now Instant, lane Lane, nameFree bool) Action {
	if lane == Calls {
		return t.decideCall(now, nameFree)
	}
	return t.decideWrite(now)
}

// Stage returns the stage of the pod.
func (t *State) Stage() Stage {
	switch {
	case !t.Known():
		return Unsynced
	case t.Orphan() && !t.stopped():
		return Orphaned
	case t.stopped() && (t.released() || t.final() && !t.deleted() && !t.gone()):
		return Released // it may disappear, or stays as completed
	case t.stopped() && (t.final() || t.gone()):
		return Final
	case t.stopped():
		return Stopped
	case t.end != nil:
		return Terminating
	case t.running():
		return Running
	case t.call.inflight != nil && t.call.inflight.Op == Start || t.Held():
		return Starting
	}
	return Waiting
}

// Blocks reports whether another pod of the same name must wait for t.
func (t *State) Blocks() bool { return !t.stopped() && (t.Held() || !t.Known()) }

// decideCall returns the provider call that is due. nameFree says that no other pod of
// the same name blocks it.
func (t *State) decideCall(now Instant, nameFree bool) Action {
	switch {
	case !t.Known() && !t.provider.needsInspect && !(t.mayBeLost() && t.unsaved()):
		return Action{Wake: Never}
	case t.call.inflight != nil:
		s := Action{Wake: Never, Cancel: t.call.inflight.fate == counts && t.inTheWay(now)}
		if t.call.inflight.Op == Save && t.end != nil && !t.stopped() {
			s.Wake = t.decideStop(now).Wake // until it is in the way
		}
		return s
	}
	var s Action
	switch {
	case t.Known():
		s = t.wantedCall(now, nameFree)
	case t.unsaved():
		s = Action{Op: Save, Wake: Never}
	default:
		s = Action{Op: Inspect, Wake: Never}
	}
	if s.Op != "" && now < t.call.retryAt {
		return Action{Wake: t.call.retryAt}
	}
	return s
}

// inTheWay reports whether the call in flight keeps Stop from being called, or from
// being called with a shorter grace period.
func (t *State) inTheWay(now Instant) bool {
	switch t.call.inflight.Op {
	case Admit, Annotate, Start, Update, Inspect:
		return t.end != nil
	case Save:
		return t.end != nil && !t.stopped() && t.decideStop(now).Op == Stop
	case Stop:
		return !t.stopped() && t.end.grace < t.call.inflight.Grace
	}
	return false
}

func (t *State) wantedCall(now Instant, nameFree bool) Action {
	idle := Action{Wake: Never}
	switch {
	case t.outlived() && (t.call.failures == 0 || t.decideRelease().Op == "" || t.Orphan()):
		return Action{Op: Remove, Wake: Never} // a Checkpoint that fails keeps no pod from its Release
	case t.Orphan():
		return idle // until it is verified
	case t.stopped():
		if t.unsaved() {
			return Action{Op: Save, Wake: Never}
		}
		return t.decideRelease()
	case t.end != nil:
		s := t.decideStop(now)
		if s.Op == "" && t.unsaved() { // Stop does not wait for a disk, which may be full
			return Action{Op: Save, Wake: s.Wake}
		}
		return s
	case !t.running():
		switch {
		case t.gone():
			return idle // until it is certain that the pod is there
		case !nameFree:
			return idle
		case t.rules.Admits && !t.provider.admitted:
			return Action{Op: Admit, Wake: Never}
		case t.rules.Annotates && !t.provider.annotated:
			return Action{Op: Annotate, Wake: Never}
		case t.rules.Annotates && len(t.provider.unsaved) > 0:
			return idle // until the API has them
		}
		return Action{Op: Start, Wake: Never}
	case t.provider.needsInspect:
		return Action{Op: Inspect, Wake: Never}
	case t.rules.Updates && t.changed():
		return Action{Op: Update, Wake: Never}
	case t.unsaved(): // when the change is accepted: it does not wait for a disk that is full
		return Action{Op: Save, Wake: Never}
	}
	return idle
}

// decideStop returns when Stop is due, and its grace period, which never grows: after
// the first success it is the rest of that call's grace period.
func (t *State) decideStop(now Instant) Action {
	e := t.end
	grace := e.grace
	if e.accepted > 0 {
		grace = min(grace, max(MinGrace, e.killAt-now))
	}
	if e.grace >= e.passed && now < e.recheck {
		return Action{Wake: e.recheck}
	}
	return Action{Op: Stop, Grace: grace, Wake: Never}
}

// decideRelease returns the call that makes the provider forget a stopped pod, which
// is due when the API no longer needs the pod.
func (t *State) decideRelease() Action {
	idle := Action{Wake: Never}
	if !t.Held() || !t.gone() && !t.released() {
		return idle
	}
	switch {
	case t.rules.Releases:
		return Action{Op: Release, Wake: Never}
	case !t.gone():
		return idle
	}
	// It ended on its own, and the provider kept it for its logs.
	return Action{Op: Stop, Grace: MinGrace, Wake: Never}
}

// changed reports whether the spec is newer than the one that the provider accepted.
func (t *State) changed() bool {
	if accepted := t.provider.acceptedPod; t.rules.UpdateMetadata && accepted != nil &&
		(!maps.Equal(accepted.Labels, t.Pod().Labels) || !maps.Equal(accepted.Annotations, t.Pod().Annotations)) {
		return true
	}
	if t.Pod().Generation > 0 {
		refused := t.provider.refused
		return t.Pod().Generation > t.provider.generation && (refused == nil || t.Pod().Generation > refused.generation)
	}
	// API servers before 1.34 keep no generation: compare the mutable fields. The
	// spec of an adopted instance is unknown.
	return t.provider.acceptedPod == nil || mutableChanged(&t.provider.acceptedPod.Spec, &t.Pod().Spec)
}

// Forgettable reports whether neither the API nor the provider has the pod.
func (t *State) Forgettable() bool {
	if !t.Known() || !t.gone() || t.api.presence == missing || t.api.cached || !t.stopped() || t.call.inflight != nil || t.write.inflight != nil {
		return false
	}
	return !t.Held() && !t.provider.saved.mayExist()
}

// A need is what the API lacks of the pod.
type need uint8

const (
	needNothing  need = iota
	needStatus        // a status that is not final
	needFinal         // the final status
	needDelete        // the DELETE
	needDeletion      // the DELETE once more, after a GET, because the deletion did not finish
)

// need returns what the API lacks of the pod. A status that the API calls invalid is not
// needed until it changes.
func (t *State) need() need {
	n := &t.write.news
	switch {
	case !t.stopped():
		if n.contestedAt != 0 || n.statusSeq == n.storedSeq && !n.overwritten || n.statusSeq == n.rejectedSeq || t.final() {
			return needNothing
		}
		return needStatus
	case !t.final():
		return needFinal
	case t.unreleased():
		return needDelete
	case t.deleted() && len(t.Pod().Finalizers) == 0:
		return needDeletion
	}
	return needNothing
}

// decideWrite returns the API request that is due.
func (t *State) decideWrite(now Instant) Action {
	if !t.Known() || t.api.pod == nil || t.gone() || t.write.inflight != nil || t.api.recorded {
		return Action{Wake: Never} // a status is computed from what the API has, not from a record
	}
	var s Action
	at := t.write.retryAt
	switch need := t.need(); {
	case t.api.notFoundAt > 0:
		s, at = Action{Op: Get}, max(at, t.api.notFoundAt+goneAfter)
	case t.write.read != readNothing:
		s = Action{Op: Get, Urgent: true}
	case need == needNothing && t.write.news.contestedAt != 0 && !t.write.news.asked && now < at:
		return Action{Wake: at} // the List is asked for then
	case need == needNothing:
		return Action{Wake: Never}
	case need == needStatus:
		s = Action{Op: Patch, Urgent: t.Pod().Status.Phase == corev1.PodPending || len(t.provider.unsaved) > 0}
		at = max(at, t.mergeUntil(), t.write.pace.notBefore)
	case need == needFinal:
		s = Action{Op: Patch, Urgent: true}
	case need == needDelete:
		s = Action{Op: Delete, Urgent: true}
		if t.api.goingAt > 0 {
			at = max(at, t.api.goingAt+goneAfter) // the API server is removing it
		}
	case need == needDeletion:
		s, at = Action{Op: Delete}, max(at, t.write.releasedAt+goneAfter)
	}
	if now < at {
		return Action{Wake: at}
	}
	if s.Op == Delete && t.write.unread {
		s.Op = Get
	}
	s.Wake = Never
	return s
}

// Unfinished reports whether a lane has something to do for a pod that has stopped, also while Run
// returns: the API lacks its final status or its deletion, or its record must say so or be removed.
func (t *State) Unfinished(lane Lane) bool {
	if lane == Calls {
		return t.Known() && (t.outlived() || t.stopped() && t.unsaved())
	}
	return t.stopped() && t.Known() && t.api.pod != nil && !t.gone() && !t.api.recorded && t.api.notFoundAt == 0 && (!t.final() || t.unreleased())
}

// unreleased reports whether the object must be deleted once its final status is stored:
// because it is being deleted, or because the provider asks for it and a controller will
// make another one.
func (t *State) unreleased() bool {
	return !t.released() && (t.deleted() || t.provider.deletes && controlled(t.Pod()))
}

// mergeUntil returns the Instant until which a status waits for the next one, so that
// one write has both.
func (t *State) mergeUntil() Instant {
	switch {
	case len(t.provider.unsaved) > 0:
		return 0
	case t.write.news.quietSeq == t.write.news.statusSeq:
		return t.write.news.reportedAt + t.rules.PendingAfter
	case t.end != nil:
		return t.end.since + t.rules.PendingAfter
	case !t.running():
		return t.api.since + t.rules.PendingAfter
	case t.Pod().Status.StartTime == nil && (t.report() == nil || podstatus.Phase(&t.Pod().Spec, t.report()) == corev1.PodPending) && !t.heldUp():
		return t.api.since + t.rules.PendingAfter
	}
	return 0
}

// heldUp reports whether a container can't start, by the last report, for a reason that a user
// should read at once, such as an image that can't be pulled.
func (t *State) heldUp() bool {
	report := t.report()
	return report != nil && slices.ContainsFunc(slices.Concat(report.InitContainerStatuses, report.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		w := c.State.Waiting
		return w != nil && w.Reason != "" && w.Reason != podstatus.ReasonContainerCreating && w.Reason != podstatus.ReasonPodInitializing
	})
}

// The legal steps of an instance. A gate that closes drops what is known, which is no step.
var steps = [...][]instance{
	none:      {held, forgotten},
	held:      {none, running, stopped},
	running:   {held, stopped},
	stopped:   {held, forgotten},
	forgotten: {none, held},
}

// step changes the state of the instance. It refuses an illegal step: the state stays as
// it is, and Apply and Check say so.
func (t *State) step(next instance) {
	from := t.provider.instance
	switch {
	case from == next:
	case slices.Contains(steps[from], next):
		t.provider.instance = next
	default:
		t.illegal = fmt.Sprintf("instance %d can't become %d", from, next)
	}
}

// becomeHeld records that the provider has, or may have, an instance that runs or may run.
func (t *State) becomeHeld() { t.step(held) }

// becomeRunning records that the provider has accepted the pod.
func (t *State) becomeRunning() { t.step(running) }

// becomeForgotten records that the provider keeps nothing of the pod.
func (t *State) becomeForgotten() {
	if t.stopped() {
		t.step(forgotten)
	} else {
		t.step(none)
	}
}

// becomeEnded records that nothing of the pod runs. The provider keeps what it had.
func (t *State) becomeEnded() {
	if t.Held() {
		t.step(stopped)
	} else {
		t.step(forgotten)
	}
}

// look records what Lists have shown. since is the time since which they leave out a pod that
// is doubted or missed; the first one counts.
func (t *State) look(next sight, since Instant) {
	p := &t.provider
	p.sight = next
	switch {
	case next != doubted && next != missed:
		p.lostSince = 0
	case p.lostSince != 0:
	case p.saved.LostSince != 0:
		p.lostSince = p.saved.LostSince // it goes on since the process before
	default:
		p.lostSince = since
	}
}

// found records that the pod is not lost.
func (t *State) found() {
	switch t.provider.sight {
	case doubted:
		t.look(unlisted, 0)
	case missed:
		t.look(listed, 0)
	}
}

// becomeFinal records that the final status needs no further write.
func (t *State) becomeFinal() { t.write.end = max(t.write.end, endFinal) }

// becomeInvalid records that the API called the final status invalid, in full or in its
// minimal form.
func (t *State) becomeInvalid() {
	if t.write.end < endFinal {
		t.write.end++
	}
}

// becomeReleased records that the object goes. If another client has undone the end in the
// meantime, the end is written again first.
func (t *State) becomeReleased(now Instant) {
	if t.final() {
		t.write.end, t.write.releasedAt = endReleased, now
	}
}

// beginTermination makes the pod end, or end sooner.
func (t *State) beginTermination(now Instant, reason StopReason, failure *podstatus.Failure, grace time.Duration) {
	grace = min(max(grace, MinGrace), Horizon)
	if t.end != nil {
		if grace < t.end.grace {
			t.end.grace = grace
			t.call.retryAt, t.call.failures = 0, 0
		}
		return
	}
	t.found() // what ends anyway is not lost
	t.end = &termination{reason: reason, failure: failure, since: now, grace: grace}
	t.call.retryAt, t.call.failures = 0, 0
}

// resume begins the end that the record of the pod has. A pod that the API shows is decided by
// what the API and the provider say, except that only the record may know of an eviction.
func (t *State) resume(now Instant) {
	if e := t.provider.saved.End; e != nil && (t.api.recorded || e.Reason == StopEvicted) {
		t.beginTermination(now, e.Reason, e.Failure, e.Grace)
	}
}

// unsettled reports whether a call that does not count is under way: no List shows its effect
// yet.
func (t *State) unsettled() bool { return t.call.inflight != nil && t.call.inflight.fate == stale }

// Known reports whether the provider has said whether it holds the pod.
func (t *State) Known() bool { return t.provider.sight >= listed }

// mayBeLost reports whether the pod is lost if the Lists are to be believed.
func (t *State) mayBeLost() bool { return t.provider.sight == doubted || t.provider.sight == missed }

// asked reports whether a call is under way whose answer says whether the provider holds the pod.
func (t *State) asked() bool {
	c := t.call.inflight
	return c != nil && (c.Op == Inspect || c.Op == Update)
}

// MayBeLost reports whether the pod is lost if the Lists are to be believed, and since when they
// leave it out.
func (t *State) MayBeLost() (since Instant, yes bool) { return t.provider.lostSince, t.mayBeLost() }

// Evictable reports whether the API has the pod, as far as is known, and it has not stopped.
func (t *State) Evictable() bool { return t.Seen() && !t.stopped() && !t.gone() }

// Held reports whether the provider has, or may have, an instance.
func (t *State) Held() bool {
	i := t.provider.instance
	return i == held || i == running || i == stopped
}

// running reports whether Start has succeeded and the pod has not stopped since.
func (t *State) running() bool { return t.provider.instance == running }

// stopped reports whether nothing of the pod runs, and nothing will.
func (t *State) stopped() bool { return t.provider.instance >= stopped }

// gone reports whether the API does not have the object, as far as is known.
func (t *State) gone() bool { return t.api.presence != present }

// missing reports whether the API must be asked whether it has the object.
func (t *State) missing() bool { return t.api.presence == missing }

// Orphan reports whether t is an instance without a pod that the API has not
// been asked about.
func (t *State) Orphan() bool { return t.api.presence == orphan }

// Seen reports whether the informer, or the checkpoint, has shown the pod.
func (t *State) Seen() bool { return t.api.pod != nil }

// Cached reports whether the informer has the pod.
func (t *State) Cached() bool { return t.api.cached }

// deleted reports whether the object has a deletionTimestamp.
func (t *State) deleted() bool { return t.api.deleting }

// final reports whether the API has the final status, or never will.
func (t *State) final() bool { return t.write.end >= endFinal }

// released reports whether DELETE was sent, or only finalizers keep the object.
func (t *State) released() bool { return t.write.end == endReleased }

// Pod returns the newest version of the object, nil if none was seen. It must not be changed.
func (t *State) Pod() *corev1.Pod {
	if t.api.pod == nil {
		return nil
	}
	return t.api.pod.Open()
}

// Version returns a copy of the newest version of the object; the zero Version if none was seen.
func (t *State) Version() Version {
	if t.api.pod == nil {
		return Version{}
	}
	return *t.api.pod
}

// NodeName returns the node that the pod is bound to, or else the one that its instance was
// started for; "" if neither is known. started leaves out the former.
func (t *State) NodeName() (bound, started string) { return t.api.node, t.provider.nodeName }

// Ending reports why the pod ends, and whether it does.
func (t *State) Ending() (StopReason, bool) {
	if t.end == nil {
		return "", false
	}
	return t.end.reason, true
}

// lane returns what the lanes have in common.
func (t *State) lane(lane Lane) *laneState {
	if lane == Calls {
		return &t.call.laneState
	}
	return &t.write.laneState
}

// InFlight returns the call or request under way in a lane, nil if there is none.
func (t *State) InFlight(lane Lane) *Call { return t.lane(lane).inflight }

// Failures returns the number of failures in a row in a lane.
func (t *State) Failures(lane Lane) int { return int(t.lane(lane).failures) }

// LastError returns the error of the last call, or says that the pod waits for its name.
func (t *State) LastError() error { return t.call.err }

// Admitted reports whether the provider has admitted the pod, which has not stopped.
func (t *State) Admitted() bool { return t.provider.admitted && !t.stopped() && t.Seen() }

// Rest drops decoded versions of the pod unless a lane is using them. The driver calls it when
// it is done with the pod.
func (t *State) Rest() {
	if t.call.inflight != nil || t.write.inflight != nil {
		return
	}
	if t.api.pod != nil {
		t.api.pod.close()
	}
	if t.provider.mirror != nil {
		t.provider.mirror.close()
	}
}

// report returns the last report, or the status that the API has stored of it; nil if
// there is none.
func (t *State) report() *corev1.PodStatus {
	if t.provider.mirror != nil {
		return &t.provider.mirror.Open().Status
	}
	return t.provider.status
}

// setReport replaces the last report.
func (t *State) setReport(status *corev1.PodStatus) {
	t.provider.status, t.provider.mirror = status, nil
}

// setMirror records that the newest version of the object has the last report, so
// that the report need not be kept.
func (t *State) setMirror() { t.provider.status, t.provider.mirror = nil, t.api.pod }

// atOnce reports whether the object is deleted with a grace period of 0.
func (t *State) atOnce() bool {
	return t.deleted() && t.Pod().DeletionGracePeriodSeconds != nil && *t.Pod().DeletionGracePeriodSeconds == 0
}

// finalized reports whether only finalizers keep the object.
func (t *State) finalized() bool { return t.atOnce() && len(t.Pod().Finalizers) > 0 }

// started reports whether the API or the checkpoint says that the pod has been started.
func (t *State) started() bool {
	return t.provider.saved.Exists || podstatus.HasStarted(&t.Pod().Status)
}

// Ran reports whether the pod must run, and has been started by an earlier process.
func (t *State) Ran() bool {
	return t.Seen() && t.end == nil && t.started() && !t.deleted() && !podstatus.IsTerminal(t.Pod().Status.Phase)
}

// evidence reports whether the API says that the pod has been started before,
// so that not finding it in the provider means something.
func (t *State) evidence() bool { return podstatus.IsTerminal(t.Pod().Status.Phase) || t.started() }

// unsaved reports whether the record of the pod is missing or out of date. A pod that ends needs
// none, but one that exists must say that it ends, or the pod would start again.
func (t *State) unsaved() bool {
	saved := &t.provider.saved
	switch {
	case !t.rules.Checkpoints || t.api.pod == nil:
		return false
	case t.end != nil:
		return saved.mayExist() && saved.End == nil && !t.outlived()
	case t.gone():
		return false
	}
	return t.running() && (!saved.Exists || saved.Generation != t.Pod().Generation) ||
		saved.Exists && (saved.Lost != t.mayBeLost() || saved.End != nil)
}

// outlived reports whether the checkpoint may have a record that nothing needs: the pod has
// stopped, and the API has its final status, or does not have the pod.
func (t *State) outlived() bool {
	return t.stopped() && t.provider.saved.mayExist() && (t.final() || t.gone())
}

// unapplied reports whether the provider runs an older generation of the spec and
// has no Update to be called for it.
func (t *State) unapplied() bool {
	return t.running() && !t.rules.Updates && t.end == nil && t.provider.saysGeneration && t.provider.generation < t.Pod().Generation
}

// Stands reports whether the content that a version of a pod had can still be that of its
// generation, now that pod is the newest version. A generation names content only within one
// history: an API server that was restored from a backup gives it to another content.
func Stands(version, pod *corev1.Pod) bool {
	return version.Generation < pod.Generation ||
		version.Generation == pod.Generation && (pod.Generation == 0 || !mutableChanged(&version.Spec, &pod.Spec))
}

// stands is Stands for the argument of a call, and the newest version.
func (t *State) stands(c *Call) bool { return c.Pod == nil || Stands(c.Pod, t.Pod()) }

// dispute records that the provider may run a spec that the API does not have, whatever the
// numbers say. Update is called again, and the record is written again.
func (t *State) dispute() {
	p := &t.provider
	p.generation, p.disputed, p.refused, p.saved.Generation = 0, true, nil, NoGeneration
}

// accept records that the provider has accepted a generation, or says so. It can't have one that
// the pod never had.
func (t *State) accept(generation int64) {
	if t.api.pod != nil && generation > t.Pod().Generation {
		t.dispute()
		return
	}
	t.provider.generation = generation
}
