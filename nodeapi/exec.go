// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// serveCommand serves exec and attach.
func (s *Server) serveCommand(w *response, r *http.Request, to route, query url.Values) error {
	var (
		c       = to.container
		command = query["command"]
		exec    = to.endpoint == endpointExec
	)
	switch {
	case exec && s.backend.exec == nil:
		return missing("exec", "Executor")
	case !exec && s.backend.attach == nil:
		return missing("attach", "Attacher")
	case exec && (len(command) == 0 || command[0] == ""):
		return badRequest("the query parameter command is required")
	}
	opts, err := remoteOptions(query)
	if err != nil {
		return err
	}
	if err := s.target(&c); err != nil {
		return err
	}
	if err := upgradable(r); err != nil {
		return err
	}
	ctx, st, end, err := s.streams.begin(r.Context())
	if err != nil {
		return err
	}
	defer end()
	w.hijack = s.streams.takeOver(st)
	call := &commandCall{ctx: ctx, asked: *opts, call: func(ctx context.Context, streams Streams) error {
		if exec {
			return s.backend.exec.Exec(ctx, c, command, streams)
		}
		return s.backend.attach.Attach(ctx, c, streams)
	}}
	r = r.WithContext(ctx)
	if exec {
		remotecommand.ServeExec(w, r, call, c.Pod.Name, string(c.UID), c.Name, command, opts, s.cfg.StreamIdleTimeout, s.cfg.StreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
	} else {
		remotecommand.ServeAttach(w, r, call, c.Pod.Name, string(c.UID), c.Name, opts, s.cfg.StreamIdleTimeout, s.cfg.StreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
	}
	return call.err
}

// target resolves the pod and the container of a request.
func (s *Server) target(c *Container) error {
	pod, err := s.resolve(&c.Pod)
	if err != nil || pod == nil {
		return err
	}
	return hasContainer(pod, c.Name)
}

// remoteOptions parses which streams the client asks for.
func remoteOptions(query url.Values) (*remotecommand.Options, error) {
	on := func(name string) bool { v := query.Get(name); return v == "1" || v == "true" }
	opts := &remotecommand.Options{
		Stdin: on(remotecommand.ExecStdinParam), Stdout: on(remotecommand.ExecStdoutParam),
		Stderr: on(remotecommand.ExecStderrParam), TTY: on(remotecommand.ExecTTYParam),
	}
	if opts.TTY {
		opts.Stderr = false // a terminal has one output
	}
	if !opts.Stdin && !opts.Stdout && !opts.Stderr {
		return nil, badRequest("at least one of the query parameters input, output and error must be 1")
	}
	return opts, nil
}

// upgradable returns an error if the connection can't become a stream.
func upgradable(r *http.Request) error {
	if r.ProtoMajor != 1 {
		return badRequest("this endpoint upgrades the connection to SPDY or WebSocket, which needs HTTP/1.1, not %s", r.Proto)
	}
	if !strings.Contains(strings.ToLower(strings.Join(r.Header.Values("Connection"), ",")), "upgrade") {
		return badRequest("this endpoint upgrades the connection to SPDY or WebSocket: the request must have the header Connection: Upgrade")
	}
	return nil
}

// commandCall is one call of an Executor or Attacher, as package remotecommand
// wants it.
type commandCall struct {
	ctx   context.Context
	asked remotecommand.Options // the streams that the client asked for
	call  func(context.Context, Streams) error
	err   error
}

// ExecInContainer implements remotecommand.Executor.
func (c *commandCall) ExecInContainer(_ context.Context, _, _, _ string, _ []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return asExit(c.run(in, out, err, tty, resize))
}

// AttachContainer implements remotecommand.Attacher.
func (c *commandCall) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return c.run(in, out, err, tty, resize)
}

func (c *commandCall) run(in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	streams := Streams{TTY: tty}
	// A WebSocket has all streams, also those that the client did not ask for: its
	// input is then at its end, and a backend would end that of the container.
	if in != nil && c.asked.Stdin {
		streams.Stdin = in
	}
	if out != nil && c.asked.Stdout {
		streams.Stdout = out
	}
	if err != nil && c.asked.Stderr {
		streams.Stderr = err
	}
	if tty {
		streams.Resize = newest(c.ctx, resize)
	} else if resize != nil {
		// A WebSocket has this channel without a terminal too, and stands still
		// unless it is read.
		go func() {
			for range resize {
			}
		}()
	}
	c.err = guard(func() error { return c.call(c.ctx, streams) })
	// Close sends the end of a stream after its data. The library resets a stream
	// that is still open, and the reset overtakes data.
	for _, w := range []io.WriteCloser{out, err} {
		if w != nil {
			_ = w.Close()
		}
	}
	if _, panicked := errors.AsType[*PanicError](c.err); panicked {
		return errors.New("the node failed to serve this request")
	}
	return c.err
}

// newest passes on terminal sizes and replaces those that were not received. The
// libraries stop serving the whole connection while a size is not received.
func newest(ctx context.Context, resize <-chan remotecommand.TerminalSize) <-chan TerminalSize {
	out := make(chan TerminalSize, 1)
	go func() {
		defer close(out)
		for {
			select {
			case size, ok := <-resize:
				if !ok {
					return
				}
				select {
				case <-out:
				default:
				}
				out <- TerminalSize{Width: size.Width, Height: size.Height}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// maxRunOutput bounds the output of /run, which is no stream.
const maxRunOutput = 1 << 20

// serveRun runs a command and answers with its output.
func (s *Server) serveRun(w *response, r *http.Request, c Container, query url.Values) error {
	if s.backend.exec == nil {
		return missing("run", "Executor")
	}
	command := strings.Fields(query.Get("cmd"))
	if len(command) == 0 {
		return badRequest("the query parameter cmd is required")
	}
	if err := s.target(&c); err != nil {
		return err
	}
	ctx, _, end, err := s.streams.begin(r.Context())
	if err != nil {
		return err
	}
	defer end()
	// A command may take its time.
	_ = http.NewResponseController(w.w).SetWriteDeadline(time.Time{})
	output := &limitedBuffer{}
	err = guard(func() error {
		return s.backend.exec.Exec(ctx, c, slices.Clone(command), Streams{Stdout: output, Stderr: output})
	})
	text := output.String()
	if err := asExit(err); err != nil {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		code, sentence := answerTo(err)
		return &statusError{code, text + sentence}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err = io.WriteString(w, text)
	return err
}

// limitedBuffer keeps the first bytes of an output.
type limitedBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	lost int64
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := min(len(p), maxRunOutput-b.buf.Len())
	b.buf.Write(p[:keep])
	b.lost += int64(len(p) - keep)
	return len(p), nil
}

func (b *limitedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost > 0 {
		return fmt.Sprintf("%s\n(%d further bytes are left out)\n", b.buf.String(), b.lost)
	}
	return b.buf.String()
}
