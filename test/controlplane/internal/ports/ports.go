// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package ports reserves TCP ports on the loopback interface for servers in other processes.
//
// The usual method is to listen on port 0, close the listener and pass on the number. It has a race: until the server
// listens, and while it restarts, another process may take the port. Instead, the launcher keeps a socket bound to the
// port for the cluster's whole life, without listening on it, so that connections are refused while no server listens.
// With SO_REUSEPORT on both sockets, the server can bind the same port (etcd: --socket-reuse-port; Kubernetes:
// --permit-port-sharing). The kernel does not assign such a port to a process that requests any free port.
package ports

import (
	"fmt"
	"syscall"
)

// reusePort is SO_REUSEPORT, which package syscall does not define on Linux.
const reusePort = 0xf

// Reservation is a port that only sockets with SO_REUSEPORT of the same user can bind.
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
