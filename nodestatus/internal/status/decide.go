// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/backoff"
)

// An Event is a fact that Apply takes in. The types below are all there are.
type Event interface{ event() }

type (
	// RoundBegan: the setters and health checks are about to be called.
	RoundBegan struct {
		Slept bool // the process did not run for a while since the last one
	}
	// Reached: the round has come to the function.
	Reached struct {
		Index int // of the function
	}
	// GaveUp: the round no longer waits for the function.
	GaveUp struct {
		Index int // of the function
	}
	// Returned: the function has returned.
	Returned struct {
		Index  int          // of the function
		Err    error        // its result
		Late   bool         // it took too long
		Before *corev1.Node // what a setter was given
		After  *corev1.Node // what it has made of that
	}
	// RoundEnded: the round has a result.
	RoundEnded struct {
		Name     string       // of the node
		Node     *corev1.Node // the Template with the values of all setters
		Failures []Failure    // those of setters first
	}

	// Sent: a request was sent.
	Sent struct {
		Do    Do    // as Next has returned it
		Cause Cause // likewise
	}
	// Answered: the request succeeded.
	Answered struct {
		Node  *corev1.Node // the answer
		Found bool         // the Node that should be created was there, and was read
		Draw  float64      // a random number in [0,1)
	}
	// Failed: the request failed.
	Failed struct {
		Verdict    Verdict       // what that means
		Err        error         // the answer
		RetryAfter time.Duration // what the server asks for
		Committed  bool          // it may have been stored
		Draw       float64       // a random number in [0,1)
	}

	// Shown: an event of a watch shows the Node.
	Shown struct {
		Node    *corev1.Node // as it is, or was last
		Deleted bool         // it was deleted
	}
	// Unregistered: the program ends, and the Node that it kept is no longer there.
	Unregistered struct{}
	// Asked: the program asks for a read and a whole write.
	Asked struct{}
	// GateAnswered: Gate was asked.
	GateAnswered struct {
		Closed bool // the Node may not be written
	}
	// NotReadySet: the program calls the node not ready.
	NotReadySet struct {
		Failure *Failure // why; nil: no longer
	}
)

func (RoundBegan) event()   {}
func (Reached) event()      {}
func (GaveUp) event()       {}
func (Returned) event()     {}
func (RoundEnded) event()   {}
func (Sent) event()         {}
func (Answered) event()     {}
func (Failed) event()       {}
func (Shown) event()        {}
func (Unregistered) event() {}
func (Asked) event()        {}
func (GateAnswered) event() {}
func (NotReadySet) event()  {}

// A Verdict is the meaning of the error of a request.
type Verdict int

const (
	// Away: no answer, or one that is not about us. It is worth trying again.
	Away Verdict = iota
	// Refused: the same request will fail again.
	Refused
	// Gone: there is no such Node.
	Gone
	// Other: the Node may be another object.
	Other
	// HungUp: the request was ended by the program.
	HungUp
)

// News is what follows from an event for others.
type News struct {
	Plan       Plan              // what the round does about the function that it has reached
	Err        error             // the result of one that it skips
	Late       bool              // the function that it gave up has not returned
	Wake       bool              // a round should follow
	Deleted    types.UID         // the Node with this UID was deleted by another client
	Replaced   types.UID         // the Node with this UID is now another object
	Registered *corev1.Node      // the Node that is kept from now on
	Created    bool              // it was created, not adopted
	Recovered  time.Duration     // of how long an outage
	Conditions []ConditionChange // of ours
	Reboot     [2]string         // the boot IDs before and after, or nothing
	Spec       *corev1.Node      // another client has changed the spec of this Node
	NoPods     bool              // the Node has no allocatable pods
	LeftOut    []string          // parts of the status that the API server would refuse
	Gate       bool              // it has closed, or opened
	Starting   bool              // the program is starting, so a health check may fail
	Counts     bool              // the failure should be reported: it is not about a deletion or conflict
}

