// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crilog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// entry returns a log entry of a second of 2026.
func entry(second int, stream, tag, text string) string {
	return fmt.Sprintf("2026-01-02T03:04:%02d.000000000Z %s %s %s\n", second, stream, tag, text)
}

func write(t testing.TB, log string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string, opts Options) *Reader {
	t.Helper()
	r, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func readAll(t *testing.T, path string, opts Options) string {
	t.Helper()
	got, err := io.ReadAll(open(t, path, opts))
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestALogBeginsSoManyLinesBeforeItsEnd(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	full := func(texts ...string) (log string) {
		for _, text := range texts {
			log += entry(1, "stdout", "F", text)
		}
		return log
	}
	part := func(text string) string { return entry(1, "stdout", "P", text) }
	short := func(text string) string { return "2026-01-02T03:04:05Z stdout F " + text + "\n" } // as containerd has a whole second
	for _, c := range []struct {
		log   string
		lines int64
		want  string
	}{
		{full("a", "b", "c"), -1, "a\nb\nc\n"},
		{full("a", "b", "c"), 0, ""},
		{full("a", "b", "c"), 1, "c\n"},
		{full("a", "b", "c"), 2, "b\nc\n"},
		{full("a", "b", "c"), 3, "a\nb\nc\n"},
		{full("a", "b", "c"), 9, "a\nb\nc\n"},
		{full("a", "b") + part("c"), 1, "c"},
		{full("a", "b") + part("c"), 2, "b\nc"},
		{full("a") + part("b1 ") + part("b2 ") + full("b3", "c"), 2, "b1 b2 b3\nc\n"},
		{part("a1 ") + full("a2", "b"), 1, "b\n"},
		{part("a1 ") + full("a2", "b"), 2, "a1 a2\nb\n"},
		{part("a1 ") + part("a2"), 1, "a1 a2"},
		{full("a", "", ""), 2, "\n\n"},
		{full("a"), 1, "a\n"},
		{"", 2, ""},
		{full("a", "b") + "2026-01-02T03", 1, "b\n"}, // cut off by a crash
		{full("a") + "2026-01\n" + full("b"), 2, "b\n"},
		{full("a") + "2026\n" + part("b1 ") + full("b2"), 2, "b1 b2\n"}, // the damaged entry, which counts, is shorter than a header
		{full("first") + part(long) + part(long) + full("", long, "end"), 3, long + long + "\n" + long + "\nend\n"},
		{short("a") + short("") + short("b"), 2, "\nb\n"},
		{"2026-01-02T03:04:05Z stdout P:X a1 \n" + short("a2") + short("b"), 2, "a1 a2\nb\n"},
		{"2026-01-02T03:04:05.123456789+02:00 stderr P a1 \n" + short("a2") + short("b"), 2, "a1 a2\nb\n"},
	} {
		if got := readAll(t, write(t, c.log), Options{Tail: c.lines}); got != c.want {
			t.Errorf("%.200q, %d lines: %d bytes %.100q, want %.100q", c.log, c.lines, len(got), got, c.want)
		}
	}
}

// A log of many blocks has the same end as a small one.
func TestTheEndOfALongLog(t *testing.T) {
	var b strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&b, "2026-01-01T00:00:00Z stdout F line %d\n", i)
	}
	path := write(t, b.String())
	for _, n := range []int64{1, 10, 5000, 10000, 20000} {
		got := readAll(t, path, Options{Tail: n})
		if lines := strings.Count(got, "\n"); lines != int(min(n, 10000)) || !strings.HasSuffix(got, "line 9999\n") {
			t.Errorf("the last %d lines: %d", n, lines)
		}
	}
}

