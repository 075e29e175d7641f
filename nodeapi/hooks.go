// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import "time"

// Hooks are called when something happens. Each is optional. They are called
// synchronously and without locks by the goroutines that serve requests, several
// at a time, and must not block.
type Hooks struct {
	// Request is called when a request has been answered or its stream has ended.
	Request func(Request)
	// Streams is called when the number of open streams changes, by one goroutine at a
	// time.
	Streams func(StreamsOpen)
	// Certificate is called when Run begins to serve with a certificate: before the
	// first request, and with the first connection after a rotation.
	Certificate func(CertificateUsed)
}

// Request is the argument of Hooks.Request.
type Request struct {
	// Endpoint names the endpoint in a word that is fit for a metric label: one of
	// the first path elements in lower case, such as "exec" or "containerlogs",
	// or "unknown".
	Endpoint string
	// Method is the HTTP method.
	Method string
	// User is the name of the authenticated user, or "".
	User string
	// Code is the HTTP status: 101 for exec, attach and port-forward streams.
	Code int
	// Written is the number of bytes of the response body. It does not include
	// the bytes of upgraded connections.
	Written int64
	// Latency is the duration of the request, streaming included.
	Latency time.Duration
	// Err is the error that the client saw or the stream ended with, or nil.
	Err error
}

// StreamsOpen is the argument of Hooks.Streams.
type StreamsOpen struct {
	// Open is the number of open streams, at most MaxStreams.
	Open int
	// Rejected is set if a request was refused with 429 because of MaxStreams.
	Rejected bool
}

// CertificateUsed is the argument of Hooks.Certificate.
type CertificateUsed struct {
	// NotAfter is the time at which the certificate expires.
	NotAfter time.Time
	// SelfSigned is set for the certificate that the Server makes while it has no
	// other one. It is replaced long before it expires.
	SelfSigned bool
}
