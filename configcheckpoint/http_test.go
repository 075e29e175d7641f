// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestHTTPRejectsBadReference(t *testing.T) {
	client := &http.Client{}
	for _, u := range []string{"", "config", "ftp://host/config", "https://", "http:///config", "https://host:port/%zz", "file:///etc/config"} {
		if _, err := HTTP(client, u, 0); err == nil {
			t.Errorf("%q: no error", u)
		}
	}
	if _, err := HTTP(nil, "https://host/config", 0); err == nil || !strings.Contains(err.Error(), "client") {
		t.Errorf("no client: %v", err)
	}
	if _, err := HTTP(client, "https://u:secret@host/config", -time.Second); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a negative interval: %v", err)
	}
	if s, err := HTTP(client, "https://host/config", 0); err != nil || s.(httpSource).every != DefaultHTTPInterval {
		t.Errorf("%+v, %v", s, err)
	}
}

// A site is a server in memory that answers as its content says.
type site struct {
	t *testing.T

	mu sync.Mutex // guards the fields below
	content
	asked  []time.Time
	tagged int // requests with If-None-Match
}

type content struct {
	body    string
	tag     string
	status  int // 0: 200
	header  http.Header
	err     error
	hang    bool
	reading io.Reader
}

// change changes what the site answers.
func (s *site) change(f func(*content)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.content)
}

// requests returns when the site was asked, and how often with a tag.
func (s *site) requests() ([]time.Time, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.tagged
}

func (s *site) RoundTrip(req *http.Request) (*http.Response, error) {
	tag := req.Header.Get("If-None-Match")
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	if tag != "" {
		s.tagged++
	}
	c := s.content
	s.mu.Unlock()
	switch {
	case c.hang:
		<-req.Context().Done()
		return nil, req.Context().Err()
	case c.err != nil:
		return nil, c.err
	}
	resp := &http.Response{StatusCode: c.status, Header: http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}}, Body: http.NoBody, Request: req}
	if resp.StatusCode == 0 {
		resp.StatusCode = http.StatusOK
	}
	for k, v := range c.header {
		resp.Header[k] = v
	}
	if c.tag != "" {
		resp.Header.Set("ETag", c.tag)
	}
	if tag != "" && tag == c.tag && resp.StatusCode == http.StatusOK {
		resp.StatusCode = http.StatusNotModified
	}
	resp.Status = fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	if resp.StatusCode == http.StatusOK {
		resp.Body = io.NopCloser(strings.NewReader(c.body))
		if c.reading != nil {
			resp.Body = io.NopCloser(c.reading)
		}
	}
	return resp, nil
}

// follow ranges over the site's source, and returns what it yields.
func (s *site) follow() (got func() []delivery) {
	source, err := HTTP(&http.Client{Transport: s}, "https://user:secret@host/config?token=secret2", 0)
	if err != nil {
		s.t.Fatal(err)
	}
	all := make(chan delivery, 10_000)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p, err := range source.Payloads(ctx) {
			all <- delivery{p, err}
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	return func() (list []delivery) {
		synctest.Wait()
		for len(all) > 0 {
			list = append(list, <-all)
		}
		return list
	}
}

func TestHTTPDeliversEachContentOnce(t *testing.T) {
	for _, tag := range []string{"", `"v1"`} {
		synctest.Test(t, func(t *testing.T) {
			s := &site{t: t, content: content{body: "A", tag: tag}}
			got := s.follow()
			if list := got(); len(list) != 1 || string(list[0].payload.Data) != "A" || list[0].payload.Version != tag {
				t.Fatalf("%+v", list)
			}
			time.Sleep(24 * time.Hour)
			if list := got(); len(list) != 0 {
				t.Errorf("an unchanged day: %+v", list)
			}
			asked, tagged := s.requests()
			if n := len(asked); n < 24*60 || n > 24*70 {
				t.Errorf("%d requests in a day", n)
			}
			if bodies := len(asked) - tagged; tag != "" && bodies > 25 {
				t.Errorf("%d requests without the tag in a day", bodies)
			}
			s.change(func(c *content) {
				c.body = "B"
				if tag != "" {
					c.tag = `"v2"`
				}
			})
			time.Sleep(DefaultHTTPInterval)
			if list := got(); len(list) != 1 || string(list[0].payload.Data) != "B" {
				t.Errorf("%+v", list)
			}
		})
	}
}

// TestHTTPAfterARestore: a restored server gives a tag again, to another content.
func TestHTTPAfterARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, content: content{body: "A", tag: "2"}}
		got := s.follow()
		got()
		s.change(func(c *content) { c.body = "another" })
		time.Sleep(httpFullInterval + DefaultHTTPInterval)
		if list := got(); len(list) != 1 || string(list[0].payload.Data) != "another" {
			t.Errorf("%+v", list)
		}
	})
}

