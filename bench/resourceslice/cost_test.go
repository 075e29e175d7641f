// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/apitest"
)

// BenchmarkUnchanged measures the cost of publishing an unchanged state.
func BenchmarkUnchanged(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		all := devices(n)
		b.Run(fmt.Sprintf("kubewright/%d", n), func(b *testing.B) {
			p := &ours{}
			p.start(b, newServer().Client(apitest.NodeUser(node)))
			p.set(all)
			published(b, p)
			b.ReportAllocs()
			for b.Loop() {
				p.set(all) // returns when it has found no difference
			}
			p.stop()
		})
		b.Run(fmt.Sprintf("upstream/%d", n), func(b *testing.B) {
			s := newServer()
			p := &theirs{synced: make(chan struct{}, 1)}
			p.start(b, s.Client(apitest.NodeUser(node)))
			p.set(all)
			quiet(s)
			b.ReportAllocs()
			for b.Loop() {
				drain(p.synced)
				p.set(all)
				<-p.synced // when a sync has found no difference
			}
			p.stop()
		})
	}
}

func published(t testing.TB, p *ours) {
	t.Helper()
	for {
		if status, ok := p.c.Status(poolID); ok && status.Published == status.Revision {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// quiet waits until the server has received no write for a while.
func quiet(s *apitest.Server) {
	for last, since := -1, time.Now(); time.Since(since) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
		if n := len(s.Requests(sent)); n != last {
			last, since = n, time.Now()
		}
	}
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// TestMemory measures the heap of a publisher whose 100,000 devices are
// published, without the driver's own list.
func TestMemory(t *testing.T) {
	heap := make(map[string]uint64)
	for _, name := range peerNames {
		s := newServer()
		client := s.Client(apitest.NodeUser(node))
		first := peers[name]()
		first.start(t, client)
		first.set(devices(100_000))
		quiet(s)
		first.stop()
		slices := len(apitest.List[*resourcev1.ResourceSlice](s, ""))
		before := inUse()

		second := peers[name]()
		second.start(t, client)
		second.set(devices(100_000))
		quiet(s)
		heap[name] = inUse() - before
		second.stop()
		t.Logf("%s: 100,000 devices in %d slices: %.1f MB", name, slices, float64(heap[name])/1e6)
		runtime.KeepAlive(s)
	}
	if mine := heap["kubewright"]; mine > 40e6 {
		t.Errorf("kubewright needs %.1f MB, want 40 at most", float64(mine)/1e6)
	}
	if ratio := float64(heap["kubewright"]) / float64(heap["upstream"]); ratio > 0.1 {
		t.Errorf("kubewright's heap is %.2f of upstream's, want at most a tenth", ratio)
	}
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC() // the first collection only queues finalizers and sweeps
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
