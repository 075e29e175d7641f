// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Customkubelet is a kubelet to begin with: a node that registers, is Ready exactly
// while it works, runs pods with a provider, answers kubectl logs, and exports
// metrics. Its provider (provider.go) only pretends to run them: replace it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

func main() { start(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := newFlags("customkubelet")
	nodeName := flags.String("node-name", defaultNodeName(), "`name` of the Node")
	nodeIP := flags.String("node-ip", "127.0.0.1", "`address` of the node, on which it listens")
	port := flags.Int("port", 10250, "`port` for the API server, kubectl and Prometheus; 0: any that is free")
	clientCA := flags.String("client-ca-file", "", "`path` of the CAs of client certificates (default: ConfigMap kube-system/extension-apiserver-authentication, which a node may not read)")
	probeAddress := flags.String("probe-address", "", "`address` that answers the probes of a Pod at /healthz and /readyz, and /metrics, such as :8081; none by default")
	nodeCredentials := flags.Bool("node-credentials", false, "the client is system:node:NODE-NAME, like a kubelet")
	if err := flags.parse(args); err != nil {
		return err
	}
	if net.ParseIP(*nodeIP) == nil {
		return fmt.Errorf("--node-ip: %q is not an IP address", *nodeIP)
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(*nodeIP, strconv.Itoa(*port)))
	if err != nil {
		return err
	}
	n, err := newNode(cfg, options{
		name: *nodeName, ip: *nodeIP, listener: listener, clientCAFile: *clientCA, nodeCredentials: *nodeCredentials,
	}, newProvider(*nodeIP))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	fmt.Fprintf(stdout, "node %s: serving https://%s\n", *nodeName, listener.Addr())
	n.probes.address = *probeAddress
	return n.probes.during(ctx, n.run)
}

// defaultNodeName returns $NODE_NAME, which a pod gets from the downward API, or the
// host name.
func defaultNodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname() // an empty name is rejected later, by name
	return name
}
