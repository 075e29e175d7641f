// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// An OwnerFunc returns the reference to the object whose life the slices follow:
// the garbage collector deletes them with it.
//
// It is asked at the start, and again when slices were deleted by somebody else,
// since the owner may have been deleted and made anew with another UID. While it
// returns an error nothing is created; an error for which
// [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is true says that the owner
// does not exist yet and is not reported. It must return when ctx is done, which
// is after CallTimeout.
type OwnerFunc func(ctx context.Context) (metav1.OwnerReference, error)

// NodeOwner returns an [OwnerFunc] that makes a Node the owner. Asking it costs
// one GET of the Node; where the program has a nodestatus.Controller, whose
// method OwnerReference knows, it costs none.
func NodeOwner(nodes corev1client.NodeInterface, name string) OwnerFunc {
	return func(ctx context.Context) (metav1.OwnerReference, error) {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return metav1.OwnerReference{}, fmt.Errorf("get the Node that owns the slices: %w", err)
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

// ownerCache asks for the owner when it has to, once for all who want to know.
type ownerCache struct {
	source OwnerFunc
	turn   chan struct{} // held by who asks

	mu    sync.Mutex
	ref   *metav1.OwnerReference
	stale bool
}

func newOwnerCache(source OwnerFunc) ownerCache {
	return ownerCache{source: source, turn: make(chan struct{}, 1)}
}

// get returns the reference, or nil where slices have no owner.
func (o *ownerCache) get(ctx context.Context, timeout time.Duration) (*metav1.OwnerReference, error) {
	if o.source == nil {
		return nil, nil
	}
	if ref := o.known(); ref != nil {
		return ref, nil
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if ref := o.known(); ref != nil {
		return ref, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ref, err := o.source(ctx)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ref, o.stale = &ref, false
	return o.ref, nil
}

// known returns the reference where it need not be asked for.
func (o *ownerCache) known() *metav1.OwnerReference {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stale {
		return nil
	}
	return o.ref
}

// doubt has the owner asked again: somebody deleted slices, and that may have
// been the garbage collector because the owner is gone.
func (o *ownerCache) doubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stale = true
}
