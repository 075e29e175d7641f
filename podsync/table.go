// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
)

// An instant is a time since the controller was made.
type instant = core.Instant

// The queues in which pods wait for a free place.
const (
	queueAdmit = iota
	queueStart // Start, Update and Inspect
	queueStop  // Stop and Release, which a flood of hanging starts must not block
	queueUrgent
	queueWrite
	queueRetry // retries go last: the failure may concern one object only
	queueCount
)

// An entry is a pod in the table: its state, and what the drivers keep of it.
//
// Invariant: dirty means that the entry is in table.dirty, queued[q] that it is in queue q of
// the caller or the writer.
// Invariant: cancelCall and cancelWrite are set while a call or request is under way, and only
// then.
type entry struct {
	core.State
	ref  Ref
	next *entry // the next pod of the same namespace and name

	stage       core.Stage // as last published
	blocking    bool       // as last published to the pods of its name
	dirty       bool
	queued      [queueCount]bool
	reported    bool // it was reported that the orphan is kept
	illegalTold bool // an illegal step was reported
	listNo      uint32
	slot        queue.Slot // in table.wakes

	cancelCall, cancelWrite context.CancelFunc

	callErrs, apiErrs apierr.Member
	warned            string // the last event
	problems          string // the invalid fields that were last logged
}

// Slot implements queue.Slotted.
func (t *entry) Slot() *queue.Slot { return &t.slot }

// A runState is what Run gives to the drivers.
type runState struct {
	calls     sync.WaitGroup  // calls and requests
	callCtx   context.Context // of calls of the provider
	apiCtx    context.Context // of requests; outlives callCtx to store final statuses
	cancelAPI context.CancelFunc
}

// A table has all pods. Its lock guards them, and the state of the drivers that their comments
// name. No callback is called with the lock.
type table struct {
	rules   core.Rules
	epoch   time.Time // the instant 0
	handler report.Handler
	run     *runState

	kick   chan struct{} // something is dirty
	relist chan struct{} // List is wanted now
	verify chan struct{} // suspects are due

	mu       sync.Mutex
	seq      uint64 // orders calls, reports and lists
	listNo   uint32
	pods     map[types.UID]*entry
	names    map[types.NamespacedName]*entry // heads of chains
	dirty    []*entry
	wakes    queue.Heap[*entry]
	effects  []func()
	synced   bool // the first List was reconciled
	draining bool // Run's context is done
	closed   bool // Run has returned
}

// now returns the present instant.
func (b *table) now() instant { return time.Since(b.epoch) }

// moment returns the present moment.
func (b *table) moment() core.Moment {
	now := time.Now()
	return core.Moment{Since: now.Sub(b.epoch), Wall: now.Round(0)}
}

// tick returns the next number in the order of events.
func (b *table) tick() uint64 {
	b.seq++
	return b.seq
}

// apply applies an event to a pod. An illegal step is reported once.
func (b *table) apply(t *entry, at core.Moment, event core.Event) core.News {
	news, err := t.Apply(at, event)
	if err != nil && !t.illegalTold {
		t.illegalTold = true
		err = explain("follow", t.ref, err)
		b.later(func() { report.Tell(b.run.callCtx, b.handler, err, "A pod took an illegal step: please report it") })
	}
	if news.Abort {
		b.abort(t, core.Calls)
		b.abort(t, core.Writes)
	}
	if news.Relist {
		wake(b.relist)
	}
	return news
}

// abort cancels the call or request of a lane that is under way.
func (b *table) abort(t *entry, lane core.Lane) {
	cancel := t.cancelCall
	if lane == core.Writes {
		cancel = t.cancelWrite
	}
	if cancel != nil {
		cancel()
	}
}

// markDirty makes the loop reconcile t.
func (b *table) markDirty(t *entry) {
	if !t.dirty {
		t.dirty = true
		b.dirty = append(b.dirty, t)
	}
}

// later makes the loop call f without the lock.
func (b *table) later(f func()) { b.effects = append(b.effects, f) }

// keyOf returns the key in table.pods. The key of an instance without a UID is
// its name, which looks like no UID.
func keyOf(ref Ref) types.UID {
	if ref.UID != "" {
		return ref.UID
	}
	return types.UID(ref.Namespace + "/" + ref.Name)
}

func nameOf(ref Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// add adds a pod.
func (b *table) add(ref Ref, state core.State) *entry {
	t := &entry{State: state, ref: ref}
	b.pods[keyOf(ref)] = t
	name := nameOf(ref)
	t.next = b.names[name]
	b.names[name] = t
	return t
}

// remove removes a pod.
func (b *table) remove(t *entry) {
	b.wakes.Set(t, core.Never)
	delete(b.pods, keyOf(t.ref))
	name := nameOf(t.ref)
	if head := b.names[name]; head == t {
		if t.next == nil {
			delete(b.names, name)
		} else {
			b.names[name] = t.next
		}
	} else {
		for ; head != nil; head = head.next {
			if head.next == t {
				head.next = t.next
				break
			}
		}
	}
	t.next = nil
}

// has reports whether t is in the table.
func (b *table) has(t *entry) bool { return b.pods[keyOf(t.ref)] == t }

// find returns the pod of a ref; if the ref has no UID, the only pod of its
// name.
func (b *table) find(ref Ref) *entry {
	if ref.UID != "" {
		return b.pods[ref.UID]
	}
	if t := b.pods[keyOf(ref)]; t != nil {
		return t
	}
	t := b.names[nameOf(ref)]
	if t == nil || t.next != nil {
		return nil
	}
	return t
}

// nameFree reports whether no other pod of the same name blocks t.
func (b *table) nameFree(t *entry) bool {
	for other := b.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.Blocks() {
			return false
		}
	}
	return true
}

// counts reports whether t is one of the pods that the provider is known to hold. One that ends and
// that the last List left out is held only because that may be a mistake: it proves nothing.
func (b *table) counts(t *entry) bool {
	_, ending := t.Ending()
	return t.Held() && (!ending || t.listNo == b.listNo)
}

// waiters yields the pods that wait for the name of the orphan t.
func (b *table) waiters(t *entry) func(yield func(*entry) bool) {
	return func(yield func(*entry) bool) {
		if !t.Blocks() {
			return
		}
		for other := b.names[nameOf(t.ref)]; other != nil; other = other.next {
			if _, ends := other.Ending(); other != t && other.Seen() && !ends && !other.Held() && !yield(other) {
				return
			}
		}
	}
}

// retry ends the backoff of a lane of the pods that pick chooses.
func (b *table) retry(lane core.Lane, at core.Moment, pick func(*entry) bool) {
	for _, t := range b.pods {
		if n, _ := t.Failures(lane); n > 0 && pick(t) {
			b.apply(t, at, core.RetryNow{Lane: lane})
			b.markDirty(t)
		}
	}
}

// wake wakes the goroutine that receives from ch.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// isDone reports whether ch is closed.
func isDone(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// sleep waits, at most until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
