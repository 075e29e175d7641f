// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxQuery bounds a query: the longest command line of exec that makes sense.
const maxQuery = 48 << 10

// parseQuery parses the query of a request.
func parseQuery(raw string) (url.Values, error) {
	if len(raw) > maxQuery {
		return nil, badRequest("the query has %d bytes, at most %d are allowed", len(raw), maxQuery)
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badRequest("the query is malformed: %v", err)
	}
	return query, nil
}

// parseLogOptions parses and validates the query of a log request as the API
// server does: a value that can't be parsed is 400, an invalid one is 422.
func parseLogOptions(query url.Values) (opts LogOptions, err error) {
	stream := corev1.LogStreamAll
	opts.Stream = &stream
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "follow":
			opts.Follow, err = parseBool(value)
		case "previous":
			opts.Previous, err = parseBool(value)
		case "timestamps":
			opts.Timestamps, err = parseBool(value)
		case "insecureSkipTLSVerifyBackend", "container": // for the API server
		case "tailLines":
			opts.TailLines, err = parseInt(value)
		case "limitBytes":
			opts.LimitBytes, err = parseInt(value)
		case "sinceSeconds":
			opts.SinceSeconds, err = parseInt(value)
		case "sinceTime":
			var t time.Time
			t, err = time.Parse(time.RFC3339Nano, value)
			opts.SinceTime = &metav1.Time{Time: t}
		case "stream":
			opts.Stream = &value
		}
		if err != nil {
			return opts, badRequest("the query parameter %s is malformed: %s", name, abbreviated(value))
		}
	}
	if problems := validateLogOptions(&opts); len(problems) > 0 {
		return opts, &statusError{http.StatusUnprocessableEntity, problems.ToAggregate().Error()}
	}
	return opts, nil
}

// parseBool parses a switch, which is on without a value.
func parseBool(value string) (bool, error) {
	if value == "" {
		return true, nil
	}
	return strconv.ParseBool(value)
}

func parseInt(value string) (*int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	return &n, err
}

func validateLogOptions(opts *LogOptions) (problems field.ErrorList) {
	if n := opts.TailLines; n != nil && *n < 0 {
		problems = append(problems, field.Invalid(field.NewPath("tailLines"), *n, "must be greater than or equal to 0"))
	}
	if n := opts.LimitBytes; n != nil && *n < 1 {
		problems = append(problems, field.Invalid(field.NewPath("limitBytes"), *n, "must be greater than 0"))
	}
	if n := opts.SinceSeconds; n != nil && *n < 1 {
		problems = append(problems, field.Invalid(field.NewPath("sinceSeconds"), *n, "must be greater than 0"))
	}
	if opts.SinceSeconds != nil && opts.SinceTime != nil {
		problems = append(problems, field.Forbidden(field.NewPath("sinceTime"), "at most one of sinceTime and sinceSeconds may be specified"))
	}
	switch *opts.Stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if opts.TailLines != nil {
			problems = append(problems, field.Forbidden(field.NewPath("tailLines"), "may not be specified with one stream"))
		}
	default:
		problems = append(problems, field.NotSupported(field.NewPath("stream"), *opts.Stream, []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}))
	}
	return problems
}

