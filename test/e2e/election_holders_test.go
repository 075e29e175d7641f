// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"
)

// handoverAnnotation is what a leader of package election leaves when it names
// its successor.
const handoverAnnotation = "election.kubewright.dev/handover"

// watchHolders reads the Lease as anybody can, until the function it returns is
// called. A holder may release the lease or hand it over; others may take it
// only when it was not renewed for as long as it says, by our clock.
func (r *electionRig) watchHolders() (stop func()) {
	informer := cache.NewSharedIndexInformerWithOptions(r.listWatch(), &coordinationv1.Lease{}, cache.SharedIndexInformerOptions{})
	var pulse time.Time // when the holder was last seen to renew
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { pulse = time.Now() },
		UpdateFunc: func(before, after any) {
			old, lease := before.(*coordinationv1.Lease), after.(*coordinationv1.Lease)
			if holder(old) != "" && holder(lease) != "" && holder(old) != holder(lease) && lease.Annotations[handoverAnnotation] != holder(old) {
				r.checkExpired(old, holder(lease), time.Since(pulse))
			}
			if !lease.Spec.RenewTime.Equal(old.Spec.RenewTime) {
				pulse = time.Now()
			}
		},
	})
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// watchSlack is how late an event may be on a busy machine, more than another.
const watchSlack = time.Second

func (r *electionRig) checkExpired(old *coordinationv1.Lease, next string, silent time.Duration) {
	term := time.Duration(*old.Spec.LeaseDurationSeconds) * time.Second
	if silent < term-watchSlack {
		r.Errorf("%s took the lease from %s, which had renewed it %v before, for %v", next, holder(old), silent, term)
	}
}
