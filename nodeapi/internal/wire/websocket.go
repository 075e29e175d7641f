// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"time"

	"github.com/gorilla/websocket"
)

// receiveSize is the number of bytes of a message that are received at once.
const receiveSize = 16 << 10

// WebSocket serves the channels of a WebSocket: each message begins with the number
// of its channel, as a byte, or in text as a digit before Base64. There are as many
// streams as channels. The end of a stream can't be sent.
func WebSocket(ws *websocket.Conn, text bool, waits Waits, channels int) (*Conn, []*Stream) {
	c := newConn(ws.NetConn(), &channelWriter{ws: ws, text: text}, waits)
	streams := make([]*Stream, channels)
	for i := range streams {
		streams[i] = c.add(uint32(i))
	}
	// The default handler gives up a pong after a second, and with it all later writes.
	ws.SetPingHandler(func(payload string) error {
		return c.send(func(frameWriter) error { return ws.WriteControl(websocket.PongMessage, []byte(payload), time.Time{}) })
	})
	go c.serve(func() error { return c.messages(ws, text) })
	return c, streams
}

// messages receives messages. A message may be of any size, because it is not kept as
// a whole.
func (c *Conn) messages(ws *websocket.Conn, text bool) error {
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
		if text {
			channel -= '0'
			r = base64.NewDecoder(base64.StdEncoding, r)
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

func (w *channelWriter) ping() error {
	return w.ws.WriteControl(websocket.PingMessage, nil, time.Time{})
}

func (w *channelWriter) bye() error {
	return w.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Time{})
}
