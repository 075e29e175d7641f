// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package crilog reads and writes logs of containers in the format of the CRI: a line
// has a time, the name of a stream, a tag and text. The tag is F for the end of a line
// of the container, and P for a part of one. A runtime that writes this format can serve
// kubectl logs with [Open]: with --tail, --since, --timestamps, --follow and --limit-bytes.
//
// Two things differ from the kubelet's reader. Options.Tail counts lines of the container,
// which may be several entries, and the kubelet counts entries. An entry without a newline
// at the end of a log, which the runtime is still writing or never finished, is left out.
// Of an entry that is longer than 256 KiB the rest is left out: runtimes cut lines at 16 KiB,
// and a container that can write where logs are can write anything.
package crilog

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The streams of a log.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

const (
	tagFull    = 'F'
	tagPartial = 'P'
)

// timeFormat is the time of an entry that Append writes and that Options.Timestamps
// shows. Runtimes may leave out zeros at the end.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// maxHeader is the size of the largest part of an entry before its text.
const maxHeader = int64(len("2006-01-02T15:04:05.000000000+07:00 stdout F "))

// maxEntry is the size from which on an entry is not waited for.
const maxEntry = 256 << 10

// Append appends the entries of a piece of output to a log.
func Append(log []byte, at time.Time, stream string, output []byte) []byte {
	at = at.UTC()
	for len(output) > 0 {
		text, tag := output, byte(tagPartial)
		if end := bytes.IndexByte(output, '\n'); end >= 0 {
			text, tag = output[:end], tagFull
		}
		output = output[len(text):]
		if tag == tagFull {
			output = output[1:]
		}
		log = at.AppendFormat(log, timeFormat)
		log = append(log, ' ')
		log = append(log, stream...)
		log = append(log, ' ', tag, ' ')
		log = append(log, text...)
		log = append(log, '\n')
	}
	return log
}

// An Entry is a line of a log.
type Entry struct {
	Time   time.Time // zero if the entry is damaged
	Stream string    // Stdout or Stderr
	Text   []byte    // without a newline
	Full   bool      // Text is the end of a line of the container
}

// Parse parses a line of a log without its newline. The Entry shares the memory of the line. A
// line that is damaged, for example because the machine lost power or the runtime was killed
// while it wrote, is an Entry of standard output without a time.
func Parse(line []byte) Entry {
	at, rest, _ := bytes.Cut(line, []byte{' '})
	stream, rest, _ := bytes.Cut(rest, []byte{' '})
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	when, err := time.Parse(time.RFC3339Nano, string(at))
	if !ok || err != nil || len(tag) != 1 {
		return Entry{Stream: Stdout, Text: line, Full: true}
	}
	e := Entry{Time: when, Stream: Stdout, Text: text, Full: tag[0] == tagFull}
	if string(stream) == Stderr {
		e.Stream = Stderr
	}
	return e
}

// Options select a part of a log.
type Options struct {
	Tail       int64     // begin that many lines before the end, unless negative; a damaged line counts
	Since      time.Time // leave out earlier output
	Stream     string    // leave out the other stream, unless empty
	Timestamps bool      // begin each line with its time
	Follow     bool      // wait for more until Ended reports true

	// Ended reports whether the container has ended. Required if Follow is true.
	Ended func() bool
	// Poll is the time between two looks for more. Default: 100 ms.
	Poll time.Duration
}

// OptionsOf returns the options of a request, in which nodeapi has set defaults.
func OptionsOf(o *corev1.PodLogOptions, now time.Time, ended func() bool) Options {
	out := Options{Tail: -1, Timestamps: o.Timestamps, Follow: o.Follow, Ended: ended}
	if o.TailLines != nil {
		out.Tail = *o.TailLines
	}
	switch {
	case o.SinceSeconds != nil:
		out.Since = time.Unix(now.Unix()-*o.SinceSeconds, int64(now.Nanosecond())) // a Duration may be too small for it
	case o.SinceTime != nil:
		out.Since = o.SinceTime.Time
	}
	switch {
	case o.Stream == nil:
	case *o.Stream == corev1.LogStreamStdout:
		out.Stream = Stdout
	case *o.Stream == corev1.LogStreamStderr:
		out.Stream = Stderr
	}
	return out
}

// A Reader reads the text of a log with Read, or its entries with Next. Only Close may
// be called concurrently.
type Reader struct {
	path    string
	opts    Options
	newline bool // the next text begins a line
	text    []byte
	next    []byte // of text: what was not read yet
	buf     []byte
	unread  []byte // of buf
	space   int    // that buf has at least for the next read
	once    sync.Once
	closed  chan struct{}

	mu   sync.Mutex
	f    *os.File
	info fs.FileInfo // of f
}

// A Reader has busySpace for each read. At the end of the log it keeps quietSpace, until a
// read fills it: there may be many followers, and most logs are quiet.
const (
	busySpace  = 32 << 10
	quietSpace = 2 << 10
)

