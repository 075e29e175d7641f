// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"
)

// role tells the processes of a benchmark what they are.
const role = "BENCH_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch who := os.Getenv(role); who {
	case "":
		os.Exit(m.Run())
	case "server":
		err = serve()
	default:
		err = keep(who)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process is a child that answers lines with JSON. It ends with its input.
type process struct {
	b   *testing.B
	in  io.WriteCloser
	out *json.Decoder
}

func start(b *testing.B, who string, env ...string) *process {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe)
	cmd.Env = append(append(os.Environ(), env...), role+"="+who)
	cmd.Stderr = io.Discard // component-helpers logs each of ten thousand failures
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	})
	return &process{b, in, json.NewDecoder(bufio.NewReader(out))}
}

func (p *process) read(into any) {
	p.b.Helper()
	if err := p.out.Decode(into); err != nil {
		p.b.Fatal(err)
	}
}

// ask sends a line and reads the answer.
func (p *process) ask() (f figures) {
	p.b.Helper()
	if _, err := fmt.Fprintln(p.in, "measure"); err != nil {
		p.b.Fatal(err)
	}
	p.read(&f)
	return f
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
	start(b, "server", "BENCH_LATENCY="+latency.String()).read(e)
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

// BenchmarkTenThousandNodes keeps 10,000 leases renewed every 10 s, against a
// server that takes 10 ms, for 40 s after a start of 40 s; then the server is
// down for 60 s, and the second interval after it is looked at.
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
	client := start(b, peer, "BENCH_URL="+server.URL, "BENCH_CERT="+string(cert), fmt.Sprint("BENCH_NODES=", nodes))
	var empty figures
	client.read(&empty)

	time.Sleep(40 * time.Second) // to the steady state
	const window = 40 * time.Second
	from, begin := time.Now(), client.ask()
	time.Sleep(window)
	to, end := time.Now(), client.ask()
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
	b.ReportMetric(0, "ns/op") // a run takes as long as it is told to
}

// spread returns the renewals a second in the whole seconds between two times:
// on average, in the second with the fewest and in that with the most.
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
