// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	Counts     bool              // the failure should be reported: it is not about a deletion or conflict
}

// A ConditionChange is a change of the status of one of our conditions.
type ConditionChange struct {
	From      corev1.ConditionStatus // empty: it is new
	Condition corev1.NodeCondition   // as it is now
}

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
		news.Wake = s.shown(ev)
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
		news.Wake = s.shown(*early)
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
		return s.gone(now, ev.Draw, news)
	case ev.Verdict == Gone && s.phase == Absent && sent.do == Read:
		return s.become(Missing)
	case ev.Verdict == Gone && s.phase == Deleted: // still
		s.sight, s.trouble, s.want = settled, nil, nil
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
func (s *State) shown(ev Shown) (wake bool) {
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
			return false // about an object that was here before ours
		}
		s.doubt() // what informers say of the past is not always so: a read decides
		return true
	}
	s.watched = true
	if !s.see(ev.Node) {
		return false // our own write, or older
	}
	if s.sight == settled {
		s.sight = foreign
	}
	return true
}
