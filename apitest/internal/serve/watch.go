// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// watchTimeout ends a watch whose client gave no timeoutSeconds. The real
// server picks a random time from half an hour to an hour.
const watchTimeout = 30 * time.Minute

// bookmarkInterval is the time between bookmarks on a watch that allows them.
const bookmarkInterval = time.Minute

// ShortWatch is in Request.Fault of a watch that ended after its first event.
const ShortWatch = "ShortenWatches"

// frame is one event for one client.
type frame struct {
	typ    watch.EventType
	at     time.Time      // when it happened, for LagWatches
	item   *store.Item    // nil for bookmarks and errors
	rv     uint64         // of a bookmark
	initEd bool           // a bookmark that ends the initial events
	status *metav1.Status // of an error
}

// revision returns the resourceVersion up to which the client knows the objects when it
// has read f, or 0 for an error.
func (f *frame) revision() uint64 {
	if f.item != nil {
		return f.item.RV
	}
	return f.rv
}

// watcher is the body of a watch response. It has no goroutine: events are
// queued by writers, and encoded by the goroutine that reads the body.
type watcher struct {
	c         *Call
	sel       *selector
	after     uint64 // events up to this resourceVersion are not for this client
	bookmarks bool
	timeout   *time.Timer

	wake chan struct{} // has a token when there may be something new
	next time.Time     // when the next bookmark is due; used by the reader only
	rest []byte        // encoded and not yet read; used by the reader only

	mu    sync.Mutex
	queue []frame
	held  int // frames at the head of queue that have been counted in Request.Held
	ended bool
	err   error // the result of Read when the queue is empty
}

func (c *Call) watch() (*Answer, error) {
	sel, err := c.selector()
	if err != nil {
		return nil, err
	}
	opts, err := c.listOptions(c.s.gate("WatchList") && !c.s.watches.of(c.r).NoLists)
	if err != nil {
		return nil, err
	}
	from, err := strconv.ParseUint(cmp.Or(opts.ResourceVersion, "0"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("resourceVersion: Invalid value: %q: %w", opts.ResourceVersion, err)
	}
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		if err := c.waitFresh(cmp.Or(opts.ResourceVersion, c.s.Store.Newest())); err != nil {
			return nil, err
		}
	}
	d := watchTimeout
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		d = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	w := &watcher{
		c: c, sel: sel, after: from,
		bookmarks: opts.AllowWatchBookmarks,
		timeout:   time.NewTimer(d),
		wake:      make(chan struct{}, 1),
		next:      time.Now().Add(bookmarkInterval),
	}
	w.start(opts.SendInitialEvents, from)
	contentType := c.accept.Name
	if c.accept.Proto {
		contentType += ";stream=watch"
	}
	return &Answer{Code: http.StatusOK, ContentType: contentType, Stream: w}, nil
}

// start queues past events and subscribes w to later ones. It locks the store, so
// that there is no gap.
func (w *watcher) start(sendInitial *bool, from uint64) {
	rule := w.c.s.watches.of(w.c.r)
	st := w.c.s.Store
	st.Lock()
	defer st.Unlock()
	t := w.c.table()
	now := time.Now()
	switch {
	case sendInitial != nil && *sendInitial, sendInitial == nil && from == 0:
		w.after = min(st.RV, rule.Until)
		for _, it := range t.SortedAt(w.after, w.sel.namespace) {
			if w.sel.matches(it.Obj) {
				w.queue = append(w.queue, frame{typ: watch.Added, item: it, at: now})
			}
		}
		if sendInitial != nil && w.bookmarks {
			w.queue = append(w.queue, frame{typ: watch.Bookmark, rv: w.after, initEd: true, at: now})
		}
		if evs, ok := t.Since(w.after); ok {
			for _, ev := range evs {
				w.Offer(ev)
			}
		}
	case from == 0:
		w.after = st.RV
	default:
		evs, ok := t.Since(from)
		if !ok {
			w.queue = append(w.queue, expired(from, t.Forgotten))
			w.ended, w.err = true, io.EOF
			return
		}
		for _, ev := range evs {
			w.Offer(ev)
		}
	}
	t.Watchers[w] = struct{}{}
}

func expired(rv, oldest uint64) frame {
	e := apierrors.NewResourceExpired("too old resource version: " + store.FormatRV(rv) + " (" + store.FormatRV(oldest) + ")")
	return frame{typ: watch.Error, status: &e.ErrStatus}
}

