// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// DefaultFileInterval is how often File reads its file.
const DefaultFileInterval = 10 * time.Second

// fileStep is the time between two reads while the content is new.
const fileStep = time.Second

// File returns a Source that reads a file at an interval; zero means
// DefaultFileInterval. It opens the path each time, so that it follows the
// exchange of a symbolic link, which is how a mounted ConfigMap changes. It
// compares the content and ignores the times of the file. New content is delivered
// when it has stayed the same for an interval, in which it is read every second: a
// copy may be half way through. A copy that makes no progress for longer delivers
// what it has, so a program should write another file and rename it.
//
// The file must be regular and have at most MaxPayloadSize bytes. If it is
// missing, the source yields ErrSourceNotFound, and if it is empty, another error:
// that is how a copy begins. Neither unassigns. The path must be absolute and without
// "..".
func File(path string, every time.Duration) (Source, error) {
	switch {
	case !filepath.IsAbs(path) || !cleanPath(path):
		return nil, fmt.Errorf("configcheckpoint: source file %q: must be an absolute path without empty, \".\" or \"..\" elements", path)
	case strings.ContainsRune(path, 0):
		return nil, fmt.Errorf("configcheckpoint: source file %q: contains a NUL", path)
	case every < 0:
		return nil, fmt.Errorf("configcheckpoint: source file %q: the interval %v is negative", path, every)
	case every == 0:
		every = DefaultFileInterval
	}
	return fileSource{path: path, every: every}, nil
}

type fileSource struct {
	path  string
	every time.Duration
}

// Payloads implements Source.
func (s fileSource) Payloads(ctx context.Context) iter.Seq2[Payload, error] {
	return func(yield func(Payload, error) bool) {
		var delivered, seen Digest
		var since time.Time // when seen was first read
		failing := false
		for ctx.Err() == nil {
			wait := s.every
			data, err := s.read()
			digest, now := DigestOf(data), time.Now()
			switch {
			case err != nil:
				failing, seen = true, Digest{}
				if !yield(Payload{}, err) {
					return
				}
			case digest == delivered && !failing:
				seen = digest
			case digest != seen:
				seen, since, wait = digest, now, min(fileStep, s.every)
			case now.Sub(since) < s.every:
				wait = min(fileStep, s.every-now.Sub(since))
			default:
				delivered, failing = digest, false
				if !yield(Payload{Data: data, Name: "file " + s.path}, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

// read returns the content of the file, never nil without an error.
func (s fileSource) read() ([]byte, error) {
	// Opening a FIFO would block.
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: file %s", ErrSourceNotFound, s.path)
	case err != nil:
		return nil, fmt.Errorf("configcheckpoint: source: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("configcheckpoint: source: %s is not a regular file", s.path)
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("configcheckpoint: source: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxPayloadSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("configcheckpoint: source: %w", err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("configcheckpoint: source: file %s is empty", s.path)
	}
	if len(data) > MaxPayloadSize {
		return nil, fmt.Errorf("%w: file %s has more than %d bytes", ErrTooLarge, s.path, MaxPayloadSize)
	}
	return data, nil
}
