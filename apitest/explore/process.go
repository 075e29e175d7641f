// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
	"github.com/kubewright/kubewright/apitest/internal/request"
)

// ErrCrashed is the error of a Call of a process that has crashed.
var ErrCrashed = errors.New("explore: the process has crashed")

// Process is one start of a program. A crash ends it, and the program is started again
// as another Process.
type Process struct {
	// World is the run that the process belongs to.
	World *World
	// Config is for all API clients of the process.
	Config *rest.Config
	// Host names the machine. It is the same after a crash. A second instance of the
	// program, which takes over, has another. Use it in place of os.Hostname.
	Host string
	// Start is 0 for the first process of a program, and one more after each restart.
	Start int

	program Program
	lane    *lane
	run     context.CancelFunc // ends Run's context
	cutting context.Context    // done when no request may continue
	cut     context.CancelFunc
	ended   chan struct{} // closed when Run has returned
	err     error         // of Run; read after ended

	dead    atomic.Bool
	crashed chan struct{} // closed by a crash

	mu     sync.Mutex
	onExit []func()
	pause  chan struct{} // not nil while the process is paused; closed at the end of it
}

// lane has the state that the processes of one program on one host share.
type lane struct {
	name string // of the program, and of the host if it is not the first
	host string
	dir  string // the directory of the next process; empty until it is used

	watched []string // resources; guarded by World.mu
}

// OnCrash calls f when the process crashes, before its context is done. f must end what
// the process has outside, as the end of a process would: close a connection, release a
// lock. f is called at once if the process has crashed.
func (p *Process) OnCrash(f func()) {
	p.mu.Lock()
	if !p.dead.Load() {
		p.onExit = append(p.onExit, f)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	f()
}

// Call calls f, which is something that the process does outside of itself, except for
// its requests: a call to a runtime, or a change of a file that another program reads. The
// exploration crashes the process before and after it. A read needs no Call. name is in the
// plan lines. Call returns ErrCrashed without a call of f if the process has crashed, and
// also if it crashes after f.
func (p *Process) Call(name string, f func()) error {
	w := p.World
	defer w.changed()
	_, err := p.exchange(context.Background(), plan.Place{Verb: "call", Target: plan.Clean(name)}, false, nil, func(context.Context) (*http.Response, error) {
		f()
		return nil, nil
	})
	return err
}

// Dir returns a directory for the files of the process. After a crash, the next
// process has a copy of it as it was at that instant.
func (p *Process) Dir() (string, error) {
	w := p.World
	w.files.Lock()
	defer w.files.Unlock()
	if p.dead.Load() {
		return "", ErrCrashed
	}
	if p.lane.dir == "" {
		dir, err := w.newDir()
		if err != nil {
			return "", err
		}
		p.lane.dir = dir
	}
	return p.lane.dir, nil
}

// Crash crashes the running processes of a program, for a Fault of the caller's own, such as
// a reboot of a machine. The program starts again a second later.
func (w *World) Crash(program string) {
	w.mu.Lock()
	all := slices.Clone(w.processes)
	w.mu.Unlock()
	w.disturb.Store(true)
	for _, p := range all {
		if p.program.Name == program && !p.hasEnded() {
			p.crash()
		}
	}
}

// hasEnded reports whether Run has returned.
func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// crash ends the process: nothing of it has an effect from here on.
func (p *Process) crash() {
	if p.dead.Swap(true) {
		return
	}
	w := p.World
	w.files.Lock()
	if p.lane.dir != "" {
		dir, err := w.newDir()
		if err == nil {
			err = copyTree(p.lane.dir, dir, "")
		}
		if err != nil {
			w.problem("can't copy the directory of %s: %v", p.lane.name, err)
		}
		p.lane.dir = dir
	}
	w.files.Unlock()
	p.mu.Lock()
	exit := p.onExit
	p.onExit = nil
	p.mu.Unlock()
	for _, f := range exit {
		f()
	}
	w.note("%s crashes", p.lane.name)
	p.cut()
	p.run()
	close(p.crashed)
}

// hold stops all requests and calls of the process for d. Then they continue.
func (p *Process) hold(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause != nil {
		return
	}
	p.World.note("%s is paused", p.lane.name)
	pause := make(chan struct{})
	p.pause = pause
	time.AfterFunc(d, func() {
		p.mu.Lock()
		p.pause = nil
		p.mu.Unlock()
		p.World.note("%s continues", p.lane.name)
		close(pause)
	})
}

// held waits until the process is not paused.
func (p *Process) held(ctx context.Context) {
	for {
		p.mu.Lock()
		pause := p.pause
		p.mu.Unlock()
		if pause == nil {
			return
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return
		case <-p.cutting.Done():
			return
		}
	}
}

// gone is the result of all requests and calls of a dead process. It takes time, so that a loop
// without a pause in a dead process does not stop the time of the bubble.
func (p *Process) gone(ctx context.Context) error {
	t := time.NewTimer(time.Minute)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-p.World.over.Done():
	}
	return errors.Join(ErrCrashed, apitest.ErrConnRefused)
}