// openRegular opens a regular file. A container that can write where logs are, as one with a
// hostPath can, must not make this process show another file or wait for a FIFO.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// Open opens a log. The error is fs.ErrNotExist if it is not there, and another one if it is
// not a regular file.
func Open(path string, opts Options) (*Reader, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	if opts.Tail >= 0 {
		if err := seekLines(f, opts.Tail); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if opts.Poll <= 0 {
		opts.Poll = 100 * time.Millisecond
	}
	return &Reader{path: path, opts: opts, newline: true, space: busySpace, f: f, info: info, closed: make(chan struct{})}, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
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

// Next returns the next entry, whatever the options select. It is valid until the next
// call. At the end of the log the error is io.EOF, and after Close os.ErrClosed.
func (r *Reader) Next() (Entry, error) {
	for {
		if entry, ok := r.buffered(); ok {
			return entry, nil
		}
		if err := r.fill(); err != nil {
			return Entry{}, err
		}
	}
}

// add appends an entry to the text if it is selected. Like a kubelet it leaves out what is
// damaged: it may be anything but output of the container.
func (r *Reader) add(e Entry) {
	if e.Time.IsZero() || e.Time.Before(r.opts.Since) || r.opts.Stream != "" && r.opts.Stream != e.Stream {
		return
	}
	if r.opts.Timestamps && r.newline {
		r.text = append(e.Time.AppendFormat(r.text, timeFormat), ' ')
	}
	r.text = append(r.text, e.Text...)
	if r.newline = e.Full; e.Full {
		r.text = append(r.text, '\n')
	}
}

// buffered returns the next entry of those that were read.
func (r *Reader) buffered() (Entry, bool) {
	at := bytes.IndexByte(r.unread, '\n')
	if at < 0 && len(r.unread) >= maxEntry {
		line := r.unread
		r.unread = nil
		return Parse(line), true
	}
	if at < 0 {
		return Entry{}, false
	}
	line := r.unread[:at]
	r.unread = r.unread[at+1:]
	return Parse(line), true
}

// fill reads more, and waits for it if the log is followed.
func (r *Reader) fill() error {
	for over := !r.opts.Follow; ; {
		if n, err := r.readMore(); n > 0 || err != nil {
			return err
		}
		if over {
			return io.EOF
		}
		if over = r.opts.Ended(); over {
			continue // once more: output from before the end
		}
		select {
		case <-time.After(r.opts.Poll):
		case <-r.closed:
			return os.ErrClosed
		}
	}
}

// readMore reads the next part of the file, or at its end that of the file that has taken its
// place.
func (r *Reader) readMore() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf[:0], r.unread...)
	for {
		have := len(r.buf)
		if cap(r.buf)-have < r.space {
			r.buf = append(make([]byte, 0, 2*have+2*r.space), r.buf...)
		}
		replaced := r.replaced() // in this order: the runtime writes to the old file until it has the next
		n, err := r.f.Read(r.buf[have:cap(r.buf)])
		r.buf = r.buf[:have+n]
		r.unread = r.buf
		if n > 0 || err != io.EOF { //nolint:errorlint // the contract of io.Reader
			if have+n == cap(r.buf) {
				r.space = busySpace
			}
			return n, err
		}
		if !replaced {
			if r.space > quietSpace && have <= quietSpace {
				r.space, r.text = quietSpace, nil
				r.buf = append(make([]byte, 0, 2*quietSpace), r.buf...)
				r.unread = r.buf
			}
			return 0, nil
		}
		next, info, err := openRegular(r.path)
		if err != nil {
			return 0, nil // it is being replaced again
		}
		_ = r.f.Close()
		r.f, r.info, r.buf = next, info, r.buf[:0] // an entry that was cut off stays so
	}
}

// replaced reports whether another file has taken the place of the one that is read.
func (r *Reader) replaced() bool {
	now, err := os.Lstat(r.path)
	return err == nil && !os.SameFile(r.info, now)
}

// Close implements io.Closer. It ends a Read or Next that waits.
func (r *Reader) Close() error {
	r.once.Do(func() { close(r.closed) })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.f.Close()
}

// seekLines sets the offset of a log to n lines of the container before its end. A line
// is one or more entries.
func seekLines(f *os.File, n int64) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	// From the last newline, the end of the last entry, to the first entry. The
	// entry after the one that is looked at begins at after.
	buf := make([]byte, 32<<10)
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
			full, err := isFull(f, start)
			if err != nil {
				return err
			}
			if newlines > 2 && full {
				if n--; n == 0 {
					_, err := f.Seek(after, io.SeekStart)
					return err
				}
			}
			after = start
		}
		if after-at > maxEntry { // what is before is damaged
			_, err := f.Seek(after, io.SeekStart)
			return err
		}
	}
	// The first entry has no newline before it.
	full, err := isFull(f, 0)
	if err != nil {
		return err
	}
	if newlines < 2 || n > 1 || !full {
		after = 0
	}
	_, err = f.Seek(after, io.SeekStart)
	return err
}

// isFull reports whether the entry at an offset ends a line of the container.
func isFull(f *os.File, at int64) (bool, error) {
	var header [maxHeader]byte
	n, err := f.ReadAt(header[:], at)
	if err != nil && err != io.EOF { //nolint:errorlint // the contract of io.ReaderAt
		return false, err
	}
	return Parse(header[:n]).Full, nil
}

// Tail returns the last bytes of the output in a log.
func Tail(path string, limit int64) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	// An entry is a header and at least one byte of output, a newline. The first one may
	// be cut off.
	from := max(0, end-(limit+1)*(maxHeader+1))
	data := make([]byte, end-from)
	if _, err := f.ReadAt(data, from); err != nil {
		return nil, err
	}
	for r := (&Reader{unread: data}); ; {
		entry, ok := r.buffered()
		if !ok {
			return r.text[max(0, int64(len(r.text))-limit):], nil
		}
		r.add(entry)
	}
}
