// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// earlyFor is the time that a report waits for its pod to be seen.
const earlyFor = 5 * time.Minute

// maxEarly is the number of reports that wait for their pods. It bounds the memory that a
// provider with unknown UIDs costs while List hangs.
const maxEarly = 10_000

// early is a report of a pod that was not seen yet.
type early struct {
	ref   Ref
	event core.Reported
	at    instant
}

// reports take what the provider says of pods. The lock of the table guards early
// and repeated.
type reports struct {
	pods     *table
	gates    *gates
	observer *observer
	prints   *fingerprints
	early    map[types.UID]early // by keyOf
	repeated core.Repeated       // the event that is being applied
}

// report returns the core's copy of a state, which shares the memory of st.
func (st *State) report() *core.Report {
	return &core.Report{Stopped: st.Stopped, Generation: st.Generation, Status: st.Status, Annotations: st.Annotations, Delete: st.Delete}
}

// take takes a report that did not come by List.
func (r *reports) take(st State) {
	fp := r.prints.of(&st)
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	if r.pods.closed {
		return
	}
	t, seq := r.pods.find(st.Ref), r.pods.tick()
	switch {
	case t == nil && (st.UID != "" || r.pods.names[nameOf(st.Ref)] == nil):
		key := keyOf(st.Ref)
		if _, known := r.early[key]; known || len(r.early) < maxEarly {
			own := st.private()
			r.early[key] = early{st.Ref, core.Reported{Seq: seq, Report: own.report(), FP: fp}, r.pods.now()}
			return
		}
		r.observer.dropped(st.Ref, DroppedUnknown, nil)
	case st.UID == "" && (t == nil || !t.MayBe(seq)):
		r.observer.dropped(st.Ref, DroppedAmbiguous, nil)
	default:
		if !r.apply(t, r.pods.moment(), &st, fp, seq, false) {
			return
		}
	}
	wake(r.pods.kick)
}

// apply applies a report to its pod. seq is the time of the report, or of the beginning of
// the List that has it. It reports whether the report has news. The lock of the table must be
// held.
func (r *reports) apply(t *entry, at core.Moment, st *State, fp, seq uint64, fromList bool) bool {
	if t.Repeats(fp, st.Stopped) {
		r.repeated = core.Repeated{Seq: seq, FromList: fromList, NodeName: nodeIf(fromList, st)}
		if !r.pods.apply(t, at, &r.repeated).Changed {
			return false
		}
		r.pods.markDirty(t)
		return true
	}
	// A report that is not stored yet is kept. It must not keep the whole List.
	own := st.private()
	before := r.observer.before(t)
	news := r.pods.apply(t, at, core.Reported{
		Seq: seq, FromList: fromList, Report: own.report(), FP: fp, NodeName: nodeIf(fromList, st),
		Joined: r.pods.synced && r.gates.mayAct(t),
	})
	if news.Dropped != "" {
		r.observer.dropped(t.ref, news.Dropped, nil)
	}
	r.observer.starts(t, before)
	r.pods.markDirty(t)
	return true
}

// nodeIf returns the node of a state that List has returned.
func nodeIf(fromList bool, st *State) string {
	if fromList {
		return st.NodeName
	}
	return ""
}

// join applies the report that came before its pod was added to the table. One without a UID
// is of an earlier pod of the name unless t had started. The lock of the table must be held.
func (r *reports) join(t *entry, at core.Moment) {
	if len(r.early) == 0 {
		return
	}
	for _, key := range [...]types.UID{keyOf(Ref{Namespace: t.ref.Namespace, Name: t.ref.Name}), t.ref.UID} {
		e, ok := r.early[key]
		if !ok {
			continue
		}
		delete(r.early, key)
		if e.ref.UID == "" && !t.MayBe(e.event.Seq) {
			r.observer.dropped(e.ref, DroppedAmbiguous, nil)
			continue
		}
		r.pods.apply(t, at, e.event)
	}
}

// keep keeps the last report of an instance that the provider has forgotten before its pod was
// seen: nothing else remembers its exit codes. The lock of the table must be held.
func (r *reports) keep(t *entry) {
	if last, fp := t.Unclaimed(); last != nil && len(r.early) < maxEarly {
		r.early[keyOf(t.ref)] = early{t.ref, core.Reported{Seq: r.pods.tick(), Report: last, FP: fp}, r.pods.now()}
	}
}

// expire drops the reports of pods that did not appear in time. The lock of the table must
// be held.
func (r *reports) expire(now instant) {
	for key, e := range r.early {
		if now-e.at > earlyFor {
			delete(r.early, key)
			r.observer.dropped(e.ref, DroppedUnknown, nil)
		}
	}
}

// fingerprints detect reports without news. A fingerprint takes eight bytes instead of
// the last report, and computing it does not allocate. Two different reports have the
// same fingerprint once in 2^64 cases.
type fingerprints struct {
	seed    maphash.Seed
	buffers sync.Pool // of *[]byte
}

func newFingerprints() *fingerprints {
	return &fingerprints{seed: maphash.MakeSeed(), buffers: sync.Pool{New: func() any { return new([]byte) }}}
}

// of returns the fingerprint of a state. It is never 0.
func (f *fingerprints) of(st *State) uint64 {
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	size := st.Status.Size()
	if cap(*buffer) < size {
		*buffer = make([]byte, 0, 2*size)
	}
	b := (*buffer)[:size]
	// The encoding is the API's own, with maps in order of their keys.
	n, err := st.Status.MarshalToSizedBuffer(b)
	if err != nil {
		n = 0 // can't happen: the buffer has the size asked for
	}
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.Write(b[size-n:])
	// The encoding does not tell a nil list of conditions from an empty one, and
	// an empty one takes conditions off the pod.
	tail := [9]byte{0: bit(st.Stopped) | bit(st.Status.Conditions != nil)<<1 | bit(st.Delete)<<2}
	for i := range 8 {
		tail[1+i] = byte(st.Generation >> (8 * i))
	}
	_, _ = h.Write(tail[:])
	if len(st.Annotations) > 0 { // else nothing is allocated
		for _, key := range slices.Sorted(maps.Keys(st.Annotations)) {
			_, _ = h.WriteString(key + "=" + st.Annotations[key] + "\n")
		}
	}
	return h.Sum64() | 1
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
