// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
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
	ctx, st, end, err := s.streams.begin(r.Context(), shareOf(r.Context(), c.Pod))
	if err != nil {
		return err
	}
	defer end()
	w.hijack = s.streams.takeOver(st)
	// A command may read its input when it wants.
	session, err := openCommand(ctx, w, r, opts, s.cfg.StreamCreationTimeout, wire.Waits{Ping: s.waits.Ping})
	if err != nil {
		return err
	}
	defer session.conn.Close(linger)
	streams := session.streams(ctx, opts)
	err = guard(func() error {
		if exec {
			return asExit(s.backend.exec.Exec(ctx, c, command, streams))
		}
		return s.backend.attach.Attach(ctx, c, streams)
	})
	session.end(to.endpoint, err)
	if cause := session.conn.Err(); cause != nil {
		s.log(r).V(4).Info("The client has ended the connection", "cause", cause)
	}
	return err
}

// target resolves the pod and the container of a request.
func (s *Server) target(c *Container) error {
	pod, err := s.resolve(&c.Pod)
	if err != nil || pod == nil {
		return err
	}
	return hasContainer(pod, c.Name)
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
	ctx, _, end, err := s.streams.begin(r.Context(), shareOf(r.Context(), c.Pod))
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
	w.end = time.Now().Add(plainTimeout)
	_ = http.NewResponseController(w.w).SetWriteDeadline(w.end)
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
