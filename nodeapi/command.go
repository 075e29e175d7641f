// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	protocols "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/utils/exec"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

// The protocols of commands. Before v5 a client of WebSocket can't end its input, before
// v4 a failure is a sentence, before v3 a terminal has no size. On SPDY, channel.k8s.io is the first version, with its faults; no client
// of the last ten years needs it.
var (
	spdyCommandProtocols      = []string{protocols.StreamProtocolV4Name, protocols.StreamProtocolV3Name, protocols.StreamProtocolV2Name}
	webSocketCommandProtocols = []string{protocols.StreamProtocolV5Name, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"}
)

// commandOptions say which streams a client asks for.
type commandOptions struct{ stdin, stdout, stderr, tty bool }

// remoteOptions parses which streams the client asks for.
func remoteOptions(query url.Values) (*commandOptions, error) {
	on := func(name string) bool { v := query.Get(name); return v == "1" || v == "true" }
	opts := &commandOptions{stdin: on(corev1.ExecStdinParam), stdout: on(corev1.ExecStdoutParam), stderr: on(corev1.ExecStderrParam), tty: on(corev1.ExecTTYParam)}
	if opts.tty {
		opts.stderr = false // a terminal has one output
	}
	if !opts.stdin && !opts.stdout && !opts.stderr {
		return nil, badRequest("at least one of the query parameters input, output and error must be 1")
	}
	return opts, nil
}

// commandSession is the connection of an exec or attach request.
type commandSession struct {
	conn *wire.Conn
	// The streams; nil if the client did not ask for them.
	stdin, stdout, stderr, resize *wire.Stream
	failure                       *wire.Stream // how the command has ended
	sentence                      bool         // failure is not a Status
}

// openCommand takes over the connection and waits for the streams of a command.
func openCommand(ctx context.Context, w http.ResponseWriter, r *http.Request, opts *commandOptions, timeout time.Duration, waits wire.Waits) (*commandSession, error) {
	if websocket.IsWebSocketUpgrade(r) {
		return openWebSocketCommand(w, r, opts, waits)
	}
	opening := &commandOpening{opts: opts, seen: make(map[string]bool), complete: make(chan struct{})}
	conn, err := upgradeSPDY(w, r, spdyCommandProtocols, waits, func(protocol string) wire.OpenFunc {
		opening.protocol = protocol
		return opening.open
	})
	if err != nil {
		return nil, err
	}
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-opening.complete:
		opening.session.conn = conn
		return &opening.session, nil
	case <-late.C:
		err = errors.New("the client did not open its streams in time")
	case <-conn.Done():
		err = conn.Err()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	conn.Close(0)
	return nil, err
}

// commandOpening is the streams that a client of SPDY has opened. Only the goroutine
// that reads the connection changes it, until complete is closed.
type commandOpening struct {
	opts     *commandOptions
	protocol string
	seen     map[string]bool
	complete chan struct{}
	session  commandSession
}

// open is called for each stream. One of each kind is accepted; those that the
// request did not ask for have no effect.
func (o *commandOpening) open(st *wire.Stream, headers http.Header) error {
	kind := headers.Get(corev1.StreamType)
	places := map[string]struct {
		at     **wire.Stream
		wanted bool
		input  bool
	}{
		corev1.StreamTypeError:  {at: &o.session.failure, wanted: true},
		corev1.StreamTypeStdin:  {at: &o.session.stdin, wanted: o.opts.stdin, input: true},
		corev1.StreamTypeStdout: {at: &o.session.stdout, wanted: o.opts.stdout},
		corev1.StreamTypeStderr: {at: &o.session.stderr, wanted: o.opts.stderr},
		corev1.StreamTypeResize: {at: &o.session.resize, wanted: o.opts.tty && o.protocol != protocols.StreamProtocolV2Name, input: true},
	}
	place, known := places[kind]
	if !known || o.seen[kind] {
		return fmt.Errorf("the client opens a stream of type %s, unknown or a second one", abbreviated(kind))
	}
	o.seen[kind] = true
	if !place.wanted || !place.input {
		st.Discard()
	}
	if err := st.Accept(); err != nil || !place.wanted {
		return err
	}
	*place.at = st
	for _, p := range places {
		if p.wanted && *p.at == nil {
			return nil
		}
	}
	o.session.sentence = o.protocol != protocols.StreamProtocolV4Name
	close(o.complete)
	return nil
}

// openWebSocketCommand has all streams at once. Those that the client did not ask for
// are not used: input would be at its end, and a backend would end that of the
// container.
func openWebSocketCommand(w http.ResponseWriter, r *http.Request, opts *commandOptions, waits wire.Waits) (*commandSession, error) {
	ws, protocol, err := upgradeWebSocket(w, r, webSocketCommandProtocols)
	if err != nil {
		return nil, err
	}
	conn, channels := wire.WebSocket(ws, formatOf(protocol), waits, 5)
	session := &commandSession{conn: conn, failure: channels[protocols.StreamErr], sentence: !strings.HasPrefix(protocol, "v")}
	for channel, place := range map[int]struct {
		at     **wire.Stream
		wanted bool
	}{
		protocols.StreamStdIn: {&session.stdin, opts.stdin}, protocols.StreamStdOut: {&session.stdout, opts.stdout},
		protocols.StreamStdErr: {&session.stderr, opts.stderr}, protocols.StreamResize: {&session.resize, opts.tty},
	} {
		if place.wanted {
			*place.at = channels[channel]
		}
		if !place.wanted || channel == protocols.StreamStdOut || channel == protocols.StreamStdErr {
			channels[channel].Discard()
		}
	}
	session.failure.Discard()
	// An empty message on the first channel that is written: the command begins.
	for _, st := range []*wire.Stream{session.stdout, session.stderr, session.failure} {
		if st != nil {
			_, _ = st.Write(nil)
			break
		}
	}
	return session, nil
}

// streams returns the streams for the backend.
func (c *commandSession) streams(ctx context.Context, opts *commandOptions) Streams {
	streams := Streams{TTY: opts.tty}
	if c.stdin != nil {
		streams.Stdin = c.stdin
	}
	if c.stdout != nil {
		streams.Stdout = c.stdout
	}
	if c.stderr != nil {
		streams.Stderr = c.stderr
	}
	if opts.tty {
		streams.Resize = sizes(ctx, c.resize)
	}
	return streams
}

// maxSize bounds the JSON of one terminal size.
const maxSize = 1 << 10

// sizes passes on the sizes of a terminal and replaces those that were not received:
// the connection stands still while bytes of one of its streams are not read. Without
// a stream, from clients that send no sizes, there are none.
func sizes(ctx context.Context, from *wire.Stream) <-chan TerminalSize {
	out := make(chan TerminalSize, 1)
	go func() {
		defer close(out)
		if from == nil {
			<-ctx.Done()
			return
		}
		limited := &io.LimitedReader{R: from}
		decoder := json.NewDecoder(limited)
		for {
			limited.N = maxSize
			var size TerminalSize
			if err := decoder.Decode(&size); err != nil {
				from.Discard()
				return
			}
			select {
			case <-out:
			default:
			}
			out <- size
		}
	}()
	return out
}

// end sends the client how the command has ended.
func (c *commandSession) end(e endpoint, err error) {
	// The output comes before the end of the command.
	for _, st := range []*wire.Stream{c.stdout, c.stderr} {
		if st != nil {
			_ = st.Close()
		}
	}
	status := commandStatus(e, err)
	if c.sentence {
		if status.Status != metav1.StatusSuccess {
			_, _ = io.WriteString(c.failure, status.Message)
		}
	} else if data, err := json.Marshal(status); err == nil {
		_, _ = c.failure.Write(data)
	}
	_ = c.failure.Close()
}

// commandStatus returns what a client learns about the end of a command.
func commandStatus(e endpoint, err error) *metav1.Status {
	exit, hasCode := errors.AsType[exec.CodeExitError](err)
	switch {
	case err == nil:
		return &metav1.Status{Status: metav1.StatusSuccess}
	case e == endpointExec && hasCode:
		return &metav1.Status{
			Status: metav1.StatusFailure, Reason: protocols.NonZeroExitCodeReason,
			Message: "command terminated with non-zero exit code: " + exit.Error(),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: protocols.ExitCodeCauseType, Message: strconv.Itoa(exit.Code)}}},
		}
	}
	what := "error executing command in container"
	if e == endpointAttach {
		what = "error attaching to container"
	}
	_, sentence := answerTo(err)
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("Internal error occurred: %s: %s", what, sentence),
	}
}
