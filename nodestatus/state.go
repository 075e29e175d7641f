// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"hash/maphash"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubewright/kubewright/internal/report"
)

// state is the state of one node between rounds. There may be ten thousand: the Node
// itself is encoded, the written status is a hash, nodes that own the same fields
// share their names, and fields that only few nodes need are behind pointers. Times
// are durations since Controller.epoch.
type state struct {
	mu sync.Mutex // guards what follows

	view    *view                 // the Node as the server showed it last; immutable
	uid     types.UID             // of the registered Node; empty before
	owned   unique.Handle[string] // the fields that we own: an encoded ownership
	hash    uint64                // of the status the server accepted last
	trouble *trouble              // nil while calls succeed

	firstRound time.Duration
	lastRound  time.Duration
	lastWrite  time.Duration
	nextReport time.Duration
	notBefore  time.Duration // no call before this
	nextDrift  time.Duration // no write against another writer before this

	pending     *work                 // the status for the next call, or nil
	set         unique.Handle[string] // the keys that each setter has set: encoded by encodeKeys
	unwell      *unwell               // nil while all setters are on time, and valid
	extra       *extra                // nil unless SetNotReady or KeepTaints is used
	busySetters uint64                // setters under way, a bit each
	busyChecks  uint64                // health checks under way
	missed      uint64                // those of them that a later round would have called
	good        uint64                // setters that have succeeded once
	sleeps      uint32                // how many sleeps of the process were answered
	phase       Phase
	lateRounds  uint16

	look        bool // read the Node and then write it whole
	force       bool // it was read, and must be written whole
	foreign     bool // view is not from our own call
	watched     bool // the event handler shows what others write
	specChanged bool // since the hook was called
	taintsDue   bool // the view may lack one of Config.KeepTaints
	complete    bool // every setter has succeeded once
	unsure      bool // a create was sent, and may have been stored although no answer said so
	gated       bool // Gate was closed when it was last asked

	// Of the reports in Controller, which guard them.
	calling, setting, invalid, asking report.Member
}

// extra is the state of features that few nodes use.
type extra struct {
	notReady      *NotReadyError // of SetNotReady
	nextTaints    time.Duration  // no attempt to add taints before this
	taintsRefused bool           // and that was reported
}

// markExtra returns st.extra, which it makes if necessary. st.mu must be held.
func (st *state) markExtra() *extra {
	if st.extra == nil {
		st.extra = &extra{}
	}
	return st.extra
}

// unwell is the state of setters that are late, or set invalid values. The sets have a
// bit for each setter.
type unwell struct {
	late     uint64               // under way, and the round that has called it has ended
	arrived  uint64               // succeeded after that, and no round has seen it yet
	slow     uint64               // the last call was late
	last     map[int]*corev1.Node // the contribution of a late setter
	problems uint64               // hash of the parts left out of the status
}

// markUnwell returns st.unwell, which it makes if necessary. st.mu must be held.
func (st *state) markUnwell() *unwell {
	if st.unwell == nil {
		st.unwell = &unwell{last: make(map[int]*corev1.Node)}
	}
	return st.unwell
}

// dropUnwell drops st.unwell if nothing in it matters any longer. st.mu must be held.
func (st *state) dropUnwell() {
	if u := st.unwell; u != nil && u.late|u.arrived|u.slow|u.problems == 0 {
		st.unwell = nil
	}
}

// trouble is the state of a run of failed calls.
type trouble struct {
	err          error
	failures     int
	since        time.Duration
	refusedSince time.Duration // 0 unless the server refused
	refusals     int
}

// requestLook makes the next round read the Node and write it whole.
func (st *state) requestLook() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.look = true
}

// noteSleeps has the Node read if the process slept since the last round.
func (st *state) noteSleeps(sleeps uint32) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.sleeps != sleeps {
		st.sleeps = sleeps
		st.look = st.look || st.phase == PhaseRegistered
	}
}

// wantsRound reports whether a read was asked for during a call.
func (st *state) wantsRound() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.look && !st.resting() || st.specChanged
}

// removable returns the fields that must be removed if no setter sets them. It is empty
// before every setter has succeeded: one that has failed sets nothing. st.mu must be
// held.
func (st *state) removable() ownership {
	if !st.complete {
		return ownership{}
	}
	return decodeOwnership(st.owned)
}

// idle reports whether there is nothing to do before a Resync or an event.
func (st *state) idle() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.resting() && !st.look
}

// resting reports whether the policies have put the node to rest.
func (st *state) resting() bool {
	return st.phase == PhaseDeleted || st.phase == PhaseReplaced
}

// see takes node as the server's view unless a newer one is known, and reports
// whether it did. It does not keep node.
func (st *state) see(node *corev1.Node) bool {
	if st.view != nil && st.uid == node.UID && !newer(node.ResourceVersion, st.view.resourceVersion) {
		return false
	}
	st.take(node)
	return true
}

// seeAnswer takes node, the answer to a call, as the server's view. held is the view
// when the call was sent. If no event has changed the view since, node is newer, even
// with an older resourceVersion: the API server was restored from a backup.
func (st *state) seeAnswer(node *corev1.Node, held *view) {
	if held != nil && st.view == held && node.ResourceVersion != held.resourceVersion {
		st.take(node)
		return
	}
	st.see(node)
}

// take takes node as the server's view.
func (st *state) take(node *corev1.Node) {
	st.view, st.taintsDue = newView(node), true
	if st.uid == node.UID {
		st.view.uid = st.uid // one string in memory
	}
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
}

// newView encodes node without its managedFields, which no reader of a view needs and
// which would double its size.
func newView(node *corev1.Node) *view {
	lean := *node
	lean.ManagedFields, lean.ResourceVersion, lean.UID = nil, "", ""
	// Marshal fails only if Size is wrong. A view without content would be
	// taken for a Node that lacks everything, and all of it written.
	encoded, _ := lean.Marshal()
	return &view{resourceVersion: node.ResourceVersion, uid: node.UID, encoded: encoded}
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
// conditions, which must be zero: labels, annotations and status. The encoding
// is deterministic (maps are written in the order of their keys). A collision,
// one in 2^64, would delay a change until the next report.
func fingerprint(seed maphash.Seed, node *corev1.Node) uint64 {
	said := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations},
		Status:     node.Status,
	}
	encoded, err := said.Marshal()
	if err != nil {
		return 0
	}
	return maphash.Bytes(seed, encoded)
}