// A ConditionChange is a change of the status of one of our conditions.
type ConditionChange struct {
	From      corev1.ConditionStatus // empty: it is new
	Condition corev1.NodeCondition   // as it is now
}

// startPatience is the time that a program may take to become ready.
const startPatience = 15 * time.Second

// errUnsent is the error of an answer to no request, and of a second request.
var errUnsent = errors.New("an answer without a request, or a second request")

// Apply takes in an event. An error says that the event is impossible in this state,
// which is then as it was, except that no request is under way.
func (s *State) Apply(now time.Duration, event Event) (news News, err error) {
	switch ev := event.(type) {
	case RoundBegan:
		s.rounds++
		if s.firstRound == 0 {
			s.firstRound = now
		}
		if ev.Slept && s.phase == Registered {
			s.doubt()
		}
		for i := range s.calls {
			// Two late functions would otherwise wake each other without end.
			if s.calls[i].phase == alone && !s.woken {
				s.calls[i].phase = missed
			}
		}
		s.woken = false
		news.Starting = now-s.firstRound < startPatience
	case Reached:
		news.Plan, news.Err = s.reached(ev.Index)
		return news, nil
	case GaveUp:
		news.Late = s.gaveUp(ev.Index)
		return news, nil
	case Returned:
		news.Wake = s.returned(ev)
		return news, nil
	case RoundEnded:
		news.LeftOut = s.roundEnded(now, ev)

	case Sent:
		return news, s.send(now, ev)
	case Answered:
		err = s.answered(now, ev, &news)
	case Failed:
		err = s.failed(now, ev, &news)

	case Shown:
		news.Wake = s.shown(now, ev)
		return news, nil
	case Unregistered:
		if s.phase == Registered {
			s.want, err = nil, s.become(Deleted)
		}
		return news, err
	case Asked:
		s.doubt()
		return news, nil
	case GateAnswered:
		if s.closed && !ev.Closed && s.phase == Registered {
			s.doubt() // another process may have written in the meantime
		}
		news.Gate = s.closed != ev.Closed
		s.closed = ev.Closed
		return news, nil
	case NotReadySet:
		s.notReady = ev.Failure
		return news, nil
	}
	// Of rounds and answers the program hears; of what comes between, then.
	if s.view != nil && s.view.spec != s.told {
		s.told, news.Spec = s.view.spec, s.view.node()
	}
	return news, err
}

// doubt makes a read come before the next write.
func (s *State) doubt() {
	if s.phase == Registered || s.phase == Deleted {
		s.sight = doubted
	}
}

// roundEnded makes the status of what the setters and checks have said. It returns
// the parts left out of it.
func (s *State) roundEnded(now time.Duration, ev RoundEnded) (leftOut []string) {
	s.lastRound = now
	if s.behind != 0 && now-s.behind >= s.rules.Interval {
		s.behind = 0
		s.doubt()
	}
	late, clean := false, true
	for _, f := range ev.Failures {
		late = late || f.Check && f.Late
		clean = clean && f.Check
	}
	switch {
	case !late:
		if s.stuck() {
			s.doubt() // the lease may have run out, and the Node may be Unknown
		}
		s.lateRounds = 0
	case s.lateRounds == 0 || now-s.lateAt >= s.rules.Interval/2:
		// Triggers may come much more often.
		s.lateRounds = min(s.lateRounds, math.MaxUint16-1) + 1
		s.lateAt = now
	}
	// The last setter may have put slices and maps of its own into its copy.
	node := ev.Node.DeepCopy()
	node.Name = ev.Name
	leftOut = DropInvalid(node, s.rules.NodeCredentials)
	failures := ev.Failures
	if s.notReady != nil {
		failures = append([]Failure{*s.notReady}, failures...)
	}
	complete := s.complete()
	complementConditions(&node.Status, failures, complete)
	for key, value := range node.Annotations {
		node.Annotations[key] = text(value)
	}
	s.want = &want{node: node, hash: fingerprint(s.rules.Seed, node, corev1.NodeSpec{}), round: s.rounds, clean: clean, complete: complete}
	s.rest(now)
	return leftOut
}

