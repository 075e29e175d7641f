// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package build builds the control plane of a Kubernetes version as one static executable and caches it outside the
// repository.
//
// The cache directory is $KUBEWRIGHT_CACHE, or kubewright in the user's cache directory. The key of an executable is
// its version and a hash of all its inputs. A cached executable is therefore never stale, and two work trees with
// different pins share a cache. A rename publishes it, so an interrupted build leaves nothing that looks finished. A
// lock makes concurrent callers build once. The kernel releases the lock when its holder ends, so it cannot be left
// behind.
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
	// Progress receives messages while a build runs. Nothing is written if the executable is cached.
	Progress io.Writer
}

// CacheDir returns the directory for everything that is expensive to build.
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

// Ensure returns the path of version's executable, and builds it if it is not cached. A build takes minutes.
func (b *Builder) Ensure(ctx context.Context, version string) (string, error) {
	file, built, err := b.Path(ctx, version)
	if err != nil {
		return "", err
	}
	if !built {
		if err := b.buildOnce(ctx, version, file); err != nil {
			return "", withRemedy(fmt.Errorf("build Kubernetes %s: %w", version, err))
		}
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Dir(file), now, now) // for prune; ignored if the cache is read-only
	return file, nil
}

// key hashes everything that determines the content of the executable. The .sum file determines the modules.
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

// file is a file of Source and its name in the build directory.
type file struct{ from, to string }

// files returns the files that version is built from, in a fixed order.
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

// arguments returns the arguments of the go command, without -o. -trimpath and CGO_ENABLED are part of the keys of Go's
// build cache, so other values would compile everything again.
func arguments(version string) []string {
	ldflags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		// Without these flags the servers report v0.0.0-master, which clients treat as an ancient version.
		minor := strings.Split(version, ".")[1]
		ldflags = append(ldflags, "-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor=1", "-X", pkg+".gitMinor="+minor, "-X", pkg+".gitTreeState=clean")
	}
	return []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(ldflags, " ")}
}

// buildOnce builds file unless another process has built it by the time this process has the lock.
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

	// The build directory is next to the target, so that the rename stays within a file system.
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
