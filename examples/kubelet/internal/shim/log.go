// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/kubewright/kubewright/podsync/crilog"
)

// A logger writes the output of a command to its log. Output that the disk does not
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
	l.pending = crilog.Append(l.pending[:0], time.Now(), stream, output)
	if n, err := l.f.Write(l.pending); err != nil && n > 0 {
		if end, err := l.f.Seek(0, io.SeekEnd); err == nil {
			_ = l.f.Truncate(end - int64(n))
		}
	}
}
