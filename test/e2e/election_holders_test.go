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

// handoverAnnotation is set by a leader of package election when it names its
// successor.
const handoverAnnotation = "election.kubewright.dev/handover"

// watchHolders watches the Lease until the returned function is called. A
// holder may release the lease or hand it over. Another candidate may take it
// only if it was not renewed for its duration, by this process's clock.
func (r *electionRig) watchHolders() (stop func()) {
	informer := cache.NewSharedIndexInformerWithOptions(r.listWatch(), &coordinationv1.Lease{}, cache.SharedIndexInformerOptions{})
	var pulse time.Time // when the holder was last seen renewing
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

// watchSlack is the extra delay that an event may have on a busy machine,
// relative to another event.
const watchSlack = time.Second

func (r *electionRig) checkExpired(old *coordinationv1.Lease, next string, silent time.Duration) {
	term := time.Duration(*old.Spec.LeaseDurationSeconds) * time.Second
	if silent < term-watchSlack {
		r.Errorf("%s took the lease from %s, which had renewed it %v before, for %v", next, holder(old), silent, term)
	}
}
