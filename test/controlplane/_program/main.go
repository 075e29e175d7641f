// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Command controlplane is a whole Kubernetes control plane in one executable. Called as etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler or kubectl (by the name of the executable or by its first argument) it is that
// program, with that program's flags. Called as "all" it runs the four servers in one process.
//
// It stands in a directory that the go command skips, because it belongs to no module of this repository: package build
// copies it, together with one of ../versions, to a temporary directory and builds it there. It must compile
// with every one of these versions.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs name time zones; the host may have none

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's credential plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics at /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build_info at /metrics
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if run(filepath.Base(os.Args[0])) {
		return
	}
	if len(os.Args) > 1 {
		// The programs read os.Args themselves: what follows the name must look as if the program had been called directly.
		os.Args = os.Args[1:]
		if run(os.Args[0]) {
			return
		}
	}
	fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl|all [argument...]")
	os.Exit(2)
}

// run runs the program called name to its end and reports whether there is one.
func run(name string) bool {
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubectl":
		// An unreadable -v is reported by kubectl's own flag parsing.
		_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	case "all":
		if err := runAll(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "controlplane:", err)
			os.Exit(1)
		}
	default:
		return false
	}
	return true
}
