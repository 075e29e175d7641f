// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A line is a line of a log: a time, the name of a stream, a tag and the text. The
// tag is F for the end of a line of the container and P for a part of it.
type line struct {
	at     time.Time
	stream string
	text   []byte // with its newline, if the line of the container ends here
}

// parseLine parses a line of a log without its newline.
func parseLine(data []byte) (l line, err error) {
	parts := bytes.SplitN(data, []byte{' '}, 4)
	if len(parts) != 4 {
		return l, fmt.Errorf("a line of a log has %d fields", len(parts))
	}
	if l.at, err = time.Parse(time.RFC3339Nano, string(parts[0])); err != nil {
		return l, err
	}
	l.stream, l.text = string(parts[1]), parts[3]
	if tag, _, _ := bytes.Cut(parts[2], []byte{':'}); string(tag) == "F" {
		l.text = append(slices.Clip(l.text), '\n')
	}
	return l, nil
}

// LogOptions are the options of a log that is read.
type LogOptions struct {
	Tail       int64 // lines from the end; negative: all
	Since      time.Time
	Timestamps bool
	Stream     string // stdout or stderr; empty: both
	Follow     bool
}

// LogOptionsOf returns the options of a request.
func LogOptionsOf(o *corev1.PodLogOptions, now time.Time) LogOptions {
	out := LogOptions{Tail: -1, Timestamps: o.Timestamps, Follow: o.Follow}
	if o.TailLines != nil {
		out.Tail = *o.TailLines
	}
	if o.SinceSeconds != nil {
		out.Since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.SinceTime != nil {
		out.Since = o.SinceTime.Time
	}
	switch {
	case o.Stream == nil:
	case *o.Stream == corev1.LogStreamStdout:
		out.Stream = "stdout"
	case *o.Stream == corev1.LogStreamStderr:
		out.Stream = "stderr"
	}
	return out
}

// Log returns the log of a container. With Follow the reader waits for more until ctx
// ends or ended returns true.
func (r *Runtime) Log(ctx context.Context, id podruntime.ContainerID, opts LogOptions, ended func() bool) (io.ReadCloser, error) {
	path := filepath.Join(r.logDir(id.Pod), logName(id))
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if opts.Tail >= 0 {
		if err := seekTail(f, opts.Tail); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(copyLog(ctx, pw, path, f, opts, ended))
	}()
	return &logReader{pr, func() { cancel(); _ = pr.Close(); <-done }}, nil
}

// A logReader is the reading end of a log.
type logReader struct {
	*io.PipeReader
	end func()
}

// Close implements io.Closer.
func (l *logReader) Close() error { l.end(); return nil }

// followInterval is the time between two looks at a log that is followed.
const followInterval = 100 * time.Millisecond

// copyLog writes the lines of a log to w. f belongs to it.
func copyLog(ctx context.Context, w io.Writer, path string, f *os.File, opts LogOptions, ended func() bool) error {
	defer func() { _ = f.Close() }()
	in := bufio.NewReader(f)
	var rest []byte // of a line that is not complete yet
	midLine := false
	for {
		over := !opts.Follow || ended != nil && ended() // before the last read
		for {
			data, err := in.ReadBytes('\n')
			rest = append(rest, data...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			l, err := parseLine(bytes.TrimSuffix(rest, []byte{'\n'}))
			rest = rest[:0]
			if err != nil {
				continue // the runtime was killed while it wrote
			}
			if l.at.Before(opts.Since) || opts.Stream != "" && l.stream != opts.Stream {
				continue
			}
			text := l.text
			if opts.Timestamps && !midLine {
				text = append([]byte(l.at.Format(time.RFC3339Nano)+" "), text...)
			}
			midLine = !bytes.HasSuffix(l.text, []byte{'\n'})
			if _, err := w.Write(text); err != nil {
				return nil // the client is gone
			}
		}
		if next := rotated(path, f); next != nil {
			_ = f.Close()
			f, rest = next, rest[:0]
			in.Reset(f)
			continue
		}
		if over || !sleep(ctx, followInterval) {
			return nil
		}
	}
}

// rotated returns the file that took the place of f, or nil.
func rotated(path string, f *os.File) *os.File {
	was, err := f.Stat()
	if err != nil {
		return nil
	}
	now, err := os.Stat(path)
	if err != nil || os.SameFile(was, now) {
		return nil
	}
	next, err := os.Open(path)
	if err != nil {
		return nil
	}
	return next
}

// seekTail moves f to the beginning of the last n lines. Parts of a line count as
// one.
func seekTail(f *os.File, n int64) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	const block = 64 << 10
	var data []byte // from at to the end
	for at := size; at > 0; {
		step := min(at, block)
		at -= step
		chunk := make([]byte, step)
		if _, err := f.ReadAt(chunk, at); err != nil {
			return err
		}
		data = append(chunk, data...)
		if offset, ok := tailOffset(data, n); ok {
			_, err := f.Seek(at+int64(offset), io.SeekStart)
			return err
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// tailOffset returns the offset of the last n lines in data, the end of a log, and
// whether data has a line before them.
func tailOffset(data []byte, n int64) (int, bool) {
	end := len(data)
	if end > 0 && data[end-1] == '\n' {
		end--
	}
	for lines := int64(0); ; {
		at := bytes.LastIndexByte(data[:end], '\n')
		if at < 0 {
			return 0, false
		}
		// Behind at a line begins; it is one of the container if the line before it
		// ended one.
		start := bytes.LastIndexByte(data[:at], '\n')
		if l, err := parseLine(data[start+1 : at]); err != nil && start < 0 {
			return 0, false // cut off
		} else if err != nil || bytes.HasSuffix(l.text, []byte{'\n'}) {
			if lines++; lines == n {
				return at + 1, true
			}
		}
		end = at
	}
}

// tailBytes is the number of bytes of a log that LogTail reads for each byte that it
// returns: a time and a stream come with every line.
const tailBytes = 4

// LogTail implements podruntime.LogTailer.
func (r *Runtime) LogTail(_ context.Context, id podruntime.ContainerID, limit int64) ([]byte, error) {
	f, err := os.Open(filepath.Join(r.logDir(id.Pod), logName(id)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has printed nothing
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, min(info.Size(), limit*tailBytes+4096))
	if _, err := f.ReadAt(data, info.Size()-int64(len(data))); err != nil {
		return nil, err
	}
	var out []byte
	for part := range bytes.Lines(data) {
		if l, err := parseLine(bytes.TrimSuffix(part, []byte{'\n'})); err == nil {
			out = append(out, l.text...)
		}
	}
	return out[max(0, int64(len(out))-limit):], nil
}