// rest drops a status from which no request follows, and notes if the server has it.
func (s *State) rest(now time.Duration) {
	if s.want == nil || s.sent != nil {
		return
	}
	if s.sight == foreign && s.want.hash == s.accepted && !s.differs() {
		// Only another client's write can make the Node differ from the accepted
		// status, so a quiet node is never decoded.
		s.sight = settled
	}
	if do, _ := s.Next(now); do == Nothing {
		if s.sight == settled && !s.closed && s.want.hash == s.accepted && s.want.clean {
			s.agreed = s.want.round
		}
		s.want = nil
	}
}

// send notes that a request is under way.
func (s *State) send(now time.Duration, ev Sent) error {
	if s.sent != nil || ev.Do == Nothing {
		return errUnsent
	}
	switch ev.Do {
	case Create:
		if err := s.become(Unsure); err != nil {
			return err
		}
	case Read:
		if s.phase == Registered || s.phase == Deleted {
			s.sight = reading // a request for a read that comes from now on wants another
		}
	case Taint:
		s.nextTaints = now + s.rules.Interval
	}
	s.sent = &sent{do: ev.Do, cause: ev.Cause, want: s.want, held: s.view}
	return nil
}

// answered takes in the answer of a request that succeeded.
func (s *State) answered(now time.Duration, ev Answered, news *News) error {
	sent := s.sent
	s.sent = nil
	switch {
	case sent == nil:
		return errUnsent
	case sent.do == Read || ev.Found:
		return s.found(sent, ev.Node, news)
	case sent.do == Taint:
		s.see(ev.Node)
		return nil
	case sent.do == Patch:
		s.accept(now, sent, ev, news)
		return nil
	}
	early := s.early // the event that came before the answer
	if err := s.register(ev.Node); err != nil {
		return err
	}
	news.Registered, news.Created = ev.Node, true
	s.accept(now, sent, ev, news)
	if early != nil {
		news.Wake = s.shown(now, *early)
	}
	return nil
}

// found takes in the answer of a read.
func (s *State) found(sent *sent, node *corev1.Node, news *News) error {
	if s.phase == Registered && s.view.uid == node.UID {
		s.seeAnswer(node, sent.held)
		// Another process with the same field manager may have written since.
		s.owned = encode(decodeOwnership(s.owned).Union(s.former(node)))
		if s.sight == reading {
			s.sight = owed
		}
		return nil
	}
	if s.phase == Registered {
		news.Replaced = s.view.uid
	}
	if err := s.register(node); err != nil {
		return err
	}
	// Values that an earlier process has written are ours, and all others belong to
	// other clients. The Node is registered before the first write: Gate may not let
	// us write before the lease has the Node for its owner.
	s.owned, s.sight = encode(s.former(node)), owed
	news.Registered = node
	return nil
}

// former returns the parts of node that another process of ours has written, and that
// we may remove.
func (s *State) former(node *corev1.Node) ownership {
	former := formerOwnership(node)
	if s.rules.NodeCredentials {
		for key := range former {
			if label, ok := strings.CutPrefix(key, labels+"/"); ok && !MayLabel(label) {
				former.Delete(key) // its removal would be refused, and all else with it
			}
		}
	}
	return former
}

