// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/kubewright/kubewright/bench/internal/child"
)

func TestMain(m *testing.M) {
	child.Main(m, func(role string) error {
		if role == "server" {
			return serve()
		}
		return keep(role)
	})
}

// endpoint is the running server.
type endpoint struct {
	b    *testing.B
	URL  string
	Cert []byte
	http *http.Client
}

func startServer(b *testing.B, latency time.Duration) *endpoint {
	b.Helper()
	e := &endpoint{b: b, http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	child.Start(b, "server", "BENCH_LATENCY="+latency.String()).Read(e)
	return e
}

func (e *endpoint) get(path string, into any) {
	e.b.Helper()
	resp, err := e.http.Get(e.URL + path)
	if err != nil {
		e.b.Fatal(err)
	}
	defer resp.Body.Close()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			e.b.Fatal(err)
		}
	}
}

// BenchmarkTenThousandNodes renews 10,000 leases every 10 s against a server
// that takes 10 ms, and measures for 40 s after a warm-up of 40 s. Then the
// server is down for 60 s, and the benchmark measures the second interval after
// the outage.
func BenchmarkTenThousandNodes(b *testing.B) {
	const nodes, latency = 10_000, 10 * time.Millisecond
	for _, peer := range []string{"kubewright", "component-helpers", "kwok"} {
		b.Run(peer, func(b *testing.B) {
			for b.Loop() {
				run(b, peer, nodes, latency)
			}
		})
	}
}

func run(b *testing.B, peer string, nodes int, latency time.Duration) {
	server := startServer(b, latency)
	cert, err := json.Marshal(server.Cert)
	if err != nil {
		b.Fatal(err)
	}
	client := child.Start(b, peer, "BENCH_URL="+server.URL, "BENCH_CERT="+string(cert), fmt.Sprint("BENCH_NODES=", nodes))
	var empty figures
	client.Read(&empty)

	time.Sleep(40 * time.Second) // until the steady state
	const window = 40 * time.Second
	var begin, end figures
	client.Ask("measure", &begin)
	from := time.Now()
	time.Sleep(window)
	client.Ask("measure", &end)
	to := time.Now()
	var r report
	server.get("/report", &r)
	if r.Leases != nodes {
		b.Logf("%d of %d leases exist after %v", r.Leases, nodes, 80*time.Second)
	}

	rate, least, most := spread(r.PerSecond, from, to)
	cores := (end.CPU - begin.CPU).Seconds() / to.Sub(from).Seconds()
	b.ReportMetric(rate, "renewals/s")
	b.ReportMetric(rate/cores, "renewals/core-s")
	b.ReportMetric((float64(end.Heap)-float64(empty.Heap))/float64(nodes), "heap-B/node")
	b.ReportMetric((float64(end.Heap+end.Stack)-float64(empty.Heap+empty.Stack))/float64(nodes), "heap+stack-B/node")
	b.ReportMetric(float64(end.Goroutines), "goroutines")
	b.ReportMetric(float64(least), "least/s")
	b.ReportMetric(float64(most), "most/s")
	b.ReportMetric(float64(r.MostInFlight), "most-in-flight")

	server.get("/down", nil)
	time.Sleep(60 * time.Second)
	server.get("/up", nil)
	time.Sleep(2 * interval)
	from = time.Now()
	time.Sleep(interval)
	server.get("/report", &r)
	_, least, most = spread(r.PerSecond, from, time.Now())
	b.ReportMetric(float64(least), "least/s-after-outage")
	b.ReportMetric(float64(most), "most/s-after-outage")
	b.ReportMetric(0, "ns/op") // the duration of a run is fixed
}

// spread returns the renewals per second in the whole seconds between two
// times: the average, the minimum and the maximum.
func spread(perSecond map[int64]int, from, to time.Time) (rate float64, least, most int) {
	least = math.MaxInt
	total, seconds := 0, 0
	for second := from.Unix() + 1; second < to.Unix(); second++ {
		n := perSecond[second]
		total, seconds = total+n, seconds+1
		least, most = min(least, n), max(most, n)
	}
	return float64(total) / float64(seconds), least, most
}
