// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube contains the common part of the main functions of the larger
// examples: flags, clients, signals and the exit status. Copy it along with an
// example. Its API may change at any time.
package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"
)

// Main runs an example until it returns or the process gets SIGINT or SIGTERM;
// a second signal kills it. The exit status is 0, 1 after an error, and 2 after
// wrong arguments. An error may have its own ExitStatus.
func Main(run func(ctx context.Context, args []string, stdout io.Writer) error) {
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
		status := 1
		if own, ok := errors.AsType[exitStatus](err); ok {
			status = own.ExitStatus()
		}
		os.Exit(status)
	}
}

// exitStatus is an error with its own exit status.
type exitStatus interface {
	error
	ExitStatus() int
}

// errUsage marks errors in the arguments.
var errUsage = errors.New("usage")

// Flags are the flags of an example, --kubeconfig, -v and -vmodule.
type Flags struct {
	*flag.FlagSet
	kubeconfig string
}

// NewFlags returns the flags of the example called name: --kubeconfig, and -v and
// -vmodule of klog.
func NewFlags(name string) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	klogFlags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	for _, name := range []string{"v", "vmodule"} { // the others are for log files
		known := klogFlags.Lookup(name)
		f.Var(known.Value, known.Name, known.Usage)
	}
	f.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "`path` of a kubeconfig file; without it the ServiceAccount of the pod is used")
	return f
}

// NodeName adds --node-name. Its default is $NODE_NAME, which a pod gets from
// the downward API, or else the host name.
func (f *Flags) NodeName() *string {
	name := os.Getenv("NODE_NAME")
	if name == "" {
		name, _ = os.Hostname() // an empty name is rejected later, by name
	}
	return f.String("node-name", name, "`name` of the Node")
}

// Parse parses the arguments and rejects arguments that are not flags.
func (f *Flags) Parse(args []string) error {
	err := f.FlagSet.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintln(f.Output(), err)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return errors.Join(errUsage, err)
	}
	return err
}

// Config returns the client configuration in the file that --kubeconfig names,
// or that of the pod in which the process runs.
func (f *Flags) Config() (*rest.Config, error) {
	cfg, err := f.clientConfig()
	if err != nil {
		return nil, err
	}
	return rest.AddUserAgent(cfg, "kubewright-examples/"+f.Name()), nil
}

// clientConfig is Config without what all examples set.
func (f *Flags) clientConfig() (*rest.Config, error) {
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

// HeartbeatClient is a client for leases and node status.
type HeartbeatClient struct {
	*kubernetes.Clientset
	dialer *connrotation.Dialer
}

// ResetConnections closes the connections of the client, so that the next
// request opens a new one. It is for lease.Config.ResetConnections.
func (c *HeartbeatClient) ResetConnections() { c.dialer.CloseAll() }

// Heartbeats returns a client with its own connections: a reset after a lost
// heartbeat does not end the watches of the process, and a large list does not
// delay a heartbeat. It has no rate limit, because client-go's default of 5
// requests a second would starve the 51st node of a process. It needs no
// timeout, because every call of the controllers has one.
func Heartbeats(cfg *rest.Config) (*HeartbeatClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	// client-go shares connections between equal configurations. The dialer
	// makes this configuration different.
	dialer := connrotation.NewDialer(cfg.Dial)
	cfg.Dial = dialer.DialContext
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(cfg, cfg.UserAgent+"/heartbeat"))
	if err != nil {
		return nil, err
	}
	return &HeartbeatClient{client, dialer}, nil
}

// Unlimited returns a client for all other requests. It has no client-side rate
// limit, because the API server has its own (API Priority and Fairness).
func Unlimited(cfg *rest.Config) (*kubernetes.Clientset, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	return kubernetes.NewForConfig(cfg)
}

// Events returns a recorder that writes events.k8s.io/v1 events as component,
// and a function that shuts it down.
func Events(ctx context.Context, cfg *rest.Config, component string) (events.EventRecorder, func(), error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		broadcaster.Shutdown()
		return nil, nil, err
	}
	return broadcaster.NewRecorder(scheme.Scheme, component), broadcaster.Shutdown, nil
}

// KubeletEvents returns a recorder for component and one for "kubelet", with which
// programs look for the events of containers, and a function that shuts both down.
// Their rates are limited as those of the kubelet (--event-qps, --event-burst): with
// client-go's default of 5 a second the 100 events of 50 pods would take 20 s.
func KubeletEvents(ctx context.Context, cfg *rest.Config, component string) (own, containers events.EventRecorder, shutdown func(), err error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 50, 100
	own, end, err := Events(ctx, cfg, component)
	if err != nil {
		return nil, nil, nil, err
	}
	containers, endContainers, err := Events(ctx, cfg, "kubelet")
	if err != nil {
		end()
		return nil, nil, nil, err
	}
	return own, containers, func() { endContainers(); end() }, nil
}
