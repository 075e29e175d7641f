// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

// options are the flags.
type options struct {
	*kube.Flags
	nodeName            string
	nodeIP              string
	nodeCredentials     bool
	bootstrapKubeconfig string
	taint               bool
	root                string
	minFreeDisk         int
	lockDir             string
	configMap           string
	configFile          string
	configDir           string
	configSoak          time.Duration
	publishCPUs         bool
	port                int
	clientCAFile        string
	certFile            string
	keyFile             string
	certDir             string
	rotateServing       bool
	shutdownPeriods     shutdownPeriods
	builtin             settings // that run while none are assigned
}

func parse(args []string) (*options, error) {
	o := &options{Flags: kube.NewFlags("kubelet")}
	nodeName := o.NodeName()
	o.StringVar(&o.nodeIP, "node-ip", "127.0.0.1", "`address` of the node and of all its pods, which have no network of their own")
	o.BoolVar(&o.nodeCredentials, "node-credentials", false, "the client is system:node:NODE-NAME")
	o.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "", "`path` of a kubeconfig file with a bootstrap token, with which the node requests its client certificate; instead of --kubeconfig, and implies --node-credentials")
	o.BoolVar(&o.taint, "register-taint", true, "let only pods come that tolerate "+taintKey+", since they are not isolated from this machine")
	o.StringVar(&o.root, "root-dir", "/var/lib/kubewright-kubelet", "`folder` for what has to outlive this process: pods, logs, exit codes")
	o.IntVar(&o.minFreeDisk, "min-free-disk", 10, "`percentage` of the file system of ROOT-DIR that must be free; with less the node has DiskPressure, and gets no pods; 0: never")
	o.StringVar(&o.lockDir, "lock-dir", filepath.Join(os.TempDir(), fmt.Sprintf("kubewright-nodes-%d", os.Getuid())), "`folder` in which the processes of this machine lock their node names")
	o.StringVar(&o.configMap, "config-map", "", "`namespace/name/key` of a ConfigMap with settings; see README.md")
	o.StringVar(&o.configFile, "config-file", "", "`path` of a file with settings, instead of a ConfigMap")
	o.StringVar(&o.configDir, "config-dir", "", "`folder` of the settings on disk, the good ones and those on trial (default ROOT-DIR/config)")
	o.DurationVar(&o.configSoak, "config-soak", configcheckpoint.DefaultSoak, "how `long` new settings must run well to be called good")
	o.BoolVar(&o.publishCPUs, "publish-cpus", false, "publish the CPUs of this machine as devices of the driver "+cpuDriver)
	o.IntVar(&o.port, "port", 10250, "`port` on which the node answers kubectl logs, exec and top; 0: any that is free")
	o.StringVar(&o.clientCAFile, "client-ca-file", "", kube.ClientCAUsage)
	o.StringVar(&o.certFile, "tls-cert-file", "", "`path` of the serving certificate (default: self-signed)")
	o.StringVar(&o.keyFile, "tls-private-key-file", "", "`path` of its key")
	o.StringVar(&o.certDir, "cert-dir", "", "`folder` of the certificates that the cluster issues (default ROOT-DIR/pki)")
	o.BoolVar(&o.rotateServing, "rotate-server-certificates", false, "request the serving certificate from the cluster; an administrator or a controller must approve the request")
	o.Var(&o.shutdownPeriods, "shutdown-grace-period-by-pod-priority", "`PRIORITY=DURATION,...`: end the pods on SIGTERM, those of the lowest priority first, each group within its time (default: the pods run on)")
	o.builtin.addFlags(o.FlagSet)
	if err := o.Parse(args); err != nil {
		return nil, err
	}
	o.nodeName = *nodeName
	if net.ParseIP(o.nodeIP) == nil {
		return nil, fmt.Errorf("--node-ip: %q is no address", o.nodeIP)
	}
	if o.minFreeDisk < 0 || o.minFreeDisk > 100 {
		return nil, fmt.Errorf("--min-free-disk: %d is not a percentage from 0 to 100", o.minFreeDisk)
	}
	if o.configDir == "" {
		o.configDir = filepath.Join(o.root, "config")
	}
	if o.certDir == "" {
		o.certDir = filepath.Join(o.root, "pki")
	}
	if o.rotateServing && o.certFile != "" {
		return nil, errors.New("--tls-cert-file and --rotate-server-certificates exclude each other")
	}
	o.nodeCredentials = o.nodeCredentials || o.bootstrapKubeconfig != ""
	if err := o.builtin.validate(); err != nil {
		return nil, err
	}
	var err error
	o.configDir, err = filepath.Abs(o.configDir)
	return o, err
}
