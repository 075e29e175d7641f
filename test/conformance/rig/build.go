// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/test/conformance"
)

// Version is the version of Kubernetes whose tests and kubelet are built.
const Version = "v1.37.2"

// Binaries are the programs of Kubernetes, and pause and a shell for the images.
type Binaries struct {
	E2E, Agnhost, Nonewprivs, Pause, Sh string
	// Containerd is the directory of a containerd; empty: that of the machine. See
	// Containerd.
	Containerd string
}

// Build builds the programs of Kubernetes, unless they are in the cache of
// test/controlplane: $KUBEWRIGHT_CACHE, or kubewright in the user's cache directory.
func Build(t testing.TB) Binaries {
	t.Helper()
	dir, err := kubernetesSource.build(t.Logf)
	if err != nil {
		t.Fatalf("build Kubernetes' tests: %v", err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	b := Binaries{E2E: in("e2e.test"), Agnhost: in("agnhost"), Nonewprivs: in("nonewprivs"), Pause: in("pause"), Sh: in("sh")}
	if os.Getenv("KUBEWRIGHT_CONTAINERD") == "2" {
		b.Containerd = Containerd(t)
	}
	return b
}

// ContainerdVersion is the version of containerd that Containerd builds.
const ContainerdVersion = "v2.4.2"

// Containerd builds a containerd that is newer than Debian's, unless it is in the cache,
// and returns the directory of its programs. runc is that of the machine. If
// KUBEWRIGHT_CONTAINERD is 2, Build does so for all tests.
func Containerd(t testing.TB) string {
	t.Helper()
	dir, err := containerdSource.build(t.Logf)
	if err != nil {
		t.Fatalf("build containerd: %v", err)
	}
	return dir
}

// BuildKubelet builds the kubelet of Kubernetes, unless it is in the cache.
func BuildKubelet(t testing.TB) string {
	t.Helper()
	dir, err := kubeletSource.build(t.Logf)
	if err != nil {
		t.Fatalf("build the kubelet: %v", err)
	}
	return filepath.Join(dir, "kubelet")
}

// A source is a module whose programs are built once.
type source struct {
	name   string
	files  map[string]string // of conformance.Source, by their path in the module
	flags  string            // of the linker
	builds [][]string        // arguments of go; -o names a program
}

var kubernetesSource = source{
	name: Version,
	files: map[string]string{
		"go.mod": "versions/" + Version + ".mod", "go.sum": "versions/" + Version + ".sum",
		"imports.go": "_program/imports.go", "pause/main.go": "_pause/main.go", "sh/main.go": "_sh/main.go",
	},
	flags: ldflags(),
	builds: [][]string{
		{"build", "-o", "pause", "./pause"},
		{"build", "-o", "sh", "./sh"},
		{"build", "-o", "nonewprivs", "k8s.io/kubernetes/test/images/nonewprivs"},
		{"build", "-o", "agnhost", "k8s.io/kubernetes/test/images/agnhost"},
		{"test", "-c", "-vet=off", "-o", "e2e.test", "k8s.io/kubernetes/test/e2e"},
	},
}

var kubeletSource = source{
	name: "kubelet-" + Version,
	files: map[string]string{
		"go.mod": "versions/" + Version + ".mod", "go.sum": "versions/" + Version + ".sum", "imports.go": "_program/imports.go",
	},
	flags: ldflags(),
	// The tags of Kubernetes' releases.
	builds: [][]string{{"build", "-tags", "selinux,notest,grpcnotrace", "-o", "kubelet", "k8s.io/kubernetes/cmd/kubelet"}},
}

var containerdSource = source{
	name: "containerd-" + ContainerdVersion,
	files: map[string]string{
		"go.mod": "versions/containerd-" + ContainerdVersion + ".mod", "go.sum": "versions/containerd-" + ContainerdVersion + ".sum",
	},
	flags: "-s -w -X github.com/containerd/containerd/v2/version.Version=" + ContainerdVersion,
	builds: [][]string{
		{"build", "-o", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
		{"build", "-o", "containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	},
}

// Built reports whether Build takes the programs from the cache.
func Built() bool { return kubernetesSource.built() }

func (s *source) built() bool {
	dir, _, err := s.locate()
	return err == nil && isDir(dir)
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// locate returns the directory for the programs, and the files that they are built from.
func (s *source) locate() (dir string, files map[string][]byte, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", nil, err
	}
	toolchain, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return "", nil, err
	}
	key := sha256.New()
	fmt.Fprintln(key, string(toolchain), runtime.GOARCH)
	files = map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		data, err := fs.ReadFile(conformance.Source, s.files[name])
		if err != nil {
			return "", nil, err
		}
		files[name] = data
		key.Write(data)
	}
	return filepath.Join(cache, "conformance", s.name+"-"+hex.EncodeToString(key.Sum(nil))[:12]), files, nil
}

// build returns the directory with the programs. It is made whole or not at all.
func (s *source) build(logf func(string, ...any)) (dir string, err error) {
	dir, files, err := s.locate()
	if err != nil {
		return "", err
	}
	if isDir(dir) { // another process may be building other programs
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if isDir(dir) {
		return dir, nil
	}
	logf("building the programs of %s; the first time this takes ten minutes", s.name)
	work, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	source, result := filepath.Join(work, "source"), filepath.Join(work, "result")
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(source, name)), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(source, name), data, 0o644); err != nil {
			return "", err
		}
	}
	for _, args := range s.builds {
		args = slices.Clone(args)
		at := slices.Index(args, "-o") + 1
		args[at] = filepath.Join(result, args[at])
		args = slices.Insert(args, len(args)-1, "-trimpath", "-buildvcs=false", "-ldflags", s.flags)
		cmd := exec.Command("go", args...)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "PWD="+source)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return dir, os.Rename(result, dir)
}

// ldflags are the linker's flags: programs without a version are taken for old ones.
func ldflags() string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X", pkg+".gitVersion="+Version, "-X", pkg+".gitMajor=1",
			"-X", pkg+".gitMinor="+strings.Split(Version, ".")[1], "-X", pkg+".gitTreeState=clean")
	}
	return strings.Join(flags, " ")
}

func cacheDir() (string, error) {
	if dir := os.Getenv("KUBEWRIGHT_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "kubewright"), err
}
