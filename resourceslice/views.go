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
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/resourceslice/internal/versions"
)

const (
	// listTimeout is the deadline of a list, which may be long.
	listTimeout = 2 * time.Minute
	// trustAfter is how long an own write outweighs a store that doesn't know
	// its resource version, as with client-go's feature AtomicFIFO off.
	trustAfter = time.Minute
	// byPoolIndex is the name of the informers' index.
	byPoolIndex = "pool"
)

// watchBackoff is for lists and watches after which an informer waits too
// little or not at all.
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

// mirror has the slices of a scope, as the watch delivered them.
type mirror struct {
	scope    scope
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	list     func(context.Context) (runtime.Object, error)

	mu      sync.Mutex
	highest string // resource version that the store had
}

// newMirror returns a mirror that is not running yet. failed is called with the
// result of each list and of each start of a watch.
func (c *Controller) newMirror(sc scope, v versions.Version, failed func(sc scope, err error)) (*mirror, error) {
	m := &mirror{scope: sc}
	m.list = func(ctx context.Context) (runtime.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
		defer cancel()
		return v.List(ctx, metav1.ListOptions{FieldSelector: sc.selector()})
	}
	lw := listwatch.New(listwatch.Config{
		List: v.List, Watch: v.Watch, FieldSelector: sc.selector(),
		ListTimeout: max(listTimeout, c.cfg.CallTimeout), AnswerTimeout: c.cfg.CallTimeout,
		Retries: watchBackoff,
		Outcome: func(_ context.Context, err error) time.Duration {
			failed(sc, err)
			return 0
		},
	})
	m.informer = cache.NewSharedIndexInformerWithOptions(lw, v.Example, cache.SharedIndexInformerOptions{
		ObjectDescription: "ResourceSlice " + sc.selector(),
		Indexers: cache.Indexers{byPoolIndex: func(obj any) ([]string, error) {
			rec, ok := obj.(*record)
			if !ok {
				return nil, fmt.Errorf("resourceslice: unexpected %T in the store", obj)
			}
			return []string{rec.id.String()}, nil
		}},
	})
	var mu sync.Mutex
	e := encoder{hasher: c.hasher}
	err := m.informer.SetTransform(func(obj any) (any, error) {
		slice, ok := obj.(runtime.Object)
		if _, done := obj.(*record); done || !ok {
			return obj, nil
		}
		converted, err := v.Convert(slice)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		return e.record(converted), nil
	})
	if err != nil {
		return nil, fmt.Errorf("resourceslice: set up the watch: %w", err)
	}
	err = m.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(4).Info("Watch of ResourceSlices ended", "selector", sc.selector(), "err", err)
	})
	if err != nil {
		return nil, fmt.Errorf("resourceslice: set up the watch: %w", err)
	}
	_, err = m.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial { // every pool is reconciled when the store has synced
				c.onChanged(nil, obj.(*record))
			}
		},
		UpdateFunc: func(old, obj any) {
			if old, rec := old.(*record), obj.(*record); !old.equal(rec) {
				c.onChanged(old, rec)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if rec, ok := obj.(*record); ok {
				c.onDeleted(rec)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("resourceslice: set up the watch: %w", err)
	}
	return m, nil
}

// equal reports whether two records are of the same version of an object. After
// a restore from a backup one resource version may be used twice.
func (r *record) equal(other *record) bool {
	equal := func(a, b content) bool { return a.name == b.name && a.hash == b.hash }
	return r.ResourceVersion == other.ResourceVersion && r.is(other.UID) && r.generation == other.generation && r.count == other.count &&
		r.head == other.head && slices.EqualFunc(r.devices, other.devices, equal) && slices.EqualFunc(r.sets, other.sets, equal)
}

// pool returns the stored slices of a pool, and the store's resource version,
// which is empty if unknown. rolledBack reports whether that fell since the last
// call: the API server was restored from a backup.
func (m *mirror) pool(id PoolID) (records []*record, seen string, rolledBack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The resource version first: a slice that is stored in between is then
	// considered not stored yet, which is harmless.
	seen = m.informer.GetIndexer().LastStoreSyncResourceVersion()
	if seen != "" {
		rolledBack = m.highest != "" && newer(m.highest, seen)
		m.highest = seen
	}
	objects, err := m.informer.GetIndexer().ByIndex(byPoolIndex, id.String())
	if err != nil {
		return nil, "", false // the index exists
	}
	for _, obj := range objects {
		records = append(records, obj.(*record))
	}
	return records, seen, rolledBack
}

// all returns all stored slices.
func (m *mirror) all() (records []*record) {
	for _, obj := range m.informer.GetIndexer().List() {
		records = append(records, obj.(*record))
	}
	return records
}

func (m *mirror) synced() bool { return m.informer.HasSynced() }

// ownWrites has the last write of this process to each slice, until the watch
// delivers it. The informer's store and ownWrites together are the state of the
// API server, so nothing is written twice because a watch is slow.
type ownWrites struct {
	mu      sync.Mutex
	pending map[string]ownWrite
}

type ownWrite struct {
	rec  *record // as written, or as deleted
	gone bool
	at   time.Time
}

// wrote records the answer to a write or a get.
func (o *ownWrites) wrote(rec *record) { o.put(ownWrite{rec: rec, at: time.Now()}) }

// gone records that a slice doesn't exist, or is being deleted by this process.
func (o *ownWrites) gone(rec *record) { o.put(ownWrite{rec: rec, gone: true, at: time.Now()}) }

func (o *ownWrites) put(w ownWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending[w.rec.Name] = w
}

// forget forgets the write to a slice.
func (o *ownWrites) forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.pending, name)
}

