// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream"
	"github.com/moby/spdystream/spdy"
)

// patience bounds what must not take long.
const patience = time.Minute

// patient are waits that no test reaches.
var patient = Waits{Ping: time.Hour}

// check returns an error if an invariant does not hold.
func (c *Conn) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	unread := c.reserved
	for _, s := range c.streams {
		unread += s.unread()
		for i, p := range s.pieces {
			if len(p) == 0 || i == 0 && s.from >= len(p) {
				return fmt.Errorf("stream %d has a piece of %d bytes, %d of which are read", s.id, len(p), s.from)
			}
		}
	}
	if unread != c.held || unread > MaxUnread {
		return fmt.Errorf("%d bytes are unread, %d are counted, at most %d are allowed", unread, c.held, MaxUnread)
	}
	return nil
}

// rig is a server and the far end of its connection.
type rig struct {
	*testing.T
	*Conn
	far    net.Conn
	opened chan *Stream
}

func pipe(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if far, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// serve serves SPDY and accepts the streams for which accept returns nil.
func serve(t *testing.T, accept OpenFunc) *rig {
	near, far := pipe(t)
	r := &rig{T: t, far: far, opened: make(chan *Stream, 1000)}
	r.Conn = SPDY(near, bufio.NewReader(near), patient, func(s *Stream, headers http.Header) error {
		if accept != nil {
			if err := accept(s, headers); err != nil {
				return err
			}
		}
		r.opened <- s
		return s.Accept()
	})
	t.Cleanup(func() {
		if err := r.check(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
		panic("unreachable")
	}
}

// client is the other implementation of the protocol.
func (r *rig) client() *spdystream.Connection {
	r.Helper()
	c, err := spdystream.NewConnection(r.far, false)
	if err != nil {
		r.Fatal(err)
	}
	go c.Serve(func(*spdystream.Stream) {})
	return c
}

func (r *rig) open(c *spdystream.Connection, headers http.Header) (*Stream, *spdystream.Stream) {
	r.Helper()
	theirs, err := c.CreateStream(headers, nil, false)
	if err != nil {
		r.Fatal(err)
	}
	if err := theirs.WaitTimeout(patience); err != nil {
		r.Fatal(err)
	}
	return receive(r.T, "a stream", r.opened), theirs
}

func TestStreamsPassBytesInBothDirections(t *testing.T) {
	kinds := make(chan string, 1)
	r := serve(t, func(_ *Stream, headers http.Header) error {
		kinds <- headers.Get("streamType")
		return nil
	})
	c := r.client()
	for i := range 3 {
		ours, theirs := r.open(c, http.Header{"Streamtype": {fmt.Sprint(i)}})
		if got := <-kinds; got != fmt.Sprint(i) {
			t.Errorf("the stream type is %q", got)
		}
		sent := bytes.Repeat([]byte{byte(i), 'a', 'b'}, 400_000)
		go func() {
			_, _ = theirs.Write(sent[:10])
			_, _ = theirs.Write(sent[10:]) // one frame of a megabyte
			_ = theirs.Close()
		}()
		if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		go func() {
			_, _ = ours.Write(sent)
			ours.Finish()
			if _, err := ours.Write([]byte("late")); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("a write after the end: %v", err)
			}
		}()
		if got, err := io.ReadAll(theirs); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes back, %v", len(got), err)
		}
	}
	if _, err := c.Ping(); err != nil {
		t.Error(err)
	}
	go func() { _ = c.Close() }()
	<-r.Done()
}

func TestARefusedStreamDoesNotEndTheConnection(t *testing.T) {
	r := serve(t, func(_ *Stream, headers http.Header) error {
		if headers.Get("refuse") != "" {
			return ErrRefused
		}
		return nil
	})
	c := r.client()
	theirs, err := c.CreateStream(http.Header{"Refuse": {"1"}}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.WaitTimeout(patience); !errors.Is(err, spdystream.ErrReset) {
		t.Error(err)
	}
	_ = theirs.Reset()
	r.open(c, http.Header{})
	if n := len(r.streams); n != 1 {
		t.Errorf("%d streams", n)
	}
}

func TestAResetEndsBothDirections(t *testing.T) {
	r := serve(t, nil)
	c := r.client()
	ours, theirs := r.open(c, http.Header{})
	_, _ = theirs.Write([]byte("half of an upload"))
	_ = theirs.Reset()
	if _, err := c.Ping(); err != nil {
		t.Error(err)
	}
	if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, ErrReset) || ours.Aborted() == nil {
		t.Error(err)
	}
	if _, err := ours.Write([]byte("x")); !errors.Is(err, ErrReset) {
		t.Error(err)
	}
	if ours.close() {
		t.Error("the client is sent the end of a stream that it has reset")
	}
	if n := len(r.streams); n != 0 {
		t.Errorf("%d streams", n)
	}
	ours, theirs = r.open(c, http.Header{})
	ours.Reset()
	if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
		t.Error(err)
	}
	// What still comes for the stream is dropped.
	_ = theirs.WriteData(make([]byte, 2*MaxUnread), false)
	if _, err := c.Ping(); err != nil {
		t.Error(err)
	}
}

