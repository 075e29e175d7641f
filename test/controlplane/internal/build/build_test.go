// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

// tiny returns a source that builds in a second.
func tiny() fstest.MapFS {
	return fstest.MapFS{
		"_program/main.go":    {Data: []byte("package main\n\nfunc main() { println(\"tiny\") }\n")},
		"versions/v1.2.3.mod": {Data: []byte("module example.com/tiny\n\ngo 1.26\n")},
		"versions/v1.2.3.sum": {},
		"versions/v1.10.0.mod": {
			Data: []byte("module example.com/tiny\n\ngo 1.26\n"),
		},
		"versions/v1.10.0.sum": {},
	}
}

// buffer is a bytes.Buffer for concurrent writers.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestEnsureBuildsOnce(t *testing.T) {
	var progress buffer
	b := &Builder{Source: tiny(), Cache: t.TempDir(), Progress: &progress}
	if _, built, err := b.Path(t.Context(), "v1.2.3"); err != nil || built {
		t.Fatalf("before: built %t, %v", built, err)
	}
	files := make([]string, 3)
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			// A second Builder, like that of another process.
			other := *b
			var err error
			if files[i], err = other.Ensure(t.Context(), "v1.2.3"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(progress.String(), "built Kubernetes v1.2.3 in"); n != 1 {
		t.Errorf("built %d times:\n%s", n, &progress)
	}
	if files[0] != files[1] || files[0] != files[2] {
		t.Errorf("different files: %q", files)
	}
	if out, err := exec.Command(files[0]).CombinedOutput(); err != nil || string(out) != "tiny\n" {
		t.Errorf("it says %q, %v", out, err)
	}
	entries, err := os.ReadDir(filepath.Join(b.Cache, "controlplane"))
	if err != nil || len(entries) != 2 { // the executable's directory and the lock
		t.Errorf("in the cache: %v, %v", entries, err)
	}
	if _, built, err := b.Path(t.Context(), "v1.2.3"); err != nil || !built {
		t.Errorf("after: built %t, %v", built, err)
	}
}

func TestEnsureReportsWhatTheCompilerSays(t *testing.T) {
	src := tiny()
	src["_program/main.go"] = &fstest.MapFile{Data: []byte("package main\n\nfunc main() { undefinedThing() }\n")}
	b := &Builder{Source: src, Cache: t.TempDir(), Progress: &buffer{}}
	_, err := b.Ensure(t.Context(), "v1.2.3")
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedThing") {
		t.Fatalf("error %v", err)
	}
	dirs, _ := filepath.Glob(filepath.Join(b.Cache, "controlplane", "*"))
	if len(dirs) != 1 { // the lock
		t.Errorf("left in the cache: %q", dirs)
	}
}

