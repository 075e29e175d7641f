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

// A process whose clock is wrong by some offset can't be told from one whose
// clock is right and whose messages have their times moved by it, in both
// directions: no program looks at any other clock. So skewed moves them, and
// works with programs that can't be given a clock.
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
		// The process believes that it is later by offset than it is.
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

// shiftedBody moves the times in a response, line by line: a watch sends a line for an event.
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
		b.rest = shift(line, b.offset) // an error comes again
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *shiftedBody) Close() error { return b.body.Close() }

// times are the fields that are compared with a clock.
var times = regexp.MustCompile(`"(renewTime|acquireTime|pingTime|creationTimestamp)":"([^"]+)"`)

// shift moves the times of a JSON document. Their length stays.
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