// TestUnreadBytesAreBounded: unread input of one client took hundreds of MiB.
func TestUnreadBytesAreBounded(t *testing.T) {
	r := serve(t, nil)
	c := r.client()
	unread, first := r.open(c, http.Header{})
	other, second := r.open(c, http.Header{})
	ignored, third := r.open(c, http.Header{})
	ignored.Discard()
	sent := bytes.Repeat([]byte("0123456789abcdef"), MaxUnread/16)
	if _, err := third.Write(append(sent, sent...)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for range 100 {
			_, _ = first.Write(sent)
		}
		_ = first.Close()
	}()
	// The bytes of the second stream come after those of the first.
	one := make([]byte, 16)
	for range 99 * len(sent) / 16 {
		if _, err := io.ReadFull(unread, one); err != nil || string(one) != "0123456789abcdef" {
			t.Fatalf("%q, %v", one, err)
		}
		if err := r.check(); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		_, _ = second.Write([]byte("second"))
		_ = second.Close()
	}()
	unread.Reset() // and its bytes make space
	if got, err := io.ReadAll(other); err != nil || string(got) != "second" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReadsAndWritesEndWithTheClient(t *testing.T) {
	r := serve(t, nil)
	ours, _ := r.open(r.client(), http.Header{})
	read := make(chan error, 1)
	go func() {
		_, err := ours.Read(make([]byte, 1))
		read <- err
	}()
	_ = r.far.Close()
	if err := receive(t, "the end of Read", read); err != io.EOF {
		t.Error(err)
	}
	<-r.Done()
	if _, err := ours.Write([]byte("x")); !errors.Is(err, errGone) {
		t.Error(err)
	}
	if err := errors.Join(ours.Close()); err != nil {
		t.Error(err)
	}
	ours.Reset()
	r.Close(time.Hour) // does not wait
}

// TestCloseWaitsForTheClientButNotForLong: it is blocked neither by input that is not
// read nor by output that the client does not read.
func TestCloseWaitsForTheClientButNotForLong(t *testing.T) {
	r := serve(t, nil)
	ours, theirs := r.open(r.client(), http.Header{})
	go func() {
		for range 10 {
			_, _ = theirs.Write(make([]byte, MaxUnread))
		}
	}()
	// The client's end comes in answer to ours, after its input.
	if _, err := ours.Write([]byte("last")); err != nil {
		t.Error(err)
	}
	ours.Finish()
	closed := make(chan struct{})
	go func() {
		r.Close(time.Hour)
		close(closed)
	}()
	if got, err := io.ReadAll(theirs); err != nil || string(got) != "last" {
		t.Errorf("%q, %v", got, err)
	}
	_ = theirs.Reset()
	receive(t, "Close", closed)

	r = serve(t, nil)
	_, _ = r.far.Write(synFrame(t, 1, http.Header{}))
	ours = receive(t, "a stream", r.opened)
	blocked := make(chan error, 1)
	go func() {
		for {
			if _, err := ours.Write(make([]byte, 1<<20)); err != nil {
				blocked <- err
				return
			}
		}
	}()
	r.Close(10 * time.Millisecond)
	receive(t, "the write", blocked)
}

// frame returns a control frame.
func frame(kind, flags byte, payload ...byte) []byte {
	return append([]byte{0x80, 3, 0, kind, flags, byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}, payload...)
}

// synFrame returns the first frame of a connection that opens a stream.
func synFrame(t testing.TB, id uint32, headers http.Header) []byte {
	var out bytes.Buffer
	framer, err := spdy.NewFramer(&out, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteFrame(&spdy.SynStreamFrame{StreamId: spdy.StreamId(id), Headers: headers}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// hostile are connections that break the protocol, or try to take memory.
func hostile(t testing.TB) map[string][]byte {
	big := http.Header{}
	for i := range 200 {
		big.Set(fmt.Sprint("h", i), strings.Repeat("a", 1<<10))
	}
	return map[string][]byte{
		"a frame of another version":           {0x80, 2, 0, 1, 0, 0, 0, 0},
		"a control frame that is too long":     {0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff},
		"a stream that is not in a frame":      frame(1, 0),
		"a stream without headers":             frame(1, 0, make([]byte, 10)...),
		"an even stream":                       synFrame(t, 2, http.Header{}),
		"a stream ID of zero":                  synFrame(t, 0x80000000, http.Header{}),
		"headers that grow when decompressed":  synFrame(t, 1, http.Header{"A": {strings.Repeat("a", 100<<10)}}),
		"more headers than any stream has":     synFrame(t, 1, big),
		"a header with two values":             synFrame(t, 1, http.Header{"A": {"b", "c"}}),
		"headers after those of the stream":    frame(8, 0, 0, 0, 0, 1),
		"a reply":                              frame(2, 0, 0, 0, 0, 1),
		"a frame of an unknown type":           frame(99, 0),
		"the end":                              frame(7, 0, make([]byte, 8)...),
		"half of a frame":                      {0, 0, 0, 1, 0, 0},
		"data for no stream, that is not sent": {0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 1, 2, 3},
	}
}

// TestTheLengthOfAControlFrameIsBounded: the connection ends at the length, without the
// bytes that would follow.
func TestTheLengthOfAControlFrameIsBounded(t *testing.T) {
	r := serve(t, nil)
	_, _ = r.far.Write([]byte{0x80, 3, 0, 1, 0, 0, (maxControl + 1) >> 8, (maxControl + 1) & 0xff})
	receive(t, "a control frame that is one byte too long", r.Done())
	if r.Err() == nil {
		t.Error("the connection ended without an error")
	}
}

func TestABrokenProtocolEndsTheConnection(t *testing.T) {
	for name, sent := range hostile(t) {
		r := serve(t, nil)
		_, _ = r.far.Write(append(frame(4, 0, 0, 0, 0, 0), sent...)) // settings are ignored
		_ = r.far.(*net.TCPConn).CloseWrite()
		receive(t, name, r.Done())
		if r.Err() == nil || len(r.opened) > 0 {
			t.Errorf("%s: %v, %d streams", name, r.Err(), len(r.opened))
		}
	}
}

func TestAStreamIDIsNotUsedTwice(t *testing.T) {
	r := serve(t, nil)
	syn := synFrame(t, 1, http.Header{})
	_, _ = r.far.Write(append(syn, syn...))
	receive(t, "the end", r.Done())
	if len(r.opened) > 1 {
		t.Error("a stream was opened twice")
	}
}

// TestBytesThatComeOneByOneArePacked: each would otherwise take the memory of many.
func TestBytesThatComeOneByOneArePacked(t *testing.T) {
	r := serve(t, nil)
	sent := synFrame(t, 1, http.Header{})
	for i := range 2 * smallPiece {
		sent = append(sent, 0, 0, 0, 1, 0, 0, 0, 1, byte(i))
	}
	_, _ = r.far.Write(append(sent, 0, 0, 0, 1, 1, 0, 0, 0))
	ours := receive(t, "a stream", r.opened)
	_ = r.far.Close()
	<-r.Done()
	if n, m := ours.unread(), len(ours.pieces); n != 2*smallPiece || m > 2 {
		t.Errorf("%d bytes in %d pieces", n, m)
	}
	got, err := io.ReadAll(ours)
	for i, b := range got {
		if b != byte(i) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	if len(got) != 2*smallPiece || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestDataOfAnyLengthIsReceivedInPieces: the header of a frame alone reserves nothing.
func TestDataOfAnyLengthIsReceivedInPieces(t *testing.T) {
	r := serve(t, nil)
	_, _ = r.far.Write(append(synFrame(t, 1, http.Header{}), 0, 0, 0, 1, 1, 0xff, 0xff, 0xff))
	ours := receive(t, "a stream", r.opened)
	go func() { _, _ = r.far.Write(make([]byte, 1<<24-1)) }()
	if n, err := io.Copy(io.Discard, ours); n != 1<<24-1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestAFrameThatIsCutPassesOnlyWhatCame: the rest of its buffer has bytes of others.
func TestAFrameThatIsCutPassesOnlyWhatCame(t *testing.T) {
	for _, length := range []int{smallPiece, maxPiece - 1, maxPiece} {
		for _, came := range []string{"", "abc"} {
			r := serve(t, nil)
			sent := append(synFrame(t, 1, http.Header{}), 0, 0, 0, 1, 0, byte(length>>16), byte(length>>8), byte(length))
			_, _ = r.far.Write(append(sent, came...))
			ours := receive(t, "a stream", r.opened)
			_ = r.far.(*net.TCPConn).CloseWrite()
			<-r.Done()
			if err := r.check(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(ours); string(got) != came || err != nil {
				t.Errorf("of %d bytes %q came, but %d were read: %v", length, came, len(got), err)
			}
		}
	}
}

func TestAStreamThatIsForgottenKeepsNothing(t *testing.T) {
	c := newConn(nil, nil, patient)
	s := c.add(1)
	piece := c.reserve(s, maxPiece)
	if err := c.check(); err != nil || c.held != maxPiece {
		t.Errorf("%d bytes are held: %v", c.held, err)
	}
	s.forget() // while its bytes come
	c.deliver(s, piece)
	if err := c.check(); err != nil || c.held != 0 || s.unread() != 0 {
		t.Errorf("%d bytes are held, %d unread: %v", c.held, s.unread(), err)
	}
}

// TestAStreamThatComesTooLateKeepsNothing: it would stop the reading that notices the
// end of the client.
func TestAStreamThatComesTooLateKeepsNothing(t *testing.T) {
	c := newConn(nil, nil, patient)
	c.ending = true
	if c.reserve(c.add(1), 1) != nil || c.held != 0 {
		t.Errorf("%d bytes are held", c.held)
	}
}

// TestUnwantedBytesDoNotWaitForSpace: the bytes that hold it may be read much later.
func TestUnwantedBytesDoNotWaitForSpace(t *testing.T) {
	c := newConn(nil, nil, patient)
	full, gone := c.add(1), c.add(3)
	for range MaxUnread / maxPiece {
		c.deliver(full, c.reserve(full, maxPiece))
	}
	gone.forget()
	passed := make(chan bool, 1)
	go func() { passed <- c.reserve(gone, 1) == nil }()
	if !receive(t, "bytes that nobody reads", passed) || c.held != MaxUnread {
		t.Errorf("%d bytes are held", c.held)
	}
}

// TestAStreamThatGoesMakesSpace: the goroutine that reads waits for it.
func TestAStreamThatGoesMakesSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn(nil, nil, patient)
		full, other := c.add(1), c.add(3)
		for range MaxUnread / maxPiece {
			c.deliver(full, c.reserve(full, maxPiece))
		}
		reserved := make(chan []byte, 1)
		go func() { reserved <- c.reserve(other, 1) }()
		synctest.Wait()
		full.forget()
		if len(<-reserved) != 1 || c.held != 1 {
			t.Errorf("%d bytes are held", c.held)
		}
	})
}

func TestAnAbortThatCameBeforeIsToldAtOnce(t *testing.T) {
	s, told := newConn(nil, nil, patient).add(1), false
	s.abort(ErrReset)
	if s.OnAbort(func(why error) { told = why == ErrReset }); !told { //nolint:errorlint // itself
		t.Error("it is not told")
	}
}

// TestNoBytesComeAfterTheEnd: a reader that has seen the end would not read them.
func TestNoBytesComeAfterTheEnd(t *testing.T) {
	r := serve(t, nil)
	end := []byte{0, 0, 0, 1, flagFin, 0, 0, 1, 'a'}
	_, _ = r.far.Write(slices.Concat(synFrame(t, 1, http.Header{}), end, bytes.Repeat(end, MaxUnread), frame(ping, 0, 0, 0, 0, 1)))
	ours := receive(t, "a stream", r.opened)
	pong := frame(ping, 0, 0, 0, 0, 1)
	_ = r.far.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 8+4+len(zlibHeader)+len(noHeaders)+len(pong))
	if _, err := io.ReadFull(r.far, got); err != nil || !bytes.HasSuffix(got, pong) {
		t.Errorf("% x, %v", got, err)
	}
	if got, err := io.ReadAll(ours); string(got) != "a" || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestAPongThatMustWaitEndsNothing: a client that reads nothing for a second had its
// connection broken for all later writes.
func TestAPongThatMustWaitEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		in := bufio.NewReader(far)
		answered := make(chan error, 1)
		go func() {
			resp, err := http.ReadResponse(in, r)
			if err == nil {
				err = resp.Body.Close()
			}
			answered <- err
		}()
		ws, err := (&websocket.Upgrader{}).Upgrade(&hijacked{httptest.NewRecorder(), near}, r, nil)
		if err := errors.Join(err, <-answered); err != nil {
			t.Fatal(err)
		}
		c, streams := WebSocket(ws, Binary, patient, 1)
		_, _ = far.Write([]byte{0x89, 0x81, 0, 0, 0, 0, 'p'})
		time.Sleep(time.Hour)
		written := make(chan error, 1)
		go func() {
			_, err := streams[0].Write([]byte("x"))
			written <- err
		}()
		got := make([]byte, 7)
		if _, err := io.ReadFull(in, got); err != nil || string(got) != "\x8a\x01p\x82\x02\x00x" {
			t.Errorf("%q, %v", got, err)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		_ = far.Close()
		<-c.Done()
	})
}

// channels connects a WebSocket.
func channels(t *testing.T, format Format, waits Waits, n int) (*Conn, []*Stream, *websocket.Conn) {
	t.Helper()
	type opened struct {
		conn    *Conn
		streams []*Stream
	}
	ready := make(chan opened, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		c, streams := WebSocket(ws, format, waits, n)
		ready <- opened{c, streams}
	}))
	t.Cleanup(server.Close)
	ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	o := <-ready
	t.Cleanup(func() {
		if err := o.conn.check(); err != nil {
			t.Error(err)
		}
	})
	return o.conn, o.streams, ws
}

func TestChannelsPassMessagesOfAnySize(t *testing.T) {
	sent := bytes.Repeat([]byte("0123456789"), MaxUnread) // 2.5 MiB in one message
	c, streams, ws := channels(t, Binary, patient, 3)
	streams[1].Discard()
	go func() {
		_ = ws.WriteMessage(websocket.BinaryMessage, nil)
		_ = ws.WriteMessage(websocket.BinaryMessage, []byte{200, 1})
		_ = ws.WriteMessage(websocket.BinaryMessage, append([]byte{1}, sent...))
		_ = ws.WriteMessage(websocket.BinaryMessage, append([]byte{2}, sent...))
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(streams[2], got); err != nil || !bytes.Equal(got, sent) {
		t.Error(err)
	}
	go func() { _, _ = streams[0].Write(got) }()
	var back []byte
	for len(back) < len(got) {
		kind, data, err := ws.ReadMessage()
		if err != nil || kind != websocket.BinaryMessage || data[0] != 0 || len(data) > maxPiece+1 {
			t.Fatal(err, kind, len(data))
		}
		back = append(back, data[1:]...)
	}
	if !bytes.Equal(back, got) {
		t.Error("the bytes that came back are others")
	}
	closed := make(chan struct{})
	go func() {
		c.Close(time.Hour)
		close(closed)
	}()
	if _, _, err := ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Error(err)
	}
	receive(t, "Close", closed)
}

func TestTextChannelsAreBase64(t *testing.T) {
	c, streams, ws := channels(t, Text, patient, 2)
	_ = ws.WriteMessage(websocket.TextMessage, []byte("1aGVsbG8="))
	got := make([]byte, 5)
	if _, err := io.ReadFull(streams[1], got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	_, _ = streams[0].Write(got)
	if kind, data, err := ws.ReadMessage(); err != nil || kind != websocket.TextMessage || string(data) != "0aGVsbG8=" {
		t.Errorf("%d %q %v", kind, data, err)
	}
	_ = ws.WriteMessage(websocket.TextMessage, []byte("1???"))
	receive(t, "the end", c.Done())
}

// TestAChannelEnds: the client of a version before that can't end the input of a command.
func TestAChannelEnds(t *testing.T) {
	c, streams, ws := channels(t, Ended, patient, 2)
	for _, sent := range [][]byte{{1, 'h', 'i'}, {endChannel, 1}, {1, 'x'}, {endChannel, 1, 0}, {endChannel, 7}, {0, 'm'}} {
		_ = ws.WriteMessage(websocket.BinaryMessage, sent)
	}
	if got, err := io.ReadAll(streams[1]); err != nil || string(got) != "hi" {
		t.Errorf("%q, %v", got, err)
	}
	got := make([]byte, 1)
	if _, err := io.ReadFull(streams[0], got); err != nil || string(got) != "m" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := streams[1].Write([]byte("out")); err != nil {
		t.Error(err)
	}
	if _, data, err := ws.ReadMessage(); err != nil || string(data) != "\x01out" {
		t.Errorf("%q, %v", data, err)
	}
	_ = ws.WriteMessage(websocket.BinaryMessage, []byte{endChannel})
	receive(t, "the end", c.Done())
}

// TestAClientThatWaitsForPongsIsKept: its pings wait behind its bytes.
func TestAClientThatWaitsForPongsIsKept(t *testing.T) {
	_, streams, ws := channels(t, Binary, Waits{Ping: time.Millisecond}, 1)
	pongs := make(chan struct{}, 1)
	ws.SetPongHandler(func(string) error {
		select {
		case pongs <- struct{}{}:
		default:
		}
		return nil
	})
	go func() { _, _, _ = ws.ReadMessage() }()
	sent := make(chan error, 1)
	go func() { sent <- ws.WriteMessage(websocket.BinaryMessage, make([]byte, 2*MaxUnread)) }()
	for range 3 {
		receive(t, "a pong", pongs)
	}
	if n, err := io.CopyN(io.Discard, streams[0], 2*MaxUnread-1); err != nil {
		t.Error(n, err)
	}
	if err := receive(t, "the message", sent); err != nil {
		t.Error(err)
	}
}

// TestATunnelHasSPDYInMessages: a frame may be cut at any byte, and a message have any
// number of frames.
func TestATunnelHasSPDYInMessages(t *testing.T) {
	for _, size := range []int{1, 7, 1 << 20} {
		opened := make(chan *Stream, 1)
		ready := make(chan *Conn, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			ready <- Tunnel(ws, patient, func(s *Stream, _ http.Header) error {
				opened <- s
				return s.Accept()
			})
		}))
		defer server.Close()
		ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ws.Close() }()
		sent := append(synFrame(t, 1, http.Header{"Streamtype": {"data"}}), 0, 0, 0, 1, flagFin, 0, 0, 2, 'h', 'i')
		_ = ws.WriteMessage(websocket.BinaryMessage, nil)
		for len(sent) > 0 {
			n := min(size, len(sent))
			_ = ws.WriteMessage(websocket.BinaryMessage, sent[:n])
			sent = sent[n:]
		}
		c, st := <-ready, receive(t, "the stream", opened)
		if got, err := io.ReadAll(st); err != nil || string(got) != "hi" {
			t.Errorf("messages of %d bytes: %q, %v", size, got, err)
		}
		st.Finish()
		closed := make(chan struct{})
		go func() {
			c.Close(time.Hour)
			close(closed)
		}()
		for _, want := range []string{"\x80\x03\x00\x02", "\x00\x00\x00\x01\x01\x00\x00\x00", "\x80\x03\x00\x07"} { // the reply, the end, the farewell
			if kind, data, err := ws.ReadMessage(); err != nil || kind != websocket.BinaryMessage || !strings.HasPrefix(string(data), want) {
				t.Errorf("% x, %v, want % x", data, err, want)
			}
		}
		if _, _, err := ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			t.Error(err)
		}
		receive(t, "Close", closed)
	}
}

