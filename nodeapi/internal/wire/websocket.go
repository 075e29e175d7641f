// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gorilla/websocket"
)

// receiveSize is the number of bytes of a message that are received at once.
const receiveSize = 16 << 10

// A Format is how the messages of a WebSocket begin.
type Format int

const (
	Binary Format = iota // with the number of the channel, as a byte
	Text                 // with a digit, before Base64
	Ended                // as Binary; a message of endChannel and a number ends the client's side of that channel
)

// endChannel is the number that no channel has.
const endChannel = 255

// WebSocket serves the channels of a WebSocket. There are as many streams as channels.
// The end of a stream can't be sent.
func WebSocket(ws *websocket.Conn, format Format, waits Waits, channels int) (*Conn, []*Stream) {
	c := newConn(ws.NetConn(), &channelWriter{ws: ws, text: format == Text}, waits)
	streams := make([]*Stream, channels)
	for i := range streams {
		streams[i] = c.add(uint32(i))
	}
	c.answerPings(ws)
	go c.serve(func() error { return c.messages(ws, format) })
	return c, streams
}

// answerPings answers the client's pings. The default handler gives up a pong after a
// second, and with it all later writes.
func (c *Conn) answerPings(ws *websocket.Conn) {
	ws.SetPingHandler(func(payload string) error {
		return c.send(func(frameWriter) error { return ws.WriteControl(websocket.PongMessage, []byte(payload), time.Time{}) })
	})
}

// Tunnel serves the server side of SPDY/3.1 in the binary messages of a WebSocket. A
// message may end anywhere in a frame.
func Tunnel(ws *websocket.Conn, waits Waits, open OpenFunc) *Conn {
	out := &tunnelWriter{ws: ws}
	c := newConn(ws.NetConn(), &spdyWriter{conn: out, ended: out.bye}, waits)
	c.answerPings(ws)
	reader := &spdyReader{Conn: c, r: bufio.NewReader(&tunnelReader{ws: ws}), open: open}
	go c.serve(reader.read)
	return c
}

// tunnelReader reads the messages of a WebSocket as one sequence of bytes.
type tunnelReader struct {
	ws      *websocket.Conn
	message io.Reader // nil before the next message
}

func (t *tunnelReader) Read(p []byte) (int, error) {
	for {
		if t.message == nil {
			kind, r, err := t.ws.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, fmt.Errorf("a tunnel has a message of type %d", kind)
			}
			t.message = r
		}
		n, err := t.message.Read(p)
		if errors.Is(err, io.EOF) {
			t.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// tunnelWriter writes each frame as a message.
type tunnelWriter struct{ ws *websocket.Conn }

func (t *tunnelWriter) Write(p []byte) (int, error) {
	if err := t.ws.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *tunnelWriter) bye() error { return sayBye(t.ws) }

// sayBye begins the end of a WebSocket.
func sayBye(ws *websocket.Conn) error {
	return ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Time{})
}

// messages receives messages. A message may be of any size, because it is not kept as
// a whole.
func (c *Conn) messages(ws *websocket.Conn, format Format) error {
	scratch := make([]byte, receiveSize)
	for {
		_, r, err := ws.NextReader()
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(r, scratch[:1]); errors.Is(err, io.EOF) {
			continue // an empty message
		} else if err != nil {
			return err
		}
		channel := scratch[0]
		switch {
		case format == Text:
			channel -= '0'
			r = base64.NewDecoder(base64.StdEncoding, r)
		case format == Ended && channel == endChannel:
			if _, err := io.ReadFull(r, scratch[:1]); err != nil {
				return fmt.Errorf("the end of a channel has no number: %w", err)
			}
			c.finish(c.find(uint32(scratch[0])))
			continue
		}
		to := c.find(uint32(channel))
		for err == nil {
			var n int
			n, err = r.Read(scratch)
			_ = c.receive(to, bytes.NewReader(scratch[:n]), n)
		}
		if err != io.EOF { //nolint:errorlint // the contract of io.Reader
			return err
		}
	}
}

// channelWriter writes messages.
type channelWriter struct {
	ws   *websocket.Conn
	text bool
	out  []byte
}

func (w *channelWriter) data(id uint32, p []byte, end bool) error {
	if end {
		return nil
	}
	if w.text {
		w.out = base64.StdEncoding.AppendEncode(append(w.out[:0], '0'+byte(id)), p)
		return w.ws.WriteMessage(websocket.TextMessage, w.out)
	}
	w.out = append(append(w.out[:0], byte(id)), p...)
	return w.ws.WriteMessage(websocket.BinaryMessage, w.out)
}

func (w *channelWriter) reply(uint32) error { return nil }
func (w *channelWriter) reset(uint32) error { return nil }

// ping sends a pong. A client such as kubectl ends a connection without pongs after a
// minute, and its own pings wait behind its unread bytes.
func (w *channelWriter) ping() error {
	return w.ws.WriteControl(websocket.PongMessage, nil, time.Time{})
}

func (w *channelWriter) bye() error { return sayBye(w.ws) }
