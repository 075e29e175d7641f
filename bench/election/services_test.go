// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// The election of kube-vip: one Lease for each Service, and one candidate for it on each node.
const (
	services = 200
	nodes    = 3

	serviceDuration = 5 * time.Second
	serviceDeadline = 3 * time.Second
	serviceRetry    = time.Second
)

// footprint is what the candidates of all nodes cost, with the API server's part of it.
type footprint struct {
	goroutines, bytes float64 // for each candidate
	requests          float64 // a second, in all
}

// TestServices compares what candidates cost that stand in many elections. A candidate knows
// the last state of its Lease with the records of all candidates; an elector polls. The garbage
// collector must be able to halve the stack of an idle candidate, or the second limit fails.
func TestServices(t *testing.T) {
	shared := measureServices(t, ourNode(true))
	alone := measureServices(t, ourNode(false))
	upstream := measureServices(t, electorNode)
	for name, f := range map[string]footprint{"OnLease, one watch": shared, "OnLease": alone, "client-go": upstream} {
		t.Logf("%-18s  %.2f goroutines, %.1f kB a candidate and %.0f requests a second", name, f.goroutines, f.bytes/1000, f.requests)
	}
	if shared.goroutines > 1.05*upstream.goroutines || shared.bytes > 0.45*alone.bytes || shared.requests > upstream.requests/2 {
		t.Error("one watch for many elections no longer saves what it should")
	}
}

// A node runs the candidates of one process until ctx is done.
type node func(ctx context.Context, t *testing.T, name string, client *kubernetes.Clientset)

func measureServices(t *testing.T, run node) (f footprint) {
	synctest.Test(t, func(t *testing.T) {
		server := apitest.New(apitest.Options{})
		server.LagWatches(apitest.Match{}, watchLag)
		goroutines, bytes := runtime.NumGoroutine(), heap()
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var running sync.WaitGroup
		for i := range nodes {
			name := fmt.Sprint("node-", i)
			config := server.Config(apitest.User{Name: name})
			config.QPS = -1
			running.Go(func() { run(ctx, t, name, kubernetes.NewForConfigOrDie(config)) })
			time.Sleep(2 * time.Second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		server.ResetJournal() // and the history of the objects, which is the server's
		server.Compact()
		f.goroutines = float64(runtime.NumGoroutine()-goroutines) / (services * nodes)
		f.bytes = (heap() - bytes) / (services * nodes)
		const span = time.Minute
		time.Sleep(span)
		f.requests = float64(len(server.Requests(apitest.Match{Verb: "get,update,create"}))) / span.Seconds()
		cancel()
		running.Wait()
	})
	return f
}

// heap returns the bytes in use.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one puts pools into their victims
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// ourNode runs candidates of this library, with one watch or with a watch for each.
func ourNode(shared bool) node {
	return func(ctx context.Context, t *testing.T, name string, client *kubernetes.Clientset) {
		var watch *election.SharedWatch
		if shared {
			watch, _ = election.NewSharedWatch(client.CoordinationV1(), namespace)
		}
		var running sync.WaitGroup
		defer running.Wait()
		for i := range services {
			candidate, err := election.New(election.Config{
				Client: client.CoordinationV1(),
				Lease:  types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("service-", i)},
				Self:   election.Peer{Identity: name},
				Timing: election.Timing{LeaseDuration: serviceDuration, RenewDeadline: serviceDeadline, RenewInterval: serviceRetry},
				Watch:  watch,
				Lead: func(ctx context.Context, _ election.Term) error {
					<-ctx.Done()
					return nil
				},
			})
			if err != nil {
				t.Error(err)
				return
			}
			running.Go(func() { _ = candidate.Run(ctx) })
		}
	}
}

// electorNode runs electors of client-go.
func electorNode(ctx context.Context, t *testing.T, name string, client *kubernetes.Clientset) {
	var running sync.WaitGroup
	defer running.Wait()
	for i := range services {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("service-", i)},
				Client:    client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: serviceDuration, RenewDeadline: serviceDeadline, RetryPeriod: serviceRetry, Name: name,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(ctx context.Context) { <-ctx.Done() }, OnStoppedLeading: func() {}},
		})
		if err != nil {
			t.Error(err)
			return
		}
		running.Go(func() { elector.Run(ctx) })
	}
}
