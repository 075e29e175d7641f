// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
)

// socketName is the socket's name in a cluster's directory.
const socketName = "control.sock"

// socketAddress returns a short address of the socket in dir, which is open as d. Addresses are limited to 108 bytes;
// paths of temporary directories may be longer.
func socketAddress(d *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName)
}

// Listen answers requests on the socket of the cluster directory dir until ctx is done.
func (s *Server) Listen(ctx context.Context, dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socketAddress(d))
	if err != nil {
		return errors.Join(err, d.Close())
	}
	context.AfterFunc(ctx, func() {
		l.Close()
		d.Close()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				_ = s.Serve(ctx, conn, conn) // a broken connection does not affect the cluster
			}()
		}
	}()
	return nil
}

// Call sends one request to the launcher of the cluster directory dir and decodes the answer's result into result.
func Call(ctx context.Context, dir string, req Request, result any) error {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("no such cluster")
	}
	if err != nil {
		return err
	}
	defer d.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socketAddress(d))
	if err != nil {
		return fmt.Errorf("the cluster does not answer: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return err
	}
	var resp Response
	if err := json.NewDecoder(conn).Decode(&resp); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("the cluster broke off: %w", err)
	}
	if resp.Error != "" {
		return errors.New(resp.Error)
	}
	if result == nil || resp.Result == nil {
		return nil
	}
	return json.Unmarshal(resp.Result, result)
}
