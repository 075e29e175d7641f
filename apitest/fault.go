// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Transport errors for Fault.Err, made as package net makes them, so that
// client-go classifies them as it would on a real connection.
var (
	// ErrConnReset is a connection that broke before a response came.
	ErrConnReset error = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	// ErrConnRefused is a server that doesn't listen.
	ErrConnRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	// ErrEOF is a connection that the other side closed.
	ErrEOF error = io.ErrUnexpectedEOF
)

// Fault is something that goes wrong, on purpose, with the requests it
// matches. All matching faults add their Latency; then the first one that
// decides the answer (any of the fields from Status on) decides it.
type Fault struct {
	Name  string // for Request.Fault and messages
	Match Match

	Skip  int // leave the first Skip matching requests alone
	Times int // then act on this many; 0 means on all that follow
	// For is how long the fault lasts from its injection; 0 means until it
	// is removed.
	For time.Duration

	// Latency delays the request before the server does anything with it.
	Latency time.Duration

	// Status is the answer instead of serving the request. The package
	// k8s.io/apimachinery/pkg/api/errors has constructors.
	Status *apierrors.StatusError
	// Err fails the request at transport level, before the server has it.
	Err error
	// Hang never answers: the request ends when its context does.
	Hang bool
	// LoseResponse serves the request and then fails it with ErrConnReset:
	// a write has happened and its writer does not know.
	LoseResponse bool
	// HangResponse serves the request and then never answers: a write has
	// happened and its writer runs into its own timeout.
	HangResponse bool
	// CommitAfter serves the request only this long after its arrival, no
	// matter whether its client still waits: a write that lands late. The
	// answer comes then too, unless the client's context has ended.
	CommitAfter time.Duration
	// Malformed answers 200 with a body that can't be decoded.
	Malformed bool
	// Answer, if set, makes the whole response, without the server.
	Answer func(Request) (*http.Response, error)
}

func (f *Fault) decides() bool {
	return f.Status != nil || f.Err != nil || f.Hang || f.LoseResponse || f.HangResponse || f.CommitAfter > 0 || f.Malformed || f.Answer != nil
}

type injected struct {
	fault Fault
	since time.Time
	seen  int
}

type faults struct {
	mu   sync.Mutex
	list []*injected
}

// Inject puts a fault in the way of the requests it matches, after those
// injected earlier, and returns the function that takes it away again.
func (s *Server) Inject(f Fault) (remove func()) {
	in := &injected{fault: f, since: time.Now()}
	s.faults.mu.Lock()
	s.faults.list = append(s.faults.list, in)
	s.faults.mu.Unlock()
	return func() {
		s.faults.mu.Lock()
		defer s.faults.mu.Unlock()
		s.faults.list = slices.DeleteFunc(s.faults.list, func(x *injected) bool { return x == in })
	}
}

// take returns the latency and the deciding fault for a request. Matching
// functions are called without the lock, so they may use the server.
func (fs *faults) take(r *Request) (latency time.Duration, decider *Fault) {
	fs.mu.Lock()
	list := fs.list
	if len(list) == 0 {
		fs.mu.Unlock()
		return 0, nil
	}
	list = slices.Clone(list)
	fs.mu.Unlock()
	for _, in := range list {
		f := &in.fault
		if f.For > 0 && r.Time.Sub(in.since) >= f.For || decider != nil && f.decides() && f.Latency == 0 {
			continue
		}
		if !f.Match.matches(r) {
			continue
		}
		fs.mu.Lock()
		in.seen++
		n := in.seen
		fs.mu.Unlock()
		if n <= f.Skip || f.Times > 0 && n > f.Skip+f.Times {
			continue
		}
		latency += f.Latency
		if decider == nil && f.decides() {
			decider = f
		}
	}
	return latency, decider
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func hang(ctx context.Context) error {
	if ctx.Done() == nil {
		return errors.New("apitest: a request without a deadline or cancel would hang for ever")
	}
	<-ctx.Done()
	return ctx.Err()
}
