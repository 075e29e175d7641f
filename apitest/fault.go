// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/apitest/internal/fault"
	"github.com/kubewright/kubewright/apitest/internal/request"
)

// Transport errors for Fault.Err, made as package net makes them, so that
// client-go classifies them as it would on a real connection.
var (
	// ErrConnReset is the error of a connection that broke before the response.
	ErrConnReset error = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	// ErrConnRefused is the error of a dial to a server that does not listen.
	ErrConnRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	// ErrEOF is the error of a connection that the server closed.
	ErrEOF error = io.ErrUnexpectedEOF
)

// Fault is an injected failure of the requests that match. All matching faults
// add their Latency. Then the first fault that has one of the fields from Status
// on decides the answer.
type Fault struct {
	Name  string // for Request.Fault and messages
	Match Match

	Skip  int // matching requests that are served before the fault begins
	Times int // matching requests that fail then; 0 means all
	// For is the duration of the fault, beginning with its injection. 0 means
	// until it is removed.
	For time.Duration

	// Latency delays the request before the server reads it.
	Latency time.Duration

	// Status is sent as the answer, and the request is not served. Package
	// k8s.io/apimachinery/pkg/api/errors has constructors.
	Status *apierrors.StatusError
	// Err is the transport error of the request, which is not served.
	Err error
	// Hang leaves the request without an answer until its context is done.
	Hang bool
	// LoseResponse serves the request and then fails it with ErrConnReset: a
	// write is stored, and the client does not know.
	LoseResponse bool
	// HangResponse serves the request and then sends no answer: a write is
	// stored, and the client times out.
	HangResponse bool
	// CommitAfter serves the request this duration after its arrival, even if
	// the client has given up: a write that is stored late. The answer is sent
	// then too, unless the context of the client is done.
	CommitAfter time.Duration
	// Malformed answers with 200 and a body that can't be decoded.
	Malformed bool
	// Answer, if set, is called instead of serving the request. The client gets its response
	// or its error. The goroutine of the client calls it, for several requests at the same
	// time. It has no deadline but that of the request, and may use the server.
	Answer func(Request) (*http.Response, error)

	// Served is called when the request has been served, before the client gets
	// the answer. A write is stored by then. It is called on the goroutine of the
	// client, for several requests at the same time. It has no deadline, and may use the
	// server. It can be combined with the other fields;
	// the function is not called if one of them keeps the request from being served.
	Served func(Request)
}

// Inject adds a fault after the faults that were injected earlier. It returns a
// function that removes the fault.
func (s *Server) Inject(f Fault) (remove func()) {
	in := fault.Fault{
		Name: f.Name, Match: f.Match.inner(), Skip: f.Skip, Times: f.Times, For: f.For, Latency: f.Latency,
		Status: f.Status, Err: f.Err, Hang: f.Hang, LoseResponse: f.LoseResponse, HangResponse: f.HangResponse,
		CommitAfter: f.CommitAfter, Malformed: f.Malformed,
	}
	if f.Answer != nil {
		in.Answer = func(r *request.Request) (*http.Response, error) { return f.Answer(outer(r)) }
	}
	if f.Served != nil {
		in.Served = func(r *request.Request) { f.Served(outer(r)) }
	}
	return s.faults.Inject(in)
}