// accept takes in the answer to a write.
func (s *State) accept(now time.Duration, sent *sent, ev Answered, news *News) {
	said, answer := sent.want.node, ev.Node
	owned := ownershipOf(said)
	if !sent.want.complete {
		owned = owned.Union(decodeOwnership(s.owned))
	}
	// The answer shows whether the Node has our values now: an admission
	// webhook, or a write that came between, may have changed it.
	clobbered := len(compare(said, answer, nil)) > 0
	shown := sent.held.node()

	s.owned, s.accepted = encode(owned), sent.want.hash
	s.lastWrite, s.notBefore = now, 0
	s.nextReport = nextReportAfter(now, s.rules.Report, sent.cause, ev.Draw)
	s.seeAnswer(answer, sent.held)
	switch {
	case s.sight == doubted: // a read was asked for in the meantime
	case s.view.resourceVersion != answer.ResourceVersion:
		s.sight = foreign // an event has shown something newer in the meantime
	case clobbered && sent.cause != Drift:
		s.sight = foreign
	default:
		// What was written again, and changed again, the other client will change
		// every time. The next report writes it again.
		s.sight = settled
	}
	if sent.cause == Drift {
		s.nextDrift = now + s.rules.Interval
	}
	if s.trouble != nil {
		news.Recovered = now - s.trouble.since
		s.trouble = nil
	}
	news.Conditions = conditionChanges(said, answer, shown)
	news.NoPods = answer.Status.Allocatable.Pods().IsZero()
	if before, after := bootID(shown), bootID(said); before != "" && after != "" && before != after {
		news.Reboot = [2]string{before, after}
	}
	if sent.want.clean && s.sight == settled {
		s.agreed = max(s.agreed, sent.want.round)
	}
	if s.want == sent.want {
		s.want = nil
	}
	s.rest(now)
}

func bootID(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	return node.Status.NodeInfo.BootID
}

// conditionChanges returns the conditions of said whose status the answer shows to have
// changed.
func conditionChanges(said, answer, shown *corev1.Node) (changes []ConditionChange) {
	for _, ours := range said.Status.Conditions {
		condition := FindCondition(answer.Status.Conditions, ours.Type)
		if condition == nil {
			continue
		}
		var from corev1.ConditionStatus
		if shown != nil {
			if old := FindCondition(shown.Status.Conditions, ours.Type); old != nil {
				from = old.Status
			}
		}
		if from != condition.Status {
			changes = append(changes, ConditionChange{From: from, Condition: *condition})
		}
	}
	return changes
}

// nextReportAfter returns when to report next. The first report after a change
// comes after between half and one and a half of the interval, by the draw in
// [0,1), so that nodes that changed together do not report together from then on.
func nextReportAfter(now, interval time.Duration, cause Cause, draw float64) time.Duration {
	if cause == Report {
		return now + interval
	}
	return now + time.Duration((0.5+draw)*float64(interval))
}

// failed takes in the error of a request.
func (s *State) failed(now time.Duration, ev Failed, news *News) error {
	sent := s.sent
	if s.sent = nil; sent == nil {
		return errUnsent
	}
	asked := s.sight == doubted // during the request, so its answer may be older
	if s.sight == reading {
		s.sight = doubted
	}
	if sent.do == Create && !ev.Committed && ev.Verdict != HungUp {
		if err := s.become(Absent); err != nil {
			return err
		}
	}
	if sent.do == Patch && s.sight != doubted {
		// It may have been stored, whatever the answer was: client-go sends a request
		// again, and the answer may be to the second one. If it was, the next write
		// conflicts.
		s.sight = owed
	}
	switch {
	case ev.Verdict == HungUp:
		return nil
	case sent.do == Taint:
		switch ev.Verdict {
		case Gone, Other:
			s.doubt() // a read decides
		case Refused:
			s.nextTaints = now + s.rules.Report
			news.Counts = true
		case Away:
			news.Counts = true
		}
		return nil
	case ev.Verdict == Gone && s.phase == Registered:
		err := s.gone(now, ev.Draw, news)
		if asked {
			s.doubt()
		}
		return err
	case ev.Verdict == Gone && s.phase == Absent && sent.do == Read:
		return s.become(Missing)
	case ev.Verdict == Gone && s.phase == Deleted: // still
		s.sight, s.trouble, s.want = settled, nil, nil
		if asked {
			s.doubt()
		}
		return nil
	case ev.Verdict == Other && sent.do == Patch && (s.want != sent.want || sent.want.conflicts < maxConflicts):
		// Another client was faster, or it is another object: one read decides.
		sent.want.conflicts++
		s.doubt()
		return nil
	}
	s.count(now, ev)
	s.want = nil // the round after the wait makes a new one
	news.Counts = true
	return nil
}

