// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
)

const (
	namespace = "kube-system"
	leaseName = "example"

	// A request takes from minLatency to maxLatency, half of it before the
	// server processes it.
	minLatency = 5 * time.Millisecond
	maxLatency = 15 * time.Millisecond
	// watchLag is the one-way delay of an event.
	watchLag = 5 * time.Millisecond

	// restartDelay is the delay before an ended process runs again.
	restartDelay = time.Second
)

// system is a method of electing a leader.
type system struct {
	name     string
	ours     bool
	electors bool // the candidates use client-go's elector
	releases bool // the candidates release the lease when they end
	// candidate participates as p until ctx is done.
	candidate func(ctx context.Context, p *process)
	// coordinator, if not nil, assigns the leadership until ctx is done.
	coordinator func(ctx context.Context, p *process)
	// prefers reports whether a better candidate takes over.
	prefers bool
	// only is the name of the one scenario that the system runs; "" means all.
	only string
}

// world is an API server and the processes of one system.
type world struct {
	t         *testing.T
	system    *system
	server    *apitest.Server
	rng       *lockedRand
	ledger    *ledger
	processes []*process

	events atomic.Int64 // that watches delivered to all processes

	mu    sync.Mutex
	watch func(apitest.Request) // called for each request that arrives
}

func newWorld(t *testing.T, s *system, seed uint64) *world {
	w := &world{
		t: t, system: s, ledger: newLedger(),
		rng: &lockedRand{rng: rand.New(rand.NewPCG(seed, 0))},
	}
	w.server = apitest.New(apitest.Options{
		Serve: []schema.GroupVersion{{Group: "coordination.k8s.io", Version: "v1beta1"}},
		Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true},
	})
	// Func is called with each request that arrives. The fault does nothing.
	w.server.Inject(apitest.Fault{Match: apitest.Match{Func: func(r apitest.Request) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.watch != nil {
			w.watch(r)
		}
		return false
	}}})
	w.server.LagWatches(apitest.Match{}, watchLag)
	// Start at a random offset, so that seconds do not begin here.
	time.Sleep(w.rng.between(0, 5*time.Second))
	if s.coordinator != nil {
		w.launch(&process{name: coordinatorName}, s.coordinator)
		time.Sleep(20 * time.Second)
	}
	return w
}

const coordinatorName = "coordinator"

// close ends all processes.
func (w *world) close() {
	for _, p := range w.processes {
		p.cancel()
	}
	for _, p := range w.processes {
		<-p.done
	}
}

// process is one program with its own client.
type process struct {
	name    string
	version string        // binary and emulation version
	offset  time.Duration // how far its clock is ahead

	w      *world
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	dead   bool
	starts int
}

// start starts a candidate.
func (w *world) start(p *process) *process {
	if p.version == "" {
		p.version = "1.30.0"
	}
	return w.launch(p, w.system.candidate)
}

func (w *world) launch(p *process, run func(context.Context, *process)) *process {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	p.w, p.cancel, p.done = w, cancel, make(chan struct{})
	w.processes = append(w.processes, p)
	go func() {
		defer close(p.done)
		run(ctx, p)
	}()
	return p
}

// startApart starts n candidates whose objects are created in different seconds.
func (w *world) startApart(n int) {
	for i := range n {
		w.start(&process{name: fmt.Sprintf("c%d", i)})
		time.Sleep(1100 * time.Millisecond)
	}
}

// identity returns the identity for the next start of the process.
func (p *process) identity() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts++
	return fmt.Sprintf("%s-%d", p.name, p.starts)
}

// lead does the work until ctx is done.
func (p *process) lead(ctx context.Context) {
	p.mu.Lock()
	if p.dead || ctx.Err() != nil {
		p.mu.Unlock()
		return
	}
	end := p.w.ledger.begin(p.name)
	p.mu.Unlock()
	<-ctx.Done()
	end()
}

// crash ends the process like kill -9: its work and its requests end at this
// instant.
func (p *process) crash() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.w.ledger.kill(p.name)
	mine := apitest.Match{User: p.name}
	p.w.server.Inject(apitest.Fault{Match: mine, Err: apitest.ErrConnRefused})
	p.w.server.BreakWatches(mine)
	p.cancel()
}

// partition disconnects the process: its requests hang, and it receives no
// events.
func (p *process) partition() {
	mine := apitest.Match{User: p.name}
	p.w.server.Inject(apitest.Fault{Match: mine, Hang: true})
	p.w.server.StallWatches(mine)
}

// stop ends the process cleanly, and waits for it.
func (p *process) stop() {
	p.cancel()
	<-p.done
}

// request waits for the next request that m matches, and reports whether one
// arrived within limit. It returns after the server has processed the request.
func (w *world) request(limit time.Duration, m func(apitest.Request) bool) bool {
	arrived := make(chan struct{})
	w.mu.Lock()
	w.watch = func(r apitest.Request) {
		if m(r) {
			close(arrived)
			w.watch = nil
		}
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.watch = nil
		w.mu.Unlock()
	}()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-arrived:
		time.Sleep(time.Microsecond) // the server needs no time
		return true
	case <-timeout.C:
		return false
	}
}

// leader waits for a leader and returns it.
func (w *world) leader() *process {
	w.t.Helper()
	var leader *process
	if !w.ledger.await(10*time.Minute, func(name string) bool { leader = w.process(name); return true }) {
		w.t.Fatalf("%s: no leader after ten minutes", w.system.name)
	}
	return leader
}

func (w *world) process(name string) *process {
	i := slices.IndexFunc(w.processes, func(p *process) bool { return p.name == name })
	return w.processes[i]
}

// requests returns the number of requests in the journal, without watches,
// which last for half an hour.
func (w *world) requests() float64 {
	return float64(len(w.server.Requests(apitest.Match{Func: func(r apitest.Request) bool { return r.Verb != "watch" }})))
}

// client returns a clientset for the process, with the rate limits of
// kube-scheduler. A timeout of 0 means none.
func (p *process) client(timeout time.Duration) *kubernetes.Clientset {
	cfg := p.w.server.Config(apitest.User{Name: p.name})
	cfg.QPS, cfg.Burst, cfg.Timeout = 50, 100, timeout
	cfg.ContentType = "application/json" // for skewed and the scenarios, which read bodies
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper {
		if p.offset != 0 {
			base = &skewed{base, p.offset}
		}
		return &slow{base, p.w}
	})
	return kubernetes.NewForConfigOrDie(cfg)
}

// slow delays requests and their answers. It counts the events of watches.
type slow struct {
	base http.RoundTripper
	w    *world
}

func (s *slow) RoundTrip(req *http.Request) (*http.Response, error) {
	half := s.w.rng.between(minLatency, maxLatency) / 2
	if err := sleep(req.Context(), half); err != nil {
		return nil, err
	}
	resp, err := s.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if err := sleep(req.Context(), half); err != nil {
		resp.Body.Close()
		return nil, err
	}
	if req.URL.Query().Has("watch") {
		resp.Body = &eventCounter{resp.Body, &s.w.events}
	}
	return resp, nil
}

// eventCounter counts the events in the body of a watch: one line of JSON each.
type eventCounter struct {
	io.ReadCloser
	events *atomic.Int64
}

func (c *eventCounter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.events.Add(int64(bytes.Count(p[:n], []byte("\n"))))
	return n, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lockedRand is a random source that all processes share.
type lockedRand struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (r *lockedRand) between(from, to time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return from + time.Duration(r.rng.Int64N(int64(to-from)))
}
