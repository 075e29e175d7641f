// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
)

// watchRefusedRetry is the longest wait for an API or a permission that is missing.
const watchRefusedRetry = time.Minute

// mirror is one list and watch.
type mirror struct {
	informer cache.SharedIndexInformer
	handled  cache.ResourceEventHandlerRegistration

	resource string
	streak   apierr.Member
	refusals int
}

// start starts the list and watch. It reports whether all objects were observed
// before ctx was done.
func (m *mirror) start(ctx context.Context, running *sync.WaitGroup) bool {
	running.Go(func() { m.informer.RunWithContext(ctx) })
	select {
	case <-m.handled.HasSyncedChecker().Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// newMirror returns the mirror of a resource. observed is called with the old object,
// if there is one, and reports whether the new one was created just now.
func newMirror[T metav1.Object, L runtime.Object](
	c *Controller, resource string, example runtime.Object,
	list func(context.Context, metav1.ListOptions) (L, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
	observed func(old, obj T, fresh bool), gone func(T),
) *mirror {
	m := &mirror{resource: resource}
	source := listwatch.Config{
		List:          func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return list(ctx, opts) },
		Watch:         watch,
		ListTimeout:   listTimeout,
		AnswerTimeout: callTimeout,
		Retries:       spec.Retries(contest.FailedRetry),
		Outcome:       func(ctx context.Context, err error) time.Duration { return c.watched(ctx, m, err) },
	}
	if c.cfg.Namespace == metav1.NamespaceAll {
		// Most Leases of a cluster are heartbeats of nodes, which have no
		// candidates.
		source.FieldSelector = spec.OutsideNodeLeases
	}
	m.informer = cache.NewSharedIndexInformerWithOptions(listwatch.New(source), example, cache.SharedIndexInformerOptions{ObjectDescription: resource})
	// The calls fail only after the informer was started. Decisions need a small part
	// of an object.
	_ = m.informer.SetTransform(func(obj any) (any, error) {
		if object, ok := obj.(metav1.Object); ok {
			object.SetManagedFields(nil)
			maps.DeleteFunc(object.GetAnnotations(), func(key, _ string) bool { return key != spec.PeerAnnotation })
			object.SetLabels(nil)
			object.SetOwnerReferences(nil)
		}
		return obj, nil
	})
	_ = m.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(4).Info("Watch ended", "resource", resource, "err", err)
	})
	m.handled, _ = m.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { observed(*new(T), obj.(T), !initial) },
		UpdateFunc: func(old, obj any) { observed(old.(T), obj.(T), false) },
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			if last, ok := obj.(T); ok {
				gone(last)
			}
		},
	})
	return m
}

// watched is called after each list and each start of a watch. It returns the wait
// before the next one.
func (c *Controller) watched(ctx context.Context, m *mirror, err error) time.Duration {
	class := apierr.Classify(err)
	switch {
	case err == nil:
		m.refusals = 0
		c.watching.OK(ctx, &m.streak, "Lists and watches work again")
		return 0
	case (class == apierr.Invalid || class == apierr.Gone) && m.refusals < 2:
		// The API server can't stream a list, or no longer has the requested
		// version. The informer recovers from both.
		m.refusals++
		klog.FromContext(ctx).V(4).Info("Watch was refused", "resource", m.resource, "err", err)
		return 0
	case class == apierr.NotFound && m.resource == "leasecandidates":
		err = fmt.Errorf("%w: %w", election.ErrNoCandidateAPI, err)
	default:
		err = fmt.Errorf("coordinator: list and watch %s: %w", m.resource, apierr.Permission(err, "election-controller.yaml"))
	}
	c.watching.Fail(ctx, c.cfg.ErrorHandler, &m.streak, err, "Failed to list and watch", "resource", m.resource)
	spec.Call(c.cfg.Hooks.RequestFailed, RequestFailed{Action: ActionWatch, Class: class.String(), Err: err})
	switch class {
	case apierr.Forbidden, apierr.NotFound, apierr.Unauthorized, apierr.Invalid, apierr.Gone:
		m.refusals++
		return spec.Retry(m.refusals, watchRefusedRetry, rand.Float64(), apierr.RetryAfter(err))
	}
	return 0
}

// tell passes a fact about a Lease to its contest. c.mu must be held.
func (c *Controller) tell(key types.NamespacedName, fact contest.Event) (invalid error) {
	e := c.index[key]
	if e == nil {
		return nil // no candidate
	}
	effects := e.Apply(time.Now(), fact)
	c.checkInvariants(e)
	c.dropIfEmpty(e)
	if effects.Decide {
		c.queue.Add(key)
	}
	return effects.Invalid
}

// dropIfEmpty removes an entry without candidates. c.mu must be held.
func (c *Controller) dropIfEmpty(e *entry) {
	if e.Empty() && c.index[e.key] == e {
		delete(c.index, e.key)
		c.electing.Retire(&e.streak)
	}
}

// checkInvariants is for tests.
func (c *Controller) checkInvariants(e *entry) {
	if c.check != nil {
		c.check(e.Check())
	}
}

// leaseSeen updates the index from a Lease that is new or has changed.
func (c *Controller) leaseSeen(lease *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.tell(cache.MetaObjectToName(lease).AsNamespacedName(), contest.LeaseSeen{Lease: lease}) // about candidates
}

// leaseGone updates the index after a Lease was deleted.
func (c *Controller) leaseGone(lease *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.tell(cache.MetaObjectToName(lease).AsNamespacedName(), contest.LeaseGone{UID: lease.UID})
}

// candidateSeen updates the index from a LeaseCandidate that is new or has changed.
func (c *Controller) candidateSeen(old, obj *coordinationv1beta1.LeaseCandidate, fresh bool) {
	if invalid := c.admit(old, obj, fresh); invalid != nil {
		name := types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}
		report.Tell(c.ctx, c.cfg.ErrorHandler, &CandidateInvalidError{Candidate: name, Err: invalid}, "LeaseCandidate is ignored")
	}
}

// admit returns why the candidate is invalid, if that was not reported.
func (c *Controller) admit(old, obj *coordinationv1beta1.LeaseCandidate, fresh bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil && (old.UID != obj.UID || leaseKey(old) != leaseKey(obj)) {
		_ = c.tell(leaseKey(old), contest.CandidateGone{Name: old.Name, UID: old.UID})
	}
	key := leaseKey(obj)
	if e, created := c.index.entry(key, c.rules); created {
		known, _, _ := c.leases.informer.GetStore().GetByKey(key.String()) // a map: no error
		if lease, ok := known.(*coordinationv1.Lease); ok {
			e.Apply(time.Now(), contest.LeaseSeen{Lease: lease})
		}
	}
	return c.tell(key, contest.CandidateSeen{Candidate: candidateOf(obj), Fresh: fresh})
}

// candidateGone updates the index after a LeaseCandidate was deleted.
func (c *Controller) candidateGone(obj *coordinationv1beta1.LeaseCandidate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.tell(leaseKey(obj), contest.CandidateGone{Name: obj.Name, UID: obj.UID})
}
