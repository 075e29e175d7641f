// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// An instance is a pod in the cloud. It runs nothing, but like a real one it
// outlives the client that requested it.
type instance struct {
	UID        types.UID   `json:"uid"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Generation int64       `json:"generation"`
	Containers []container `json:"containers"`
	// Completes is true if the instance ends on its own.
	Completes bool `json:"completes,omitempty"`
	// ID is unique among all instances that were ever started.
	ID      string    `json:"id"`
	Started time.Time `json:"started"`
	// Ended is zero while the instance runs. At that time every container exits
	// with 0.
	Ended time.Time `json:"ended,omitzero"`
}

// A container is a container of an instance.
type container struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

// tokenHeader carries the client's fencing token.
const tokenHeader = "Fencing-Token"

// cloud runs the pods of virtual nodes. It stands for a custom API that knows
// only one number of Kubernetes: the fencing token. It refuses every request
// whose token is smaller than one it has seen for the node, reads included.
// After the first list of a new leader, no request of an earlier leader takes
// effect, no matter when it was sent or how long it took; and the list shows
// the effect of all earlier requests.
type cloud struct {
	runFor time.Duration // lifetime of an instance that ends on its own

	mu    sync.Mutex
	nodes map[string]*tenant
	begun int // number of started instances
}

// tenant holds the state of one node.
type tenant struct {
	token uint64
	pods  map[types.UID]*instance
}

func newCloud(runFor time.Duration) *cloud {
	return &cloud{runFor: runFor, nodes: make(map[string]*tenant)}
}

// refusal is an error with an HTTP status.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

var errNoInstance = &refusal{http.StatusNotFound, "no such instance"}

// Handler returns the API:
//
//	GET    /nodes/NODE/pods            all instances
//	PUT    /nodes/NODE/pods/UID        start one, unless it exists
//	POST   /nodes/NODE/pods/UID/stop   stop one
//	DELETE /nodes/NODE/pods/UID        forget one that has ended
func (c *cloud) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /nodes/{node}/pods", c.fenced(func(t *tenant, _ *http.Request, _ *instance) (any, error) {
		list := make([]*instance, 0, len(t.pods))
		for _, i := range t.pods {
			list = append(list, i)
		}
		return list, nil
	}))
	mux.Handle("PUT /nodes/{node}/pods/{uid}", c.fenced(func(t *tenant, r *http.Request, wanted *instance) (any, error) {
		return c.begin(t, types.UID(r.PathValue("uid")), wanted), nil
	}))
	mux.Handle("POST /nodes/{node}/pods/{uid}/stop", c.fenced(func(t *tenant, r *http.Request, _ *instance) (any, error) {
		i, ok := t.pods[types.UID(r.PathValue("uid"))]
		if !ok {
			return nil, errNoInstance
		}
		if i.Ended.IsZero() {
			i.Ended = time.Now()
		}
		return i, nil
	}))
	mux.Handle("DELETE /nodes/{node}/pods/{uid}", c.fenced(func(t *tenant, r *http.Request, _ *instance) (any, error) {
		i, ok := t.pods[types.UID(r.PathValue("uid"))]
		switch {
		case !ok:
			return nil, errNoInstance
		case i.Ended.IsZero():
			return nil, &refusal{http.StatusConflict, "the instance runs"}
		}
		delete(t.pods, i.UID)
		return i, nil
	}))
	return mux
}

// begin starts an instance, or returns the existing one unchanged. c.mu must be
// held.
func (c *cloud) begin(t *tenant, uid types.UID, wanted *instance) *instance {
	if held, ok := t.pods[uid]; ok {
		return held
	}
	c.begun++
	i := *wanted
	i.UID, i.ID = uid, fmt.Sprintf("cloud://%d", c.begun)
	i.Started, i.Ended = time.Now(), time.Time{}
	t.pods[uid] = &i
	return &i
}

// fenced returns a handler that calls do unless the token is too small. The
// comparison and the action happen under one lock: otherwise a new leader could
// act in between.
func (c *cloud) fenced(do func(t *tenant, r *http.Request, body *instance) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseUint(r.Header.Get(tokenHeader), 10, 64)
		if err != nil {
			http.Error(w, tokenHeader+": want a number", http.StatusBadRequest)
			return
		}
		// Read the whole body before comparing the token, because a client may
		// freeze in the middle of it.
		var body instance
		if r.Method == http.MethodPut {
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		answer, err := c.locked(r, token, &body, do)
		if err != nil {
			code := http.StatusInternalServerError
			if refused, ok := err.(*refusal); ok {
				code = refused.code
			}
			http.Error(w, err.Error(), code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // the client is gone
	})
}

// locked returns the answer of do as JSON.
func (c *cloud) locked(r *http.Request, token uint64, body *instance, do func(*tenant, *http.Request, *instance) (any, error)) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := r.PathValue("node")
	t, ok := c.nodes[node]
	if !ok {
		t = &tenant{pods: make(map[types.UID]*instance)}
		c.nodes[node] = t
	}
	if token < t.token {
		return nil, &refusal{http.StatusPreconditionFailed, fmt.Sprintf("token %d is fenced off by %d", token, t.token)}
	}
	t.token = token
	for _, i := range t.pods {
		if due := i.Started.Add(c.runFor); i.Completes && i.Ended.IsZero() && !time.Now().Before(due) {
			i.Ended = due
		}
	}
	answer, err := do(t, r, body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}
