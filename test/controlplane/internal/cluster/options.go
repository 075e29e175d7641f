// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The components, in their start order.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	// All is the single process of a cluster with SingleProcess; in requests, it means all processes of any cluster.
	All = "all"
)

// components lists all components in their start order.
var components = []string{Etcd, APIServer, ControllerManager, Scheduler}

// Options configures a cluster.
type Options struct {
	// Version is the Kubernetes version for Status. It has no effect, because the executable has a fixed version.
	// SingleProcess runs all components in one process, which needs less memory and starts faster. Single components
	// can then not be killed or have their own feature gates.
	Version string
	// SingleProcess runs all components in one process: lighter and faster, but they can't be killed or gated one by one.
	SingleProcess bool
	// Without lists components that do not run: the scheduler, or the scheduler and the controller manager.
	Without []string
	// Extra lists further instances of the scheduler and the controller manager, such as "kube-scheduler-2". Each is a
	// separate process with the component's arguments and its own port. It does not start with the cluster; its first
	// restart starts it.
	Extra []string
	// FeatureGates is the value of --feature-gates of all Kubernetes components.
	FeatureGates string
	// RuntimeConfig is the value of the API server's --runtime-config.
	RuntimeConfig string
	// ExtraArgs holds further arguments of components, which their instances in Extra get too, or of such an instance.
	// They replace the default arguments, except that --feature-gates and --runtime-config are merged.
	ExtraArgs map[string][]string
	// Audit makes the API server log every request's metadata.
	Audit bool
}

// Validate reports every problem.
func (o Options) Validate() error {
	var errs []error
	for _, name := range o.Without {
		if name != ControllerManager && name != Scheduler {
			errs = append(errs, fmt.Errorf("can't run without %q; only %s and %s can be left out", name, ControllerManager, Scheduler))
		}
	}
	for i, name := range o.Extra {
		if component := componentOf(name); component != ControllerManager && component != Scheduler || component == name || slices.Contains(o.Extra[:i], name) {
			errs = append(errs, fmt.Errorf("further instance %q: want %s-NAME or %s-NAME, each once", name, ControllerManager, Scheduler))
		}
	}
	for name, args := range o.ExtraArgs {
		if !slices.Contains(components, name) && !slices.Contains(o.Extra, name) {
			errs = append(errs, fmt.Errorf("arguments for %q: no such component; there are %s", name, strings.Join(components, ", ")))
		}
		for _, arg := range args {
			if !strings.HasPrefix(arg, "--") {
				errs = append(errs, fmt.Errorf("argument %q of %s: want --flag or --flag=value", arg, name))
			}
			if o.SingleProcess && name != APIServer && slices.Contains(o.running(), name) && strings.HasPrefix(arg, "--feature-gates") {
				errs = append(errs, fmt.Errorf("%s: a single process has one set of feature gates, give them to all", name))
			}
		}
	}
	return errors.Join(errs...)
}

// running returns the running components in their start order.
func (o Options) running() []string {
	return slices.DeleteFunc(slices.Clone(components), func(name string) bool { return slices.Contains(o.Without, name) })
}

// starting returns the processes that start with the cluster.
func (o Options) starting() []string {
	if o.SingleProcess {
		return []string{All}
	}
	return o.running()
}

// processes returns the names of all possible processes.
func (o Options) processes() []string { return append(o.starting(), o.Extra...) }

// process returns the name of the process in which a component or a further instance of one runs.
func (o Options) process(name string) string {
	if o.SingleProcess && slices.Contains(components, name) {
		return All
	}
	return name
}

// componentOf returns the component of an instance: kube-scheduler for kube-scheduler-2, and the component itself
// otherwise.
func componentOf(name string) string {
	for _, component := range components {
		if name == component || strings.HasPrefix(name, component+"-") && len(name) > len(component)+1 {
			return component
		}
	}
	return ""
}
