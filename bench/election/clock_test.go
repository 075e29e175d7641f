// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"time"
)

// skewed gives a process a wrong clock. It shifts the times in the messages of
// the process by offset, in both directions, because from outside that looks
// the same as a wrong clock. It therefore works with programs that do not
// accept a custom clock.
type skewed struct {
	base   http.RoundTripper
	offset time.Duration
}

func (s *skewed) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
		// The process believes that the time is later by offset.
		body = shift(body, s.offset)
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
	}
	resp, err := s.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &shiftedBody{body: resp.Body, lines: bufio.NewReader(resp.Body), offset: -s.offset}
	return resp, nil
}

// shiftedBody shifts the times in a response line by line, because a watch
// sends one line per event.
type shiftedBody struct {
	body   io.Closer
	lines  *bufio.Reader
	offset time.Duration
	rest   []byte
}

func (b *shiftedBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		line, err := b.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		b.rest = shift(line, b.offset) // the next Read returns the error again
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *shiftedBody) Close() error { return b.body.Close() }

// times matches the fields that programs compare with a clock.
var times = regexp.MustCompile(`"(renewTime|acquireTime|pingTime|creationTimestamp)":"([^"]+)"`)

// shift shifts the times in a JSON document and keeps its length.
func shift(document []byte, offset time.Duration) []byte {
	return times.ReplaceAllFunc(document, func(match []byte) []byte {
		parts := times.FindSubmatch(match)
		at, err := time.Parse(time.RFC3339Nano, string(parts[2]))
		if err != nil {
			return match
		}
		layout := "2006-01-02T15:04:05Z"
		if bytes.ContainsRune(parts[2], '.') {
			layout = "2006-01-02T15:04:05.000000Z"
		}
		return []byte(`"` + string(parts[1]) + `":"` + at.Add(offset).UTC().Format(layout) + `"`)
	})
}
