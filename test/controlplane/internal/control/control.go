// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package control lets other processes operate a running cluster. The protocol has one JSON object per line, on the
// launcher's standard input and output or on a Unix socket in the cluster's directory.
//
// A request is {"id": 1, "op": "kill", "component": "etcd"}. Its answer is {"id": 1, "result": …} or {"id": 1, "error":
// "…"}. Requests are handled concurrently and answered in any order.
package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
)

// Request is a line from the client.
type Request struct {
	ID int    `json:"id"`
	Op string `json:"op"`
	// Component is the target of kill, terminate, pause, resume and restart.
	Component string `json:"component,omitempty"`
	// Identity is the argument of kubeconfig.
	Identity cluster.Identity `json:"identity,omitzero"`
}

// Response is a line to the client.
type Response struct {
	ID     int             `json:"id"`
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// Server answers requests about a cluster.
type Server struct {
	Cluster *cluster.Cluster
	// Down is called for the request "down". It makes the launcher stop the cluster and end.
	Down func()
}

// Serve answers the requests from r until r ends.
func (s *Server) Serve(ctx context.Context, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	answer := func(resp Response) {
		mu.Lock()
		defer mu.Unlock()
		// Serve notices a client that has gone when it reads.
		_ = json.NewEncoder(w).Encode(resp)
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var req Request
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			answer(Response{Error: fmt.Sprintf("not a request: %v", err)})
			continue
		}
		wg.Go(func() { answer(s.respond(ctx, req)) })
	}
	return lines.Err()
}

// respond executes req.
func (s *Server) respond(ctx context.Context, req Request) Response {
	resp := Response{ID: req.ID}
	result, err := s.do(ctx, req)
	if err == nil && result != nil {
		resp.Result, err = json.Marshal(result)
	}
	if err != nil {
		resp.Error = err.Error()
	}
	return resp
}

func (s *Server) do(ctx context.Context, req Request) (any, error) {
	switch req.Op {
	case "status":
		return s.Cluster.Status(), nil
	case "kubeconfig":
		return s.Cluster.Issue(ctx, req.Identity)
	case "kill":
		return nil, s.Cluster.Kill(req.Component)
	case "terminate":
		return nil, s.Cluster.Terminate(req.Component)
	case "pause":
		return nil, s.Cluster.Pause(req.Component)
	case "resume":
		return nil, s.Cluster.Resume(req.Component)
	case "restart":
		return nil, s.Cluster.Restart(ctx, req.Component)
	case "wait":
		ctx, cancel := context.WithTimeout(ctx, cluster.ReadyTimeout)
		defer cancel()
		return nil, s.Cluster.WaitReady(ctx)
	case "down":
		s.Down()
		return nil, nil
	}
	return nil, fmt.Errorf("unknown operation %q", req.Op)
}
