// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// MaxUnread bounds the bytes of one connection that were received and not yet
	// read. It is the terminal input that a busy command finds later, and a few
	// frames of an upload.
	MaxUnread = 256 << 10
	// maxPiece bounds the payload of a frame that is sent: what io.Copy writes at
	// once.
	maxPiece = 32 << 10
	// smallPiece bounds the pieces that are packed together. Bytes that come one by one
	// would otherwise take a multiple of their number.
	smallPiece = 4 << 10
	// spares is the number of buffers of maxPiece that a connection keeps.
	spares = 4
)

// ErrRefused is returned by a caller that refuses one stream. The connection goes on.
var ErrRefused = errors.New("the stream is refused")

// ErrReset is returned by the reads and writes of a stream that the client has reset:
// what was read is not the whole.
var ErrReset = errors.New("the client has reset the stream")

// ErrUnread is returned by a stream that was reset because its bytes were not read for
// Waits.Reset. It is an ErrReset.
var ErrUnread = fmt.Errorf("its bytes were not read, and all streams of the connection waited: %w", ErrReset)

// errGone is the error of a write after the connection has ended.
var errGone = errors.New("the client has closed the connection")

// Waits are the times for which a connection may stand still, because too many of its
// bytes are not read.
type Waits struct {
	// Ping is the time between two pings to the client. A proxy that copies bytes notices
	// the loss of its client when it passes one on.
	Ping time.Duration
	// Reset is the time after which streams are reset whose bytes are not read. It is
	// checked when a ping is sent. If it is 0, streams may wait without limit.
	Reset time.Duration
}

// A Conn is a connection with several streams. Its methods and those of its
// streams may be called concurrently.
type Conn struct {
	raw   net.Conn
	waits Waits
	done  chan struct{}

	// writing guards the frames that are sent.
	writing sync.Mutex
	frames  frameWriter

	mu sync.Mutex
	// streams are the streams that frames may be for.
	streams map[uint32]*Stream
	// held is the number of unread bytes, of which reserved are being received.
	//
	// Invariant: held is the sum of reserved and the unread bytes of streams, at most
	// MaxUnread.
	held, reserved int
	// spare are buffers of maxPiece for the next pieces.
	spare [][]byte
	small []byte // a piece that is being received, of at most smallPiece
	// space is signaled when held falls, a stream goes, or the connection ends.
	space sync.Cond
	// waiting is set while the connection is not read because there is no space, and
	// waited calls standStill then.
	waiting bool
	waited  *time.Timer
	// ending is set when the caller reads no more.
	ending bool
	// over is set when no bytes will come.
	over bool
	err  error // why over is set
}

// frameWriter writes frames. Conn.writing must be held.
type frameWriter interface {
	data(id uint32, p []byte, end bool) error
	reply(id uint32) error
	reset(id uint32) error
	ping() error
	bye() error
}

func newConn(raw net.Conn, frames frameWriter, waits Waits) *Conn {
	c := &Conn{raw: raw, frames: frames, waits: waits, done: make(chan struct{}), streams: make(map[uint32]*Stream)}
	c.space.L = &c.mu
	return c
}

// serve calls read, which receives frames until the client is gone, and then ends
// the connection.
func (c *Conn) serve(read func() error) {
	err := read()
	c.mu.Lock()
	c.over, c.err = true, err
	for _, s := range c.streams {
		s.finish(io.EOF)
	}
	c.mu.Unlock()
	_ = c.raw.Close()
	close(c.done)
}

// Done is closed when no bytes will come: the client is gone or broke the protocol.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why Done is closed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection after all writes. It sends the client its end and waits
// for the client to close, so that no output is lost, but no longer than linger.
func (c *Conn) Close(linger time.Duration) {
	c.mu.Lock()
	c.ending = true
	for _, s := range c.streams {
		s.drop()
	}
	c.space.Broadcast()
	c.mu.Unlock()
	timer := time.AfterFunc(linger, func() { _ = c.raw.Close() })
	defer timer.Stop()
	_ = c.send(func(w frameWriter) error { return w.bye() })
	<-c.done
}

// send writes frames.
func (c *Conn) send(write func(frameWriter) error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return write(c.frames)
}

// add adds a stream.
func (c *Conn) add(id uint32) *Stream {
	s := &Stream{conn: c, id: id}
	s.arrived.L = &c.mu
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[id] = s
	return s
}

