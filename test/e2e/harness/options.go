// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The components of a cluster. In one with Options.SingleProcess there is only All.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	All               = "all"
)

// Options says what control plane to start. The zero value is one of the default version, all components in processes of their own,
// with the defaults of Kubernetes.
type Options struct {
	// Version is the Kubernetes version, such as "v1.36.3" or "1.36"; "" is that of the environment variable
	// KUBEWRIGHT_E2E_VERSION, or else the default. test/controlplane/README.md lists them.
	Version string
	// SingleProcess runs all components in one process. It is lighter and faster, but components can't be killed or paused
	// one by one, and have the same feature gates.
	SingleProcess bool
	// Without names components that are not to run: the controller manager, the scheduler. Without the controller manager
	// there are no default ServiceAccounts, and pods are admitted without one.
	Without []string
	// Extra names further instances of the controller manager and the scheduler: "kube-scheduler-2". Each is a process of its own,
	// with the component's arguments and a port of its own, and does not start with the cluster: Cluster.Restart starts it.
	Extra []string
	// FeatureGates are set in all Kubernetes components. For one component use ExtraArgs.
	FeatureGates map[string]bool
	// RuntimeConfig says which API versions and resources are served, for example "resource.k8s.io/v1": false.
	RuntimeConfig map[string]bool
	// ExtraArgs are further arguments by component, whose further instances have them too, or by such an instance; for example "--node-monitor-grace-period=8s" of ControllerManager. They
	// replace those that the harness sets; entries of --feature-gates and --runtime-config are added.
	ExtraArgs map[string][]string
	// Audit logs the metadata of every request, for Cluster.AuditEvents.
	Audit bool
}

// arguments returns the launcher's arguments.
func (o Options) arguments() []string {
	args := []string{"up"}
	if o.Version != "" {
		args = append(args, "--version="+o.Version)
	}
	if o.SingleProcess {
		args = append(args, "--single-process")
	}
	for _, component := range o.Without {
		args = append(args, "--without="+component)
	}
	for _, instance := range o.Extra {
		args = append(args, "--extra="+instance)
	}
	if len(o.FeatureGates) > 0 {
		args = append(args, "--feature-gates="+joinBools(o.FeatureGates))
	}
	if len(o.RuntimeConfig) > 0 {
		args = append(args, "--runtime-config="+joinBools(o.RuntimeConfig))
	}
	for _, component := range slices.Sorted(maps.Keys(o.ExtraArgs)) {
		for _, arg := range o.ExtraArgs[component] {
			args = append(args, "--arg="+component+"="+arg)
		}
	}
	if o.Audit {
		args = append(args, "--audit")
	}
	return args
}

// joinBools returns m as A=true,B=false.
func joinBools(m map[string]bool) string {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		items = append(items, fmt.Sprintf("%s=%t", name, m[name]))
	}
	return strings.Join(items, ",")
}
