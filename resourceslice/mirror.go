// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
)

// listTimeout is the deadline of a list, which may be long.
const listTimeout = 2 * time.Minute

// watchBackoff is for lists and watches after which an informer waits wrongly
// or not at all.
var watchBackoff = backoff.Policy{Base: time.Second, Cap: 30 * time.Second}

// byPoolIndex is the name of the informers' index.
const byPoolIndex = "pool"

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

// covers reports whether a slice is in the scope.
func (s scope) covers(rec *record) bool {
	return s.nodeName == rec.nodeName && (s.driver == "" || s.driver == rec.id.Driver) && (s.pool == "" || s.pool == rec.id.Name)
}

// mirror is what the API server has in a scope, as records.
type mirror struct {
	scope    scope
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
}

// events is what a mirror tells.
type events struct {
	changed func(old, rec *record) // old is nil for one that is new
	deleted func(rec *record)
	failed  func(sc scope, err error) // nil: works
}

func (c *Controller) newMirror(sc scope, v version, ev events) (*mirror, error) {
	m := &mirror{scope: sc}
	m.list = func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
		defer cancel()
		opts.FieldSelector = sc.selector()
		return v.list(ctx, opts)
	}
	lw := listwatch.New(listwatch.Config{
		List: v.list, Watch: v.watch, FieldSelector: sc.selector(),
		ListTimeout: max(listTimeout, c.cfg.CallTimeout), AnswerTimeout: c.cfg.CallTimeout,
		Retries: watchBackoff,
		Outcome: func(_ context.Context, err error) time.Duration {
			ev.failed(sc, err)
			return 0
		},
	})
	m.informer = cache.NewSharedIndexInformerWithOptions(lw, v.example, cache.SharedIndexInformerOptions{
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
		converted, err := v.convert(slice)
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
	// Errors have gone to failed already.
	err = m.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(4).Info("Watch of ResourceSlices ended", "selector", sc.selector(), "err", err)
	})
	if err != nil {
		return nil, fmt.Errorf("resourceslice: set up the watch: %w", err)
	}
	_, err = m.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial { // all pools are looked at when the watch has begun
				ev.changed(nil, obj.(*record))
			}
		},
		UpdateFunc: func(old, obj any) {
			if old, rec := old.(*record), obj.(*record); old.ResourceVersion != rec.ResourceVersion {
				ev.changed(old, rec)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if rec, ok := obj.(*record); ok {
				ev.deleted(rec)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("resourceslice: set up the watch: %w", err)
	}
	return m, nil
}

// slices returns what the watch has delivered of a pool, and the resource
// version up to which it has; empty where that isn't known.
func (m *mirror) slices(id PoolID) (records []*record, seen string) {
	// The resource version first: what comes in between is in the slices then
	// and not yet in the version, and so is merely looked at twice.
	seen = m.informer.GetIndexer().LastStoreSyncResourceVersion()
	objects, err := m.informer.GetIndexer().ByIndex(byPoolIndex, id.String())
	if err != nil {
		return nil, "" // there is an index of that name
	}
	for _, obj := range objects {
		if rec, ok := obj.(*record); ok {
			records = append(records, rec)
		}
	}
	return records, seen
}

// all returns all that the watch has delivered.
func (m *mirror) all() (records []*record) {
	for _, obj := range m.informer.GetIndexer().List() {
		if rec, ok := obj.(*record); ok {
			records = append(records, rec)
		}
	}
	return records
}

func (m *mirror) synced() bool { return m.informer.HasSynced() }

// versionGone reports whether a request failed because its version of the API
// is not served. A genuine 404 names the object that is missing, and a list or
// a watch has none.
func versionGone(err error, collection bool) bool {
	if apierr.Classify(err) != apierr.NotFound {
		return false
	}
	var status apierrors.APIStatus
	if collection || !errors.As(err, &status) || status.Status().Details == nil {
		return true
	}
	details := status.Status().Details
	return details.Name == "" || details.Kind == "" ||
		slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
			return cause.Type == metav1.CauseTypeUnexpectedServerResponse // not an answer of the API
		})
}