// gone takes in that another client has deleted the Node.
func (s *State) gone(now time.Duration, draw float64, news *News) error {
	news.Deleted = s.view.uid
	s.want, s.trouble = nil, nil
	if !s.rules.Reregister {
		return s.become(Deleted)
	}
	err := s.become(Absent)
	// The client that deleted it may want to see it gone; a fleet's nodes do not come
	// back as one.
	s.notBefore = now + s.rules.Interval + time.Duration(draw/2*float64(s.rules.Interval))
	return err
}

// maxRetryAfter is the longest wait that a server can ask for: as long as for one that
// refuses.
const maxRetryAfter = 30 * time.Second

// count counts a failed request and sets the time before which there is no other. A
// server that is away is tried again soon. One that refuses will do so again, so it is
// asked rarely.
func (s *State) count(now time.Duration, ev Failed) {
	if s.trouble == nil {
		s.trouble = &trouble{since: now}
	}
	t := s.trouble
	t.failures++
	t.err = ev.Err
	policy, tries := backoff.Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second}, t.failures
	if ev.Verdict == Refused {
		t.refusals++
		policy, tries = backoff.Policy{Base: 7 * time.Second, Cap: maxRetryAfter}, t.refusals
	} else {
		t.refusals = 0
	}
	s.notBefore = now + max(policy.Delay(tries), min(ev.RetryAfter, maxRetryAfter))
}

// shown takes in an object that an event shows, and reports whether it calls for a round.
func (s *State) shown(now time.Duration, ev Shown) (wake bool) {
	switch s.phase {
	case Absent, Missing:
		return false // the creation finds out on its own
	case Unsure:
		// The answer to the creation may be older.
		s.early = &Shown{Node: ev.Node.DeepCopy(), Deleted: ev.Deleted}
		return false
	case Deleted:
		if !ev.Deleted {
			s.doubt() // a Node is there again; a read decides
		}
		return true
	}
	if ev.Deleted || ev.Node.UID != s.view.uid {
		if ev.Node.UID != s.view.uid && !newer(ev.Node.ResourceVersion, s.view.resourceVersion) {
			if !ev.Deleted {
				s.lag(now)
			}
			return false // about an object that was here before ours
		}
		s.doubt() // what informers say of the past is not always so: a read decides
		return true
	}
	s.watched = true
	if !s.see(ev.Node) {
		if ev.Node.ResourceVersion != s.view.resourceVersion {
			s.lag(now)
		} else {
			s.behind = 0
		}
		return false // our own write, or older
	}
	if s.sight == settled {
		s.sight = foreign
	}
	return true
}

// lag notes that an event shows an older version than the view's. Events lag behind
// answers, but not for long, unless the API server was restored from a backup.
func (s *State) lag(now time.Duration) {
	if s.behind == 0 {
		s.behind = now
	}
}

// Do is a request to the API server.
type Do int

const (
	// Nothing: no request follows now.
	Nothing Do = iota
	// Create creates the Node, or reads the one that is there.
	Create
	// Read reads the Node.
	Read
	// Patch writes the status.
	Patch
	// Taint adds taints that the Node lacks.
	Taint
)

// String returns the name of the request.
func (d Do) String() string { return [...]string{"Nothing", "Create", "Read", "Patch", "Taint"}[d] }

// A Cause says why a status is written.
type Cause string

// The causes of writes; package nodestatus documents them.
const (
	Adopt  Cause = "Adopt"
	Change Cause = "Change"
	Drift  Cause = "Drift"
	Report Cause = "Report"
	Resync Cause = "Resync"
)

