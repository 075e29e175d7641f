// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Command controlplane builds, starts and stops a real Kubernetes control plane on the loopback interface: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler. It also runs a matching kubectl.
//
// Interactive use:
//
//	controlplane up --detach
//	controlplane kubectl get nodes
//	controlplane kubeconfig --node worker-1
//	controlplane down
//
// In tests, "controlplane up" stays in the foreground. It writes one line of JSON when the cluster is ready, reads
// requests as lines of JSON from its standard input (see internal/control), and stops everything when that input ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubewright/kubewright/test/controlplane/internal/rundir"
)

const usage = `usage: controlplane COMMAND [flag...]

  up          start a cluster; in the foreground until standard input ends, or with --detach
  down        stop a detached cluster
  status      show clusters, components and files
  kubectl     run the kubectl of the cluster's version: kubectl [--name=CLUSTER] ARGUMENT...
  kubeconfig  write a kubeconfig for the admin, a node, a ServiceAccount or any user and print its path
  kill, terminate, pause, resume, restart COMPONENT
              SIGKILL, SIGTERM, SIGSTOP, SIGCONT; or kill and start again with the same port and data
  build       build the executable of a Kubernetes version without starting it
  versions    list the Kubernetes versions

Every command has --help.
`

// command is a subcommand of the program.
type command func(ctx context.Context, args []string) error

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := map[string]command{
		"up":         up,
		"down":       down,
		"status":     status,
		"kubectl":    kubectl,
		"kubeconfig": writeKubeconfig,
		"build":      buildVersions,
		"versions":   listVersions,
	}
	for _, op := range []string{"kill", "terminate", "pause", "resume", "restart"} {
		commands[op] = func(ctx context.Context, args []string) error { return operate(ctx, op, args) }
	}
	commands[rundir.JanitorCommand] = func(_ context.Context, args []string) error { return janitor(args, os.Stdin) }
	if len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		fmt.Print(usage)
		return nil
	}
	f := commands[args[0]]
	if f == nil {
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
	return f(ctx, args[1:])
}

// janitor is not for interactive use: up starts it, see package rundir.
func janitor(args []string, owner io.Reader) error {
	if len(args) != 1 {
		return errors.New("janitor: want a directory")
	}
	return rundir.RunJanitor(args[0], owner)
}
