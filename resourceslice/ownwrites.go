// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// trustAfter is how long an own write outweighs a watch that has not delivered
// it where resource versions can't tell how far the watch is: client-go's
// stores don't know theirs with the feature AtomicFIFO off.
const trustAfter = time.Minute

// ownWrites remembers what this process has written, until the watch has it.
// Together with the informer's store that is the state of the API server as
// far as it matters here: nothing is written twice because a watch is slow.
type ownWrites struct {
	mu sync.Mutex
	// pending has the writes that the watch may not have delivered yet.
	pending map[string]ownWrite
	// last is the resource version of the last own write of each slice: what
	// the watch delivers with that one or an earlier one is no news.
	last map[string]lastWrite
	// deleted has the slices that this process deletes or has deleted.
	deleted map[types.UID]bool
}

type lastWrite struct {
	resourceVersion string
	at              time.Time
}

type ownWrite struct {
	rec  *record // what was written, or what was deleted
	gone bool
	at   time.Time
}

func newOwnWrites() ownWrites {
	return ownWrites{pending: map[string]ownWrite{}, last: map[string]lastWrite{}, deleted: map[types.UID]bool{}}
}

// wrote records what the API server answered to a create or an update, or to a
// get that was to find out where a slice stands.
func (o *ownWrites) wrote(rec *record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending[rec.Name] = ownWrite{rec: rec, at: time.Now()}
	o.last[rec.Name] = lastWrite{rec.ResourceVersion, time.Now()}
}

// gone records that a slice doesn't exist any longer.
func (o *ownWrites) gone(rec *record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending[rec.Name] = ownWrite{rec: rec, gone: true, at: time.Now()}
	delete(o.last, rec.Name)
}

// deleting says that this process is about to delete a slice, or with false
// that it did not come to that.
func (o *ownWrites) deleting(rec *record, is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if is {
		o.deleted[rec.UID] = true
	} else {
		delete(o.deleted, rec.UID)
	}
}

// knows reports whether a slice that the watch delivered is no news: this
// process wrote it, or has written it since.
func (o *ownWrites) knows(rec *record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.last[rec.Name]
	return ok && !newer(rec.ResourceVersion, last.resourceVersion)
}

// knowsDeleted is knows for a slice that is gone; it is forgotten.
func (o *ownWrites) knowsDeleted(rec *record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	own := o.deleted[rec.UID]
	delete(o.deleted, rec.UID)
	if p, ok := o.pending[rec.Name]; ok && p.rec.hasUID(rec.UID) {
		delete(o.pending, rec.Name) // no write brings it back
	}
	if last, ok := o.last[rec.Name]; ok && newer(rec.ResourceVersion, last.resourceVersion) {
		delete(o.last, rec.Name)
	}
	return own
}

// keep says that slices are wanted, and reports whether this process was about
// to delete one of them: a delete that got no answer may still be carried out,
// and is then as unwelcome as one by somebody else.
func (o *ownWrites) keep(pages []*page) (doomed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.deleted) == 0 {
		return false
	}
	for _, p := range pages {
		if p.rec != nil && o.deleted[p.rec.UID] {
			delete(o.deleted, p.rec.UID)
			doomed = true
		}
	}
	return doomed
}

// writtenWithin reports whether this process wrote the slice so lately that an
// authorizer which follows a watch of its own may not know it yet.
func (o *ownWrites) writtenWithin(name string, d time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.last[name]
	return ok && time.Since(last.at) < d
}

// apply corrects what stores have of a pool by the own writes that they don't
// have; seen tells at which resource version the one was that has a slice, and
// "" where that isn't known. It reads them under its own lock: an own delete
// that a store delivers meanwhile must not be forgotten before what was read
// without it is corrected.
func (o *ownWrites) apply(id PoolID, read func() (stored []*record, seen func(*record) string)) []*record {
	o.mu.Lock()
	defer o.mu.Unlock()
	stored, seen := read()
	index := make(map[string]int, len(stored))
	for i, rec := range stored {
		index[rec.Name] = i
	}
	live := stored
	for name, p := range o.pending {
		if p.rec.id != id {
			continue
		}
		i, there := index[name]
		if o.settled(p, seen(p.rec), there, func() *record { return stored[i] }) {
			delete(o.pending, name)
			continue
		}
		switch {
		case p.gone && there && stored[i].hasUID(p.rec.UID):
			live[i] = nil
		case p.gone:
		case there && newer(stored[i].ResourceVersion, p.rec.ResourceVersion):
		case there:
			live[i] = p.rec
		default:
			live = append(live, p.rec)
		}
	}
	kept := live[:0]
	for _, rec := range live {
		if rec != nil {
			kept = append(kept, rec)
		}
	}
	return kept
}

// settled reports whether the store has what was written, or something newer.
func (o *ownWrites) settled(p ownWrite, seen string, there bool, stored func() *record) bool {
	if p.gone && there && stored().hasUID(p.rec.UID) {
		return false
	}
	if seen != "" {
		return !newer(p.rec.ResourceVersion, seen)
	}
	if !p.gone && there && !newer(p.rec.ResourceVersion, stored().ResourceVersion) {
		return true
	}
	return time.Since(p.at) > trustAfter
}

// newer reports whether resource version a is later than b. Where they can't
// be compared it is held to be so: then both are looked at.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || order > 0
}
