// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"maps"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	core "github.com/kubewright/kubewright/resourceslice/internal/pool"
)

// retryFaults is the time between two tries of content that the API server refused
// or dropped: a webhook or a feature gate may have changed.
const retryFaults = time.Hour

// pool is all state of one pool.
//
// Its fields are guarded by Controller.mu, with one exception: only the worker
// that reconciles the pool uses those of work, and the queue gives a pool to one
// worker at a time. Writers of one worker run in parallel and lock for work too.
//
// Invariants, in addition to those of core.State:
//   - isGone: no slice of the pool is touched.
//   - unanswered has a write: no plan is made until the API server has answered
//     its repetition, or can't carry it out any longer.
//   - half implies that status.Complete is false.
type pool struct {
	id PoolID

	want    *desired // nil: no slices
	setAt   time.Time
	cluster bool // it has, or had, slices without a node
	status  Status
	changed chan struct{} // closed when the status changes

	state     *core.State // when it is reconciled, and by which instance
	contender string      // the field manager of another writer, if known
	resendAll bool        // the API server may have changed: forget its answers

	work work
}

// request is a write, to be repeated if its answer is lost.
type request struct {
	page   *page
	slice  *resourcev1.ResourceSlice // as sent; nil to delete rec
	rec    *record                   // as it was; nil to create
	dryRun bool                      // the API server answers and stores nothing
	verb   string
	name   string // of the slice

	revision int64 // of the pool when it was planned, 0 for the last repetition
}

// work is the part of a pool's state that its worker uses.
type work struct {
	memory
	// unanswered has the writes that the API server may yet carry out, by name.
	unanswered map[string]*request
	compacted  time.Time
	wrote      time.Time // the last write that succeeded
	repairs    time.Time // when the change was noticed whose repair was counted last

	streak   apierr.Streak
	reported map[string]bool // errors that were reported
	problem  error           // what Status.Err is

	writes   int       // since the pool was published
	windowAt time.Time // the first write of a generation, until the last
	window   time.Duration
}

func newPool(id PoolID, state *core.State) *pool {
	return &pool{id: id, changed: make(chan struct{}), state: state, work: work{
		memory: memory{answers: map[hash]*answer{}, taken: map[string]bool{}}, unanswered: map[string]*request{}, reported: map[string]bool{},
	}}
}

// half reports whether a generation is begun and not complete.
func (p *pool) half() bool { return !p.work.windowAt.IsZero() }

// local reports whether no slice without a node is wanted.
func (p *pool) local() bool { return p.want == nil || p.want.nodeName != "" }

// isGone reports whether the pool was removed.
func (p *pool) isGone() bool { return p.state.Gone() }

// isLeft reports whether the status says that the pool is left to a newer instance.
func (p *pool) isLeft() bool {
	e, ok := p.status.Err.(*ContendedError) //nolint:errorlint // an own error
	return ok && e.Newer
}

// wait returns how long a pool must wait.
func (p *pool) wait() time.Duration { return p.state.Next(time.Now()) }

// update changes the status and wakes all Waits.
func (p *pool) update(change func(*Status)) {
	before := p.status
	change(&p.status)
	if p.status == before {
		return
	}
	p.status.Since = time.Now()
	close(p.changed)
	p.changed = make(chan struct{})
}

// begin prepares for the reconciliation of another revision: it forgets answers
// about content that is no longer wanted.
func (w *work) begin(d *desired) {
	if len(w.answers) == 0 {
		return
	}
	wanted := make(map[hash]bool)
	if d != nil {
		for _, it := range slices.Concat(d.devices, d.sets) {
			wanted[it.hash] = true
		}
		for _, head := range d.heads {
			wanted[head] = true
		}
	}
	maps.DeleteFunc(w.answers, func(h hash, a *answer) bool { return !wanted[h] || a.standing == suspect })
}

// forget forgets answers with an error that are that old, so that their content
// is sent again. It doubts those that a dry run can confirm.
func (w *work) forget(age time.Duration) {
	maps.DeleteFunc(w.answers, func(_ hash, a *answer) bool {
		old, asks := a.err != nil && time.Since(a.at) >= age, a.head || a.standing == withheld
		a.doubted = a.doubted || old && asks
		return old && !asks
	})
}

// faultsDue returns when content has to be sent again that the API server
// refused or dropped, zero if there is none.
func (w *work) faultsDue() (due time.Time) {
	for _, a := range w.answers {
		if at := a.at.Add(retryFaults); a.err != nil && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}
