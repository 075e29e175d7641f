// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package build builds the control plane of a Kubernetes version as one static executable and caches it outside the repository.
//
// The cache's directory is $KUBEWRIGHT_CACHE, or kubewright in the user's cache directory. An executable is cached under its
// version and a hash of all that goes into it, so it is never stale, and two work trees with different pins share a cache.
// It appears there by a rename: a build that is interrupted leaves nothing that looks finished. A lock makes concurrent callers
// build once. The kernel drops it with its holder, so it can't be left behind.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/filelock"
)

// Builder builds executables.
type Builder struct {
	// Source holds _program/*.go and versions/*.
	Source fs.FS
	// Cache is the cache's directory; see CacheDir.
	Cache string
	// Progress is told what goes on when a build takes time. Nothing is written when the executable is there.
	Progress io.Writer
}

// CacheDir returns the directory that everything which is expensive to make is kept in.
func CacheDir() (string, error) {
	if dir := os.Getenv("KUBEWRIGHT_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w (set KUBEWRIGHT_CACHE)", err)
	}
	return filepath.Join(dir, "kubewright"), nil
}

// Path returns the path of version's executable and whether it has been built.
func (b *Builder) Path(ctx context.Context, version string) (file string, built bool, err error) {
	toolchain, err := goEnv(ctx, "GOVERSION")
	if err != nil {
		return "", false, err
	}
	key, err := b.key(version, toolchain)
	if err != nil {
		return "", false, err
	}
	file = filepath.Join(b.Cache, "controlplane", version+"-"+key, "controlplane")
	info, err := os.Stat(file)
	return file, err == nil && info.Mode().IsRegular(), nil
}

// Ensure returns the path of version's executable, which it builds when it isn't cached. That takes minutes.
func (b *Builder) Ensure(ctx context.Context, version string) (string, error) {
	file, built, err := b.Path(ctx, version)
	if err != nil {
		return "", err
	}
	if !built {
		if err := b.buildOnce(ctx, version, file); err != nil {
			return "", fmt.Errorf("build Kubernetes %s: %w", version, err)
		}
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Dir(file), now, now) // for prune; a read-only cache is none of its business
	return file, nil
}

// key hashes everything that decides what the executable contains. (Which modules are meant is decided by the .sum file.)
func (b *Builder) key(version, toolchain string) (string, error) {
	files, err := b.files(version)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, toolchain, runtime.GOOS, runtime.GOARCH, strings.Join(arguments(version), " "))
	for _, f := range files {
		data, err := fs.ReadFile(b.Source, f.from)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, f.to, len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// file is a file of Source and its name in the directory that is built.
type file struct{ from, to string }

// files returns what version is built from, in a fixed order.
func (b *Builder) files(version string) ([]file, error) {
	program, err := fs.Glob(b.Source, "_program/*.go")
	if err != nil {
		return nil, err
	}
	if len(program) == 0 {
		return nil, fmt.Errorf("no source of the program")
	}
	slices.Sort(program)
	files := []file{
		{"versions/" + version + ".mod", "go.mod"},
		{"versions/" + version + ".sum", "go.sum"},
	}
	for _, p := range program {
		files = append(files, file{p, path.Base(p)})
	}
	return files, nil
}

// arguments returns the go command's arguments except for -o. -trimpath and CGO_ENABLED are part of the keys of Go's own build
// cache: with others everything would be compiled once more.
func arguments(version string) []string {
	ldflags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		// Without these the servers say v0.0.0-master, which clients take for an ancient version.
		minor := strings.Split(version, ".")[1]
		ldflags = append(ldflags, "-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor=1", "-X", pkg+".gitMinor="+minor, "-X", pkg+".gitTreeState=clean")
	}
	return []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(ldflags, " ")}
}

// buildOnce builds file unless another process has done so by the time it has the lock.
func (b *Builder) buildOnce(ctx context.Context, version, file string) (err error) {
	cache := filepath.Join(b.Cache, "controlplane")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	lock, err := filelock.Acquire(ctx, filepath.Join(cache, version+".lock"), func() {
		fmt.Fprintf(b.Progress, "another process is building Kubernetes %s, waiting for it\n", version)
	})
	if err != nil {
		return err
	}
	defer lock.Release()
	if _, err := os.Stat(file); err == nil {
		return nil
	}

	// Everything happens in a directory beside the target, so that the rename stays within a file system.
	work, err := os.MkdirTemp(cache, version+".building-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := b.copySource(version, filepath.Join(work, "source")); err != nil {
		return err
	}
	result := filepath.Join(work, "result")
	if err := b.compile(ctx, version, filepath.Join(work, "source"), filepath.Join(result, "controlplane")); err != nil {
		return err
	}
	if err := os.Rename(result, filepath.Dir(file)); err != nil {
		return err
	}
	return b.prune(version, file)
}
