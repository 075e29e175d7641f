// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/resourceslice/internal/pool"
)

// PoolID identifies a pool: consumers of ResourceSlices distinguish pools by
// driver and name only.
type PoolID struct {
	// Driver is spec.driver of the slices, for example gpu.example.com.
	Driver string
	// Name is spec.pool.name. For the devices of a node it is usually the
	// node's name: a pool must have one publisher only.
	Name string
}

// String returns driver/name.
func (id PoolID) String() string { return id.Driver + "/" + id.Name }

// Pool is the whole desired content of a pool. The controller decides how it is
// laid out in slices.
type Pool struct {
	// Devices of the pool. Their names must be unique in it. A pool without devices
	// is one empty slice, which says that there is nothing to allocate; a pool
	// without slices says nothing.
	//
	// The scheduler takes the first device that matches a claim, so the order is the
	// driver's preference: list a partition before the whole device. Each slice that
	// is written has its devices in this order, and so has a pool that is published
	// for the first time, across its slices. A device that is added later may come
	// after devices that it precedes here, and another order alone is no change,
	// because some drivers publish from a map. See Ordered.
	Devices []resourcev1.Device
	// Ordered makes the order of Devices a part of the content: it holds across all
	// slices, at all times, and another order is a change. That takes a write of all
	// slices if a device must move to another slice. Default: false.
	Ordered bool
	// SharedCounters are the counter sets that devices consume from. They need
	// an API server that serves resource.k8s.io/v1 in the layout of Kubernetes
	// 1.35 and newer.
	SharedCounters []resourcev1.CounterSet
	// Nodes selects the nodes that can use the devices. The zero value is the
	// node of Config.NodeName.
	Nodes NodeSelection
	// Atomic makes every change of more than one slice a switch of the whole
	// pool to a new generation. By default independent changes of several
	// slices are made one by one, each as if it were the only one. That takes
	// fewer writes, and the pool stays usable.
	Atomic bool
	// PartitionTypeAttribute is spec.partitionTypeAttribute of the slices with
	// devices that consume counters. Default: none.
	PartitionTypeAttribute resourcev1.FullyQualifiedName
	// SkipNodeOperations is spec.skipNodeOperations of all slices with devices.
	SkipNodeOperations []resourcev1.SkipNodeOperation
}

// NodeSelection selects the nodes that can use the devices of a pool. At most
// one field may be set; the zero value means the node of Config.NodeName.
type NodeSelection struct {
	// Selector is spec.nodeSelector: exactly one term.
	Selector *corev1.NodeSelector
	// AllNodes is spec.allNodes.
	AllNodes bool
	// PerDevice is spec.perDeviceNodeSelection: every device has its own.
	PerDevice bool
}

// Status is the state of a pool.
type Status struct {
	// Revision counts the Sets and Removes that changed the desired pool.
	// Published is the revision that the API server has. They are equal if
	// nothing is left to do.
	Revision, Published int64
	// Generation is spec.pool.generation of the slices. Slices and Devices are
	// their numbers. All three are of the last publish.
	Generation      int64
	Slices, Devices int
	// Complete is false from the first write of a new generation to the last:
	// the scheduler takes no device from the pool during that time.
	Complete bool
	// Err is an *InvalidError or *DroppedFieldsError if the API server doesn't
	// have the whole pool and a retry would not help. It is a *ContendedError
	// while a newer instance of the program publishes the pool.
	Err error
	// Since is the time of the last change of the status.
	Since time.Time
}

// pool is all state of one pool.
//
// Its fields are guarded by Controller.mu, with one exception: only the worker
// that reconciles the pool uses those of work, and the queue gives a pool to one
// worker at a time. Writers of one worker run in parallel and lock for work too.
//
// Invariants, in addition to those of core.State:
//   - want is nil and status.Published equals status.Revision: the pool is gone,
//     and no slice of it is touched.
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
	goneAt  time.Time

	state     *core.State // when it is reconciled, and by which instance
	contender string      // the field manager of another writer, if known
	resendAll bool        // the API server may have changed: forget its answers

	work work
}

// work is the part of a pool's state that its worker uses.
type work struct {
	revision int64 // that was reconciled last
	floor    int64 // the highest generation seen or written
	ours     int64 // see observed
	answers  map[hash]*answer
	// unanswered has the writes that the API server may yet carry out, by name.
	unanswered map[string]*request
	taken      map[string]bool
	compacted  time.Time
	wrote      time.Time // the last write

	streak   report.Streak
	reported map[string]bool // errors that were reported
	problem  error           // what Status.Err is

	writes   int       // since the pool was published
	windowAt time.Time // the first write of a generation, until the last
	window   time.Duration
}

func newPool(id PoolID, state *core.State) *pool {
	return &pool{id: id, changed: make(chan struct{}), state: state, work: work{
		answers: map[hash]*answer{}, unanswered: map[string]*request{}, taken: map[string]bool{}, reported: map[string]bool{},
	}}
}

// half reports whether a generation is begun and not complete.
func (p *pool) half() bool { return !p.work.windowAt.IsZero() }

// local reports whether no slice without a node is wanted.
func (p *pool) local() bool { return p.want == nil || p.want.nodeName != "" }

// isGone reports whether the pool was removed.
func (p *pool) isGone() bool { return p.state.Gone() }

// set makes d the desired pool, nil for none. c.mu must be held.
func (c *Controller) set(p *pool, d *desired, urgent bool) {
	p.want, p.setAt = d, time.Now()
	p.cluster = p.cluster || d != nil && d.nodeName == ""
	c.apply(p, core.Set{Remove: d == nil, Urgent: urgent})
	p.update(func(s *Status) {
		s.Revision++
		s.Err = nil
	})
}

// apply records a fact about a pool. c.mu must be held.
func (c *Controller) apply(p *pool, e core.Event) {
	if err := p.state.Apply(time.Now(), e); err != nil {
		report.Tell(c.outlives, c.cfg.ErrorHandler, fmt.Errorf("%w: pool %s", err, p.id), "A step of a pool came at the wrong time")
	}
	if c.checked != nil {
		c.checked(p.state.Check())
	}
}

// wait returns how long a pool must wait.
func (p *pool) wait() time.Duration {
	_, wait := p.state.Next(time.Now())
	return wait
}

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

// confirm records that no dry run can tell whether an answer still holds, because a webhook
// refuses dry runs. It reports whether the answer was doubted.
func (a *answer) confirm() bool {
	if a == nil || !a.doubted {
		return false
	}
	a.doubted, a.at = false, time.Now()
	return true
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
