// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Prometheus is a virtual node that exports metrics of all packages: a node,
// its lease, its pods, its devices and its settings. Package metrics turns
// every hook into a metric; copy that package. The pods are simulated (package
// podsynctest), and the devices are fictitious.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("prometheus")
	opts := options{nodeName: flags.NodeName()}
	flags.IntVar(&opts.devices, "devices", 4, "`number` of devices that the node has")
	flags.StringVar(&opts.settings, "settings", "", "absolute `path` of a file with settings, which are tried out when they change")
	flags.StringVar(&opts.store, "store", "", "`directory` of the checkpoint of these settings; its parent must exist")
	address := flags.String("listen", "localhost:9090", "`address` of /metrics and /healthz")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := errors.Join(
		registry.Register(collectors.NewGoCollector()),
		registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	); err != nil {
		return err
	}
	n, err := newNode(cfg, registry, opts)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *address)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "serving http://%s/metrics\n", listener.Addr())

	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.Handler(registry))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := n.check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	// The server ends last, so that a last scrape sees the shutdown.
	err = n.run(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(last))
	if serving := <-served; !errors.Is(serving, http.ErrServerClosed) {
		err = errors.Join(err, serving)
	}
	return err
}
