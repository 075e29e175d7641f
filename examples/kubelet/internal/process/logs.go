// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
)

// LogOptions select a part of a log.
type LogOptions struct {
	Lines      int64     // begin that many lines before the end, unless negative
	Since      time.Time // leave out earlier output
	Stream     string    // leave out the other stream, unless empty
	Timestamps bool      // begin each line with its time
	Follow     bool      // end when the run has ended
}

// logPoll is the time between two looks for new output. pollAttached is shorter,
// because a person waits for the echo of each key.
const (
	logPoll      = 100 * time.Millisecond
	pollAttached = 10 * time.Millisecond
)

// Log opens the output of the run.
func (i Instance) Log(opts LogOptions) (io.ReadCloser, error) {
	entries, err := i.entries(opts.Lines, opts.Follow, logPoll)
	if err != nil {
		return nil, err
	}
	r := &logReader{entries: entries, opts: opts, newline: true}
	if !opts.Since.IsZero() {
		r.since = shim.FormatTime(opts.Since)
	}
	return r, nil
}

// logReader is the text of a log.
type logReader struct {
	*entries
	opts    LogOptions
	since   []byte
	newline bool // the next text begins a line
	text    []byte
	next    []byte // the part of text that was not read
}

func (r *logReader) Read(p []byte) (int, error) {
	for len(r.next) == 0 {
		r.text = r.text[:0]
		// As many entries as are there: each Read may become a write to the client.
		for len(r.text) < len(p) {
			entry, ok := r.buffered()
			if !ok {
				break
			}
			r.add(entry)
		}
		if r.next = r.text; len(r.next) > 0 {
			break
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.next)
	r.next = r.next[n:]
	return n, nil
}

// add appends an entry that was selected to the text.
func (r *logReader) add(e shim.Entry) {
	// Times have one length and zone, so their order is that of their bytes.
	if bytes.Compare(e.Time, r.since) < 0 || r.opts.Stream != "" && r.opts.Stream != e.Stream {
		return
	}
	if r.opts.Timestamps && r.newline && len(e.Time) > 0 {
		r.text = append(append(r.text, e.Time...), ' ')
	}
	r.text = append(r.text, e.Text...)
	if r.newline = e.Full; e.Full {
		r.text = append(r.text, '\n')
	}
}

// entries reads the entries of a log.
type entries struct {
	f      *os.File
	run    Instance
	follow bool
	poll   time.Duration
	buf    []byte
	unread []byte // of buf
	once   sync.Once
	closed chan struct{}
}

// entries opens the log a number of lines before its end, or at its beginning if
// the number is negative.
func (i Instance) entries(lines int64, follow bool, poll time.Duration) (*entries, error) {
	f, err := os.Open(i.log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, apierrors.NewBadRequest("the container has not written a log yet")
	}
	if err != nil {
		return nil, err
	}
	if lines >= 0 {
		if err := seekLines(f, lines); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &entries{f: f, run: i, follow: follow, poll: poll, closed: make(chan struct{})}, nil
}

// buffered returns the next entry, if it was read. It is valid until fill.
func (r *entries) buffered() (shim.Entry, bool) {
	at := bytes.IndexByte(r.unread, '\n')
	if at < 0 {
		return shim.Entry{}, false
	}
	line := r.unread[:at]
	r.unread = r.unread[at+1:]
	return shim.ParseEntry(line), true
}

// fill reads more, and waits for it if the log is followed. Its error is io.EOF at
// the end.
func (r *entries) fill() error {
	r.buf = append(r.buf[:0], r.unread...)
	const chunk = 32 << 10
	for {
		// In this order: output from before the end of the run is read.
		over := !r.follow || r.run.over()
		have := len(r.buf)
		if cap(r.buf)-have < chunk {
			r.buf = append(make([]byte, 0, 2*have+2*chunk), r.buf...)
		}
		n, err := r.f.Read(r.buf[have:cap(r.buf)])
		r.buf = r.buf[:have+n]
		r.unread = r.buf
		if n > 0 {
			return nil
		}
		if err != io.EOF || over { //nolint:errorlint // the contract of io.Reader
			return err
		}
		select {
		case <-time.After(r.poll):
		case <-r.closed:
			return os.ErrClosed
		}
	}
}

// Close ends a Read that waits.
func (r *entries) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.f.Close()
}

// seekLines sets the offset of a log to n lines before its end. A line is one or
// more entries.
func seekLines(f *os.File, n int64) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	// From the last newline, the end of the last entry, to the first entry. The
	// entry after the one that is looked at begins at after.
	buf, header := make([]byte, 32<<10), make([]byte, shim.HeaderSize)
	after, newlines := end, 0
	for at := end; at > 0; {
		size := min(at, int64(len(buf)))
		at -= size
		if _, err := f.ReadAt(buf[:size], at); err != nil {
			return err
		}
		for k := size; ; {
			k = int64(bytes.LastIndexByte(buf[:k], '\n'))
			if k < 0 {
				break
			}
			start := at + k + 1 // of an entry
			if newlines++; newlines == 1 {
				after = start
				continue
			}
			if _, err := f.ReadAt(header, start); err != nil && err != io.EOF { //nolint:errorlint // the contract of io.ReaderAt
				return err
			}
			if newlines > 2 && shim.ParseEntry(header).Full {
				if n--; n == 0 {
					_, err := f.Seek(after, io.SeekStart)
					return err
				}
			}
			after = start
		}
	}
	// The first entry has no newline before it.
	if _, err := f.ReadAt(header, 0); err != nil && err != io.EOF { //nolint:errorlint // the contract of io.ReaderAt
		return err
	}
	if newlines < 2 || n > 1 || !shim.ParseEntry(header).Full {
		after = 0
	}
	_, err = f.Seek(after, io.SeekStart)
	return err
}

// lastOutput returns the last bytes of the output in a log.
func lastOutput(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	// An entry is a header and at least one byte of output, a newline.
	from := max(0, end-(limit+1)*(shim.HeaderSize+1))
	data := make([]byte, end-from)
	if _, err := f.ReadAt(data, from); err != nil {
		return nil, err
	}
	if from > 0 {
		_, data, _ = bytes.Cut(data, []byte{'\n'})
	}
	var text logReader
	for r := (&entries{unread: data}); ; {
		entry, ok := r.buffered()
		if !ok {
			return text.text[max(0, int64(len(text.text))-limit):], nil
		}
		text.add(entry)
	}
}
