// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// The streams of a log.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// The tags of a log entry, from the log format of the CRI.
const (
	tagFull    = 'F' // the text ends a line
	tagPartial = 'P' // the line continues in the next entry of its stream
)

// timeFormat is the time of a log entry, always in UTC. Its width is constant.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// HeaderSize is the number of bytes of an entry before its text.
const HeaderSize = int64(len("2006-01-02T15:04:05.000000000Z stdout F "))

// FormatTime returns a time as the log has it: times compare as their bytes do.
func FormatTime(t time.Time) []byte { return t.UTC().AppendFormat(nil, timeFormat) }

// An Entry is a line of a log, or a part of it.
type Entry struct {
	Time   []byte // in RFC 3339; empty if the entry is damaged
	Stream string
	Text   []byte // without a newline
	Full   bool   // Text is the end of a line
}

// ParseEntry parses a line of a log, which shares its memory with the Entry. A
// line that a power failure has damaged is an Entry without a time.
func ParseEntry(line []byte) Entry {
	at, rest, _ := bytes.Cut(line, []byte{' '})
	stream, rest, _ := bytes.Cut(rest, []byte{' '})
	tag, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok || len(at) != len(timeFormat)-len("07:00") || len(tag) != 1 {
		return Entry{Stream: Stdout, Text: line, Full: true}
	}
	e := Entry{Time: at, Stream: Stdout, Text: text, Full: tag[0] == tagFull}
	if string(stream) == Stderr {
		e.Stream = Stderr
	}
	return e
}

// A logger writes the output of a command to its log, in the log format of the
// CRI: the time, the stream, a tag and the text. Output that the disk does not
// take is lost, as it is in other container runtimes: waiting would stop the
// command.
type logger struct {
	mu      sync.Mutex
	f       *os.File
	pending []byte
	readers sync.WaitGroup
	sources []*os.File
}

// read copies a stream to the log until its end or until drain.
func (l *logger) read(stream string, from *os.File) {
	l.sources = append(l.sources, from)
	l.readers.Go(func() {
		defer func() { _ = from.Close() }()
		for buf := make([]byte, 16<<10); ; {
			n, err := from.Read(buf)
			l.write(stream, buf[:n])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				l.rest(stream, from, buf)
			}
			if err != nil { // a terminal ends with EIO
				return
			}
		}
	})
}

// rest copies the output that a stream holds, without waiting for more.
func (l *logger) rest(stream string, from *os.File, buf []byte) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for {
			n, err := syscall.Read(int(fd), buf)
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			l.write(stream, buf[:n])
		}
	})
}

// drain copies the remaining output to the log. All writers are gone, unless one
// of them has passed its output on to a process outside of the run.
func (l *logger) drain() {
	for _, source := range l.sources {
		_ = source.SetReadDeadline(time.Unix(1, 0))
	}
	l.readers.Wait()
}

// write appends the entries for a piece of output, with one write: an entry is
// never seen in parts, except after a crash.
func (l *logger) write(stream string, output []byte) {
	if len(output) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UTC()
	l.pending = l.pending[:0]
	for len(output) > 0 {
		text, tag := output, byte(tagPartial)
		if at := bytes.IndexByte(output, '\n'); at >= 0 {
			text, tag = output[:at], tagFull
		}
		output = output[len(text):]
		if tag == tagFull {
			output = output[1:]
		}
		l.pending = now.AppendFormat(l.pending, timeFormat)
		l.pending = append(l.pending, ' ')
		l.pending = append(l.pending, stream...)
		l.pending = append(l.pending, ' ', tag, ' ')
		l.pending = append(l.pending, text...)
		l.pending = append(l.pending, '\n')
	}
	if n, err := l.f.Write(l.pending); err != nil && n > 0 {
		if end, err := l.f.Seek(0, io.SeekEnd); err == nil {
			_ = l.f.Truncate(end - int64(n))
		}
	}
}