// FuzzSPDY sends any bytes. Whatever they are, little memory is held and the
// connection ends with its client.
func FuzzSPDY(f *testing.F) {
	for _, sent := range hostile(f) {
		f.Add(sent)
	}
	f.Add(append(synFrame(f, 1, http.Header{"Streamtype": {"stdin"}}), 0, 0, 0, 1, 1, 0, 0, 2, 'a', 'b'))
	f.Add(frame(6, 0, 0, 0, 0, 1))
	f.Add(frame(3, 0, 0, 0, 0, 1, 0, 0, 0, 5))
	f.Fuzz(func(t *testing.T, sent []byte) {
		var c *Conn
		conn := &scripted{Reader: bytes.NewReader(sent)}
		opened := make(chan *Stream, 1)
		ready := make(chan struct{})
		c = SPDY(conn, bufio.NewReader(conn), patient, func(s *Stream, _ http.Header) error {
			<-ready
			if err := c.check(); err != nil {
				t.Error(err)
			}
			select {
			case opened <- s:
				go func() { _, _ = io.Copy(io.Discard, s) }()
			default:
				return ErrRefused
			}
			return s.Accept()
		})
		close(ready)
		<-c.Done()
		if err := c.check(); err != nil || c.Err() == nil || len(c.streams) > 1 {
			t.Errorf("%v, %v, %d streams", err, c.Err(), len(c.streams))
		}
	})
}

