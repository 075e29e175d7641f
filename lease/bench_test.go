// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/kubewright/kubewright/internal/leasestub"
)

// BenchmarkTenThousandNodes renews the leases of 10,000 nodes over real
// HTTP/2 and TLS, in real time: some three minutes for each iteration, so run it
// with -benchtime=1x. With -short it is a tenth of that, at other rates. The API
// server is another process, and takes 10 ms for each request. It reports, of
// the client:
//
//	heap-B/node        live heap, less that before the nodes were added
//	goroutines         the most that were seen while all is well
//	goroutines-outage  the most that were seen in an outage of 60 s and after it
//	renewals/s         and as many requests
//	in-flight          the most requests under way while all is well
//	%off               the largest deviation of a second from the steady rate
//	%off-after         the same, from two intervals after the outage on
//	CPU-us/renewal     processor time
func BenchmarkTenThousandNodes(b *testing.B) {
	nodes, interval, outage := 10_000, 10*time.Second, time.Minute
	if testing.Short() {
		nodes, interval, outage = 100, 500*time.Millisecond, 3*time.Second
	}
	server := leasestub.Start(b, 10*time.Millisecond)
	clientset, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Config{
		Client:       clientset.CoordinationV1(),
		Fleet:        true,
		Owner:        ownerOf,
		Duration:     4 * interval,
		ErrorHandler: func(context.Context, error, string) {},
	})
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("ip-10-123-%d-%d.eu-central-1.internal", i/250, i%250)
	}
	heap, goroutines := liveHeap(), runtime.NumGoroutine()
	for _, name := range names {
		if err := c.Add(name); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- c.Run(ctx) }()
	time.Sleep(3 * interval)

	steady := float64(nodes) / interval.Seconds()
	for b.Loop() {
		server.Reset()
		cpu := cpuTime(b)
		most := mostGoroutines(4 * interval)
		cpu = cpuTime(b) - cpu
		counts := server.Counts()
		b.ReportMetric(float64(cpu.Microseconds())/float64(counts.Requests), "CPU-us/renewal")
		b.ReportMetric(float64(most-goroutines), "goroutines")
		b.ReportMetric(float64(counts.Requests)/(4*interval).Seconds(), "renewals/s")
		b.ReportMetric(float64(counts.MostAtOnce), "in-flight")
		b.ReportMetric(deviation(b, counts.Writes, steady), "%off")

		server.SetDown(true)
		most = mostGoroutines(outage)
		server.SetDown(false)
		most = max(most, mostGoroutines(2*interval))
		b.ReportMetric(float64(most-goroutines), "goroutines-outage")
		server.Reset()
		time.Sleep(4 * interval)
		b.ReportMetric(deviation(b, server.Counts().Writes, steady), "%off-after")
	}
	b.ReportMetric(0, "ns/op") // how long the benchmark takes is no result
	b.ReportMetric((float64(liveHeap())-float64(heap))/float64(nodes), "heap-B/node")
	cancel()
	if err := <-stopped; err != nil {
		b.Error(err)
	}
	runtime.KeepAlive(names)
}

// BenchmarkRenew is one renewal without the API call.
func BenchmarkRenew(b *testing.B) {
	c, err := New(Config{Client: instantClient{}, Owner: ownerOf, NodeName: nodeName})
	if err != nil {
		b.Fatal(err)
	}
	n, _ := c.served(nodeName)
	c.work = b.Context()
	b.ReportAllocs()
	for b.Loop() {
		c.epoch = c.epoch.Add(-c.cfg.RenewInterval) // it is time again
		c.visit(b.Context(), nodeName, n)
	}
	if s, _ := c.Status(nodeName); s.Phase != PhaseHeld {
		b.Errorf("status %+v", s)
	}
}

// instantClient accepts every write.
type instantClient struct {
	coordinationv1client.LeaseInterface
}

func (i instantClient) Leases(string) coordinationv1client.LeaseInterface { return i }

func (instantClient) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", ResourceVersion: "1"}}, nil
}

func (instantClient) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	version, err := strconv.Atoi(l.ResourceVersion)
	l.ResourceVersion = strconv.Itoa(version + 1)
	return l, err
}

// liveHeap is the heap after a collection.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // the objects that the first one has handed to finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// mostGoroutines returns the largest number of goroutines seen during d.
func mostGoroutines(d time.Duration) (most int) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		most = max(most, runtime.NumGoroutine())
	}
	return most
}

// deviation is by how many per cent the worst second is off. The first and the
// last one are not complete.
func deviation(b *testing.B, perSecond []int, want float64) (worst float64) {
	for i := 1; i < len(perSecond)-1; i++ {
		worst = max(worst, 100*max(float64(perSecond[i])-want, want-float64(perSecond[i]))/want)
	}
	if worst > 10 {
		b.Logf("renewals in each second, want %v: %v", want, perSecond)
	}
	return worst
}
