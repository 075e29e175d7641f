// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/build"
	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
	"github.com/kubewright/kubewright/test/controlplane/internal/control"
	"github.com/kubewright/kubewright/test/controlplane/internal/rundir"
)

// upFlags are the flags of up.
type upFlags struct {
	cluster.Options
	name     string
	detach   bool
	detached bool // this process was started by --detach
	timeout  time.Duration
}

// parseUp parses the arguments of up.
func parseUp(args []string) (upFlags, error) {
	f := upFlags{Options: cluster.Options{ExtraArgs: map[string][]string{}}}
	fs := flag.NewFlagSet("up", flag.ContinueOnError)
	fs.StringVar(&f.name, "name", "", "the cluster's `name`; default with --detach: default; otherwise a fresh one")
	fs.BoolVar(&f.detach, "detach", false, "return when the cluster is ready and leave it running")
	fs.BoolVar(&f.detached, "detached", false, "set by --detach")
	fs.DurationVar(&f.timeout, "start-timeout", cluster.ReadyTimeout, "how long a start may take once the executable is built")
	fs.StringVar(&f.Version, "version", "", "Kubernetes `version`: see the command versions (default "+build.DefaultVersion+")")
	fs.BoolVar(&f.SingleProcess, "single-process", false, "run all components in one process: lighter, but they can't be killed one by one")
	fs.StringVar(&f.FeatureGates, "feature-gates", "", "`gates` of all Kubernetes components: A=true,B=false")
	fs.StringVar(&f.RuntimeConfig, "runtime-config", "", "API groups, versions and resources to serve: resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true")
	fs.BoolVar(&f.Audit, "audit", false, "log the metadata of every request")
	fs.Func("without", "a `component` that is not to run: kube-scheduler, kube-controller-manager; may be repeated", func(s string) error {
		f.Without = append(f.Without, s)
		return nil
	})
	fs.Func("extra", "a further `instance` of the scheduler or the controller manager, such as kube-scheduler-2, which restart starts; may be repeated", func(s string) error {
		f.Extra = append(f.Extra, s)
		return nil
	})
	fs.Func("arg", "a further argument of a component, as `COMPONENT=--FLAG=VALUE`; may be repeated", func(s string) error {
		name, arg, found := strings.Cut(s, "=")
		if !found {
			return errors.New("want COMPONENT=--FLAG=VALUE")
		}
		f.ExtraArgs[name] = append(f.ExtraArgs[name], arg)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("up: unexpected argument %q", fs.Arg(0))
	}
	if f.detach && f.name == "" {
		f.name = defaultName
	}
	var err error
	if f.Version, err = build.ResolveVersion(source, f.Version); err != nil {
		return f, err
	}
	return f, f.Validate()
}

// up starts a cluster. In the foreground its standard output is machine-readable: first one control.Response, with the
// cluster's status as the result or with an error, and then the answers to requests.
func up(ctx context.Context, args []string) error {
	f, err := parseUp(args)
	if err == nil && f.detach {
		return upDetached(ctx, f, args)
	}
	if err == nil {
		err = upForeground(ctx, f, os.Stdin, os.Stdout)
	}
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(control.Response{Error: err.Error()})
	}
	return err
}

// errInputEnded is the reason to stop a cluster in the foreground when its parent has ended.
var errInputEnded = errors.New("standard input ended")

// upForeground runs a cluster until ctx is done, stdin ends, or a request stops it.
func upForeground(ctx context.Context, f upFlags, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	requests := io.Reader(strings.NewReader(""))
	if !f.detached {
		// Watch the input from the beginning: a build takes minutes, and the parent may end in the meantime.
		r, w := io.Pipe()
		requests = r
		go func() {
			_, _ = io.Copy(w, stdin)
			cancel(errInputEnded)
			w.Close()
		}()
	}
	binary, err := ensure(ctx, f.Version)
	if err != nil {
		return err
	}
	dir, err := rundir.Create(ctx, rundir.Root(), f.name)
	if err != nil {
		return err
	}
	j, err := dir.StartJanitor()
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir.Path))
	}
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "controlplane: "+format+"\n", args...) }
	if f.detached {
		logf = fileLogger(filepath.Join(dir.Path, "launcher.log"))
	}
	err = serveCluster(ctx, cancel, f, binary, dir, requests, stdout, logf)
	return errors.Join(err, j.CleanUp())
}

// errDown is the reason to stop a cluster after a "down" request.
var errDown = errors.New("asked to stop")

// serveCluster starts the cluster, announces it, and answers requests until ctx is done. It leaves no process behind.
func serveCluster(ctx context.Context, cancel context.CancelCauseFunc, f upFlags, binary string, dir *rundir.Dir, requests io.Reader, stdout io.Writer, logf func(string, ...any)) error {
	startCtx, stop := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("not ready after %s", f.timeout))
	c, err := cluster.Start(startCtx, binary, dir, f.Options, logf)
	stop()
	if err != nil {
		return err
	}
	server := &control.Server{Cluster: c, Down: func() { cancel(errDown) }}
	err = server.Listen(ctx, dir.Path)
	if err == nil {
		err = announce(stdout, c.Status())
	}
	if err == nil {
		go func() { _ = server.Serve(ctx, requests, stdout) }() // returns at the end of the input, which also cancels ctx
		<-ctx.Done()
	}
	return errors.Join(err, c.Stop())
}

// announce reports that the cluster is ready.
func announce(stdout io.Writer, s cluster.Status) error {
	result, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(control.Response{Result: result})
}

// fileLogger returns a logf that appends to file.
func fileLogger(file string) func(string, ...any) {
	return func(format string, args ...any) {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return // the directory is being removed, with all logs
		}
		defer f.Close()
		fmt.Fprintf(f, "%s "+format+"\n", append([]any{time.Now().Format(time.RFC3339)}, args...)...)
	}
}

// ensure returns the executable of version, and builds it if necessary.
func ensure(ctx context.Context, version string) (string, error) {
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	return b.Ensure(ctx, version)
}

func newBuilder() (*build.Builder, error) {
	cache, err := build.CacheDir()
	if err != nil {
		return nil, err
	}
	return &build.Builder{Source: source, Cache: cache, Progress: os.Stderr}, nil
}