// FuzzChannels sends any bytes as the frames of a WebSocket.
func FuzzChannels(f *testing.F) {
	f.Add([]byte{0x82, 0x83, 0, 0, 0, 0, 0, 'h', 'i'}, byte(Binary))
	f.Add([]byte{0x82, 0x82, 0, 0, 0, 0, 255, 1, 0x82, 0x81, 0, 0, 0, 0, 255}, byte(Ended))
	f.Add([]byte{0x81, 0x89, 0, 0, 0, 0, '1', 'a', 'G', 'V', 's', 'b', 'G', '8', '='}, byte(Text))
	f.Add([]byte{0x89, 0x80, 0, 0, 0, 0, 0x88, 0x80, 0, 0, 0, 0}, byte(Binary))
	f.Add(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, 1<<62), byte(Binary))
	f.Fuzz(func(t *testing.T, sent []byte, format byte) {
		w := &hijacked{httptest.NewRecorder(), &scripted{Reader: bytes.NewReader(sent)}}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, streams := WebSocket(ws, Format(format%3), patient, 2)
		streams[0].Discard()
		go func() { _, _ = io.Copy(io.Discard, streams[1]) }()
		<-c.Done()
		if err := c.check(); err != nil || c.Err() == nil {
			t.Errorf("%v, %v", err, c.Err())
		}
	})
}