// Next returns the request that follows, and its cause.
func (s *State) Next(now time.Duration) (Do, Cause) {
	whole := Resync
	if s.accepted == 0 {
		whole = Adopt
	}
	switch {
	case s.sent != nil || s.want == nil || now < s.notBefore || s.Resting():
		return Nothing, ""
	case s.phase == Absent && s.waits(now):
		return Read, "" // only a creation waits: a Node that is there is registered at once
	case s.phase == Missing && s.waits(now):
		return Nothing, ""
	case s.phase == Absent || s.phase == Missing || s.phase == Unsure:
		return Create, ""
	case s.sight == doubted:
		return Read, whole
	case s.closed:
		return Nothing, ""
	case s.waits(now):
		// The whole status from before a restart is better than half of a new one.
		return Nothing, ""
	case s.view.lacks && now >= s.nextTaints:
		return Taint, ""
	case s.sight == owed:
		return Patch, whole
	case s.want.hash != s.accepted:
		return Patch, Change
	case s.stuck():
		// The lease runs out, and the node becomes Unknown. Each write has a heartbeat,
		// which would make kube-controller-manager take the node for alive for 50 s.
		return Nothing, ""
	case s.sight == foreign && now >= s.nextDrift && s.differs():
		return Patch, Drift
	case now+s.rules.Interval/2 >= s.nextReport:
		// Half an interval early rather than late: otherwise a report that is
		// due a moment after a round waits a whole one, and five minutes
		// become ten seconds more each time.
		return Patch, Report
	}
	return Nothing, ""
}

// waits reports whether the first write waits, because a setter that has not succeeded
// may do so soon. What it sets of the spec takes effect only in the creation.
func (s *State) waits(now time.Duration) bool {
	return !s.want.complete && now-s.firstRound < s.rules.Grace
}

// differs reports whether the view differs from the status that should be written.
func (s *State) differs() bool {
	return len(compare(s.want.node, s.view.node(), s.removable())) > 0
}

// removable returns the fields that must be removed if no setter sets them. It is empty
// before every setter has succeeded: one that has failed sets nothing.
func (s *State) removable() ownership {
	if !s.want.complete {
		return nil
	}
	return decodeOwnership(s.owned)
}

// Resting reports whether there is nothing to do before a Resync or an event.
func (s *State) Resting() bool { return s.phase == Deleted && s.sight != doubted }

// An Outlook is what follows.
type Outlook struct {
	Do      Do            // the next request
	Cause   Cause         // of it
	Wait    time.Duration // until the next request is allowed, or 0
	Wants   bool          // a read was asked for that needs a round
	Resting bool          // there is nothing to do before a Resync or an event
	Busy    bool          // a setter or health check is under way
}

// Outlook returns what follows.
func (s *State) Outlook(now time.Duration) Outlook {
	o := Outlook{Wait: s.wait(now), Wants: s.sight == doubted, Resting: s.Resting(), Busy: s.busy()}
	o.Do, o.Cause = s.Next(now)
	return o
}

// wait returns the time until the next request is allowed, or 0. Rounds go on in the
// meantime, because Live depends on them.
func (s *State) wait(now time.Duration) time.Duration {
	switch {
	case s.Resting():
		return 0
	case s.notBefore > now:
		return s.notBefore - now
	case s.sight == foreign && s.nextDrift > now:
		return s.nextDrift - now
	}
	return 0
}

// maxConflicts is the number of writes of a status that may conflict with another
// client's. The next one carries no resourceVersion.
const maxConflicts = 2

// version returns the resourceVersion for a write, empty for any.
func (s *State) version() string {
	if (s.sight == owed || s.watched) && s.want.conflicts < maxConflicts {
		// The view is the present state, as far as we know. If it is not the write
		// must conflict, because transition times are computed from the view.
		return s.view.resourceVersion
	}
	return ""
}

// Creation returns the Node to create.
func (s *State) Creation(wall metav1.Time) *corev1.Node {
	node := s.want.node.DeepCopy()
	node.UID, node.ResourceVersion, node.CreationTimestamp = "", "", metav1.Time{}
	node.Spec.Taints = withTaints(node.Spec.Taints, MissingTaints(s.rules.KeepTaints, node.Spec.Taints))
	node.Status.Conditions = stamp(node.Status.Conditions, nil, wall)
	return node
}

