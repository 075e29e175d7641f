// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// listTimeout is the deadline of a list, which may be long.
const listTimeout = 2 * time.Minute

// watchBackoff is for lists and watches that fail or end.
var watchBackoff = backoff.Policy{Base: time.Second, Cap: 30 * time.Second}

// scope is one watch: the slices of a node, or those of a driver or of one pool
// that belong to no node.
type scope struct {
	nodeName string
	driver   string // empty: all
	pool     string // empty: all
}

func (s scope) selector() string {
	set := fields.Set{resourcev1.ResourceSliceSelectorNodeName: s.nodeName}
	if s.driver != "" {
		set[resourcev1.ResourceSliceSelectorDriver] = s.driver
	}
	if s.pool != "" {
		set[resourcev1.ResourceSliceSelectorPoolName] = s.pool
	}
	return set.AsSelector().String()
}

func (s scope) covers(rec *record) bool {
	return s.nodeName == rec.nodeName && (s.driver == "" || s.driver == rec.id.Driver) && (s.pool == "" || s.pool == rec.id.Name)
}

// view has the slices in all watched scopes: of each the newest version that a
// watch or the answer to a request has brought. So nothing is written twice
// because a watch is slow.
//
// Invariants:
//   - an entry is not older than what the watches have delivered.
//   - if a mirror has delivered all events up to the resource version of an
//     entry, the entry is as the mirror delivered it.
type view struct {
	mu      sync.Mutex
	mirrors map[scope]*mirror
	slices  map[string]*entry // by name
}

type entry struct {
	rec *record
	// gone is set if this process deletes the slice, or found out that it is
	// deleted. The entry is kept until the watch knows.
	gone bool
	at   time.Time // when it was stored
}

// pool returns the slices of a pool, or false if not all mirrors have synced.
func (v *view) pool(id PoolID, scopes []scope) (records []*record, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, sc := range scopes {
		m := v.mirrors[sc]
		if m == nil || !m.synced {
			return nil, false
		}
		for _, e := range v.slices {
			if e.rec.id == id && !e.gone && sc.covers(e.rec) {
				records = append(records, e.rec)
			}
		}
	}
	return records, true
}

// all returns the slices in scopes that have synced.
func (v *view) all() (records []*record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.slices {
		if m := v.mirrorOf(e.rec); m != nil && m.synced && !e.gone {
			records = append(records, e.rec)
		}
	}
	return records
}

// has reports whether a slice in the scope is known.
func (v *view) has(sc scope) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.slices {
		if sc.covers(e.rec) {
			return true
		}
	}
	return false
}

// mirrorOf returns the mirror that delivers a slice, or nil.
func (v *view) mirrorOf(rec *record) *mirror {
	for sc, m := range v.mirrors {
		if sc.covers(rec) {
			return m
		}
	}
	return nil
}

// wrote records the answer to a write or a get.
func (v *view) wrote(rec *record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, m := v.slices[rec.Name], v.mirrorOf(rec)
	switch {
	case e == nil && m != nil && !newer(rec.ResourceVersion, m.at):
		// The watch has delivered that it was deleted since.
	case e == nil || e.gone || !newer(e.rec.ResourceVersion, rec.ResourceVersion):
		v.slices[rec.Name] = &entry{rec: rec, at: time.Now()}
	}
}

// mark records whether a slice doesn't exist or is being deleted by this process.
// gone is false if a delete failed.
func (v *view) mark(rec *record, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.slices[rec.Name]; e != nil && e.rec.UID == rec.UID {
		e.gone = gone
	}
}

// begin removes all mirrors, so that no pool is known until there are others. It
// also removes what they delivered if the API server was restored from a backup.
func (v *view) begin(restored bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mirrors = make(map[scope]*mirror); restored {
		clear(v.slices)
	}
}

// forget removes a mirror and what it delivered.
func (v *view) forget(sc scope) {
	delete(v.mirrors, sc)
	maps.DeleteFunc(v.slices, func(_ string, e *entry) bool { return sc.covers(e.rec) })
}

// deliver records a slice as the watch has it at resource version at. It
// reports whether another client has changed the slice.
func (v *view) deliver(rec *record, at string) (foreign bool) {
	e := v.slices[rec.Name]
	switch {
	case e == nil:
	case e.rec.ResourceVersion == rec.ResourceVersion || newer(e.rec.ResourceVersion, at):
		return false // an own write, or older than one
	case e.gone && e.rec.UID == rec.UID:
		e.rec = rec // the last change before the delete
		return false
	}
	v.slices[rec.Name] = &entry{rec: rec, at: time.Now()}
	return true
}

