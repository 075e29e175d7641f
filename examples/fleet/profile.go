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

// profile serves the profiles of this process (memory, goroutines, CPU) at
// address until ctx is done. They have no access control, so the address should
// be on loopback.
func profile(ctx context.Context, address string, stdout io.Writer) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // close at once, because a profile need not be complete
	fmt.Fprintf(stdout, "profiles at http://%s/debug/pprof/\n", listener.Addr())
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("profiles: %w", err)
	}
	return nil
}