// StatusPatch returns the strategic merge patch of the status subresource.
func (s *State) StatusPatch(wall metav1.Time) []byte {
	said, shown := s.want.node, s.view.node()
	return encodePatch(s.view.uid, s.version(), compare(said, shown, s.removable()), stamp(said.Status.Conditions, shown.Status.Conditions, wall))
}

// TaintPatch returns the merge patch of the Node that adds the taints it lacks. The
// list is replaced as a whole, so it must be the present one.
func (s *State) TaintPatch() []byte {
	shown := s.view.node()
	patch, _ := json.Marshal(map[string]any{ // of taints that were decoded
		"metadata": map[string]any{"uid": shown.UID, "resourceVersion": shown.ResourceVersion},
		"spec":     map[string]any{"taints": withTaints(shown.Spec.Taints, MissingTaints(s.rules.KeepTaints, shown.Spec.Taints))},
	})
	return patch
}

// NotReadyPatch returns the patch that makes the Ready condition of shown False, and
// that change.
func NotReadyPatch(shown *corev1.Node, reason, message string, wall metav1.Time) ([]byte, []ConditionChange) {
	said := &corev1.Node{}
	said.Status.Conditions = stamp([]corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}}, shown.Status.Conditions, wall)
	return encodePatch(shown.UID, "", nil, said.Status.Conditions), conditionChanges(said, said, shown)
}

// Phase returns the phase.
func (s *State) Phase() Phase { return s.phase }

// UID returns the UID of the registered Node, or nothing.
func (s *State) UID() types.UID {
	if s.view == nil {
		return ""
	}
	return s.view.uid
}

// Node returns the Node as the server showed it last, or nil if none is registered.
func (s *State) Node() *corev1.Node { return s.view.node() }

// Figures are what a program may know of a node.
type Figures struct {
	LastRound, LastWrite time.Duration // 0: never
	Closed               bool          // Gate's last answer
	Failures             int           // of requests since the last success
	Err                  error         // of the last of them
	LateRounds           int           // in a row
}

// Figures returns the present figures.
func (s *State) Figures() Figures {
	f := Figures{LastRound: s.lastRound, LastWrite: s.lastWrite, Closed: s.closed, LateRounds: int(s.lateRounds)}
	if s.trouble != nil {
		f.Failures, f.Err = s.trouble.failures, s.trouble.err
	}
	return f
}

// lateRoundsLimit is the number of rounds in a row with a late health check after
// which the node counts as stuck.
const lateRoundsLimit = 3

// stuck reports whether a health check hangs, so that the lease should run out.
func (s *State) stuck() bool { return s.lateRounds >= lateRoundsLimit }

// Live returns why the lease of the node should not be renewed, or nil. A node is
// neglected if its last round is longer ago than patience.
func (s *State) Live(now, patience time.Duration) error {
	switch age := now - s.lastRound; {
	case s.phase != Registered:
		return fmt.Errorf("it is not registered (%v)", s.phase)
	case age > patience:
		return fmt.Errorf("setters and health checks ran last %v ago", age.Round(time.Second))
	case s.stuck():
		return fmt.Errorf("a health check did not return in time for %d rounds", s.lateRounds)
	}
	return nil
}

// Rounds returns the number of rounds that have begun, and Agreed the last of them whose
// status the API server has and in which every setter has succeeded.
func (s *State) Rounds() uint32 { return s.rounds }

// Agreed: see Rounds.
func (s *State) Agreed() uint32 { return s.agreed }

// A callPhase is the state of one setter or health check.
type callPhase uint8

const (
	idle    callPhase = iota
	awaited           // under way, and a round waits for it
	alone             // under way, and its round has gone on without it
	missed            // alone, and a later round would have called it; see RoundBegan
	arrived           // ended alone with a result that no round has seen yet
)