func TestAFaultOfTheMachineComesWithItsRemedy(t *testing.T) {
	for output, want := range map[string]string{
		"# k8s.io/api\nwrite $WORK/b001/_pkg_.a: no space left on device": "the disk is full",
		"go: k8s.io/api: link: signal: killed":                            "lack of memory",
		"Get \"https://proxy.example/x\": dial tcp: no such host":         "can't be downloaded",
		"./main.go:3:15: undefined: undefinedThing":                       "",
	} {
		failed := errors.New(output)
		if got := withRemedy(failed); !strings.Contains(got.Error(), want) || (got == failed) != (want == "") || !errors.Is(got, failed) {
			t.Errorf("%q becomes %q, want %q", output, got, want)
		}
	}
	if os.Getuid() != 0 { // root may write everywhere
		closed := t.TempDir()
		if err := os.Chmod(closed, 0o500); err != nil {
			t.Fatal(err)
		}
		b := &Builder{Source: tiny(), Cache: closed, Progress: &buffer{}}
		if _, err := b.Ensure(t.Context(), "v1.2.3"); err == nil || !strings.Contains(err.Error(), "directories of your own") {
			t.Errorf("with a cache that may not be written: %v", err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	b := &Builder{Source: tiny(), Cache: t.TempDir(), Progress: &buffer{}}
	if _, err := b.Ensure(t.Context(), "v1.2.3"); err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("without a go command: %v", err)
	}
}

func TestABuildOnAFullDiskSaysSo(t *testing.T) {
	// The go command is a script that fails as one on a full disk does.
	bin := t.TempDir()
	script := "#!/bin/sh\ncase $1 in env) echo go1.26.0;; list) echo example.com/tiny;; *) echo 'write x: no space left on device' >&2; exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := &Builder{Source: tiny(), Cache: t.TempDir(), Progress: &buffer{}}
	if _, err := b.Ensure(t.Context(), "v1.2.3"); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
}

func TestEnsureStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &Builder{Source: tiny(), Cache: t.TempDir(), Progress: &buffer{}}
	if _, err := b.Ensure(ctx, "v1.2.3"); err == nil {
		t.Error("built although the context is done")
	}
}

// TestKey checks that every input of the executable is in its key, and nothing
// else.
func TestKey(t *testing.T) {
	key := func(src fs.FS, version, toolchain string) string {
		t.Helper()
		k, err := (&Builder{Source: src}).key(version, toolchain)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	change := func(name, content string) fstest.MapFS {
		src := maps.Clone(tiny())
		src[name] = &fstest.MapFile{Data: []byte(content)}
		return src
	}
	base := key(tiny(), "v1.2.3", "go1.26.0")
	if key(tiny(), "v1.2.3", "go1.26.0") != base {
		t.Error("the same source has another key")
	}
	if key(change("versions/v1.10.0.sum", "x"), "v1.2.3", "go1.26.0") != base {
		t.Error("another version's pins change the key")
	}
	for name, k := range map[string]string{
		"version":   key(tiny(), "v1.10.0", "go1.26.0"),
		"toolchain": key(tiny(), "v1.2.3", "go1.26.1"),
		"program":   key(change("_program/main.go", "package main"), "v1.2.3", "go1.26.0"),
		"new file":  key(change("_program/more.go", ""), "v1.2.3", "go1.26.0"),
		"go.mod":    key(change("versions/v1.2.3.mod", "x"), "v1.2.3", "go1.26.0"),
		"go.sum":    key(change("versions/v1.2.3.sum", "x"), "v1.2.3", "go1.26.0"),
	} {
		if k == base {
			t.Errorf("%s does not change the key", name)
		}
	}
}

func TestVersions(t *testing.T) {
	got, err := Versions(tiny())
	if err != nil || strings.Join(got, " ") != "v1.10.0 v1.2.3" {
		t.Errorf("versions %q, %v, want the newest first, by number", got, err)
	}
	for in, want := range map[string]string{
		"": DefaultVersion, "v1.2.3": "v1.2.3", "1.2.3": "v1.2.3", "1.2": "v1.2.3", "v1.10": "v1.10.0", "1.1": "", "2": "",
	} {
		got, err := ResolveVersion(tiny(), in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q means %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestPrune(t *testing.T) {
	b := &Builder{Cache: t.TempDir()}
	long := time.Now().Add(-2 * keepUnused)
	for name, unused := range map[string]bool{
		"v1.2.3-current": true, "v1.2.3-old": true, "v1.2.3-recent": false, "v1.2.3.building-1": false, "v1.10.0-old": true,
	} {
		dir := filepath.Join(b.Cache, "controlplane", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if unused {
			if err := os.Chtimes(dir, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.prune("v1.2.3", filepath.Join(b.Cache, "controlplane", "v1.2.3-current", "controlplane")); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, _ := os.ReadDir(filepath.Join(b.Cache, "controlplane"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got, want := strings.Join(left, " "), "v1.10.0-old v1.2.3-current v1.2.3-recent"; got != want {
		t.Errorf("left %s, want %s", got, want)
	}
}

func TestProgress(t *testing.T) {
	p := newProgress(&buffer{}, "compiling packages", 3)
	defer p.stop()
	for _, s := range []string{"fm", "t\nnet/http\nincom", "plete"} {
		if _, err := p.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	for elapsed, want := range map[time.Duration]string{
		estimateAfter - time.Second: "  compiling packages: 2 of at most 3, 29s",
		82 * time.Second:            "  compiling packages: 2 of at most 3, 1m22s, at most 40s left at this rate",
	} {
		if got := p.line(elapsed); got != want {
			t.Errorf("line %q, want %q", got, want)
		}
	}
	if got := p.tail(); got != "fmt\nnet/http" {
		t.Errorf("tail %q", got)
	}
}
