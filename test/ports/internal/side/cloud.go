// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package side

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
)

// A mode is how a Cloud answers.
type mode int

const (
	answers mode = iota
	fails        // with status 500
	empty        // with status 200 and no body
)

// A Cloud is the back end of a provider. It outlives the processes of the node. It is reached
// through a socket, as an http.Handler, or within the process, as an http.RoundTripper, which
// virtual time needs. Without Handler it can't answer.
type Cloud struct {
	Handler http.Handler

	mu     sync.Mutex
	mode   mode
	silent chan struct{} // closed when the silence ends; nil: the back end answers
	hold   *hold
	calls  int
	holds  map[string]bool
	starts map[string]int // of each pod, for each of which one is right
}

// A hold keeps back all answers from the next change of an instance until it is released.
type hold struct {
	changed, released chan struct{}
}

// ServeHTTP serves a call through a socket.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		c.Handler.ServeHTTP(w, r)
		return
	}
	resp, err := c.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// RoundTrip implements http.RoundTripper.
func (c *Cloud) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.calls++
	mode, silent := c.mode, c.silent
	c.mu.Unlock()
	w := httptest.NewRecorder()
	if silent != nil {
		select {
		case <-silent: // an error of the connection would make the client of azure-aci panic
			w.WriteHeader(http.StatusServiceUnavailable)
			return result(w, r), nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	switch mode {
	case fails:
		w.WriteHeader(http.StatusInternalServerError)
	case empty:
		w.WriteHeader(http.StatusOK)
	default:
		r = r.Clone(r.Context())
		if r.Body == nil {
			r.Body = http.NoBody
		}
		c.Handler.ServeHTTP(w, r)
	}
	c.mu.Lock()
	held := c.hold
	c.mu.Unlock()
	if held != nil {
		select {
		case <-held.changed:
			select {
			case <-held.released:
			case <-r.Context().Done(): // the process was killed
			}
		default: // nothing has changed yet
		}
	}
	return result(w, r), nil
}

func result(w *httptest.ResponseRecorder, r *http.Request) *http.Response {
	resp := w.Result()
	resp.Request = r
	return resp
}

// Started records that the back end has started an instance of a pod.
func (c *Cloud) Started(instance, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds == nil {
		c.holds, c.starts = make(map[string]bool), make(map[string]int)
	}
	c.holds[instance] = true
	c.starts[pod]++
	c.changed()
}

// Stopped records that the back end no longer has an instance, or never had it.
func (c *Cloud) Stopped(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, instance)
	c.changed()
}

// changed must be called with c.mu held.
func (c *Cloud) changed() {
	if c.hold == nil {
		return
	}
	select {
	case <-c.hold.changed:
	default:
		close(c.hold.changed)
	}
}

// holdAnswers keeps back all answers from the next change of an instance on. It returns a
// channel that is closed by this change, and the function that releases the answers.
func (c *Cloud) holdAnswers() (changed <-chan struct{}, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := &hold{changed: make(chan struct{}), released: make(chan struct{})}
	c.hold = held
	return held.changed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hold = nil
		close(held.released)
	}
}

// answer changes how the back end answers.
func (c *Cloud) answer(m mode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mode = m
}

// fallSilent begins a time in which no call is answered. It returns the function that ends
// it: then the calls that wait are answered with status 503.
func (c *Cloud) fallSilent() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := make(chan struct{})
	c.silent = silent
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.silent = nil
		close(silent)
	}
}

func (c *Cloud) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := 0
	for _, n := range c.starts {
		most = max(most, n)
	}
	return fmt.Sprintf("%d instances, at most %d for a pod; ", len(c.holds), most)
}

// served returns the number of calls until now.
func (c *Cloud) served() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}