// A call is the state of one setter or health check of a node. A gate has none: a Room of
// package callback calls it and records whether it was slow. Setters and checks have no
// Room, because what a late result is worth is a decision about the status.
type call struct {
	phase  callPhase
	slow   bool   // the last call that ended was late
	taken  bool   // a round has had the values of a setter
	after  uint64 // hash of the Node as it has made it last; 0: it has never succeeded
	values string // its last contribution, encoded
	err    error  // of one that has arrived
}

// The errors of functions that gave no result in time.
var (
	ErrLate    = errors.New("did not return in time")
	ErrPending = errors.New("has not returned from an earlier call")
)

// A Plan says what a round does about a setter or health check.
type Plan int

const (
	// Call: call it, and wait.
	Call Plan = iota
	// CallBriefly: call it, and hardly wait: it was late the last time, and many slow
	// nodes must not hold up the rounds of the others.
	CallBriefly
	// Skip: the result of this round is known.
	Skip
)

// plan returns what a round does about function i, and its error if that is Skip.
func (s *State) plan(i int) (Plan, error) {
	switch c := &s.calls[i]; {
	case c.phase == arrived:
		return Skip, c.err
	case c.phase != idle:
		return Skip, ErrPending
	case c.slow:
		return CallBriefly, nil
	}
	return Call, nil
}

// reached takes in that the round has come to function i.
func (s *State) reached(i int) (plan Plan, err error) {
	plan, err = s.plan(i)
	switch c := &s.calls[i]; {
	case plan != Skip:
		c.phase = awaited
	case c.phase == arrived:
		c.phase, c.err = idle, nil
		c.taken = i < s.rules.Setters
	}
	return plan, err
}

// gaveUp takes in that the round no longer waits for function i. It reports false if
// that has returned.
func (s *State) gaveUp(i int) bool {
	if s.calls[i].phase != awaited {
		return false
	}
	s.calls[i].phase = alone
	return true
}

// returned takes in the end of a call, and reports whether a round should follow.
func (s *State) returned(ev Returned) (wake bool) {
	c := &s.calls[ev.Index]
	was, setter := c.phase, ev.Index < s.rules.Setters
	c.phase, c.slow = idle, ev.Late
	changed := false
	if setter && ev.Err == nil {
		changed = s.keep(c, ev.Before, ev.After)
		// A round that has gone on does not have them: the next one has.
		c.taken = c.taken || was == awaited
	}
	switch {
	case was == awaited:
		return false // the round has the result
	case changed: // late values are better than none
		c.phase, c.err = arrived, ErrLate
	case !setter && !ev.Late:
		c.phase, c.err = arrived, ev.Err
	}
	wake = c.phase == arrived || was == missed
	s.woken = s.woken || wake
	return wake
}

// keep keeps the values that a setter has set by making after of before, and reports
// whether they are others than the last ones. A setter that makes the same Node again has
// set the same values.
func (s *State) keep(c *call, before, after *corev1.Node) (changed bool) {
	hash := fingerprint(s.rules.Seed, after, after.Spec)
	if c.after == hash {
		return false
	}
	encoded, _ := contribution(before, after).Marshal() // fails only if Size is wrong
	changed = c.after == 0 || c.values != string(encoded)
	c.after, c.values = hash, string(encoded)
	return changed
}

// LastValues returns a copy of node with the values that setter i set last.
func (s *State) LastValues(i int, node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	last := &corev1.Node{}
	_ = last.Unmarshal([]byte(s.calls[i].values)) // keep has encoded it
	overlay(node, last)
	return node
}

// busy reports whether a setter or health check is under way.
func (s *State) busy() bool {
	return slices.ContainsFunc(s.calls, func(c call) bool { return c.phase != idle && c.phase != arrived })
}

// complete reports whether every setter has succeeded once, and the round has its
// values. Before that a value that no setter sets may be the value of one that has not.
func (s *State) complete() bool {
	for i := range s.rules.Setters {
		if !s.calls[i].taken {
			return false
		}
	}
	return true
}