func (s *Server) serveLogs(w *response, r *http.Request, c Container, query url.Values) error {
	if s.backend.logs == nil {
		return missing("logs", "LogSource")
	}
	opts, err := parseLogOptions(query)
	if err != nil {
		return err
	}
	pod, err := s.resolve(&c.Pod)
	if err != nil {
		return err
	}
	var ended func() bool // nil if the backend decides
	if pod != nil {
		if err := hasContainer(pod, c.Name); err != nil {
			return err
		}
		switch now := instanceOf(pod, c.Name); {
		case opts.Previous, now.ended:
			opts.Follow = false // nothing will be added
		case opts.Follow:
			ended = func() bool { return s.hasEnded(c, now) }
		}
	}
	ctx, _, end, err := s.streams.begin(r.Context(), shareOf(r.Context(), c.Pod))
	if err != nil {
		return err
	}
	defer end()
	var reader io.ReadCloser
	if err := guard(func() (err error) { reader, err = s.backend.logs.Logs(ctx, c, opts); return err }); err != nil {
		return err
	}
	if reader == nil {
		return errors.New("the backend returned no log")
	}
	limit := int64(-1)
	if opts.LimitBytes != nil {
		limit = *opts.LimitBytes
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if opts.Follow {
		w.WriteHeader(http.StatusOK)
		w.Flush() // the client learns that it is connected
	}
	w.stall = s.stall
	return copyLog(ctx, w, reader, limit, opts.Follow, ended)
}

// A backlog holds bytes of a log that were read and not yet written to the client. It
// decouples the two: a client that is gone and a container that has ended are
// noticed while a read blocks, and lines that arrive during a write are sent
// together by the next one.
//
// Invariant: len(buf) <= maxBacklog, so a slow client stops the reading.
type backlog struct {
	ready chan struct{} // has a token if there is something to take
	space chan struct{} // has a token if take has made space

	mu    sync.Mutex
	buf   []byte
	ended bool
	err   error // that reading ended with, nil at the end of the log
}

// The memory of one log request is maxBacklog twice and logRead once.
const (
	maxBacklog = 32 << 10
	logRead    = 8 << 10
)

// fill reads from reader until it ends or quit is closed.
func (b *backlog) fill(reader io.Reader, quit <-chan struct{}) {
	scratch := make([]byte, logRead)
	for {
		var n int
		err := guard(func() (err error) { n, err = reader.Read(scratch); return err })
		b.mu.Lock()
		for len(b.buf)+n > maxBacklog {
			b.mu.Unlock()
			select {
			case <-b.space:
			case <-quit:
				return
			}
			b.mu.Lock()
		}
		b.buf = append(b.buf, scratch[:n]...)
		if b.ended = err != nil; b.ended && err != io.EOF { //nolint:errorlint // the contract of io.Reader
			b.err = err
		}
		b.mu.Unlock()
		wake(b.ready)
		if err != nil {
			return
		}
	}
}

// take returns the bytes that were read since the last call. It reuses that slice.
func (b *backlog) take(reuse []byte) (data []byte, ended bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, b.buf = b.buf, reuse[:0]
	wake(b.space)
	return data, b.ended, b.err
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// copyLog copies a log to the client and closes reader. ended reports whether the
// container has ended; it is nil if the backend decides.
func copyLog(ctx context.Context, w *response, reader io.ReadCloser, limit int64, follow bool, ended func() bool) (err error) {
	b := &backlog{ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
	quit, filled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(filled)
		b.fill(reader, quit)
	}()
	defer func() {
		close(quit)
		if e := guard(reader.Close); err == nil && ctx.Err() == nil {
			err = e
		}
		<-filled
	}()

	var (
		check <-chan time.Time
		last  = time.Now() // when bytes came last, or the container was last seen running
		spare []byte
	)
	if ended != nil {
		ticker := time.NewTicker(endCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-check:
			if !ended() {
				last = now
			} else if now.Sub(last) >= logDrain {
				return nil
			}
		case <-b.ready:
			data, over, readErr := b.take(spare)
			if len(data) > 0 {
				last = time.Now()
			}
			if limit >= 0 {
				data = data[:min(int64(len(data)), limit)]
				limit -= int64(len(data))
			}
			if err := w.send(data, follow); err != nil {
				return err
			}
			if over || limit == 0 {
				return readErr
			}
			spare = data
		}
	}
}

// hasEnded reports whether the run of a container that was followed has ended.
func (s *Server) hasEnded(c Container, began instance) bool {
	pod := s.followed.get(c.Pod, &s.cfg)
	if pod == nil {
		return true
	}
	now := instanceOf(pod, c.Name)
	return now.ended || began.found && now.restarts > began.restarts
}
