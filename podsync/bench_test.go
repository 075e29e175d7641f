// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync"
)

// Benchmarks against a server that answers each request after 10 ms and costs
// next to nothing. Their own metrics matter more than ns/op.

const benchLatency = 10 * time.Millisecond

// ofSize returns a number of pods, or a tenth of it with -short: then the benchmarks
// only show that they work.
func ofSize(pods int, short bool) int {
	if short {
		return pods / 10
	}
	return pods
}

// A bench is a controller at work.
type bench struct {
	*testing.B
	stub     *stub
	provider *instantProvider
	started  chan podsync.Ref
	stored   atomic.Int64
	c        *podsync.Controller
	stop     func()
}

func newBench(b *testing.B, pods, writers int) *bench {
	w := &bench{B: b, stub: newStub(benchLatency), started: make(chan podsync.Ref, pods)}
	w.provider = &instantProvider{held: map[types.UID]podsync.Ref{}, started: w.started}
	cfg := podsync.Config{
		Client: w.stub.client().CoreV1(), Provider: w.provider, NodeName: node,
		Hooks:  podsync.Hooks{StatusStored: func(podsync.StatusStored) { w.stored.Add(1) }},
		Relist: time.Hour,
	}
	c, err := podsync.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	w.c = c
	if writers > 0 {
		c.LimitWrites(writers)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			b.Error(err)
		}
	}()
	w.stop = func() {
		cancel()
		<-done
	}
	<-c.Ready().Done()
	<-w.stub.open
	return w
}

func (w *bench) awaitStarts(n int) {
	for range n {
		<-w.started
	}
}

func (w *bench) awaitStored(n int64) {
	for w.stored.Load() < n {
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkBindBurst binds ten thousand pods at once and measures until the
// provider has been given all of them, the decoding of the watch included.
func BenchmarkBindBurst(b *testing.B) {
	n := ofSize(10_000, testing.Short())
	b.ReportAllocs()
	var handed, all time.Duration
	for b.Loop() {
		b.StopTimer()
		pods := benchPods(n)
		w := newBench(b, n, 0)
		b.StartTimer()
		start := time.Now()
		go w.stub.add(pods)
		w.awaitStarts(n)
		handed += time.Since(start)
		w.awaitStored(int64(n))
		all += time.Since(start)
		b.StopTimer()
		w.stop()
		b.StartTimer()
	}
	b.ReportMetric(handed.Seconds()/float64(b.N), "s-to-handed-over")
	b.ReportMetric(all.Seconds()/float64(b.N), "s-to-stored")
}

// BenchmarkStatusWrites changes the status of two thousand pods and measures
// until the API has all of it.
func BenchmarkStatusWrites(b *testing.B) {
	n := ofSize(2000, testing.Short())
	for _, writers := range []int{32, 64} {
		b.Run(fmt.Sprint(writers, "-writers"), func(b *testing.B) {
			pods := benchPods(n)
			w := newBench(b, n, writers)
			defer w.stop()
			go w.stub.add(pods)
			w.awaitStarts(n)
			w.awaitStored(int64(n))
			b.ReportAllocs()
			round := 0
			start := time.Now()
			for b.Loop() {
				round++
				before := w.stored.Load()
				for _, pod := range pods {
					st := stateOf(podsync.RefOf(pod), fmt.Sprint("round ", round))
					st.Status.ContainerStatuses[0].Ready = round%2 == 0
					w.c.Report(st)
				}
				w.awaitStored(before + int64(n))
			}
			b.ReportMetric(float64(round*n)/time.Since(start).Seconds(), "writes/s")
		})
	}
}

// BenchmarkHangingCalls binds ten thousand pods, of which one in a hundred
// hangs in Start without end, and measures until all others are stored: the time
// should be that of a burst without hanging calls.
func BenchmarkHangingCalls(b *testing.B) {
	n := ofSize(10_000, testing.Short())
	for _, share := range []int{0, 100} {
		b.Run(fmt.Sprint("one-in-", share), func(b *testing.B) {
			var handed, all time.Duration
			for b.Loop() {
				b.StopTimer()
				pods := benchPods(n)
				hangs := map[types.UID]bool{}
				for i, pod := range pods {
					if share > 0 && i%share == 0 {
						hangs[pod.UID] = true
					}
				}
				w := newBench(b, n, 0)
				w.provider.hang = func(ref podsync.Ref) bool { return hangs[ref.UID] }
				b.StartTimer()
				start := time.Now()
				go w.stub.add(pods)
				w.awaitStarts(n - len(hangs))
				handed += time.Since(start)
				w.awaitStored(int64(n - len(hangs)))
				all += time.Since(start)
				b.StopTimer()
				w.stop()
				b.StartTimer()
			}
			b.ReportMetric(handed.Seconds()/float64(b.N), "s-to-handed-over")
			b.ReportMetric(all.Seconds()/float64(b.N), "s-to-stored")
		})
	}
}

// BenchmarkMemory measures the memory of an idle pod beyond the informer's cache.
func BenchmarkMemory(b *testing.B) {
	n := ofSize(20_000, testing.Short())
	heap := func() float64 {
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc + m.StackInuse)
	}
	for b.Loop() {
		pods := benchPods(n)
		w := newBench(b, n, 256)
		go w.stub.add(pods)
		w.awaitStarts(n)
		w.awaitStored(int64(n))
		// The cache gets the stored objects.
		w.stub.echo()
		for w.c.Lag() > 0 {
			time.Sleep(time.Millisecond)
		}
		w.provider.held, w.started = nil, nil
		with := heap()
		dropped := w.c.DropTracks()
		without := heap()
		runtime.KeepAlive(pods)
		w.stop()
		if dropped != n {
			b.Fatalf("%d pods were known", dropped)
		}
		b.ReportMetric((with-without)/float64(n), "B/pod")
	}
}

// BenchmarkRelist takes a List of ten thousand pods in which nothing is new.
func BenchmarkRelist(b *testing.B) {
	n := ofSize(10_000, testing.Short())
	pods := benchPods(n)
	w := newBench(b, n, 256)
	defer w.stop()
	go w.stub.add(pods)
	w.awaitStarts(n)
	w.awaitStored(int64(n))
	states, err := w.provider.List(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	fixed := listed(states)
	w.c.ListWith(fixed)
	b.ReportAllocs()
	for b.Loop() {
		w.c.ListWith(fixed)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
}

// listed is a provider that only lists.
type listed []podsync.State

func (l listed) List(context.Context) ([]podsync.State, error) { return l, nil }

func (listed) Start(context.Context, *corev1.Pod) (podsync.State, error) {
	return podsync.State{}, errDown
}

func (listed) Stop(_ context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	return podsync.State{Ref: ref, Stopped: true}, nil
}
