// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/internal/backoff"
)

// DefaultHTTPInterval is how often HTTP asks its server.
const DefaultHTTPInterval = time.Minute

const (
	// maxRetryAfter bounds the time for which a server may ask the source to wait.
	maxRetryAfter = time.Hour
	// maxTag bounds the entity tag that is sent back, in bytes, because servers bound headers.
	maxTag = 1024
	// httpFullInterval is the time after which HTTP asks without the entity tag: a server
	// that was restored may give a tag that it gave before to another content.
	httpFullInterval = time.Hour
)

// HTTP returns a Source that requests a URL with GET at an interval; zero means
// DefaultHTTPInterval, and a tenth of it is random. The client has the program's TLS
// configuration, its proxy and its credentials, and must not be nil. Each request may take
// 30 seconds, with its body.
//
// Only a complete body with status 200 is a payload. If its answer has an entity tag (ETag,
// RFC 9110), the next requests have it in If-None-Match, so that an unchanged configuration
// costs an answer without a body. A tag of more than 1024 bytes is not sent. Once an hour a request goes without it.
//
// Status 404 and 410 yield ErrSourceNotFound, a body of more than MaxPayloadSize bytes
// yields ErrTooLarge, and everything else, such as an empty body or one with a content
// encoding that the client has not removed, yields another error. None unassigns. After
// errors in a row the source waits for up to an interval or a minute, whichever is more, and
// as long as Retry-After says, up to an hour.
//
// The Name of a payload is the URL without a password, and its Version is the entity tag.
func HTTP(client *http.Client, rawURL string, every time.Duration) (Source, error) {
	if client == nil {
		return nil, errors.New("configcheckpoint: source HTTP: the client is nil")
	}
	u, err := url.Parse(rawURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("configcheckpoint: source HTTP: %w", err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, fmt.Errorf("configcheckpoint: source HTTP %s: must begin with http:// or https:// and a host", u.Redacted())
	case every < 0:
		return nil, fmt.Errorf("configcheckpoint: source HTTP %s: the interval %v is negative", u.Redacted(), every)
	case every == 0:
		every = DefaultHTTPInterval
	}
	return httpSource{client: client, url: u, every: every}, nil
}

type httpSource struct {
	client *http.Client
	url    *url.URL
	every  time.Duration
}

// httpRetry is the delay after errors in a row.
func (s httpSource) httpRetry() backoff.Policy {
	return backoff.Policy{Base: time.Second, Cap: max(s.every, time.Minute)}
}

// Payloads implements Source.
func (s httpSource) Payloads(ctx context.Context) iter.Seq2[Payload, error] {
	return func(yield func(Payload, error) bool) {
		var last Payload   // the last one that was yielded
		var full time.Time // when the server was last asked without a tag
		failures := 0
		for ctx.Err() == nil {
			tag := last.Version
			// A tag that no header can have would make the request fail.
			if time.Since(full) >= httpFullInterval || rollout.Tidy(tag, maxTag) != tag {
				tag = ""
			}
			p, wait, err := s.get(ctx, tag)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				failures++
				wait = max(wait, s.httpRetry().Delay(failures))
				if !yield(Payload{}, err) {
					return
				}
			default:
				if tag == "" {
					full = time.Now()
				}
				unchanged := p.Data == nil // 304
				if unchanged {
					p = last
				}
				same := unchanged || last.Data != nil && DigestOf(p.Data) == DigestOf(last.Data)
				if (!same || failures > 0) && !yield(p, nil) {
					return
				}
				last, failures = p, 0
				wait = s.every - time.Duration(rand.Int64N(int64(s.every)/10+1))
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

// get requests the URL. It returns a payload without Data if the server says that it still
// has the content with the given tag. After an error it returns the time that the server
// asks to wait.
func (s httpSource) get(ctx context.Context, tag string) (p Payload, wait time.Duration, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("configcheckpoint: source %s: %w", s.url.Redacted(), err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String(), nil)
	if err != nil {
		return p, 0, err
	}
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // it has the URL, perhaps with a secret in its query
		}
		return p, 0, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && tag != "":
		return p, 0, nil
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		return p, retryAfter(resp.Header), fmt.Errorf("%w: %s", ErrSourceNotFound, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return p, retryAfter(resp.Header), fmt.Errorf("the answer is %s", resp.Status)
	case resp.Header.Get("Content-Encoding") != "" && resp.Header.Get("Content-Encoding") != "identity":
		return p, 0, fmt.Errorf("the content encoding %q was not asked for", resp.Header.Get("Content-Encoding"))
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxPayloadSize+1))
	switch {
	case err != nil:
		return p, 0, err
	case len(data) == 0:
		return p, 0, errors.New("the body is empty")
	case len(data) > MaxPayloadSize:
		return p, 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, MaxPayloadSize)
	}
	return Payload{Data: data, Name: s.url.Redacted(), Version: resp.Header.Get("ETag")}, 0, nil
}

// retryAfter returns the time that an answer asks to wait, in seconds or until a date. The
// date is compared with the server's own, because the clock of this machine may differ.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	until, err1 := http.ParseTime(text)
	now, err2 := http.ParseTime(h.Get("Date"))
	if err1 != nil || err2 != nil {
		return 0
	}
	return min(max(0, until.Sub(now)), maxRetryAfter)
}
