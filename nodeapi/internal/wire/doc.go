// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire serves the two protocols by which one connection carries the
// streams of a command or of forwarded ports: SPDY/3.1 and the channels of a
// WebSocket.
//
// It trusts no client. A connection has one goroutine, which reads frames, and
// bounded memory: at most [MaxUnread] bytes of all its streams wait for their
// readers, a control frame has at most a few KiB, and the caller decides about
// each stream that a client opens. When the reader of a stream does not keep up,
// the goroutine stops reading the connection, so TCP slows down the client.
//
// Package spdystream does neither: five queues of fifty frames of up to 16 MiB,
// and goroutines that wait without limit for a reader of a lost client.
package wire
