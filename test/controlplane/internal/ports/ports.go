// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package ports reserves TCP ports on the loopback interface for servers in other processes.
//
// The usual way, to listen on port 0, close, and hand on the number, is a race: until the server listens, and while it is being
// restarted, anybody may take the port. Here the launcher keeps a socket bound to the port for the cluster's whole life,
// without listening on it, so that connections are refused as long as no server listens. SO_REUSEPORT, on both sides, lets
// the server bind the same port. (etcd: --socket-reuse-port; Kubernetes: --permit-port-sharing.) The kernel gives such a port to nobody
// who asks for any free port.
package ports

import (
	"fmt"
	"syscall"
)

// reusePort is SO_REUSEPORT, which package syscall doesn't name on Linux.
const reusePort = 0xf

// Reservation is a port that is kept free for whoever sets SO_REUSEPORT (and runs as the same user).
type Reservation struct {
	Port int
	fd   int
}

// Reserve reserves a free port on 127.0.0.1.
func Reserve() (*Reservation, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: socket: %w", err)
	}
	r := &Reservation{fd: fd}
	if err := r.bind(); err != nil {
		r.Release()
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return r, nil
}

func (r *Reservation) bind() error {
	if err := syscall.SetsockoptInt(r.fd, syscall.SOL_SOCKET, reusePort, 1); err != nil {
		return fmt.Errorf("SO_REUSEPORT: %w", err)
	}
	if err := syscall.Bind(r.fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	addr, err := syscall.Getsockname(r.fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	r.Port = addr.(*syscall.SockaddrInet4).Port
	return nil
}

// Release gives the port up.
func (r *Reservation) Release() { syscall.Close(r.fd) }
