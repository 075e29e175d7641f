// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// profile serves the profiles of this process at address until ctx is done: what
// its memory is used for, where its goroutines are and its time goes. Anybody who
// reaches the address can read them, so it should be one of this host.
func profile(ctx context.Context, address string, stdout io.Writer) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // nobody waits for the rest of a profile
	fmt.Fprintf(stdout, "profiles at http://%s/debug/pprof/\n", listener.Addr())
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("profiles: %w", err)
	}
	return nil
}
