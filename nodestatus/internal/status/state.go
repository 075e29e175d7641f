// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package status decides what package nodestatus does next for one node. Apply records
// facts, such as the result of a round of setters or an answer of the API server. Next
// returns the next request. The package does no I/O.
package status

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Rules are the settings that the nodes of a controller share.
type Rules struct {
	Setters, Checks int // how many there are; the checks are numbered after the setters

	Interval time.Duration // between rounds
	Report   time.Duration // between writes of an unchanged status
	Grace    time.Duration // the first write waits for setters for as long at most

	Reregister      bool           // create a deleted Node again
	NodeCredentials bool           // the client is the node itself
	KeepTaints      []corev1.Taint // that a Node must have
	Seed            maphash.Seed   // of the hashes in State
}

// A Phase is the state of a node's registration.
type Phase int

const (
	// Absent: there is no Node that we know of.
	Absent Phase = iota
	// Missing: a read has shown that there is none.
	Missing
	// Unsure: a creation was sent, and no answer says that it was not stored.
	Unsure
	// Registered: the Node was created or adopted.
	Registered
	// Deleted: another client deleted the Node, and it is not created again.
	Deleted
)

// String returns the name of the phase.
func (p Phase) String() string {
	return [...]string{"Absent", "Missing", "Unsure", "Registered", "Deleted"}[p]
}

// A sight is how well we know what the API server has.
type sight int

const (
	settled sight = iota // the view has no other client's write that must be undone now
	foreign              // the view has another client's write
	doubted              // the view may be old: a read comes before the next write
	reading              // that read is under way
	owed                 // the whole status must be written, to the version of the view
)

// State is the state of one node between requests and rounds. There may be ten
// thousand of them: the Node is encoded, the accepted status is a hash, and nodes with
// the same fields share their names. Times are durations since a common epoch; 0 is
// never. The zero State is not valid; see New.
type State struct {
	rules *Rules

	// The Node as the API server has it.
	//
	// Invariant: a Node that is registered, and no other, has a view, and the view's UID.
	// Invariant: only a Node that is registered has owned fields or an accepted status.
	// Invariant: only a Node that is registered is foreign or owed.
	// Invariant: an event is kept only while it is not sure whether there is a Node.
	phase    Phase
	view     *view                 // as the server showed it last
	early    *Shown                // the last event since the creation was sent, or nil
	sight    sight                 // how well the view is known
	watched  bool                  // events show what other clients write
	behind   time.Duration         // since when events show an older version than the view's; 0: they don't
	told     uint64                // hash of the spec that the program knows
	owned    unique.Handle[string] // the fields that are ours: an encoded ownership
	accepted uint64                // hash of the status that the server has accepted; 0: none for this object

	// The status that should be written.
	//
	// Invariant: a round that is settled has begun.
	want       *want  // nil if no request follows from it
	rounds     uint32 // that have begun
	agreed     uint32 // the last of them whose status the server has, and in which no setter failed
	firstRound time.Duration
	lastRound  time.Duration
	lastWrite  time.Duration
	nextReport time.Duration
	nextDrift  time.Duration // no write against another client before this
	nextTaints time.Duration // no attempt to add taints before this
	notReady   *Failure      // of SetNotReady

	// The request that is under way, and those that failed.
	//
	// Invariant: the view is being read only while a read is under way.
	// Invariant: while a creation is under way, whether there is a Node is not sure.
	// Invariant: only a status that is sent has conflicts, and no more than allowed.
	// Invariant: trouble counts at least one failure; a Node left alone has none.
	sent      *sent
	trouble   *trouble
	notBefore time.Duration // no request before this
	closed    bool          // Gate's last answer

	// The setters and health checks.
	//
	// Invariant: there is one call for each of them.
	// Invariant: only setters keep values, and only calls that have arrived an error.
	// Invariant: a round has only values that were kept.
	// Invariant: rounds are late only if there are checks.
	calls      []call
	woken      bool // the next round follows from a call that returned
	lateRounds uint16
	lateAt     time.Duration // when they were last counted
}