// Offer queues an event if w selects it. The store must be locked.
func (w *watcher) Offer(ev store.Event) {
	if ev.RV <= w.after {
		return
	}
	f := frame{at: ev.At, item: ev.Cur}
	now := ev.Typ != watch.Deleted && w.sel.matches(ev.Cur.Obj)
	was := ev.Prev != nil && w.sel.matches(ev.Prev.Obj)
	switch {
	case now && was:
		f.typ = watch.Modified
	case now:
		f.typ = watch.Added
	case was:
		f.typ = watch.Deleted
		if ev.Typ != watch.Deleted {
			// It left the selection: the client gets its last matching
			// state, with the resourceVersion of the change.
			obj := codec.Shallow(ev.Prev.Obj)
			codec.MetaOf(obj).SetResourceVersion(store.FormatRV(ev.RV))
			f.item = store.NewItem(obj, ev.RV)
		}
	default:
		return
	}
	w.push(f)
}

func (w *watcher) push(f frame) {
	w.mu.Lock()
	if !w.ended {
		w.queue = append(w.queue, f)
	}
	w.mu.Unlock()
	w.poke()
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Read implements io.Reader for the response body.
func (w *watcher) Read(p []byte) (int, error) {
	for len(w.rest) == 0 {
		resumed := w.c.s.watches.resumed()
		f, wait, err := w.take()
		if err != nil {
			w.end(err)
			return 0, err
		}
		if f != nil {
			w.rest = w.encode(*f)
			continue
		}
		if err := w.wait(wait, resumed); err != nil {
			w.end(err)
			return 0, err
		}
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// take returns the next frame if it is due, or the time until it is due. 0 means
// that no frame is queued.
func (w *watcher) take() (*frame, time.Duration, error) {
	if err := w.c.ctx.Err(); err != nil {
		return nil, 0, err
	}
	rule := w.c.s.watches.of(w.c.r)
	held, fault := 0, ""
	w.mu.Lock()
	defer func() {
		w.mu.Unlock()
		if held > 0 || fault != "" {
			w.c.s.Journal.Update(w.c.r, func(r *request.Request) { r.Held, r.Fault = r.Held+held, cmp.Or(fault, r.Fault) })
		}
	}()
	if rule.Stalled || len(w.queue) > 0 && w.queue[0].revision() > rule.Until {
		held = w.hold()
		if w.ended && w.err != io.EOF {
			return nil, 0, w.err
		}
		return nil, 0, nil
	}
	if len(w.queue) == 0 {
		if w.ended {
			return nil, 0, w.err
		}
		return nil, 0, nil
	}
	f := w.queue[0]
	if due := time.Until(f.at.Add(rule.Lag)); rule.Lag > 0 && due > 0 {
		held = w.hold()
		return nil, due, nil
	}
	w.queue[0] = frame{}
	w.queue = w.queue[1:]
	w.held = max(0, w.held-1)
	if rule.Short && f.item != nil && f.item.RV > w.after && !w.ended { // the initial events are not later
		w.queue, w.held, w.ended, w.err, fault = nil, 0, true, io.EOF, ShortWatch
	}
	return &f, 0, nil
}

// hold returns how many changes are held back that have not been counted. w.mu must be
// held.
func (w *watcher) hold() (changes int) {
	for _, f := range w.queue[w.held:] {
		if f.item != nil {
			changes++
		}
	}
	w.held = len(w.queue)
	return changes
}

// wait blocks for d, or until w.wake, resumed, the timeout or the context end it. It
// queues a bookmark that becomes due.
func (w *watcher) wait(d time.Duration, resumed <-chan struct{}) error {
	var due <-chan time.Time
	bookmark := false
	if d == 0 && w.bookmarks {
		d, bookmark = max(time.Until(w.next), 1), true
	}
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-w.wake:
	case <-resumed:
	case <-due:
		if bookmark {
			w.next = w.next.Add(bookmarkInterval)
			w.bookmark()
		}
	case <-w.timeout.C:
		return io.EOF
	case <-w.c.ctx.Done():
		return w.c.ctx.Err()
	}
	return nil
}

// bookmark queues a bookmark if the queue is empty. A watch that began at a version that the
// server has not reached gets none, as from a real server.
func (w *watcher) bookmark() {
	rule := w.c.s.watches.of(w.c.r)
	if rule.Stalled {
		return
	}
	st := w.c.s.Store
	st.Lock()
	defer st.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if rv := min(st.RV, rule.Until); len(w.queue) == 0 && !w.ended && rv >= w.after {
		w.queue = append(w.queue, frame{typ: watch.Bookmark, rv: rv})
	}
}

// Close implements io.Closer for the response body.
func (w *watcher) Close() error {
	w.end(context.Canceled)
	return nil
}

// end closes the stream. Read returns the queued events and then err.
func (w *watcher) end(err error) {
	w.mu.Lock()
	already := w.ended
	if !already {
		w.ended, w.err = true, err
	}
	w.mu.Unlock()
	st := w.c.s.Store
	st.Lock()
	delete(w.c.table().Watchers, w)
	st.Unlock()
	w.timeout.Stop()
	w.c.s.Journal.Update(w.c.r, func(r *request.Request) {
		if !r.Done {
			r.Done, r.Duration = true, time.Since(r.Time)
		}
	})
	w.poke()
}

// encode returns the bytes of a frame: a line of JSON, or a protobuf message after
// its length.
func (w *watcher) encode(f frame) []byte {
	c := w.c
	var object []byte
	switch {
	case f.item != nil:
		object = f.item.Encoded(c.kind, c.view, c.accept)
	case f.status != nil:
		object = encodeStatus(c.accept.Media, *f.status)
	default:
		object = c.accept.Bytes(c.bookmarkObject(f))
	}
	if !c.accept.Proto {
		b := make([]byte, 0, len(object)+len(f.typ)+24)
		b = append(b, `{"type":"`...)
		b = append(b, f.typ...)
		b = append(b, `","object":`...)
		if n := len(object); n > 0 && object[n-1] == '\n' {
			object = object[:n-1]
		}
		b = append(b, object...)
		return append(b, '}', '\n')
	}
	ev := metav1.WatchEvent{Type: string(f.typ), Object: runtime.RawExtension{Raw: object}}
	b := make([]byte, 4+ev.Size())
	n, err := ev.MarshalToSizedBuffer(b[4:])
	if err != nil {
		panic("apitest: " + err.Error())
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	return b[:4+n]
}

// bookmarkObject returns an object of the watched kind with only a
// resourceVersion.
func (c *Call) bookmarkObject(f frame) runtime.Object {
	obj := c.kind.Zero(c.view)
	if c.accept.Partial {
		obj = &metav1.PartialObjectMetadata{}
		obj.GetObjectKind().SetGroupVersionKind(codec.MetaV1.WithKind("PartialObjectMetadata"))
	}
	m := codec.MetaOf(obj)
	m.SetResourceVersion(store.FormatRV(f.rv))
	if f.initEd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return obj
}

// AddRule applies a rule until remove is called.
func (s *Server) AddRule(rule *Rule) (remove func()) {
	ws := &s.watches
	ws.mu.Lock()
	ws.list = append(ws.list, rule)
	ws.mu.Unlock()
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		ws.list = slices.DeleteFunc(ws.list, func(r *Rule) bool { return r == rule })
		if ws.changed != nil {
			close(ws.changed)
			ws.changed = nil
		}
	}
}

// watchers returns the open watches that m matches.
func (s *Server) watchers(m request.Match) []*watcher {
	s.Store.Lock()
	var ws []*watcher
	for _, t := range s.Store.Tables {
		for w := range t.Watchers {
			ws = append(ws, w.(*watcher))
		}
	}
	s.Store.Unlock()
	return slices.DeleteFunc(ws, func(w *watcher) bool { return !m.Matches(w.c.r) })
}

// EndWatches ends the watches that match with err, after their queued events, and
// returns their number.
func (s *Server) EndWatches(m request.Match, err error) int {
	ws := s.watchers(m)
	for _, w := range ws {
		w.end(err)
	}
	return len(ws)
}

// ExpireWatches sends an ERROR event with status 410 to the watches that match,
// ends them, and returns their number.
func (s *Server) ExpireWatches(m request.Match) int {
	ws := s.watchers(m)
	for _, w := range ws {
		w.push(expired(w.after, w.after+1))
		w.end(io.EOF)
	}
	return len(ws)
}

// Compact forgets all history.
func (s *Server) Compact() {
	s.Store.Lock()
	defer s.Store.Unlock()
	rv := s.Store.Next()
	s.Store.Forgot = rv
	for _, t := range s.Store.Tables {
		t.Forget(rv)
	}
}
