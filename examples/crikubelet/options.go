// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/cri"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

// options are the flags.
type options struct {
	*kube.Flags
	nodeName        string
	nodeIP          string
	nodeCredentials bool
	offline         bool
	endpoint        string
	root            string
	minFreeDisk     int
	logDir          string
	cgroupParent    string
	registry        string
	maxPods         int
	port            int
	clusterDNS      []string
	clusterDomain   string
	resolvConf      string
	sysctls         []string
	clientCAFile    string
	certFile        string
	keyFile         string
	pullTimeout     time.Duration
	imageGC         cri.ImageGC
	rotation        cri.LogRotation
}

// commas returns the setter of a flag with several values and commas between them.
func commas(values *[]string) func(string) error {
	return func(text string) error {
		*values = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	}
}

func parse(args []string) (*options, error) {
	o := &options{Flags: kube.NewFlags("crikubelet")}
	nodeName := o.NodeName()
	o.StringVar(&o.nodeIP, "node-ip", "127.0.0.1", "`address` of the node, and of pods in the network of the host")
	o.BoolVar(&o.nodeCredentials, "node-credentials", false, "the client is system:node:NODE-NAME")
	o.BoolVar(&o.offline, "offline", false, "start the pods of the node while the API server can't be reached. The lock of ROOT-DIR then keeps a second process from running them, instead of the lease: "+
		"never give the node's name to another machine or to a process with another folder, because both would run each pod")
	o.StringVar(&o.endpoint, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "`socket` of the container runtime")
	o.StringVar(&o.root, "root-dir", "/var/lib/kubewright-crikubelet", "`folder` for pods, volumes and records")
	o.IntVar(&o.minFreeDisk, "min-free-disk", 10, "`percentage` of the file system of ROOT-DIR that must be free; with less the node has DiskPressure, and gets no pods; 0: never")
	o.StringVar(&o.logDir, "log-dir", "", "`folder` of the containers' logs (default ROOT-DIR/logs)")
	o.StringVar(&o.cgroupParent, "cgroup-parent", "", "`cgroup` of all pods, as the runtime's cgroup driver writes it; below a path each pod has its own (default: that of the runtime)")
	o.StringVar(&o.registry, "plugin-registry-dir", "/var/lib/kubelet/plugins_registry", "`folder` in which DRA drivers register")
	o.IntVar(&o.maxPods, "max-pods", 110, "`number` of pods that the node takes")
	o.IntVar(&o.port, "port", 10250, "`port` on which the node answers kubectl logs, exec and top; 0: any that is free")
	o.Func("cluster-dns", "`addresses` of the cluster's DNS service", commas(&o.clusterDNS))
	o.StringVar(&o.clusterDomain, "cluster-domain", "cluster.local", "`domain` of the cluster")
	o.StringVar(&o.resolvConf, "resolv-conf", "/etc/resolv.conf", "`path` of the node's resolv.conf")
	o.Func("allowed-unsafe-sysctls", "`names` of sysctls, or prefixes with *, that pods may set though they are not safe", commas(&o.sysctls))
	o.StringVar(&o.clientCAFile, "client-ca-file", "", kube.ClientCAUsage)
	o.StringVar(&o.certFile, "tls-cert-file", "", "`path` of the serving certificate (default: self-signed)")
	o.StringVar(&o.keyFile, "tls-private-key-file", "", "`path` of its key")
	o.DurationVar(&o.pullTimeout, "image-pull-timeout", cri.DefaultPullTimeout, "`time` after which the pull of an image fails, to be tried again")
	o.IntVar(&o.imageGC.High, "image-gc-high", 85, "`percentage` of the images' file system from which on unused images are deleted; 0: never")
	o.IntVar(&o.imageGC.Low, "image-gc-low", 80, "`percentage` at which that ends")
	o.DurationVar(&o.imageGC.MinAge, "image-gc-age", 2*time.Minute, "`time` for which an image must have been unused")
	o.Func("image-gc-keep", "`names` of images that are never deleted", commas(&o.imageGC.Keep))
	o.Int64Var(&o.rotation.MaxSize, "log-max-size", 10<<20, "`bytes` of a container's log before it is put aside")
	o.IntVar(&o.rotation.MaxFiles, "log-max-files", 5, "`number` of log files of a container")
	if err := o.Parse(args); err != nil {
		return nil, err
	}
	o.nodeName = *nodeName
	o.rotation.Interval = 10 * time.Second
	var problems []error
	if net.ParseIP(o.nodeIP) == nil {
		problems = append(problems, fmt.Errorf("--node-ip: %q is no address", o.nodeIP))
	}
	if o.imageGC.High > 0 && o.imageGC.Low > o.imageGC.High || o.imageGC.High > 100 {
		problems = append(problems, fmt.Errorf("--image-gc-low %d and --image-gc-high %d: want percentages, the lower one first", o.imageGC.Low, o.imageGC.High))
	}
	if o.minFreeDisk < 0 || o.minFreeDisk > 100 {
		problems = append(problems, fmt.Errorf("--min-free-disk: %d is not a percentage from 0 to 100", o.minFreeDisk))
	}
	if o.pullTimeout <= 0 {
		problems = append(problems, errors.New("--image-pull-timeout must be positive"))
	}
	if o.maxPods < 1 || o.rotation.MaxSize < 1 || o.rotation.MaxFiles < 2 {
		problems = append(problems, errors.New("--max-pods and --log-max-size must be positive, --log-max-files at least 2"))
	}
	root, err := filepath.Abs(o.root)
	if o.root = root; o.logDir == "" {
		o.logDir = filepath.Join(root, "logs")
	}
	return o, errors.Join(append(problems, err)...)
}
