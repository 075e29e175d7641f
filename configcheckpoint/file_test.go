// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package configcheckpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestFileSourceRejectsBadReference(t *testing.T) {
	for _, path := range []string{"", "config.yaml", "/etc/../config.yaml", "/etc/", "/etc//x", "..", "/a/./b", "/a\x00b"} {
		if _, err := File(path, 0); err == nil {
			t.Errorf("%q: no error", path)
		}
	}
	if _, err := File("/etc/config.yaml", -time.Second); err == nil {
		t.Error("a negative interval: no error")
	}
	s, err := File("/etc/config.yaml", 0)
	if err != nil || s.(fileSource).every != DefaultFileInterval {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestFileSource writes real files in virtual time. Their times are real, and
// must not matter.
func TestFileSource(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { testFileSource(t, dir) })
}
func testFileSource(t *testing.T, dir string) {
	path := filepath.Join(dir, "config.yaml")
	source, err := File(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan delivery, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p, err := range source.Payloads(ctx) {
			got <- delivery{p, err}
		}
	}()
	defer func() { cancel(); <-done }()
	next := func() delivery {
		t.Helper()
		select {
		case a := <-got:
			return a
		case <-time.After(time.Minute):
			t.Fatal("nothing was yielded")
			return delivery{}
		}
	}
	none := func() {
		t.Helper()
		time.Sleep(time.Minute)
		synctest.Wait()
		for len(got) > 0 {
			t.Errorf("yielded %+v", <-got)
		}
	}
	fails := func(want error, text string) {
		t.Helper()
		a := next()
		for len(got) > 0 {
			a = <-got
		}
		if a.err == nil || want != nil && !errors.Is(a.err, want) || !strings.Contains(a.err.Error(), path) || !strings.Contains(a.err.Error(), text) {
			t.Errorf("yielded %+v, want %v %q", a, want, text)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for len(got) > 0 { // the earlier deliveries
			<-got
		}
	}
	write := func(text string) { t.Helper(); must(os.WriteFile(path, []byte(text), 0o600)) }
	yields := func(text string) {
		t.Helper()
		a := next()
		for a.err != nil {
			a = next()
		}
		if string(a.payload.Data) != text || a.payload.Data == nil || a.payload.Name != "file "+path {
			t.Errorf("yielded %+v, want %q", a, text)
		}
	}

	fails(ErrSourceNotFound, "")
	write("A")
	yields("A")
	none()
	write("A")
	none()
	must(os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0)))
	none()
	write("B")
	must(os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0))) // same size, same times
	yields("B")
	write("")
	fails(nil, "is empty") // which is how a copy begins

	// As the kubelet changes a mounted ConfigMap.
	must(os.Remove(path))
	for _, version := range []string{"1", "2"} {
		must(os.MkdirAll(filepath.Join(dir, version), 0o700))
		must(os.WriteFile(filepath.Join(dir, version, "config.yaml"), []byte("version "+version), 0o600))
		must(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if version == "1" {
			must(os.Symlink("..data/config.yaml", path))
		}
		yields("version " + version)
	}
	none()

	must(os.Remove(path))
	fails(ErrSourceNotFound, "")
	must(os.Mkdir(path, 0o700))
	fails(nil, "not a regular file")
	must(os.Remove(path))
	must(syscall.Mkfifo(path, 0o600))
	fails(nil, "not a regular file")
	must(os.Remove(path))
	write(strings.Repeat("x", MaxPayloadSize+1))
	fails(ErrTooLarge, "")
	write(strings.Repeat("x", MaxPayloadSize))
	yields(strings.Repeat("x", MaxPayloadSize))
	none()
}

// TestFileBeingWritten: half a file is not a configuration.
func TestFileBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	synctest.Test(t, func(t *testing.T) {
		n := proven(t, "A")
		n.stop(nil)
		source, err := File(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		n.cfg.Source = source
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n.start()
		for range 30 {
			if _, err := f.WriteString("more\n"); err != nil {
				t.Fatal(err)
			}
			n.goes(500 * time.Millisecond)
			n.runs()
		}
		n.goes(time.Minute)
		n.restarts()
		n.is(strings.Repeat("more\n", 30), isTrue, PhaseTrial, ReasonTrial)
	})
}

// TestSlowCopyIsDeliveredWhole: cp truncates the file, and writes it piece by piece.
// Pieces that came more than a second apart were delivered one by one.
func TestSlowCopyIsDeliveredWhole(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "config.yaml")
		source, err := File(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(done)
			for p, err := range source.Payloads(ctx) {
				if err == nil {
					got = append(got, string(p.Data))
				}
			}
		}()
		time.Sleep(time.Minute)
		text := ""
		for _, piece := range []string{"", "", "one,", "two,", "three"} {
			text += piece
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(9 * time.Second)
		}
		time.Sleep(time.Minute)
		cancel()
		<-done
		if !slices.Equal(got, []string{"old", text}) {
			t.Errorf("delivered %q", got)
		}
	})
}
