// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	instance     instance
	sight        sight
	born         uint64 // only a List that began later counts, in the order of events
	nodeName     string // the node that the instance was started for; "" if unknown
	admitted     bool
	needsInspect bool
	annotated    bool // Annotate has succeeded
	deletes      bool // a report had Delete and Stopped

	losses    uint8   // losses in a row without a List that shows the pod
	absentAt  Instant // when Lists first left the instance out; 0: the last proof is newer
	lostSince Instant // when Lists first left out the pod that is doubted or missed; 0: neither
	saved     Saved

	status     *corev1.PodStatus // the last report, until the API has it
	mirror     *Version          // the version of the pod that has the last report
	fp         uint64            // the fingerprint of the last report
	seenSeq    uint64            // the last proof that the provider holds it, in the order of events
	reports    reportedFields
	lost       *corev1.PodStatus         // the status of a lost pod that starts again, until it is stored
	kept       *keptReport               // the last report of an instance that ended before the gate closed
	conditions []corev1.PodConditionType // the types in the last report
	withdrawn  []corev1.PodConditionType // the types that only earlier reports had, until that is stored

	annotations map[string]string // that were reported last, and of which the API lacks unsaved
	unsaved     []string          // the keys of annotations that the API does not have yet

	generation     int64       // the generation that the provider has accepted; 0 if unknown
	disputed       bool        // it may run a generation of before a restore, so status.observedGeneration proves nothing
	saysGeneration bool        // the last report has a generation
	resources      uint64      // the fingerprint of the resources of the accepted spec; 0 if unknown
	refused        *refusal    // the last answer of Update; nil: it was no refusal
	acceptedPod    *corev1.Pod // the accepted pod, if the API keeps no generations
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
// next List does not have the instance, nothing else remembers its exit codes.
type keptReport struct {
	status *corev1.PodStatus
	end    *termination // nil if it had not begun
}

// A refusal is an answer of Update that would be given again.
type refusal struct {
	generation int64  // of the spec that was refused
	answer     string // the reason
}

// reportedFields are the fields that are derived unless the last report has them.
type reportedFields struct {
	any       bool // the provider has reported a status
	resources bool // of any container
	hostIP    bool
	podIP     bool
}

// callState is the pod's lane of provider calls.
//
// Invariant: at most one call is in flight.
// Invariant: failures implies an error.
type callState struct {
	inflight *Call
	failures int32
	retryAt  Instant
	err      error // of the last call, or *NameTaken until the next one begins; nil after a success
}

// A fate is what the result of a call is worth. It only grows.
type fate uint8

const (
	counts   fate = iota
	canceled      // the call was in the way: an error of it says nothing
	stale         // the gate closed: only a List that begins later shows its effect
)

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
// Invariant: at most one request is in flight.
// Invariant: endReleased implies releasedAt.
type writeState struct {
	inflight *Call
	end      endState
	read     readState // why the pod must be read before the next write
	// unread says that a DELETE may have been stored, and that no answer since shows the pod
	// with its end. Only a GET proves that: a DELETE names the UID, which the pod also has if it
	// lives again because the API server was restored, and the informer may lag.
	unread     bool
	releasedAt Instant
	failures   int32
	retryAt    Instant
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
	if t.Stopped() {
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

// becomeUnwritten records that another client has undone the end.
func (t *State) becomeUnwritten() { t.write.end = endUnwritten }

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

// MayBeLost reports whether the pod is lost if the Lists are to be believed.
func (t *State) MayBeLost() bool { return t.provider.sight == doubted || t.provider.sight == missed }

// Held reports whether the provider has, or may have, an instance.
func (t *State) Held() bool {
	i := t.provider.instance
	return i == held || i == running || i == stopped
}

// running reports whether Start has succeeded and the pod has not stopped since.
func (t *State) running() bool { return t.provider.instance == running }

// Stopped reports whether nothing of the pod runs, and nothing will.
func (t *State) Stopped() bool { return t.provider.instance >= stopped }

// Gone reports whether the API does not have the object, as far as is known.
func (t *State) Gone() bool { return t.api.presence != present }

// Missing reports whether the API must be asked whether it has the object.
func (t *State) Missing() bool { return t.api.presence == missing }

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

// InFlight returns the call or request under way in a lane, nil if there is none.
func (t *State) InFlight(lane Lane) *Call {
	if lane == Calls {
		return t.call.inflight
	}
	return t.write.inflight
}

// Counts reports whether the result of c counts.
func (t *State) Counts(c *Call) bool { return c.fate != stale }

// Failures returns the number of failures in a row in a lane, and, of calls, the last error.
func (t *State) Failures(lane Lane) (n int, last error) {
	if lane == Calls {
		return int(t.call.failures), t.call.err
	}
	return int(t.write.failures), nil
}

// Admitted reports whether the provider has admitted the pod, which has not stopped.
func (t *State) Admitted() bool { return t.provider.admitted && !t.Stopped() && t.Seen() }

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
	case t.Gone():
		return false
	}
	return t.running() && (!saved.Exists || saved.Generation != t.Pod().Generation) ||
		saved.Exists && (saved.Lost != t.MayBeLost() || saved.End != nil)
}

// outlived reports whether the checkpoint may have a record that nothing needs: the pod has
// stopped, and the API has its final status, or does not have the pod.
func (t *State) outlived() bool {
	return t.Stopped() && t.provider.saved.mayExist() && (t.final() || t.Gone())
}

// Unrecorded reports whether the record of a pod that has stopped must still say so, or be
// removed.
func (t *State) Unrecorded() bool {
	return t.Known() && (t.outlived() || t.Stopped() && t.unsaved())
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