// find returns the stream that a frame is for, or nil.
func (c *Conn) find(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// receive passes n bytes of r to a stream in pieces. It blocks while there is no space,
// and drops bytes that nobody will read.
func (c *Conn) receive(to *Stream, r io.Reader, n int) error {
	for n > 0 {
		piece := c.reserve(to, min(n, maxPiece))
		if piece == nil {
			_, err := io.CopyN(io.Discard, r, int64(n))
			return err
		}
		got, err := io.ReadFull(r, piece)
		c.deliver(to, piece[:got])
		if err != nil {
			return err
		}
		n -= len(piece)
	}
	return nil
}

// reserve waits for the space for n bytes and returns a buffer for them, or nil if
// nobody will read them.
func (c *Conn) reserve(to *Stream, n int) (piece []byte) {
	if to == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held+n > MaxUnread && !to.unwanted() {
		c.wait(to, n)
	}
	if to.unwanted() {
		return nil
	}
	c.held, c.reserved = c.held+n, n
	switch last := len(c.spare) - 1; {
	case n <= smallPiece:
		if c.small == nil {
			c.small = make([]byte, smallPiece)
		}
		return c.small[:n]
	case n < maxPiece || last < 0:
		return make([]byte, n)
	default:
		piece, c.spare = c.spare[last], c.spare[:last]
		return piece
	}
}

// wait waits for the space for n bytes of a stream. c.mu must be held.
func (c *Conn) wait(to *Stream, n int) {
	if c.waited == nil {
		c.waited = time.AfterFunc(c.waits.Ping, c.standStill)
	} else {
		c.waited.Reset(c.waits.Ping)
	}
	defer c.waited.Stop()
	c.waiting = true
	for c.held+n > MaxUnread && !to.unwanted() {
		c.space.Wait()
	}
	c.waiting = false
}

// standStill is called while there is no space. It pings the client, and resets the
// streams that have not been read for too long.
func (c *Conn) standStill() {
	c.mu.Lock()
	if !c.waiting {
		c.mu.Unlock()
		return
	}
	c.waited.Reset(c.waits.Ping)
	var unread []*Stream
	for _, s := range c.streams {
		if c.waits.Reset > 0 && len(s.pieces) > 0 && time.Since(s.read) >= c.waits.Reset {
			unread = append(unread, s)
		}
	}
	c.mu.Unlock()
	for _, s := range unread {
		s.abort(ErrUnread)
	}
	for _, s := range unread {
		_ = c.send(func(w frameWriter) error { return w.reset(s.id) })
	}
	if !c.writing.TryLock() { // a write does what the ping would do
		return
	}
	defer c.writing.Unlock()
	ping := c.frames.ping
	if raw, ok := c.raw.(interface{ Quietly(func() error) error }); ok { // it has an idle timeout
		_ = raw.Quietly(ping)
	} else {
		_ = ping()
	}
}

// deliver appends a piece to a stream. Its buffer is from reserve. It has fewer bytes
// if the client is gone.
func (c *Conn) deliver(to *Stream, piece []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.reserved = c.held-c.reserved, 0
	if len(piece) == 0 || to.unwanted() {
		return
	}
	if len(to.pieces) == 0 {
		to.read = time.Now()
	}
	c.held += len(piece)
	if len(piece) <= smallPiece {
		last := len(to.pieces) - 1
		if last < 0 || cap(to.pieces[last])-len(to.pieces[last]) < len(piece) {
			to.pieces, last = append(to.pieces, make([]byte, 0, smallPiece)), last+1
		}
		to.pieces[last] = append(to.pieces[last], piece...)
	} else {
		to.pieces = append(to.pieces, piece)
	}
	to.arrived.Signal()
}

// finish records that the client sends no more bytes of a stream.
func (c *Conn) finish(s *Stream) {
	if s == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.finish(io.EOF)
}

// A Stream is one of the streams of a connection.
type Stream struct {
	conn *Conn
	id   uint32

	// The fields below are guarded by conn.mu.

	// pieces are unread but for the first from bytes.
	//
	// Invariant: no piece is empty, and from < len(pieces[0]).
	pieces [][]byte
	from   int
	read   time.Time // when pieces were read, or began to wait
	// arrived is signaled when pieces or end changes.
	arrived sync.Cond
	// end is what Read returns after the pieces; nil while more bytes are wanted.
	end     error
	closed  bool        // the end was sent, or the stream was reset
	onAbort func(error) // nil if nobody asks
}

// unwanted reports whether received bytes are dropped, because nobody will read them
// or they come after their end.
func (s *Stream) unwanted() bool { return s.end != nil || s.conn.ending }

// finish sets what Read returns after the pieces. conn.mu must be held.
func (s *Stream) finish(end error) {
	if s.end == nil {
		s.end = end
	}
	s.arrived.Broadcast()
}

// unread returns the number of unread bytes. conn.mu must be held.
func (s *Stream) unread() (n int) {
	for _, p := range s.pieces {
		n += len(p)
	}
	return n - s.from
}

// drop drops the unread bytes and those that still come. conn.mu must be held.
func (s *Stream) drop() {
	s.conn.held -= s.unread()
	s.pieces, s.from = nil, 0
	s.finish(io.EOF)
	s.conn.space.Broadcast()
}

// Read reads bytes that the client sent. It returns io.EOF at their end, and when
// the client is gone, and ErrReset if the client has reset the stream.
func (s *Stream) Read(p []byte) (int, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(s.pieces) == 0 {
		if s.end != nil {
			return 0, s.end
		}
		s.arrived.Wait()
	}
	n := copy(p, s.pieces[0][s.from:])
	s.from += n
	if first := s.pieces[0]; s.from == len(first) {
		s.pieces[0] = nil
		s.pieces, s.from = s.pieces[1:], 0
		if cap(first) == maxPiece && len(c.spare) < spares {
			c.spare = append(c.spare, first[:maxPiece])
		}
	}
	s.read = time.Now()
	c.held -= n
	c.space.Signal()
	return n, nil
}

// Write sends bytes to the client. It blocks while the client does not read.
func (s *Stream) Write(p []byte) (n int, err error) {
	for first := true; first || len(p) > 0; first = false {
		piece := p[:min(len(p), maxPiece)]
		if err := s.writable(); err != nil {
			return n, err
		}
		if err := s.conn.send(func(w frameWriter) error { return w.data(s.id, piece, false) }); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

func (s *Stream) writable() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	switch {
	case errors.Is(s.end, ErrReset):
		return s.end
	case s.closed:
		return io.ErrClosedPipe
	case s.conn.over:
		return errGone
	}
	return nil
}

// close marks the stream as closed and reports whether it was open.
func (s *Stream) close() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	was := !s.closed && !s.conn.over
	s.closed = true
	return was
}

// Close sends the end of the stream. The client may go on sending.
func (s *Stream) Close() error {
	if !s.close() {
		return nil
	}
	return s.conn.send(func(w frameWriter) error { return w.data(s.id, nil, true) })
}

// Finish sends the end of the stream and forgets it.
func (s *Stream) Finish() {
	_ = s.Close()
	s.forget()
}

// Reset ends both directions of the stream and forgets it.
func (s *Stream) Reset() {
	if s.close() {
		_ = s.conn.send(func(w frameWriter) error { return w.reset(s.id) })
	}
	s.forget()
}

// abort ends the stream: the client has reset it, or it is not read.
func (s *Stream) abort(why error) {
	s.conn.mu.Lock()
	s.end, s.closed = why, true
	s.drop()
	delete(s.conn.streams, s.id)
	f := s.onAbort
	s.conn.mu.Unlock()
	if f != nil {
		f(why)
	}
}

// OnAbort has f called with ErrReset when the client resets the stream, or with
// ErrUnread, and at once if that has happened. f must not block: the connection is not
// read meanwhile.
func (s *Stream) OnAbort(f func(why error)) {
	s.conn.mu.Lock()
	s.onAbort = f
	s.conn.mu.Unlock()
	if why := s.Aborted(); why != nil {
		f(why)
	}
}

// Aborted returns ErrReset if the client has reset the stream, ErrUnread, or nil.
func (s *Stream) Aborted() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if errors.Is(s.end, ErrReset) {
		return s.end
	}
	return nil
}

// Accept tells the client that the stream is open.
func (s *Stream) Accept() error {
	return s.conn.send(func(w frameWriter) error { return w.reply(s.id) })
}

// Discard drops the bytes that the client sends.
func (s *Stream) Discard() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.drop()
}

// forget drops the stream and the bytes that still come for it.
func (s *Stream) forget() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.drop()
	delete(s.conn.streams, s.id)
}
