// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
)

// An OwnerFunc returns the reference to the owner of the slices: the garbage
// collector deletes them after the owner.
//
// The controller calls it before the first write. It calls it again after another client
// deleted slices, and before it creates a pool if the last call was more than a minute ago,
// because the owner may have been re-created with another UID. No
// slice that needs its answer is created while it returns an error. An error for which
// [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is true means that the owner
// does not exist yet, and is not reported. A panic is an error. There is one call at a time,
// which must return when ctx is done, which is after ten seconds.
type OwnerFunc func(ctx context.Context) (metav1.OwnerReference, error)

// NodeOwner returns an [OwnerFunc] that makes a Node the owner. Each call costs
// one GET of the Node. The method OwnerReference of a nodestatus.Controller is an
// OwnerFunc without that cost.
func NodeOwner(nodes corev1client.NodeInterface, name string) OwnerFunc {
	return func(ctx context.Context) (metav1.OwnerReference, error) {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		node, err = apierr.Answer(node, err, name) // an empty answer of a proxy is none
		if err != nil {
			return metav1.OwnerReference{}, fmt.Errorf("get the Node that owns the slices: %w", apierr.Permission(err, "resourceslice.yaml"))
		}
		return metav1.OwnerReference{
			APIVersion: corev1.SchemeGroupVersion.String(),
			Kind:       "Node",
			Name:       node.Name,
			UID:        node.UID,
			Controller: new(true),
		}, nil
	}
}

const (
	// anyAge is for pools with slices: if the owner was replaced, the garbage collector
	// deletes them, and the event brings a doubt.
	anyAge = time.Duration(math.MaxInt64)
	// newPoolAge is for pools without slices, which bring no such event.
	newPoolAge = time.Minute
)

// ownerCache calls an OwnerFunc if necessary, one call at a time for all workers.
type ownerCache struct {
	source OwnerFunc
	turn   chan struct{} // has a token while a worker calls source
	known  atomic.Pointer[knownOwner]
}

// knownOwner is an answer of an OwnerFunc.
type knownOwner struct {
	ref metav1.OwnerReference
	at  time.Time
}

// get returns the reference, or nil if slices have no owner. It calls source if no answer
// is known that is at most so old.
func (o *ownerCache) get(ctx context.Context, timeout, age time.Duration) (*metav1.OwnerReference, error) {
	if o.source == nil {
		return nil, nil
	}
	if ref := o.last(age); ref != nil {
		return ref, nil
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if ref := o.last(age); ref != nil {
		return ref, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ref, err := callback.Get("Owner", func() (metav1.OwnerReference, error) { return o.source(ctx) })
	if err != nil {
		return nil, err
	}
	known := &knownOwner{ref, time.Now()}
	o.known.Store(known)
	return &known.ref, nil
}

// doubt makes the next get call source: another client deleted slices, possibly
// the garbage collector because the owner is gone.
func (o *ownerCache) doubt() { o.known.Store(nil) }

// last returns the last answer if it is at most so old, or nil.
func (o *ownerCache) last(age time.Duration) *metav1.OwnerReference {
	if known := o.known.Load(); known != nil && time.Since(known.at) <= age {
		return &known.ref
	}
	return nil
}
