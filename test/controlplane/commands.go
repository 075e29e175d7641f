// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/build"
	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
	"github.com/kubewright/kubewright/test/controlplane/internal/control"
	"github.com/kubewright/kubewright/test/controlplane/internal/rundir"
)

// defaultName is the name of a detached cluster without --name.
const defaultName = "default"

// nameFlag adds --name, which selects the cluster.
func nameFlag(fs *flag.FlagSet) *string {
	return fs.String("name", "", "the cluster's `name` (default: the one called default, or the only one there is)")
}

// findCluster returns the directory of the running cluster called name.
func findCluster(name string) (string, error) {
	root := rundir.Root()
	names, err := rundir.List(root)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if n == name || name == "" && n == defaultName {
			return filepath.Join(root, n), nil
		}
	}
	switch {
	case len(names) == 0:
		return "", errors.New("no cluster is running; start one with: up --detach")
	case name == "" && len(names) == 1:
		return filepath.Join(root, names[0]), nil
	}
	return "", fmt.Errorf("no cluster %q is running; there are %s (choose one with --name)", name, strings.Join(names, ", "))
}

// call sends a request to a running cluster.
func call(ctx context.Context, name string, req control.Request, result any) error {
	dir, err := findCluster(name)
	if err != nil {
		return err
	}
	return control.Call(ctx, dir, req, result)
}

// downPatience bounds how long a cluster may take to stop.
const downPatience = 60 * time.Second

// down stops a cluster and waits until its processes and files are gone.
func down(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("down", flag.ContinueOnError)
	name := nameFlag(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	dir, err := findCluster(*name)
	if err != nil {
		return err
	}
	// The launcher may be gone before it has answered. The removal of the directory decides.
	callErr := control.Call(ctx, dir, control.Request{Op: "down"}, nil)
	ctx, cancel := context.WithTimeout(ctx, downPatience)
	defer cancel()
	for {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is still there", dir), callErr)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// status prints the state of one cluster or of all.
func status(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("status", flag.ContinueOnError)
	name := fs.String("name", "", "the cluster's `name` (default: all)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	names, err := rundir.List(rundir.Root())
	if err != nil {
		return err
	}
	if *name != "" {
		names = []string{*name}
	}
	if len(names) == 0 {
		fmt.Println("no cluster is running")
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, n := range names {
		var s cluster.Status
		if err := call(ctx, n, control.Request{Op: "status"}, &s); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\tkubeconfig %s\n", n, s.Version, s.Server, s.Kubeconfig)
		for _, c := range s.Components {
			fmt.Fprintf(w, "  %s\t%s\tPID %d\tlog %s\n", c.Name, c.State, c.PID, c.Log)
		}
	}
	return w.Flush()
}

// operate kills, pauses, resumes, terminates or restarts a component.
func operate(ctx context.Context, op string, args []string) error {
	fs := flag.NewFlagSet(op, flag.ContinueOnError)
	name := nameFlag(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return fmt.Errorf("%s: want one component: etcd, kube-apiserver, kube-controller-manager, kube-scheduler or all", op)
	}
	return call(ctx, *name, control.Request{Op: op, Component: fs.Arg(0)}, nil)
}

// writeKubeconfig writes a kubeconfig file and prints its path.
func writeKubeconfig(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("kubeconfig", flag.ContinueOnError)
	name := nameFlag(fs)
	node := fs.String("node", "", "for the kubelet of the node called `NAME`")
	account := fs.String("serviceaccount", "", "for the ServiceAccount `NAMESPACE/NAME`, which is made if it isn't there")
	user := fs.String("user", "", "for any `USER`")
	groups := fs.String("groups", "", "the user's groups, `A,B`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("kubeconfig: unexpected argument %q", fs.Arg(0))
	}
	if *node == "" && *account == "" && *user == "" {
		var s cluster.Status
		if err := call(ctx, *name, control.Request{Op: "status"}, &s); err != nil {
			return err
		}
		fmt.Println(s.Kubeconfig)
		return nil
	}
	id := cluster.Identity{Node: *node, User: *user}
	if *groups != "" {
		id.Groups = strings.Split(*groups, ",")
	}
	if *account != "" {
		var found bool
		if id.Namespace, id.ServiceAccount, found = strings.Cut(*account, "/"); !found {
			return fmt.Errorf("kubeconfig: --serviceaccount=%s: want NAMESPACE/NAME", *account)
		}
	}
	var issued cluster.Issued
	if err := call(ctx, *name, control.Request{Op: "kubeconfig", Identity: id}, &issued); err != nil {
		return err
	}
	fmt.Println(issued.Kubeconfig)
	return nil
}

// kubectl executes the kubectl of the cluster's version, as the admin unless --kubeconfig is given. It overrides
// KUBECONFIG, which may name a production cluster.
func kubectl(ctx context.Context, args []string) error {
	name := ""
	if len(args) > 0 {
		// kubectl has no flag called name, so this flag is unambiguous.
		if rest, found := strings.CutPrefix(args[0], "--name="); found {
			name, args = rest, args[1:]
		}
	}
	var s cluster.Status
	if err := call(ctx, name, control.Request{Op: "status"}, &s); err != nil {
		return err
	}
	if err := os.Setenv("KUBECONFIG", s.Kubeconfig); err != nil {
		return err
	}
	return syscall.Exec(s.Binary, append([]string{"kubectl"}, args...), os.Environ())
}

// buildVersions builds without starting anything.
func buildVersions(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	version := fs.String("version", "", "Kubernetes `version`, or all (default "+build.DefaultVersion+")")
	if err := fs.Parse(args); err != nil {
		return err
	}
	versions := []string{*version}
	if *version == "all" {
		var err error
		if versions, err = build.Versions(source); err != nil {
			return err
		}
	}
	for _, v := range versions {
		v, err := build.ResolveVersion(source, v)
		if err != nil {
			return err
		}
		file, err := ensure(ctx, v)
		if err != nil {
			return err
		}
		fmt.Println(file)
	}
	return nil
}

// listVersions prints the available versions and which of them are built.
func listVersions(ctx context.Context, _ []string) error {
	b, err := newBuilder()
	if err != nil {
		return err
	}
	versions, err := build.Versions(source)
	if err != nil {
		return err
	}
	for _, v := range versions {
		file, built, err := b.Path(ctx, v)
		if err != nil {
			return err
		}
		if !built {
			file = "not built"
		}
		fmt.Printf("%s  %s\n", v, file)
	}
	return nil
}
