// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"net"
	"time"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/kubelet/internal/process"
)

// options are the flags.
type options struct {
	*kube.Flags
	nodeName        string
	nodeIP          string
	nodeCredentials bool
	taint           bool
	root            string
	backoffInitial  time.Duration
	backoffMax      time.Duration
}

func parse(args []string) (*options, error) {
	o := &options{Flags: kube.NewFlags("kubelet")}
	nodeName := o.NodeName()
	o.StringVar(&o.nodeIP, "node-ip", "127.0.0.1", "`address` of the node and of all its pods, which have no network of their own")
	o.BoolVar(&o.nodeCredentials, "node-credentials", false, "the client is system:node:NODE-NAME")
	o.BoolVar(&o.taint, "register-taint", true, "let only pods come that tolerate "+taintKey+", since they are not isolated from this machine")
	o.StringVar(&o.root, "root-dir", "/var/lib/kubewright-kubelet", "`folder` for what has to outlive this process: pods, logs, exit codes")
	o.DurationVar(&o.backoffInitial, "backoff-initial", 0, "`time` before the second restart of a container, doubled for each further one (default 10s)")
	o.DurationVar(&o.backoffMax, "backoff-max", 0, "longest `time` before a restart of a container (default 5m)")
	if err := o.Parse(args); err != nil {
		return nil, err
	}
	o.nodeName = *nodeName
	if net.ParseIP(o.nodeIP) == nil {
		return nil, fmt.Errorf("--node-ip: %q is no address", o.nodeIP)
	}
	return o, nil
}

// backoff is that of containers.
func (o *options) backoff() process.Backoff {
	return process.Backoff{Initial: o.backoffInitial, Max: o.backoffMax}
}