// scripted is a connection whose client sends fixed bytes and reads everything.
type scripted struct {
	net.Conn
	io.Reader
}

func (s *scripted) Read(p []byte) (int, error)       { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }

type hijacked struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// unreadRig serves two streams to a client that has sent more to the first one than is
// held, and then a byte to the second one. It must be called in a bubble.
func unreadRig(t *testing.T, waits Waits) (c *Conn, first, second *Stream, frames chan string) {
	near, far := net.Pipe()
	opened := make(chan *Stream, 2)
	frames = make(chan string, 1000)
	c = SPDY(near, bufio.NewReader(near), waits, func(s *Stream, _ http.Header) error {
		opened <- s
		return nil
	})
	go func() {
		for {
			var head [8]byte
			if _, err := io.ReadFull(far, head[:]); err != nil {
				return
			}
			payload := make([]byte, int(head[5])<<16|int(head[6])<<8|int(head[7]))
			_, _ = io.ReadFull(far, payload)
			frames <- fmt.Sprint(head, payload)
		}
	}()
	go func() {
		var out bytes.Buffer
		framer, _ := spdy.NewFramer(&out, strings.NewReader(""))
		for _, id := range []spdy.StreamId{1, 3} {
			_ = framer.WriteFrame(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{}})
		}
		sent := out.Bytes()
		for range MaxUnread/maxPiece + 1 {
			sent = append(append(sent, 0, 0, 0, 1, 0, 0, maxPiece>>8, 0), make([]byte, maxPiece)...)
		}
		_, _ = far.Write(append(sent, 0, 0, 0, 3, 0, 0, 0, 1, 'x'))
	}()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return c, <-opened, <-opened, frames
}

