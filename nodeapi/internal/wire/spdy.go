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

	"github.com/moby/spdystream/spdy"
)

// Bounds of a control frame. Those of client-go have some 100 bytes, and headers
// with a word each.
const (
	maxControl     = 4 << 10
	maxHeaderField = 1 << 10
	maxHeaders     = 16
)

// The types and flags of frames.
const (
	controlBit = 1 << 31
	version3   = controlBit | 3<<16

	synStream    = 1
	synReply     = 2
	rstStream    = 3
	settings     = 4
	noop         = 5
	ping         = 6
	goAway       = 7
	windowUpdate = 9

	flagFin       = 1
	refusedStream = 3
	cancelStream  = 5
)

// An OpenFunc is called for each stream that a client opens, with the stream's headers,
// by the goroutine that reads. It must call Accept or return an error: ErrRefused
// refuses the stream, another error ends the connection.
type OpenFunc func(*Stream, http.Header) error

// SPDY serves the server side of SPDY/3.1 on conn, whose bytes come from r. It does not
// keep the headers of streams.
func SPDY(conn net.Conn, r *bufio.Reader, waits Waits, open OpenFunc) *Conn {
	c := newConn(conn, &spdyWriter{conn: conn}, waits)
	reader := &spdyReader{Conn: c, r: r, open: open}
	go c.serve(reader.read)
	return c
}

// spdyReader reads frames. Its fields are those of one goroutine.
type spdyReader struct {
	*Conn
	r    *bufio.Reader
	open OpenFunc
	last uint32 // the highest stream ID so far

	frame  bytes.Buffer // a control frame, for framer
	framer *spdy.Framer // it has the state of the compression of headers
}

func (s *spdyReader) read() error {
	for {
		var head [8]byte
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return err
		}
		word, length := binary.BigEndian.Uint32(head[:]), int(binary.BigEndian.Uint32(head[4:])&0xffffff)
		if word&controlBit == 0 {
			if err := s.data(word, length, head[4]&flagFin != 0); err != nil {
				return err
			}
			continue
		}
		if word&^0xffff != version3 {
			return fmt.Errorf("a control frame has the version %d", word&^controlBit>>16)
		}
		if length > maxControl {
			return fmt.Errorf("a control frame has %d bytes, at most %d are allowed", length, maxControl)
		}
		s.frame.Reset()
		s.frame.Write(head[:])
		if _, err := io.CopyN(&s.frame, s.r, int64(length)); err != nil {
			return err
		}
		if err := s.control(word&0xffff, s.frame.Bytes()[len(head):]); err != nil {
			return err
		}
	}
}

// data receives the payload of a data frame.
func (s *spdyReader) data(id uint32, length int, end bool) error {
	to := s.find(id)
	if err := s.receive(to, s.r, length); err != nil {
		return err
	}
	if end {
		s.finish(to)
	}
	return nil
}

func (s *spdyReader) control(kind uint32, payload []byte) error {
	word := func() uint32 {
		if len(payload) < 4 {
			return 0
		}
		return binary.BigEndian.Uint32(payload)
	}
	switch kind {
	case synStream:
		return s.opened()
	case rstStream:
		if to := s.find(word()); to != nil {
			to.abort(ErrReset)
		}
	case ping:
		if id := word(); id%2 == 1 { // one of the client
			return s.send(func(w frameWriter) error { return w.(*spdyWriter).control(ping, payload) })
		}
	case goAway:
		return io.EOF
	case settings, noop, windowUpdate:
	default: // the reply to a stream of ours, of which there is none, or headers after those of the stream
		return fmt.Errorf("a control frame has the type %d", kind)
	}
	return nil
}

// opened opens the stream of the current frame.
func (s *spdyReader) opened() error {
	if s.framer == nil {
		var err error
		if s.framer, err = spdy.NewFramerWithOptions(io.Discard, &s.frame, spdy.WithMaxHeaderFieldSize(maxHeaderField), spdy.WithMaxHeaderCount(maxHeaders)); err != nil {
			return err
		}
	}
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	syn, ok := frame.(*spdy.SynStreamFrame)
	if !ok {
		return fmt.Errorf("a stream is opened by a %T", frame)
	}
	for name, values := range syn.Headers {
		if len(values) != 1 { // each byte of a field could be one
			return fmt.Errorf("a stream is opened with %d values of the header %.40q", len(values), name)
		}
	}
	id := uint32(syn.StreamId)
	if id <= s.last || id%2 == 0 {
		return fmt.Errorf("stream %d is opened after stream %d", id, s.last)
	}
	s.last = id
	to := s.add(id)
	if syn.CFHeader.Flags&spdy.ControlFlagFin != 0 {
		s.finish(to)
	}
	err = s.open(to, syn.Headers)
	if errors.Is(err, ErrRefused) {
		to.close()
		to.forget()
		return s.send(func(w frameWriter) error { return w.(*spdyWriter).rst(id, refusedStream) })
	}
	return err
}

// spdyWriter writes frames, each with one call of Write.
type spdyWriter struct {
	conn    io.Writer
	ended   func() error // called after the last frame; may be nil
	out     []byte
	replied bool
}

func (w *spdyWriter) data(id uint32, p []byte, end bool) error {
	length := uint32(len(p))
	if end {
		length |= flagFin << 24
	}
	w.out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(w.out[:0], id), length)
	w.out = append(w.out, p...)
	_, err := w.conn.Write(w.out)
	return err
}

// noHeaders is the compressed block of no headers: four zero bytes that are stored,
// and an empty stored block, at which a decompressor passes them on. A compressor
// would do the same with some 800 KiB for each connection.
var noHeaders = []byte{0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// zlibHeader begins the first block.
var zlibHeader = []byte{0x78, 0x01}

func (w *spdyWriter) reply(id uint32) error {
	payload := binary.BigEndian.AppendUint32(nil, id)
	if !w.replied {
		payload = append(payload, zlibHeader...)
	}
	w.replied = true
	return w.control(synReply, append(payload, noHeaders...))
}

func (w *spdyWriter) reset(id uint32) error { return w.rst(id, cancelStream) }

func (w *spdyWriter) rst(id, status uint32) error {
	return w.control(rstStream, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, id), status))
}

// ping has the ID of a ping of a server. Its answer is ignored.
func (w *spdyWriter) ping() error { return w.control(ping, binary.BigEndian.AppendUint32(nil, 2)) }

func (w *spdyWriter) bye() error {
	err := w.control(goAway, make([]byte, 8))
	if w.ended != nil && err == nil {
		err = w.ended()
	}
	return err
}

func (w *spdyWriter) control(kind uint32, payload []byte) error {
	w.out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(w.out[:0], version3|kind), uint32(len(payload)))
	w.out = append(w.out, payload...)
	_, err := w.conn.Write(w.out)
	return err
}
