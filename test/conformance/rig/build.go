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
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/test/conformance"
)

// Version is the version of Kubernetes whose tests and kubelet are built.
const Version = "v1.37.1"

// Binaries are the programs of Kubernetes, and pause and a shell for the images.
type Binaries struct {
	E2E, Kubelet, Agnhost, Nonewprivs, Pause, Sh string
}

// Build builds the programs of Kubernetes, unless they are in the cache of
// test/controlplane: $KUBEWRIGHT_CACHE, or kubewright in the user's cache directory.
func Build(t testing.TB) Binaries {
	t.Helper()
	dir, err := build(t.Logf)
	if err != nil {
		t.Fatalf("build Kubernetes' tests: %v", err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	return Binaries{E2E: in("e2e.test"), Kubelet: in("kubelet"), Agnhost: in("agnhost"), Nonewprivs: in("nonewprivs"), Pause: in("pause"), Sh: in("sh")}
}

// Built reports whether Build takes the programs from the cache.
func Built() bool {
	dir, _, err := locate()
	return err == nil && isDir(dir)
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// locate returns the directory for the programs, and the files that they are built from.
func locate() (dir string, files map[string][]byte, err error) {
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
	sources := map[string]string{
		"versions/" + Version + ".mod": "go.mod", "versions/" + Version + ".sum": "go.sum",
		"_program/imports.go": "imports.go", "_pause/main.go": "pause/main.go", "_sh/main.go": "sh/main.go",
	}
	files = map[string][]byte{}
	for _, from := range []string{"versions/" + Version + ".mod", "versions/" + Version + ".sum", "_program/imports.go", "_pause/main.go", "_sh/main.go"} {
		data, err := fs.ReadFile(conformance.Source, from)
		if err != nil {
			return "", nil, err
		}
		files[sources[from]] = data
		key.Write(data)
	}
	return filepath.Join(cache, "conformance", Version+"-"+hex.EncodeToString(key.Sum(nil))[:12]), files, nil
}

// build returns the directory with the programs. It is made whole or not at all.
func build(logf func(string, ...any)) (dir string, err error) {
	dir, files, err := locate()
	if err != nil {
		return "", err
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
	logf("building e2e.test, kubelet and agnhost of Kubernetes %s; the first time this takes ten minutes", Version)
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
	for _, args := range [][]string{
		{"build", "-o", filepath.Join(result, "pause"), "./pause"},
		{"build", "-o", filepath.Join(result, "sh"), "./sh"},
		{"build", "-o", filepath.Join(result, "nonewprivs"), "k8s.io/kubernetes/test/images/nonewprivs"},
		{"build", "-o", filepath.Join(result, "agnhost"), "k8s.io/kubernetes/test/images/agnhost"},
		{"build", "-o", filepath.Join(result, "kubelet"), "k8s.io/kubernetes/cmd/kubelet"},
		{"test", "-c", "-vet=off", "-o", filepath.Join(result, "e2e.test"), "k8s.io/kubernetes/test/e2e"},
	} {
		at := len(args) - 1
		args = append(append(args[:at:at], "-trimpath", "-buildvcs=false", "-ldflags", ldflags()), args[at])
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
