// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package fault has the faults that are injected into a server, and decides which of them
// hit a request. What becomes of the request is the business of its transport.
package fault

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/apitest/internal/request"
)

// Fault is an injected failure of the requests that match. Its exported twin,
// apitest.Fault, has the documentation of the fields.
type Fault struct {
	Name        string
	Match       request.Match
	Skip, Times int
	For         time.Duration
	Latency     time.Duration

	Status       *apierrors.StatusError
	Err          error
	Hang         bool
	LoseResponse bool
	HangResponse bool
	CommitAfter  time.Duration
	Malformed    bool
	Answer       func(*request.Request) (*http.Response, error)

	Served func(*request.Request)
}

func (f *Fault) decides() bool {
	return f.Status != nil || f.Err != nil || f.Hang || f.LoseResponse || f.HangResponse || f.CommitAfter > 0 || f.Malformed || f.Answer != nil
}

type injected struct {
	fault Fault
	since time.Time
	seen  int
}

// List is the faults of a server.
type List struct {
	mu   sync.Mutex
	list []*injected
}

// Inject adds a fault after the faults that were injected earlier. It returns a
// function that removes the fault.
func (fs *List) Inject(f Fault) (remove func()) {
	in := &injected{fault: f, since: time.Now()}
	fs.mu.Lock()
	fs.list = append(fs.list, in)
	fs.mu.Unlock()
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.list = slices.DeleteFunc(fs.list, func(x *injected) bool { return x == in })
	}
}

// Take returns the latency and the deciding fault for a request. Matching
// functions are called without the lock, so they may use the server.
func (fs *List) Take(r *request.Request) (latency time.Duration, decider *Fault, served []func(*request.Request)) {
	fs.mu.Lock()
	list := fs.list
	if len(list) == 0 {
		fs.mu.Unlock()
		return 0, nil, nil
	}
	list = slices.Clone(list)
	fs.mu.Unlock()
	for _, in := range list {
		f := &in.fault
		if f.For > 0 && r.Time.Sub(in.since) >= f.For || decider != nil && f.decides() && f.Latency == 0 && f.Served == nil {
			continue
		}
		if !f.Match.Matches(r) {
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
		if f.Served != nil {
			served = append(served, f.Served)
		}
		if decider == nil && f.decides() {
			decider = f
		}
	}
	return latency, decider, served
}

// Hang waits for the end of ctx.
func Hang(ctx context.Context) error {
	if ctx.Done() == nil {
		return errors.New("apitest: a request without a deadline or cancel would hang for ever")
	}
	<-ctx.Done()
	return ctx.Err()
}