// clear forgets the writes to some slices: the API server was restored from a
// backup.
func (o *ownWrites) clear(which func(*record) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.pending, func(_ string, p ownWrite) bool { return which(p.rec) })
}

// isGone reports whether this process has deleted the slice of rec.
func (o *ownWrites) isGone(rec *record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, ok := o.pending[rec.Name]
	return ok && p.gone && p.rec.is(rec.UID)
}

// isOwn reports whether a change that the watch delivered is by this process, or
// older than its last write. old is nil for a slice that is new to the watch.
func (o *ownWrites) isOwn(old, rec *record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, ok := o.pending[rec.Name]
	switch {
	case !ok:
		return false
	case old != nil && newer(old.ResourceVersion, rec.ResourceVersion): // restored from a backup
		delete(o.pending, rec.Name)
		return false
	case p.gone && p.rec.is(rec.UID):
		return true
	case !p.gone && newer(p.rec.ResourceVersion, rec.ResourceVersion):
		return true // the watch will deliver the pending write too
	}
	delete(o.pending, rec.Name)
	return !p.gone && p.rec.ResourceVersion == rec.ResourceVersion
}

// isOwnDelete is isOwn for a slice that is gone.
func (o *ownWrites) isOwnDelete(rec *record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, ok := o.pending[rec.Name]
	if !ok || !p.rec.is(rec.UID) {
		return false
	}
	delete(o.pending, rec.Name) // nothing brings it back
	return p.gone
}

// apply corrects stored slices of a pool by the writes that the stores don't have
// yet. read returns them and, for a slice, the resource version of its store.
// apply calls it with the lock held: a delete that a store delivers after the
// read must not be forgotten before the correction.
func (o *ownWrites) apply(id PoolID, read func() (stored []*record, seen func(*record) string)) []*record {
	o.mu.Lock()
	defer o.mu.Unlock()
	stored, seen := read()
	index := make(map[string]int, len(stored))
	for i, rec := range stored {
		index[rec.Name] = i
	}
	for name, p := range o.pending {
		if p.rec.id != id {
			continue
		}
		i, there := index[name]
		at := seen(p.rec)
		switch {
		case p.gone && there && stored[i].is(p.rec.UID):
			stored[i] = nil
		case there && !newer(p.rec.ResourceVersion, stored[i].ResourceVersion):
			// The store has it, or something later.
		case p.gone && time.Since(p.at) <= trustAfter:
			// The event of the delete is still to come.
		case at != "" && !newer(p.rec.ResourceVersion, at), at == "" && time.Since(p.at) > trustAfter:
			delete(o.pending, name) // the slice is gone since
		case p.gone:
		case there:
			stored[i] = p.rec
		default:
			stored = append(stored, p.rec)
		}
	}
	return slices.DeleteFunc(stored, func(rec *record) bool { return rec == nil })
}

// newer reports whether resource version a is later than b, or can't be compared
// with it and differs.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || order > 0
}
