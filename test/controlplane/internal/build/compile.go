// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// copySource writes the source of version to dir.
func (b *Builder) copySource(version, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := b.files(version)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := fs.ReadFile(b.Source, f.from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f.to), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile builds the program in dir as output.
func (b *Builder) compile(ctx context.Context, version, dir, output string) error {
	start := time.Now()
	fmt.Fprintf(b.Progress, "building the control plane of Kubernetes %s; the first time this takes 5 to 15 minutes and about 4 GB of disk\n", version)
	p := newProgress(b.Progress, "downloading modules", 0)
	packages, err := b.goCommand(ctx, dir, p, "list", "-deps", ".")
	p.stop()
	if err != nil {
		return err
	}
	p = newProgress(b.Progress, "compiling packages", strings.Count(packages, "\n"))
	args := append(arguments(version), "-o", output, ".")
	_, err = b.goCommand(ctx, dir, p, args...)
	p.stop()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.Progress, "built Kubernetes %s in %s\n", version, time.Since(start).Round(time.Second))
	return nil
}

// goCommand runs the go command in dir and returns its standard output. p counts the lines of its standard error; the
// last lines become the text of the error.
func (b *Builder) goCommand(ctx context.Context, dir string, p *progress, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// Settings of the caller for its own module must not affect this build.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "PWD="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets the go command remove its temporary files
	cmd.WaitDelay = 10 * time.Second
	// If this process is killed, the build must end too. The kernel sends the signal when the thread that forked ends,
	// so the goroutine stays on its thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, p
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, p.tail())
	}
	return stdout.String(), nil
}

// goEnv returns a setting of the go command.
func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("no go command in PATH: install Go, or add its bin directory to PATH")
	}
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// keepUnused is the time for which an unused executable stays in the cache.
const keepUnused = 14 * 24 * time.Hour

// prune removes the executables of version, other than current, that have not been used for keepUnused, and the remains
// of interrupted builds. The caller must hold version's lock.
func (b *Builder) prune(version, current string) error {
	dirs, err := filepath.Glob(filepath.Join(b.Cache, "controlplane", version+`[.\-]*`))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || dir == filepath.Dir(current) {
			continue
		}
		abandoned := strings.HasPrefix(filepath.Base(dir), version+".building-")
		if abandoned || time.Since(info.ModTime()) > keepUnused {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}