// TestAStreamThatIsNotReadIsResetAlone: it stopped all streams of its connection.
func TestAStreamThatIsNotReadIsResetAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, first, second, frames := unreadRig(t, Waits{Ping: 10 * time.Second, Reset: 30 * time.Second})
		began, why := time.Now(), make(chan error, 1)
		first.OnAbort(func(err error) { why <- err })
		for _, at := range []int{10, 20} { // pings until then
			if got, at := <-frames, time.Duration(at)*time.Second; got != "[128 3 0 6 0 0 0 4] [0 0 0 2]" || time.Since(began) != at {
				t.Errorf("after %v: %s", time.Since(began), got)
			}
		}
		got := make([]byte, 2)
		if n, err := second.Read(got); n != 1 || got[0] != 'x' || err != nil || time.Since(began) != 30*time.Second {
			t.Errorf("after %v: %q, %v", time.Since(began), got[:n], err)
		}
		if err := <-why; !errors.Is(err, ErrUnread) || !errors.Is(first.Aborted(), ErrReset) {
			t.Error(err, first.Aborted())
		}
		if _, err := first.Read(got); !errors.Is(err, ErrUnread) {
			t.Error(err)
		}
		if _, err := first.Write(got); !errors.Is(err, ErrUnread) {
			t.Error(err)
		}
		if got := <-frames; got != "[128 3 0 3 0 0 0 8] [0 0 0 1 0 0 0 5]" {
			t.Error(got)
		}
		if _, err := second.Write([]byte("y")); err != nil || second.Aborted() != nil {
			t.Error(err)
		}
		if err := c.check(); err != nil {
			t.Error(err)
		}
		c.Close(0)
	})
}

// TestAStreamThatIsReadSlowlyIsNotReset: nor one that may be read when its reader wants.
func TestAStreamThatIsReadSlowlyIsNotReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, first, second, _ := unreadRig(t, Waits{Ping: 10 * time.Second, Reset: 30 * time.Second})
		for range 8 { // there is no space until a whole piece is read
			time.Sleep(29 * time.Second)
			if _, err := first.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		c.Close(0)
		c, first, second, frames := unreadRig(t, Waits{Ping: time.Minute})
		time.Sleep(time.Hour - time.Second)
		if len(frames) != 59 {
			t.Errorf("%d pings", len(frames))
		}
		if n, err := io.CopyN(io.Discard, first, MaxUnread+maxPiece); err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if n, err := second.Read(make([]byte, 2)); n != 1 || err != nil {
			t.Error(n, err)
		}
		pings := len(frames)
		time.Sleep(time.Hour)
		if len(frames) != pings {
			t.Error("it pings a connection that is read")
		}
		c.Close(0)
	})
}
