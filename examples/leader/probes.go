// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/tools/cache"
)

// probes answer the probes of a Pod without TLS and without credentials, which a kubelet
// has not: /healthz while every part makes progress, and /readyz when each has succeeded
// once. Neither depends on the API server, because a restart would not bring it back.
type probes struct {
	address string // of the listener; empty: none
	parts   []part
	metrics http.Handler // of /metrics; nil: none
}

// A part is a controller.
type part interface {
	Name() string
	Check(*http.Request) error
	Ready() cache.DoneChecker
}

// during calls run, and answers probes until it returns. If that fails the context of run
// ends.
func (p *probes) during(ctx context.Context, run func(context.Context) error) error {
	if p.address == "" {
		return run(ctx)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: p.handler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(listener)
		cancel()
	}()
	err = run(ctx)
	_ = server.Close()
	if failure := <-served; !errors.Is(failure, http.ErrServerClosed) {
		err = errors.Join(err, failure)
	}
	return err
}

func (p *probes) handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, check func(part) error) {
		for _, part := range p.parts {
			if err := check(part); err != nil {
				http.Error(w, part.Name()+": "+err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, func(part part) error { return part.Check(r) })
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, func(part part) error {
			select {
			case <-part.Ready().Done():
				return nil
			default:
				return errors.New("has not succeeded yet")
			}
		})
	})
	if p.metrics != nil {
		mux.Handle("GET /metrics", p.metrics)
	}
	return mux
}