func TestHTTPErrors(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*content)
		want string
		is   error
	}{
		"refused":       {func(s *content) { s.err = errors.New("connection refused") }, "connection refused", nil},
		"hanging":       {func(s *content) { s.hang = true }, "deadline", context.DeadlineExceeded},
		"not found":     {func(s *content) { s.status = 404 }, "does not exist", ErrSourceNotFound},
		"gone":          {func(s *content) { s.status = 410 }, "does not exist", ErrSourceNotFound},
		"broken":        {func(s *content) { s.status = 503 }, "503", nil},
		"partial":       {func(s *content) { s.status = 206 }, "206", nil},
		"no content":    {func(s *content) { s.status = 204 }, "204", nil},
		"a false 304":   {func(s *content) { s.status = 304; s.tag = "" }, "304", nil},
		"empty":         {func(s *content) { s.body, s.tag = "", "" }, "empty", nil},
		"encoded":       {func(s *content) { s.header = http.Header{"Content-Encoding": {"br"}}; s.tag = "" }, `"br"`, nil},
		"endless":       {func(s *content) { s.reading = endless{}; s.tag = "" }, "too large", ErrTooLarge},
		"broken off":    {func(s *content) { s.reading = io.MultiReader(strings.NewReader("A"), broken{}); s.tag = "" }, "unexpected EOF", io.ErrUnexpectedEOF},
		"a byte larger": {func(s *content) { s.body, s.tag = strings.Repeat("x", MaxPayloadSize+1), "" }, "too large", ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{t: t}
				s.change(test.set)
				got := s.follow()
				time.Sleep(time.Hour)
				list := got()
				for _, d := range list {
					if d.err == nil || !strings.Contains(d.err.Error(), test.want) || test.is != nil && !errors.Is(d.err, test.is) || !strings.Contains(d.err.Error(), "https://user:xxxxx@host/config") {
						t.Fatalf("yielded %+v, want %q with the URL", d, test.want)
					}
					if strings.Contains(d.err.Error(), "secret@") {
						t.Fatalf("a secret in %v", d.err)
					}
				}
				if n := len(list); n < 30 || n > 140 {
					t.Errorf("%d errors in an hour", n)
				}
				// The same content as ever is delivered after an error.
				s.change(func(c *content) { *c = content{body: strings.Repeat("x", MaxPayloadSize), tag: "1"} })
				time.Sleep(3 * time.Minute)
				// A request that hung has one more error.
				list = slices.DeleteFunc(got(), func(d delivery) bool { return d.err != nil })
				if len(list) != 1 || len(list[0].payload.Data) != MaxPayloadSize {
					t.Fatalf("%d payloads after the errors", len(list))
				}
				s.change(func(c *content) { c.err = errors.New("away") })
				time.Sleep(5 * time.Minute)
				got()
				s.change(func(c *content) { c.err = nil })
				time.Sleep(3 * time.Minute)
				if list := got(); len(list) != 1 || list[0].err != nil {
					t.Errorf("%d deliveries of the same content after an outage", len(list))
				}
			})
		})
	}
}

func TestHTTPWaitsAsLongAsTheServerAsks(t *testing.T) {
	for after, want := range map[string]time.Duration{
		"600": 10 * time.Minute, "315360000": time.Hour, "99999999999999999999": 0, "-5": 0, "soon": 0,
		"date": 20 * time.Minute, "past": 0,
	} {
		t.Run(after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				switch after {
				case "date":
					after = time.Now().Add(20 * time.Minute).UTC().Format(http.TimeFormat)
				case "past":
					after = time.Now().Add(-24 * time.Hour).UTC().Format(http.TimeFormat)
				}
				s := &site{t: t, content: content{status: 429, header: http.Header{"Retry-After": {after}}}}
				s.follow()
				time.Sleep(3 * time.Hour)
				asked, _ := s.requests()
				if len(asked) < 2 {
					t.Fatal("asked once in three hours")
				}
				if wait := asked[1].Sub(asked[0]); wait < want || wait > want+time.Minute {
					t.Errorf("waited %v, want %v", wait, want)
				}
			})
		})
	}
}

// TestHTTPBomb: a body of a few kilobytes that becomes a gigabyte.
func TestHTTPBomb(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.Copy(z, io.LimitReader(endless{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(bomb.Len()))
		_, _ = w.Write(bomb.Bytes())
	}))
	defer server.Close()
	source, err := HTTP(server.Client(), server.URL, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, err := range source.Payloads(t.Context()) {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("yielded %v", err)
		}
		break
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
		t.Errorf("%d MiB were allocated", n>>20)
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// broken is the end of a body that breaks off.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
