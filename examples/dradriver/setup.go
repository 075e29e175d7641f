// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// All examples that can be copied have this file: signals, flags and the client
// configuration, with only the standard library and client-go.

// start runs the program until run returns or the process gets SIGINT or
// SIGTERM; a second signal kills it. The exit status is 0, 1 after an error and
// 2 after wrong arguments.
func start(run func(ctx context.Context, args []string, stdout io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal has its default effect
	err := run(ctx, os.Args[1:], os.Stdout)
	klog.Flush()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2) // the flag set has printed the error
	default:
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// errUsage marks errors in the arguments.
var errUsage = errors.New("usage")

// flags are the program's own flags, --kubeconfig, -v and -vmodule.
type flags struct {
	*flag.FlagSet
	kubeconfig string
}

func newFlags(name string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	klogFlags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	for _, name := range []string{"v", "vmodule"} { // the others are for log files
		known := klogFlags.Lookup(name)
		f.Var(known.Value, known.Name, known.Usage)
	}
	f.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "`path` of a kubeconfig file; without it the ServiceAccount of the pod is used")
	return f
}

// parse parses the arguments and rejects arguments that are not flags.
func (f *flags) parse(args []string) error {
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintln(f.Output(), err)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return errors.Join(errUsage, err)
	}
	return err
}

// config returns the client configuration in the file that --kubeconfig names,
// or that of the pod in which the process runs. It has no client-side rate
// limit, because the API server has its own (API Priority and Fairness).
func (f *flags) config() (*rest.Config, error) {
	cfg, err := f.clientConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return rest.AddUserAgent(cfg, "kubewright-examples/"+f.Name()), nil
}

// clientConfig is config without what all examples set.
func (f *flags) clientConfig() (*rest.Config, error) {
	if f.kubeconfig != "" {
		cfg, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig: %w", err)
		}
		return cfg, nil
	}
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no client configuration: set --kubeconfig, or $KUBECONFIG, to the path of a kubeconfig file, or run in a Pod: %w", err)
	}
	return cfg, nil
}
