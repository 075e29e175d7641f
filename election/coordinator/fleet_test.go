// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// ctlFleet is many Leases with healthy candidates, at the
// default timing: all answer pings, and who holds a Lease renews it with one
// request each RenewInterval.
type ctlFleet struct {
	*ctlRig
	leases, each int
	clients      kubernetes.Interface

	mu    sync.Mutex
	leads map[string]context.CancelFunc // by Lease
	work  sync.WaitGroup
}

func (f *ctlFleet) lease(i int) string { return fmt.Sprintf("lease-%04d", i) }

// newCtlFleet puts the candidates there and starts who answers for them.
func newCtlFleet(r *ctlRig, leases, each int) *ctlFleet {
	f := &ctlFleet{ctlRig: r, leases: leases, each: each, leads: map[string]context.CancelFunc{},
		clients: r.server.Client(apitest.User{Name: "candidates"})}
	for i := range leases {
		for c := range each {
			record := r.stub(fmt.Sprintf("%s.%d", f.lease(i), c), "1.37.0", "1.37.0").record()
			record.Spec.LeaseName = f.lease(i)
			r.server.Put(record)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	r.Cleanup(func() { cancel(); f.work.Wait() })
	f.work.Go(func() { f.answer(ctx) })
	f.work.Go(func() { f.lead(ctx) })
	synctest.Wait()
	return f
}

// answer answers pings of all candidates.
func (f *ctlFleet) answer(ctx context.Context) {
	client := f.clients.CoordinationV1beta1().LeaseCandidates(ctlNamespace)
	watch, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: f.server.ResourceVersion()})
	if err != nil {
		f.Error(err)
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		c, ok := event.Object.(*coordinationv1beta1.LeaseCandidate)
		if ok && c.Spec.PingTime != nil && c.Spec.PingTime.After(c.Spec.RenewTime.Time) {
			c.Spec.RenewTime = ptr.To(metav1.NowMicro())
			if _, err := client.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
				f.Error(err)
			}
		}
	}
}

// lead starts a leader for every Lease that is assigned.
func (f *ctlFleet) lead(ctx context.Context) {
	watch, err := f.clients.CoordinationV1().Leases(ctlNamespace).Watch(ctx, metav1.ListOptions{ResourceVersion: f.server.ResourceVersion()})
	if err != nil {
		f.Error(err)
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		l, ok := event.Object.(*coordinationv1.Lease)
		if !ok || l.Spec.AcquireTime == nil || !l.Spec.AcquireTime.Equal(l.Spec.RenewTime) {
			continue
		}
		f.mu.Lock()
		leading, stop := context.WithCancel(ctx)
		f.leads[l.Name] = stop
		f.mu.Unlock()
		f.work.Go(func() { f.renew(leading, l) })
	}
}

func (f *ctlFleet) renew(ctx context.Context, lease *coordinationv1.Lease) {
	ticker := time.NewTicker(election.DefaultRenewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			stored, err := f.clients.CoordinationV1().Leases(ctlNamespace).Update(ctx, lease, metav1.UpdateOptions{})
			if err == nil {
				lease = stored
			}
		}
	}
}

// crash ends the leaders of the first n Leases.
func (f *ctlFleet) crash(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		f.leads[f.lease(i)]()
	}
}

// TestControllerFleet counts all requests about 1,000 Leases with five
// candidates each.
func TestControllerFleet(t *testing.T) {
	leases, each := 1000, 5
	if testing.Short() {
		leases = 120
	}
	synctest.Test(t, func(t *testing.T) {
		r := newCtlRig(t, apitest.Options{})
		r.cfg.Hooks = Hooks{}
		f := newCtlFleet(r, leases, each)
		r.advance(time.Minute)
		before := len(r.server.Requests(apitest.Match{}))
		r.start()
		r.advance(time.Millisecond)
		// Two watches; and for each Lease a ping, an answer, and the Lease.
		r.want("requests to elect all", len(r.server.Requests(apitest.Match{}))-before, 2+leases*3)
		r.want("elected", len(apitest.List[*coordinationv1.Lease](r.server, ctlNamespace)), leases)

		// Candidates of this package renew their records every ten minutes.
		const minutes = 2
		r.advance(time.Minute)
		before, ours := len(r.server.Requests(apitest.Match{})), len(r.requests())
		for range minutes * 60 {
			for c := range leases * each / 600 {
				f.touch(c)
			}
			r.advance(time.Second)
		}
		total := len(r.server.Requests(apitest.Match{})) - before
		if rate := float64(total) / (minutes * 60); rate > 0.35*float64(leases) {
			t.Errorf("%d requests in %d minutes, %.1f a second, want 350 at most for 1,000 Leases", total, minutes, rate)
		} else {
			t.Logf("%.1f requests a second", rate)
		}
		r.want("requests of the Controller meanwhile", len(r.requests())-ours, 0)

		const crashed = 100
		f.crash(crashed)
		ours = len(r.requests())
		r.advance(30 * time.Second)
		r.want("requests of the Controller for each crash", float64(len(r.requests())-ours)/crashed, 3) // look, ping, assign
		for i := range crashed {
			l := apitest.Get[*coordinationv1.Lease](r.server, ctlNamespace, f.lease(i))
			if *l.Spec.LeaseTransitions != 1 || time.Since(l.Spec.RenewTime.Time) > election.DefaultRenewInterval {
				t.Fatalf("%s: %+v", l.Name, l.Spec)
			}
		}
	})
}

// touch renews the record of a candidate that does not lead.
func (f *ctlFleet) touch(i int) {
	client := f.clients.CoordinationV1beta1().LeaseCandidates(ctlNamespace)
	name := fmt.Sprintf("%s.%d", f.lease(i%f.leases), 1+i%(f.each-1))
	data := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	if _, err := client.Patch(f.Context(), name, "application/merge-patch+json", []byte(data), metav1.PatchOptions{}); err != nil {
		f.Error(err)
	}
}
