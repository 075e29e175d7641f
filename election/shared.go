// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// A SharedWatch is one watch of all Leases of a namespace, for the candidates of a process
// that stands in many elections. Pass it to them as Config.Watch. Make it with
// [NewSharedWatch]. It may be used concurrently.
//
// The watch begins with the first candidate that needs it, and ends with the last. It needs
// the permission to watch the Leases of the namespace without names. If that is refused,
// each candidate watches its own Lease, and the SharedWatch tries again after ten minutes.
// A candidate whose hooks hang does not delay the others: it reads its Lease afterwards.
type SharedWatch struct {
	leases    coordinationv1client.LeaseInterface
	namespace string

	mu      sync.Mutex
	feed    *feed     // nil if no candidate needs one
	refused time.Time // until then each candidate watches its own Lease
}

// NewSharedWatch returns a SharedWatch of the Leases of a namespace. It sends no request. The
// client is that of Config.Client, or another one; it must not be nil.
func NewSharedWatch(client coordinationv1client.LeasesGetter, namespace string) (*SharedWatch, error) {
	problems := lifecycle.Required("client", !lifecycle.IsNil(client), "for example clientset.CoordinationV1()")
	problems = append(problems, lifecycle.Required("namespace", namespace != "", "the one of the Leases")...)
	if err := lifecycle.InvalidConfig("election", problems); err != nil {
		return nil, err
	}
	return &SharedWatch{leases: client.Leases(namespace), namespace: namespace}, nil
}

const (
	// refusedFor is the time for which candidates watch their own Leases after the watch of
	// the namespace was refused.
	refusedFor = 10 * time.Minute
	// unread is the number of events of its Lease that may wait for a candidate. One that has
	// more to read has lost its place.
	unread = 8
	// buriedFor is the least time for which a deleted Lease is remembered. A candidate joins
	// with the answer to a read, which is not as old.
	buriedFor = time.Minute
)

// errBehind is the end of the watch of a candidate that does not read its events, or that
// must begin again. Like a version that is too old, it makes the candidate read the Lease.
var errBehind error = apierrors.NewResourceExpired("the candidate has lost its place in the watch")

// feed is the watch of the namespace while candidates need it. SharedWatch.mu guards it.
//
// Invariant: a reader that was told nothing has missed nothing since its version.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when its goroutine ends

	readers map[string][]*reader // by the name of the Lease
	// latest has what the watch has shown of each Lease since it began without a version.
	latest map[string]shown
	swept  time.Time // when latest was last searched for Leases that were deleted
	up     bool      // a stream has begun
	opened time.Time // when a stream began without a version
}

// shown is the last event of a Lease.
type shown struct {
	lease   *coordinationv1.Lease // never modified
	deleted time.Time             // zero if it exists
}

// reader is a candidate that follows a Lease.
type reader struct {
	name   string
	from   string // the version that it knows, "" for none
	sights chan *sight[*coordinationv1.Lease]
	// unsure means that the watch has shown nothing of the Lease yet, so its first event may
	// stand for several.
	unsure bool
}

// join lets a candidate follow a Lease from a version, "" for its present state. afresh
// says that the watch is silent although the Lease has changed. The channel has the events
// that follow, and is closed if the candidate does not read them. leave ends that, and
// returns a channel to wait for if the candidate was the last. Both are nil if each candidate
// must watch its own Lease.
func (w *SharedWatch) join(ctx context.Context, name, from string, afresh bool) (sights <-chan *sight[*coordinationv1.Lease], leave func() <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.refused) {
		return nil, nil
	}
	if w.feed != nil && afresh && w.feed.up && time.Since(w.feed.opened) > longStream {
		w.end(w.feed, errBehind)
	}
	if w.feed == nil {
		ctx, cancel := context.WithCancel(ctx)
		w.feed = &feed{cancel: cancel, done: make(chan struct{}), readers: map[string][]*reader{}, latest: map[string]shown{}}
		go w.run(ctx, w.feed)
	}
	f, r := w.feed, &reader{name: name, from: from, sights: make(chan *sight[*coordinationv1.Lease], unread)}
	f.readers[name] = append(f.readers[name], r)
	f.welcome(r)
	return r.sights, func() <-chan struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		if f.drop(r); len(f.readers) > 0 {
			return nil
		}
		w.end(f, nil)
		return f.done
	}
}

// end ends the watches of all candidates. w.mu must be held.
func (w *SharedWatch) end(f *feed, err error) {
	for _, readers := range f.readers {
		for _, r := range readers {
			f.send(r, &sight[*coordinationv1.Lease]{ended: true, err: err})
		}
	}
	clear(f.readers)
	f.cancel()
	if w.feed == f {
		w.feed = nil
	}
}