// A want is a status that a round has computed.
type want struct {
	node      *corev1.Node // without times
	hash      uint64
	round     uint32
	clean     bool // every setter has succeeded in the round
	complete  bool // every setter has succeeded once, and the values are in it
	conflicts int  // writes of it that conflicted with another client's
}

// sent is a request that is under way.
type sent struct {
	do    Do
	cause Cause
	want  *want
	held  *view // the view when it was sent
}

// trouble is the state of a run of failed requests.
type trouble struct {
	err      error
	failures int
	refusals int // the last of them in a row that the server refused
	since    time.Duration
}

// New returns the state of a node.
func New(rules *Rules) State {
	return State{rules: rules, calls: make([]call, rules.Setters+rules.Checks)}
}

// errPhase is the error of a change of the phase that its present value does not allow.
var errPhase = errors.New("illegal change of phase")

// sources are the phases that a phase may follow.
var sources = [...][]Phase{
	Absent:     {Unsure, Registered}, // a creation was not stored, or the Node is gone
	Missing:    {Absent},
	Unsure:     {Absent, Missing, Unsure},
	Registered: {Absent, Unsure, Registered, Deleted},
	Deleted:    {Registered},
}

// become changes the phase. If the phase does not allow it the state stays as it is. What
// is known of the object that was kept so far is dropped.
func (s *State) become(to Phase) error {
	if !slices.Contains(sources[to], s.phase) {
		return fmt.Errorf("%w from %v to %v", errPhase, s.phase, to)
	}
	s.phase = to
	switch to {
	case Unsure:
		return nil
	case Missing, Deleted:
		s.trouble = nil
	}
	s.view, s.early, s.accepted, s.owned, s.told = nil, nil, 0, unique.Handle[string]{}, 0
	s.sight, s.behind, s.notBefore, s.nextDrift, s.nextTaints = settled, 0, 0, 0, 0
	return nil
}

// register is called when an answer shows the Node that is kept from now on.
func (s *State) register(node *corev1.Node) error {
	if err := s.become(Registered); err != nil {
		return err
	}
	s.take(node)
	s.told = s.view.spec
	return nil
}

// see takes node, which has the view's UID, as the server's view unless a newer one is
// known, and reports whether it did. It does not keep node.
func (s *State) see(node *corev1.Node) bool {
	if s.view != nil && !newer(node.ResourceVersion, s.view.resourceVersion) {
		return false
	}
	s.take(node)
	return true
}

// seeAnswer takes node, the answer to a request, as the server's view. held is the view
// when the request was sent. If no event has changed the view since, node is newer, even
// with an older resourceVersion: the API server was restored from a backup.
func (s *State) seeAnswer(node *corev1.Node, held *view) {
	if held != nil && s.view == held {
		s.take(node)
		return
	}
	s.see(node)
}

// take takes node as the server's view.
func (s *State) take(node *corev1.Node) {
	s.behind = 0
	s.view = newView(node, s.rules.Seed, s.rules.KeepTaints)
}