// exchange does one request or call, and lets the faults of the plan act on it. Reads of
// the discovery are not ordered, because clients hold a lock during them. If an answer with
// 409 means that the program must repeat the request, conflicts asks for it. It is nil for
// other requests.
func (p *Process) exchange(ctx context.Context, place plan.Place, unordered bool, conflicts func(context.Context) bool, do func(context.Context) (*http.Response, error)) (*http.Response, error) {
	w := p.World
	if p.dead.Load() {
		return nil, p.gone(ctx)
	}
	p.held(ctx)
	if !unordered {
		w.order.pass(ctx, place.Target+" "+place.Verb+" "+p.lane.name)
	}
	p.held(ctx)
	if p.dead.Load() {
		return nil, p.gone(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	x := &exchange{w: w, p: p, ctx: ctx}
	var faults []Fault
	x.place, x.entry, faults = w.begin(ctx, p, place, conflicts)
	x.send = func() (*http.Response, error) {
		if p.dead.Load() {
			return nil, p.gone(ctx)
		}
		return do(ctx)
	}
	for _, f := range faults {
		x.apply(f)
	}
	resp, err := x.send()
	if p.dead.Load() && err == nil { // the answer does not reach it
		if resp != nil {
			resp.Body.Close()
		}
		resp, err = nil, errors.Join(ErrCrashed, apitest.ErrConnReset)
	}
	if conflicts != nil && len(faults) == 0 && err == nil && resp.StatusCode == http.StatusConflict {
		w.uncount(x.place)
	}
	w.finish(x.entry, resp, err)
	return resp, err
}

// acts records whose write is being served. Only one is, because requests are ordered. What
// undisturbed programs make is not what the exploration asks about.
func (w *World) acts(p *Process, blind func() bool) {
	if p != nil && p.program.Undisturbed {
		p = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history.acting, w.history.blind = p, blind
}

// transport is the network of a process.
type transport struct {
	p    *Process
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	p := t.p
	var body []byte
	if req.Body != nil && req.Body != http.NoBody {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(p.cutting, cancel)
	done := func() { stop(); cancel() }
	place := plan.OfRequest(req, body)
	discovery := place.Target != "" && place.Target[0] == '/'
	send := func(ctx context.Context) (*http.Response, error) {
		req := req.Clone(ctx)
		req.Header.Set("User-Agent", req.Header.Get("User-Agent")+agent+p.program.Name)
		if body != nil {
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		return t.next.RoundTrip(req)
	}
	var conflicts func(context.Context) bool
	if repeats := []string{"update", "patch", "delete"}; slices.Contains(repeats, place.Verb) && !isApply(req) {
		conflicts = func(ctx context.Context) bool {
			resp, err := send(request.Trial(ctx))
			if resp != nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusConflict
		}
	}
	resp, err := p.exchange(ctx, place, discovery, conflicts, func(ctx context.Context) (*http.Response, error) {
		if place.IsWrite() {
			p.World.acts(p, func() bool { return place.Verb == "update" && plan.IsUnconditional(body) })
			defer p.World.acts(nil, nil)
		}
		return send(ctx)
	})
	if err != nil || place.Verb != "watch" {
		// The body of an answer that is no stream is in memory.
		done()
		return resp, err
	}
	resp.Body = &stream{ReadCloser: resp.Body, p: p, ctx: ctx, done: done}
	return resp, nil
}

// isApply reports whether a request is a server-side apply. Its conflicts are about the owners of
// fields, not about another write that came first.
func isApply(req *http.Request) bool {
	media, _, _ := strings.Cut(req.Header.Get("Content-Type"), ";")
	return strings.HasPrefix(media, "application/apply-patch+")
}

// stream is the body of a watch.
type stream struct {
	io.ReadCloser
	p    *Process
	ctx  context.Context
	done func()
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.p.held(s.ctx)
	if s.p.dead.Load() {
		return 0, apitest.ErrConnReset
	}
	return n, err
}

func (s *stream) Close() error {
	s.done()
	return s.ReadCloser.Close()
}

// start runs the program as a new process.
func (w *World) start(ctx context.Context, prog Program, l *lane, n int) *Process {
	p := &Process{World: w, Host: l.host, Start: n, program: prog, lane: l, ended: make(chan struct{}), crashed: make(chan struct{})}
	ctx, p.run = context.WithCancel(ctx)
	p.cutting, p.cut = context.WithCancel(context.WithoutCancel(ctx))
	p.Config = w.Server.Config(prog.User)
	p.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{p, next} })
	w.mu.Lock()
	w.processes = append(w.processes, p)
	w.mu.Unlock()
	go func() {
		defer close(p.ended)
		defer p.run()
		defer func() {
			if r := recover(); r != nil {
				p.err = fmt.Errorf("panic: %v", r)
				if !p.dead.Load() {
					w.problem("panic of %s: %v\n%s", l.name, r, debug.Stack())
				}
			}
		}()
		p.err = prog.Run(ctx, p)
	}()
	return p
}

// supervise keeps a program running until ctx is done.
func (w *World) supervise(ctx context.Context, prog Program, l *lane) {
	delay := time.Second
	for n := 0; ; n++ {
		p := w.start(ctx, prog, l, n)
		select {
		case <-ctx.Done():
			return
		case <-p.crashed:
			delay = time.Second
		case <-p.ended:
			if ctx.Err() != nil || w.isHot() {
				return
			}
			w.note("%s returned: %v", l.name, p.err)
			if w.undisturbed() {
				w.problem("program %s returned before its context was done: %v", l.name, p.err)
			}
			p.cut()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
			delay = min(2*delay, time.Minute) // as a kubelet does with a container
		}
	}
}