// welcome tells a reader how what it knows relates to what the watch has shown.
func (f *feed) welcome(r *reader) {
	known, ok := f.latest[r.name]
	switch {
	case !f.up: // see begin
	case r.from == "":
		f.blind(r)
		if ok && known.deleted.IsZero() {
			f.show(r, known)
		}
	case !ok:
		r.unsure = true
	case !reaches(r.from, known.lease):
		f.blind(r) // more than one event may lie between
		f.show(r, known)
	}
}

// reaches reports whether a version is that of the Lease, or known to be newer.
func reaches(version string, lease *coordinationv1.Lease) bool {
	return version == lease.ResourceVersion || spec.Older(lease.ResourceVersion, version)
}

// begin updates f after a stream began, without a version if blind.
func (f *feed) begin(blind bool) {
	if !blind {
		return
	}
	f.up, f.opened = true, time.Now()
	for _, readers := range f.readers {
		for _, r := range readers {
			f.welcome(r)
		}
	}
}

// observe passes an event to the readers of its Lease.
func (f *feed) observe(lease *coordinationv1.Lease, deleted bool) {
	s := shown{lease: lease}
	if deleted {
		s.deleted = time.Now()
		f.sweep(s.deleted)
	}
	f.latest[lease.Name] = s
	for _, r := range f.readers[lease.Name] {
		if r.unsure && !reaches(r.from, lease) {
			f.blind(r)
		}
		r.unsure = false
		f.show(r, s)
	}
}

// sweep drops the Leases that were deleted a while ago. It looks at all Leases of the
// namespace, so it does not do so at each deletion.
func (f *feed) sweep(now time.Time) {
	if now.Sub(f.swept) <= buriedFor {
		return
	}
	f.swept = now
	maps.DeleteFunc(f.latest, func(_ string, old shown) bool { return !old.deleted.IsZero() && now.Sub(old.deleted) > buriedFor })
}

// blind tells a reader that its next event may stand for several.
func (f *feed) blind(r *reader) { f.send(r, &sight[*coordinationv1.Lease]{began: true}) }

func (f *feed) show(r *reader, s shown) {
	f.send(r, &sight[*coordinationv1.Lease]{object: s.lease, deleted: !s.deleted.IsZero()})
}

// all passes a sight that is about no Lease to all readers.
func (f *feed) all(s *sight[*coordinationv1.Lease]) {
	for _, readers := range f.readers {
		for _, r := range readers {
			f.send(r, s)
		}
	}
}

// send delivers a sight, or ends the watch of a reader that has too many to read.
func (f *feed) send(r *reader, s *sight[*coordinationv1.Lease]) {
	select {
	case r.sights <- s:
	default:
		if f.drop(r) {
			close(r.sights)
		}
	}
}

// drop removes a reader, also while readers is iterated. It reports whether it was one.
func (f *feed) drop(r *reader) bool {
	before := f.readers[r.name]
	after := slices.DeleteFunc(slices.Clone(before), func(other *reader) bool { return other == r })
	if f.readers[r.name] = after; len(after) == 0 {
		delete(f.readers, r.name)
	}
	return len(after) < len(before)
}

// run watches the namespace until ctx is done, or the watch is refused or has lost its place.
func (w *SharedWatch) run(ctx context.Context, f *feed) {
	defer close(f.done)
	version, broken := "", 0
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		opened := time.Now()
		var err error
		version, err = follow(ctx, w.leases.Watch, DefaultCallTimeout, "", version, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			f.begin(version == "")
		}, func(kind watch.EventType, lease *coordinationv1.Lease) {
			w.mu.Lock()
			defer w.mu.Unlock()
			switch {
			case ctx.Err() != nil:
			case kind == watch.Bookmark:
				f.all(&sight[*coordinationv1.Lease]{})
			default:
				f.observe(lease, kind == watch.Deleted)
			}
		})
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err):
			klog.FromContext(ctx).Error(err, "The watch of all Leases is refused: each candidate watches its own", "namespace", w.namespace)
			w.mu.Lock()
			w.refused = time.Now().Add(refusedFor)
			w.end(f, nil)
			w.mu.Unlock()
			return
		case apierr.Classify(err) == apierr.Gone:
			w.mu.Lock()
			w.end(f, err)
			w.mu.Unlock()
			return
		case err == nil && time.Since(opened) > longStream:
			pause, broken = 0, 0 // the API server ends every stream after some minutes
		default:
			broken++
			pause = spec.Retry(broken, machine.StandbyRetry, rand.Float64(), apierr.RetryAfter(err))
			if err != nil {
				w.mu.Lock()
				f.all(&sight[*coordinationv1.Lease]{broken: true, err: err})
				w.mu.Unlock()
			}
		}
	}
}
