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

// An instance is a pod as the cloud has it. It runs nothing; what it has in
// common with one that does is that it outlives whoever has asked for it.
type instance struct {
	UID        types.UID   `json:"uid"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Generation int64       `json:"generation"`
	Containers []container `json:"containers"`
	// Completes says that it ends by itself.
	Completes bool `json:"completes,omitempty"`
	// ID is another one for each instance that was ever begun.
	ID      string    `json:"id"`
	Started time.Time `json:"started"`
	// Ended is zero while it runs. Every container has ended with 0 then.
	Ended time.Time `json:"ended,omitzero"`
}

// A container of an instance.
type container struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

// tokenHeader has the fencing token of who asks.
const tokenHeader = "Fencing-Token"

// cloud is where the pods of virtual nodes run: some API of yours, which knows
// nothing of Kubernetes but one number. It refuses every request with a smaller
// token than it has seen for the node, reads included. So from the first list of
// a new leader on nothing that an earlier one has asked for comes to pass, no
// matter when it was sent and how long it took; and the list has all that came
// to pass before.
type cloud struct {
	runFor time.Duration // how long an instance runs that ends by itself

	mu    sync.Mutex
	nodes map[string]*tenant
	begun int // how many instances
}

// tenant is what the cloud has for one node.
type tenant struct {
	token uint64
	pods  map[types.UID]*instance
}

func newCloud(runFor time.Duration) *cloud {
	return &cloud{runFor: runFor, nodes: make(map[string]*tenant)}
}

// refusal is an error with the status of the answer.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

var errNoInstance = &refusal{http.StatusNotFound, "no such instance"}

// Handler returns the API:
//
//	GET    /nodes/NODE/pods            all instances
//	PUT    /nodes/NODE/pods/UID        begin one, or find it begun
//	POST   /nodes/NODE/pods/UID/stop   end one
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

// begin makes an instance run, once: one that is there is returned as it is. The
// caller holds the lock.
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

// fenced is a handler that does what do does, unless the token is too small. To
// compare tokens and to act is one step, under one lock: were it two, a new
// leader could come in between.
func (c *cloud) fenced(do func(t *tenant, r *http.Request, body *instance) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseUint(r.Header.Get(tokenHeader), 10, 64)
		if err != nil {
			http.Error(w, tokenHeader+": want a number", http.StatusBadRequest)
			return
		}
		// All of the body is here before the token counts: a client may freeze
		// in the middle of it.
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
		_, _ = w.Write(answer) // who asked is gone
	})
}

// locked returns the answer of do in JSON.
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
