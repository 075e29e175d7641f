// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The components of a cluster. A cluster with Options.SingleProcess has only All.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	All               = "all"
)

// Options configures a control plane. The zero value is a control plane of the default version, with each component in
// its own process and the defaults of Kubernetes.
type Options struct {
	// Version is the Kubernetes version, such as "v1.36.3" or "1.36". If it is "", the environment variable
	// KUBEWRIGHT_E2E_VERSION or the default applies. test/controlplane/README.md lists the versions.
	Version string
	// SingleProcess runs all components in one process, which needs less memory and starts faster. Single components
	// can then not be killed or paused, and they share their feature gates.
	SingleProcess bool
	// Without lists components that do not run: the controller manager, the scheduler. Without the controller manager
	// there are no default ServiceAccounts, and pods are admitted without one.
	Without []string
	// Extra lists further instances of the controller manager and the scheduler, such as "kube-scheduler-2". Each is a
	// separate process with the component's arguments and its own port. It does not start with the cluster:
	// Cluster.Restart starts it.
	Extra []string
	// FeatureGates are set in all Kubernetes components. Use ExtraArgs for a single component.
	FeatureGates map[string]bool
	// RuntimeConfig selects the served API versions and resources, for example "resource.k8s.io/v1": false.
	RuntimeConfig map[string]bool
	// ExtraArgs holds further arguments of a component, which its further instances get too, or of such an instance;
	// for example "--node-monitor-grace-period=8s" for ControllerManager. They replace the harness's arguments, but
	// entries of --feature-gates and --runtime-config are added.
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