// listener learns what a mirror finds out.
type listener interface {
	// failed is called with the result of each list and of each start of a watch.
	failed(m *mirror, err error)
	// lasted reports whether a watch that started after begin has lasted for a while.
	lasted(m *mirror, begin time.Time) bool
	// synced is called when the first list, of resource version at, is in the view.
	synced(list []*record, at string)
	// onForeign is called when another client has created, changed or deleted a slice.
	onForeign(rec *record, deleted bool)
}

// mirror feeds the view with the slices of one scope. It is the store of a
// reflector, which calls its methods one after the other.
type mirror struct {
	to     listener
	view   *view
	hasher hasher
	client resourcev1client.ResourceSliceInterface
	name   string // of the controller
	scope  scope
	stop   context.CancelFunc

	started time.Time // the last start of the watch, only for the listener
	lists   bool      // the last request was a list, which a watch follows; the reflector makes one at a time

	// The lock of the view guards these.
	synced bool
	at     string // the resource version that was delivered
}

// run lists and watches until ctx is done.
func (m *mirror) run(ctx context.Context) {
	reflector := cache.NewReflectorWithOptions(listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			m.lists = true
			return m.client.List(ctx, opts)
		},
		Watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			m.lists = false
			return m.client.Watch(ctx, opts)
		},
		FieldSelector: m.scope.selector(),
		ListTimeout:   listTimeout, AnswerTimeout: callTimeout,
		Retries: watchBackoff,
		Outcome: func(_ context.Context, err error) time.Duration {
			m.to.failed(m, err)
			return 0
		},
	}), nil, m, cache.ReflectorOptions{Name: m.name, TypeDescription: "ResourceSlice"})
	for failures := 0; ctx.Err() == nil; {
		begin := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		klog.FromContext(ctx).V(4).Info("Watch of ResourceSlices ended", "selector", m.scope.selector(), "err", err)
		if failures++; m.to.lasted(m, begin) {
			failures = 1
		}
		select {
		case <-time.After(watchBackoff.Delay(failures)):
		case <-ctx.Done():
		}
	}
}

// Transformer makes the reflector reduce slices to records while it lists.
func (m *mirror) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return m.record(obj) }
}

func (m *mirror) record(obj any) (*record, error) {
	if rec, ok := obj.(*record); ok {
		return rec, nil
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return nil, fmt.Errorf("resourceslice: got %T, not a ResourceSlice", obj)
	}
	return m.hasher.record(slice), nil
}

// Add, Update, Delete, Replace and Resync implement cache.ReflectorStore.
func (m *mirror) Add(obj any) error    { return m.event(obj, false) }
func (m *mirror) Update(obj any) error { return m.event(obj, false) }
func (m *mirror) Delete(obj any) error { return m.event(obj, true) }
func (m *mirror) Resync() error        { return nil }

// event records an event.
func (m *mirror) event(obj any, deleted bool) error {
	rec, err := m.record(obj)
	if err != nil {
		return err
	}
	v := m.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mirrors[m.scope] != m {
		return nil // the scope is no longer watched
	}
	restored := newer(m.at, rec.ResourceVersion) // from a backup
	m.at = rec.ResourceVersion
	e := v.slices[rec.Name]
	isSame := e != nil && e.rec.UID == rec.UID
	if restored && !deleted || deleted && isSame {
		delete(v.slices, rec.Name)
	}
	if deleted && e != nil && !(isSame && e.gone) || !deleted && v.deliver(rec, m.at) {
		m.to.onForeign(rec, deleted)
	}
	return nil
}

// Replace records a list.
func (m *mirror) Replace(list []any, at string) error {
	listed := make(map[types.UID]*record, len(list))
	for _, obj := range list {
		rec, err := m.record(obj)
		if err != nil {
			return err
		}
		listed[rec.UID] = rec
	}
	v := m.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mirrors[m.scope] != m {
		return nil
	}
	initial, restored := !m.synced, m.synced && newer(m.at, at) // from a backup
	for name, e := range v.slices {
		there, ahead := listed[e.rec.UID] != nil, newer(e.rec.ResourceVersion, at)
		// No API server is so far behind with its first list.
		backup := restored || initial && ahead && time.Since(e.at) >= core.LateWrites
		if !m.scope.covers(e.rec) || !backup && (there || ahead) {
			continue
		}
		if delete(v.slices, name); !there && !e.gone && !initial {
			m.to.onForeign(e.rec, true)
		}
	}
	for _, rec := range listed {
		if v.deliver(rec, at) && !initial {
			m.to.onForeign(rec, false)
		}
	}
	if m.synced, m.at = true, at; initial {
		m.to.synced(slices.Collect(maps.Values(listed)), at) // it reconciles all pools
	}
	return nil
}

// newer reports whether resource version a is later than b, or can't be compared
// with it and differs.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || order > 0
}
