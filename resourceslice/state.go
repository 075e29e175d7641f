// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"errors"
	"maps"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/internal/report"
)

// Status says where a pool stands.
type Status struct {
	// Revision counts the Sets and Removes that changed what is wanted, and
	// Published is the one that the API server has. They are equal when there
	// is nothing left to do.
	Revision, Published int64
	// Generation is spec.pool.generation of the slices, and Slices and Devices
	// are how many there are, as of the last publish.
	Generation      int64
	Slices, Devices int
	// Complete is false from the first write of a new generation to the last:
	// the scheduler takes no device from the pool meanwhile.
	Complete bool
	// Err is an *InvalidError, *DroppedFieldsError or *UnsupportedError when
	// the API server doesn't have all that is wanted and trying again would
	// not help.
	Err error
	// Since is when the status changed last.
	Since time.Time
}

// pool is what the controller knows about a pool.
type pool struct {
	id PoolID

	// Guarded by the lock of the controller.

	want    *desired // nil: nothing
	setAt   time.Time
	urgent  bool
	cluster bool // it was Set for other nodes than the controller's own
	open    bool // half published
	anew    bool // the API server is another one
	status  Status
	changed chan struct{} // closed when the status changes
	// drift is when somebody else was noticed to have changed slices, repairs
	// how often that was undone without a long pause between, repaired when it
	// was last, and manager who it was.
	drift    time.Time
	repairs  int
	repaired time.Time
	manager  string

	work work // of the worker that has the pool
}

// work is what is kept from one look at a pool to the next.
type work struct {
	revision  int64     // that was looked at
	began     time.Time // the last publish
	floor     int64
	failures  int
	failing   time.Time // since when
	retryAt   time.Time
	streak    report.Streak
	reported  map[string]bool // errors that were reported
	accepted  map[hash]hash
	refused   map[hash]bool
	refusedAt time.Time
	vague     bool     // it isn't known which of what was refused was the reason
	blocked   *desired // wasn't taken, whatever of it was left out
	// faults says of what is wanted and not there as it is why: each is an
	// *InvalidError or a *DroppedFieldsError. dropped and invalid sum them up.
	faults    map[hash]error
	dropped   *DroppedFieldsError
	invalid   *InvalidError
	taken     map[string]bool
	compacted time.Time
	unsure    time.Time // when a write failed last that may have been stored
	// unanswered has the writes, by the name of their slice, that may still be
	// carried out. Writers add to it at the same time, under the lock.
	unanswered map[string][]attempt
	writes     int       // since it was complete
	window     time.Time // since when it is incomplete by our doing; zero if it isn't
	lost       time.Duration
}

func newPool(id PoolID) *pool {
	return &pool{id: id, changed: make(chan struct{}), work: work{
		reported: map[string]bool{}, accepted: map[hash]hash{}, refused: map[hash]bool{}, taken: map[string]bool{},
		unanswered: map[string][]attempt{}, faults: map[hash]error{},
	}}
}

// isGone reports whether the pool was to go and is gone. It is kept for those
// who Wait, and for its generation.
func (p *pool) isGone() bool { return p.want == nil && p.status.Published == p.status.Revision }

func (p *pool) desired() *desired {
	if p == nil {
		return nil
	}
	return p.want
}

func (p *pool) set(d *desired, urgent bool) {
	p.want, p.setAt = d, time.Now()
	p.urgent = p.urgent || urgent
	p.cluster = p.cluster || d != nil && d.selection.nodeName == ""
	p.update(func(s *Status) {
		s.Revision++
		s.Err = nil
	})
}

// update changes the status and wakes those who wait for it.
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

// forget drops what was learned about content that is not wanted any longer.
func (w *work) forget(d *desired) {
	if len(w.accepted)+len(w.refused) == 0 {
		return
	}
	if w.vague {
		w.forgetRefusals()
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
	for h := range w.accepted {
		if !wanted[h] {
			delete(w.accepted, h)
		}
	}
	for h := range w.refused {
		if !wanted[h] {
			delete(w.refused, h)
		}
	}
	maps.DeleteFunc(w.faults, func(h hash, _ error) bool { return !wanted[h] })
	w.sumUp()
}

// forgetRefusals has what was refused sent again.
func (w *work) forgetRefusals() {
	clear(w.refused)
	maps.DeleteFunc(w.faults, func(_ hash, err error) bool { _, is := errors.AsType[*InvalidError](err); return is })
	w.invalid, w.vague = nil, false
}

// sumUp makes the errors of the pool those of what it has.
func (w *work) sumUp() {
	var dropped DroppedFieldsError
	var invalid *InvalidError
	for _, fault := range w.faults {
		if err, ok := errors.AsType[*InvalidError](fault); ok && (invalid == nil || err == w.invalid) {
			invalid = err
		}
		if err, ok := errors.AsType[*DroppedFieldsError](fault); ok {
			dropped.Pool, dropped.Slice = err.Pool, err.Slice
			dropped.Fields = append(dropped.Fields, err.Fields...)
		}
	}
	w.invalid = invalid
	slices.Sort(dropped.Fields)
	dropped.Fields = slices.Compact(dropped.Fields)
	switch {
	case len(dropped.Fields) == 0:
		w.dropped = nil
	case w.dropped == nil:
		w.dropped = &dropped
	case !slices.Equal(w.dropped.Fields, dropped.Fields):
		dropped.Slice = w.dropped.Slice // in which it was first seen
		w.dropped = &dropped
	}
}

// urgent reports whether a Set takes something from Pods, which must not wait:
// a device that is gone, or has a new taint which keeps them away.
func (d *desired) urgent(before *desired) bool {
	if before == nil {
		return false
	}
	for i := range before.devices {
		if d.find(before.devices[i].name) == nil {
			return true
		}
	}
	for i := range d.devices {
		was := before.find(d.devices[i].name)
		for _, t := range d.devices[i].timesOfTaints() {
			if t.effect == resourcev1.DeviceTaintEffectNone || was != nil && slices.ContainsFunc(was.timesOfTaints(), t.same) {
				continue
			}
			return true
		}
	}
	return false
}

func notThisDriver(driver, only string) *field.Error {
	return field.NotSupported(field.NewPath("driver"), driver, []string{only})
}
