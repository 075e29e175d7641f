// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// response is the http.ResponseWriter of a request. It has no method Unwrap, by
// which the connection would be taken over past it.
type response struct {
	w       http.ResponseWriter
	code    int
	written int64
	// stall bounds the time for which the client may not read.
	stall time.Duration
	// end is the deadline of an answer that is no stream; zero if there is none.
	end time.Time
	// hijack, if set, takes over the connection.
	hijack func(net.Conn) net.Conn
}

func (w *response) Header() http.Header { return w.w.Header() }

func (w *response) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.w.WriteHeader(code)
}

func (w *response) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	if w.end.IsZero() {
		n, err := w.w.Write(p)
		w.written += int64(n)
		return n, err
	}
	// Each piece has a deadline of its own, so that a client that does not read is
	// given up before the end.
	control, sent := http.NewResponseController(w.w), 0
	for {
		piece := p[sent:min(sent+maxPlainPiece, len(p))]
		if at := time.Now().Add(w.stall); at.Before(w.end) {
			_ = control.SetWriteDeadline(at)
		}
		n, err := w.w.Write(piece)
		_ = control.SetWriteDeadline(w.end) // for the rest, which is flushed later
		sent, w.written = sent+n, w.written+int64(n)
		if err != nil || sent == len(p) {
			return sent, err
		}
	}
}

// maxPlainPiece is what the client of an answer must read within plainStall.
const maxPlainPiece = 32 << 10

func (w *response) Flush() {
	if f, ok := w.w.(http.Flusher); ok {
		f.Flush()
	}
}

// send writes a part of a log. It returns an error if the client does not read for
// too long: a client that never does would hold its stream without limit.
func (w *response) send(p []byte, flush bool) error {
	control := http.NewResponseController(w.w)
	_ = control.SetWriteDeadline(time.Now().Add(w.stall))
	// A deadline that passes between two writes would end an HTTP/2 stream.
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	_, err := w.Write(p)
	if err == nil && flush {
		err = control.Flush()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the client has not read for %v: %w", w.stall, err)
	}
	return err
}

// fail writes an error if nothing has been written yet.
func (w *response) fail(err error) {
	if w.code != 0 {
		return
	}
	code, sentence := answerTo(err)
	switch code {
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("Connection", "close") // a connection has one guess
	}
	http.Error(w, sentence, code)
}

func writeJSON(w *response, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(body)
	return err
}

// The buffers of a taken over connection: two TLS records of input, and the header of
// a message.
const (
	readBuffer  = 32 << 10
	writeBuffer = 1 << 10
)

// Hijack implements http.Hijacker.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	hijacker, ok := w.w.(http.Hijacker)
	if !ok || w.hijack == nil {
		return nil, nil, errors.New("nodeapi: the connection can't be taken over")
	}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		return nil, nil, err
	}
	if w.code == 0 {
		w.code = http.StatusSwitchingProtocols
	}
	wrapped := w.hijack(conn)
	var from io.Reader = wrapped
	if n := buffered.Reader.Buffered(); n > 0 { // bytes that came with the request
		early, _ := buffered.Reader.Peek(n)
		from = io.MultiReader(bytes.NewReader(bytes.Clone(early)), wrapped)
	}
	return wrapped, bufio.NewReadWriter(bufio.NewReaderSize(from, readBuffer), bufio.NewWriterSize(wrapped, writeBuffer)), nil
}