// Check returns an error that names the invariant that is broken, if one is.
func (s *State) Check() error {
	registered := s.phase == Registered
	under := Nothing
	if s.sent != nil {
		under = s.sent.do
	}
	for _, i := range []struct {
		name string
		ok   bool
	}{
		{"a Node that is registered, and no other, has a view, and the view's UID", registered == (s.view != nil) && (!registered || s.view.uid != "")},
		{"only a Node that is registered has owned fields or an accepted status", registered || s.accepted == 0 && s.owned == unique.Handle[string]{}},
		{"only a Node that is registered is foreign or owed", registered || s.sight != foreign && s.sight != owed},
		{"an event is kept only while it is not sure whether there is a Node", s.early == nil || s.phase == Unsure},
		{"a round that is settled has begun", s.agreed <= s.rounds},
		{"the view is being read only while a read is under way", s.sight != reading || under == Read},
		{"while a creation is under way, whether there is a Node is not sure", under != Create || s.phase == Unsure},
		{"only a status that is sent has conflicts, and no more than allowed", s.want == nil || s.want.conflicts <= maxConflicts},
		{"trouble counts at least one failure; a Node left alone has none", s.trouble == nil || s.trouble.failures > 0 && s.trouble.refusals <= s.trouble.failures},
		{"there is one call for each of them", len(s.calls) == s.rules.Setters+s.rules.Checks},
		{"rounds are late only if there are checks", s.lateRounds == 0 || s.rules.Checks > 0},
	} {
		if !i.ok {
			return fmt.Errorf("invariant broken: %s", i.name)
		}
	}
	for i, c := range s.calls {
		if i >= s.rules.Setters && (c.taken || c.after != 0) || c.err != nil && c.phase != arrived {
			return fmt.Errorf("invariant broken: only setters keep values, and only calls that have arrived an error (%d)", i)
		}
		if c.taken && c.after == 0 {
			return fmt.Errorf("invariant broken: a round has only values that were kept (%d)", i)
		}
	}
	return nil
}

// newer reports whether resourceVersion a is later than b. Since Kubernetes
// 1.35 they are defined to be comparable (KEP-5504), and they always were for
// objects kept in etcd. One that is not a number is taken for newer.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// view is a Node as the server showed it: in protobuf a fifth of its size as an
// object. It is never changed.
type view struct {
	resourceVersion string
	uid             types.UID
	encoded         []byte // without the fields above
	spec            uint64 // hash of the spec
	lacks           bool   // it lacks a taint that the Node must have
}

// newView encodes node without its managedFields, which no reader of a view needs and
// which would double its size.
func newView(node *corev1.Node, seed maphash.Seed, keep []corev1.Taint) *view {
	lean := *node
	lean.ManagedFields, lean.ResourceVersion, lean.UID = nil, "", ""
	// Marshal fails only if Size is wrong. A view without content would be
	// taken for a Node that lacks everything, and all of it written.
	encoded, _ := lean.Marshal()
	spec, _ := node.Spec.Marshal()
	return &view{
		resourceVersion: node.ResourceVersion, uid: node.UID, encoded: encoded,
		spec:  maphash.Bytes(seed, spec),
		lacks: len(MissingTaints(keep, node.Spec.Taints)) > 0,
	}
}

// node decodes the view. It returns nil for a nil view.
func (v *view) node() *corev1.Node {
	if v == nil {
		return nil
	}
	node := &corev1.Node{}
	_ = node.Unmarshal(v.encoded) // newView has encoded it
	node.ResourceVersion, node.UID = v.resourceVersion, v.uid
	return node
}

// fingerprint returns the hash of what node says without the times of its
// conditions, which must be zero: labels, annotations, status, and the spec, which
// counts only for a creation. The encoding is deterministic (maps are written in the
// order of their keys). A collision, one in 2^64, would delay a change until the next
// report.
func fingerprint(seed maphash.Seed, node *corev1.Node, spec corev1.NodeSpec) uint64 {
	lean := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations}, Spec: spec, Status: node.Status}
	encoded, _ := lean.Marshal() // fails only if Size is wrong
	return maphash.Bytes(seed, encoded)
}

// MissingTaints returns the taints of keep that have lacks.
func MissingTaints(keep, have []corev1.Taint) []corev1.Taint {
	var missing []corev1.Taint
	for _, taint := range keep {
		if !slices.ContainsFunc(have, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value }) {
			missing = append(missing, taint)
		}
	}
	return missing
}

// withTaints returns taints with more, each in the place of one with its key and
// effect.
func withTaints(taints, more []corev1.Taint) []corev1.Taint {
	kept := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(more, func(m corev1.Taint) bool { return m.MatchTaint(&t) })
	})
	return append(kept, more...)
}
