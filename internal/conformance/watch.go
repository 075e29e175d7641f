// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// stream is an open watch of a case.
type stream struct {
	c      *C
	resp   *http.Response
	cancel context.CancelFunc
	events chan event
}

type event struct {
	typ    string
	object object
	err    error
}

// periodic reports whether the event is a bookmark that the server's clock sends, about once a minute: no case can
// know between which two of its events that happens. The bookmark that ends the initial events has an annotation.
func (e event) periodic() bool {
	return e.typ == "BOOKMARK" && str(e.object, "metadata", "annotations", metav1.InitialEventsAnnotationKey) != "true"
}

// watch opens a watch and requires status 200.
func (c *C) watch(r req) *stream {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	if r.Query != "" {
		r.Query += "&"
	}
	r.Query += "watch=true"
	resp := c.open(ctx, r)
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		c.Fatalf("watch %s: %d %s", r.Path, resp.StatusCode, b)
	}
	fmt.Fprintf(&c.out, "< %d %s\n", resp.StatusCode, resp.Header.Get("Content-Type"))
	s := &stream{c: c, resp: resp, cancel: cancel, events: make(chan event)}
	go s.read(ctx)
	return s
}

func (s *stream) read(ctx context.Context) {
	defer close(s.events)
	next := s.readJSON()
	if strings.HasPrefix(s.resp.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) {
		next = s.readProtobuf
	}
	for {
		ev := next()
		if ev.periodic() {
			continue
		}
		select {
		case s.events <- ev:
		case <-ctx.Done():
			return
		}
		if ev.err != nil {
			return
		}
	}
}

func (s *stream) readJSON() func() event {
	dec := json.NewDecoder(s.resp.Body)
	return func() event {
		var frame struct {
			Type   string
			Object object
		}
		err := dec.Decode(&frame)
		return event{frame.Type, frame.Object, err}
	}
}

func (s *stream) readProtobuf() event {
	var size [4]byte
	if _, err := io.ReadFull(s.resp.Body, size[:]); err != nil {
		return event{err: err}
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(s.resp.Body, b); err != nil {
		return event{err: err}
	}
	var ev metav1.WatchEvent
	if err := ev.Unmarshal(b); err != nil {
		return event{err: err}
	}
	obj, _, err := decoder.Decode(ev.Object.Raw, nil, nil)
	if err != nil {
		return event{err: err}
	}
	out, err := json.Marshal(obj)
	if err != nil {
		return event{err: err}
	}
	m := object{}
	return event{ev.Type, m, json.Unmarshal(out, &m)}
}

// patience bounds the wait for an expected event. quietTime is how long silent
// waits for an unexpected one.
const (
	patience  = 20 * time.Second
	quietTime = 500 * time.Millisecond
)

// expect reads events into the transcript and checks their types.
func (s *stream) expect(types ...string) (last object) {
	s.c.Helper()
	for _, want := range types {
		t := time.NewTimer(patience)
		select {
		case ev := <-s.events:
			t.Stop()
			if ev.err != nil {
				s.c.Fatalf("watch: %v instead of %s", ev.err, want)
			}
			fmt.Fprintf(&s.c.out, "* %s\n", ev.typ)
			s.c.print(ev.object)
			if ev.typ != want {
				s.c.Errorf("watch: got %s, want %s: %v", ev.typ, want, ev.object)
			}
			last = ev.object
		case <-t.C:
			s.c.Fatalf("watch: no %s came", want)
		}
	}
	return last
}

// silent checks that no further event arrives.
func (s *stream) silent() {
	s.c.Helper()
	t := time.NewTimer(quietTime)
	defer t.Stop()
	select {
	case ev, ok := <-s.events:
		s.c.Errorf("watch: unexpected %v %v", ev, ok)
	case <-t.C:
	}
}

// ended checks that the server ends the stream without an error.
func (s *stream) ended() {
	s.c.Helper()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case ev := <-s.events:
		if ev.err != io.EOF {
			s.c.Errorf("watch: %v, want its end", ev)
		}
		fmt.Fprintf(&s.c.out, "* end\n")
	case <-t.C:
		s.c.Errorf("watch: did not end")
	}
}

// stop closes the watch and waits for its reader.
func (s *stream) stop() {
	s.cancel()
	s.resp.Body.Close()
	for range s.events {
	}
}