func TestALogHasTimesAndStreams(t *testing.T) {
	path := write(t, entry(1, "stdout", "F", "one")+entry(2, "stderr", "F", "two")+entry(3, "stdout", "P", "th")+entry(4, "stdout", "F", "ree")+
		"damaged\n"+entry(5, "stdout", "F", "with spaces  and F P")+"2026-01-02T03:04:06Z stderr F \n")
	at := func(second int) string { return fmt.Sprintf("2026-01-02T03:04:%02d.000000000Z ", second) }
	for name, c := range map[string]struct {
		opts Options
		want string
	}{
		"all":        {Options{Tail: -1}, "one\ntwo\nthree\nwith spaces  and F P\n\n"},
		"times":      {Options{Tail: -1, Timestamps: true}, at(1) + "one\n" + at(2) + "two\n" + at(3) + "three\n" + at(5) + "with spaces  and F P\n" + at(6) + "\n"},
		"stdout":     {Options{Tail: -1, Stream: Stdout}, "one\nthree\nwith spaces  and F P\n"},
		"stderr":     {Options{Tail: -1, Stream: Stderr}, "two\n\n"},
		"since":      {Options{Tail: -1, Since: time.Date(2026, 1, 2, 5, 4, 3, 0, time.FixedZone("", 2*3600))}, "three\nwith spaces  and F P\n\n"},
		"since soon": {Options{Tail: -1, Since: time.Date(2026, 1, 2, 3, 4, 6, 1, time.UTC)}, ""},
		"tail since": {Options{Tail: 2, Since: time.Date(2026, 1, 2, 3, 4, 2, 0, time.UTC)}, "with spaces  and F P\n\n"},
	} {
		if got := readAll(t, path, c.opts); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOptionsOfARequest(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	then := metav1.NewTime(now.Add(-time.Hour))
	for name, c := range map[string]struct {
		request corev1.PodLogOptions
		want    Options
	}{
		"none":     {corev1.PodLogOptions{}, Options{Tail: -1}},
		"all":      {corev1.PodLogOptions{Stream: new(corev1.LogStreamAll)}, Options{Tail: -1}},
		"stdout":   {corev1.PodLogOptions{Stream: new(corev1.LogStreamStdout)}, Options{Tail: -1, Stream: Stdout}},
		"stderr":   {corev1.PodLogOptions{Stream: new(corev1.LogStreamStderr)}, Options{Tail: -1, Stream: Stderr}},
		"lines":    {corev1.PodLogOptions{TailLines: new(int64(0)), Timestamps: true, Follow: true}, Options{Timestamps: true, Follow: true}},
		"eternity": {corev1.PodLogOptions{SinceSeconds: new(int64(1e12))}, Options{Tail: -1, Since: time.Unix(now.Unix()-1e12, 0)}},
		"seconds":  {corev1.PodLogOptions{SinceSeconds: new(int64(10))}, Options{Tail: -1, Since: now.Add(-10 * time.Second)}},
		"time":     {corev1.PodLogOptions{SinceTime: &then}, Options{Tail: -1, Since: then.Time}},
	} {
		got := OptionsOf(&c.request, now, func() bool { return true })
		if got.Ended == nil || !got.Ended() {
			t.Errorf("%s: Ended is lost", name)
		}
		if got.Ended = nil; fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestTailIsTheEndOfTheOutput(t *testing.T) {
	var log strings.Builder
	for range 5000 {
		log.WriteString(entry(1, "stdout", "F", ""))
	}
	log.WriteString(entry(1, "stderr", "P", "end"))
	path := write(t, log.String())
	for limit, want := range map[int64]string{0: "", 2: "nd", 3: "end", 1000: strings.Repeat("\n", 997) + "end", 1 << 20: strings.Repeat("\n", 5000) + "end"} {
		if got, err := Tail(path, limit); err != nil || string(got) != want {
			t.Errorf("the last %d bytes: %d bytes, %v, want %d", limit, len(got), err, len(want))
		}
	}
	if _, err := Tail(path+"x", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
}

// A log that is followed goes on in the file that takes its place, and ends with the
// container.
func TestAFollowedLogSurvivesItsRotation(t *testing.T) {
	path := write(t, entry(1, "stdout", "F", "before")+"2026-01-02T0")
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		r := open(t, path, Options{Tail: -1, Follow: true, Ended: ended.Load})
		lines := make(chan string, 10)
		go func() {
			defer close(lines)
			for {
				e, err := r.Next()
				if err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
				lines <- string(e.Text)
			}
		}()
		want := func(text string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			select {
			case got := <-lines:
				if got != text {
					t.Errorf("%q, want %q", got, text)
				}
			default:
				t.Errorf("%q has not come", text)
			}
		}
		want("before")
		for i := range 3 {
			if err := os.Rename(path, fmt.Sprint(path, i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the runtime has not opened the next file yet
			if err := os.WriteFile(path, []byte(entry(2, "stdout", "F", fmt.Sprint("file ", i))), 0o600); err != nil {
				t.Fatal(err)
			}
			want(fmt.Sprint("file ", i))
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(entry(3, "stdout", "F", "last"))
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		ended.Store(true)
		want("last")
		if _, more := <-lines; more {
			t.Error("the log has not ended")
		}
	})
}

// A container that can write where its log is makes it as long as it likes, without a newline.
func TestALogWithoutNewlinesNeedsLittleMemory(t *testing.T) {
	path := write(t, entry(1, "stdout", "F", "before")+"2026-01-02T03:04:02Z stdout F x")
	const end = 64 << 20
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("\n"+entry(3, "stdout", "F", "after")), end)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	r := open(t, path, Options{Tail: -1})
	text, err := io.ReadAll(r)
	if err != nil || !bytes.HasPrefix(text, []byte("before\nx\x00")) || !bytes.HasSuffix(text, []byte("\x00\nafter\n")) {
		t.Errorf("%d bytes, %.20q, %v", len(text), text, err)
	}
	if len(text) > 2*maxEntry || cap(r.buf) > 4*maxEntry {
		t.Errorf("%d bytes of text and %d of memory", len(text), cap(r.buf))
	}
}

// The end of a log is found without a search through a terabyte of what is no entry.
func TestTheEndOfALogWithoutNewlines(t *testing.T) {
	for _, tail := range []string{"", entry(3, "stdout", "P", "a") + entry(3, "stdout", "F", "b") + entry(3, "stdout", "F", "c")} {
		path := write(t, "")
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte("\n"+tail), 1<<40)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		for lines, want := range map[int64]string{1: "c\n", 2: "ab\nc\n", 9: "ab\nc\n"} {
			if tail == "" {
				want = ""
			}
			if got := readAll(t, path, Options{Tail: lines}); got != want {
				t.Errorf("%d lines: %.100q, want %q", lines, got, want)
			}
		}
	}
}

func TestCloseEndsAReadThatWaits(t *testing.T) {
	path := write(t, entry(1, "stdout", "F", "first"))
	synctest.Test(t, func(t *testing.T) {
		r := open(t, path, Options{Tail: 0, Follow: true, Ended: func() bool { return false }})
		ended := make(chan error, 1)
		go func() {
			_, err := r.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		closed := time.Now()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrClosed) || time.Since(closed) > 0 {
			t.Errorf("a reader that was closed returned %v after %v", err, time.Since(closed))
		}
	})
}

func TestAppendWritesUTCWithAllDigits(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	got := string(Append([]byte("x"), at, Stderr, []byte("a\nb")))
	if want := "x2026-01-02T02:04:05.000000000Z stderr F a\n2026-01-02T02:04:05.000000000Z stderr P b\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Whatever is appended is read again.
func FuzzAppend(f *testing.F) {
	for _, output := range []string{"", "a", "a\n", "\n\n", "a\nb", "F P \n"} {
		f.Add([]byte(output))
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	f.Fuzz(func(t *testing.T, output []byte) {
		var text Reader
		for line := range bytes.Lines(Append(nil, at, Stderr, output)) {
			e := Parse(bytes.TrimSuffix(line, []byte{'\n'}))
			if !e.Time.Equal(at) || e.Stream != Stderr {
				t.Fatalf("%q: %v, %s", line, e.Time, e.Stream)
			}
			text.add(e)
		}
		if !bytes.Equal(text.text, output) {
			t.Errorf("%q, want %q", text.text, output)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{"2026-01-01T00:00:00.000000001Z stdout F one", "2026-01-01T00:00:01Z stderr P:x two", "garbage", "", "2026-01-01T00:00:01Z stdout  no tag", "2026-01-01T00:00:01Z stdout F"} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if e := Parse(line); !bytes.HasSuffix(line, e.Text) {
			t.Errorf("%q: %+v", line, e)
		}
	})
}

// TestAFollowerAtRestHoldsLittleMemory, and reads what comes later as before.
func TestAFollowerAtRestHoldsLittleMemory(t *testing.T) {
	line := entry(1, Stdout, "F", strings.Repeat("x", 100))
	path := write(t, strings.Repeat(line, 10_000)+line[:50])
	synctest.Test(t, func(t *testing.T) {
		r := open(t, path, Options{Tail: -1, Follow: true, Ended: func() bool { return false }})
		total := make(chan int64, 1)
		go func() {
			n, err := io.Copy(io.Discard, r)
			if !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
			total <- n
		}()
		held := func() int {
			time.Sleep(time.Minute)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return cap(r.buf) + cap(r.text)
		}
		if n := held(); n > 8<<10 {
			t.Errorf("%d bytes after the first part", n)
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(line[50:] + strings.Repeat(line, 10_000))
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if n := held(); n > 8<<10 {
			t.Errorf("%d bytes after the second part", n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if n := <-total; n != 20_001*101 {
			t.Errorf("%d bytes were read", n)
		}
	})
}

// BenchmarkALookAtAQuietLog is what a follower at rest costs at each Poll.
func BenchmarkALookAtAQuietLog(b *testing.B) {
	r, err := Open(write(b, strings.Repeat(entry(1, Stdout, "F", strings.Repeat("x", 100)), 10_000)), Options{Tail: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := io.Copy(io.Discard, r); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.readMore(); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(cap(r.buf)+cap(r.text)), "held-B")
}
