// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Vkprovider is a whole virtual node of a provider that was written for virtual-kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/vkadapter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var cfg vkadapter.NodeConfig
	flags := flag.NewFlagSet("vkprovider", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "`path` of a kubeconfig file; without it the ServiceAccount of the pod is used")
	name := flags.String("node-name", os.Getenv("NODE_NAME"), "`name` of the Node")
	flags.StringVar(&cfg.InternalIP, "node-ip", "127.0.0.1", "`address` of the Node")
	flags.StringVar(&cfg.Address, "address", ":10250", "`address` on which the node answers kubectl logs, exec and top")
	flags.StringVar(&cfg.LockDir, "lock-dir", "", "`directory` in which the processes of this machine lock their node names")
	probeAddress := flags.String("probe-address", "", "`address` that answers the probes of a Pod at /healthz and /readyz, and /metrics, such as :8081; none by default")
	flags.BoolVar(&cfg.NodeCredentials, "node-credentials", false, "the client is system:node:NODE-NAME, as a kubelet is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return errors.New("set --kubeconfig or $KUBECONFIG to the path of a kubeconfig file, or run in a Pod")
	}
	api, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	api.QPS = -1 // the API server has limits of its own
	if cfg.Client, err = kubernetes.NewForConfig(api); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := count(&cfg, registry); err != nil {
		return err
	}
	virtual, err := vkadapter.NewNode(*name, func(pc nodeutil.ProviderConfig) (*cloud, node.NodeProvider, error) {
		provider := newCloud(*name)
		provider.ConfigureNode(ctx, pc.Node)
		return provider, nil, nil
	}, cfg)
	if err != nil {
		return err
	}
	if err := metrics.Health(registry, virtual); err != nil {
		return err
	}
	p := probes{address: *probeAddress, parts: []part{virtual}, metrics: metrics.Handler(registry)}
	return p.during(ctx, virtual.Run)
}

// count makes metrics of what the controllers do.
func count(cfg *vkadapter.NodeConfig, registry *prometheus.Registry) error {
	leaseHooks, err1 := metrics.Lease(registry, lease.Hooks{})
	statusHooks, err2 := metrics.NodeStatus(registry, nodestatus.Hooks{})
	podHooks, err3 := metrics.PodSync(registry, podsync.Hooks{})
	serverHooks, err4 := metrics.NodeAPI(registry, nodeapi.Hooks{})
	cfg.Lease = func(c *lease.Config) { c.Hooks = leaseHooks }
	cfg.Status = func(c *nodestatus.Config) { c.Hooks = statusHooks }
	cfg.Pods = func(c *podsync.Config) { c.Hooks = podHooks }
	cfg.Server = func(c *nodeapi.Config) { c.Hooks, c.Metrics = serverHooks, metrics.Handler(registry) }
	return errors.Join(err1, err2, err3, err4)
}
