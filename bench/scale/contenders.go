// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"

	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
)

// kwokVersion is the version in go.mod.
const kwokVersion = "v0.8.0"

// The contenders.
const (
	ours   = "kubewright"
	theirs = "kwok"
)

// contender is a program that simulates nodes and their pods.
type contender struct {
	what string // its name in the report
	// registers is true for a program that registers its Nodes, registers them
	// again after they were deleted, and deletes them when it ends.
	registers bool
	agent     string // a substring of all its user agents
	account   string // its ServiceAccount
	// build returns the path of the executable.
	build func(ctx context.Context, env *environment) (string, error)
	// grant gives the ServiceAccount its permissions.
	grant func(ctx context.Context, env *environment, c *cluster) error
	// arguments returns the arguments of the program, which must serve pprof at
	// address.
	arguments func(env *environment, o options, kubeconfig, address string) ([]string, error)
}

// environment holds the directories of a run.
type environment struct {
	repo string // the root module
	temp string // for executables and configuration; removed at the end
	out  string // for the output of the programs
}

var contenders = map[string]contender{
	ours: {
		what:      "examples/fleet of this work tree",
		registers: true,
		agent:     "kubewright-examples/fleet",
		account:   "kubewright/virtual-node",
		build:     buildFleet,
		grant:     grantFleet,
		arguments: fleetArguments,
	},
	theirs: {
		what:      "kwok " + kwokVersion,
		agent:     "kwok",
		account:   "kube-system/kwok-controller",
		build:     buildKwok,
		grant:     grantKwok,
		arguments: kwokArguments,
	},
}

func buildFleet(ctx context.Context, env *environment) (string, error) {
	path := filepath.Join(env.temp, "fleet")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", "examples/fleet", "-o", path, ".")
	cmd.Dir = env.repo
	return path, quietly(cmd)
}

// unregister lets the fleet delete its Nodes at the end, which the manifests of
// the examples don't allow.
//
//go:embed unregister.yaml
var unregister string

func grantFleet(ctx context.Context, env *environment, c *cluster) error {
	var paths []string
	for _, name := range []string{"serviceaccount", "lease", "nodestatus", "podsync", "flowschema"} {
		paths = append(paths, filepath.Join(env.repo, "examples", "rbac", name+".yaml"))
	}
	return c.apply(ctx, unregister, append(paths, "-")...)
}

func fleetArguments(_ *environment, o options, kubeconfig, address string) ([]string, error) {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--nodes=" + strconv.Itoa(o.Nodes),
		"--node-prefix=" + nodePrefix,
		"--unregister",
		"--pprof-address=" + address,
	}, nil
}

// buildKwok builds the command with the requirements of its own module, like a
// release.
func buildKwok(ctx context.Context, env *environment) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "install", "sigs.k8s.io/kwok/cmd/kwok@"+kwokVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+env.temp, "GOFLAGS=")
	return filepath.Join(env.temp, "kwok"), quietly(cmd)
}

func grantKwok(ctx context.Context, env *environment, c *cluster) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok@"+kwokVersion)
	cmd.Dir = filepath.Join(env.repo, "bench")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find kwok's manifests: %w", err)
	}
	var paths []string
	for _, name := range []string{"service_account", "role", "role_binding", "flow_schema"} {
		paths = append(paths, filepath.Join(strings.TrimSpace(string(out)), "kustomize", "rbac", name+".yaml"))
	}
	return c.apply(ctx, "", paths...)
}

// kwokOptions is kwok's configuration. It differs from that in its manifests:
// stages come from a file instead of custom resources, kwok manages all Nodes
// instead of annotated ones, there are addresses for more than 256 pods, and
// profiles are served.
const kwokOptions = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  enableDebuggingHandlers: true
  enableProfilingHandler: true
  enablePodsOnNodeSyncListPager: false
  enablePodsOnNodeSyncStreamWatch: true
  nodeLeaseParallelism: 4
  podPlayStageParallelism: 4
  nodePlayStageParallelism: 4
  cidr: 10.0.0.0/8
  nodeIP: 10.0.0.1
  manageAllNodes: true
  nodeLeaseDurationSeconds: 40
`

func kwokArguments(env *environment, _ options, kubeconfig, address string) ([]string, error) {
	// These are the stages of kwok's kustomize/stage/fast.
	stages := []string{nodefast.DefaultNodeInit, nodeheartbeat.DefaultNodeHeartbeatWithLease, podfast.DefaultPodReady, podfast.DefaultPodComplete, podfast.DefaultPodDelete}
	path := filepath.Join(env.temp, "kwok.yaml")
	content := strings.Join(append([]string{kwokOptions}, stages...), "\n---\n")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--config=" + path,
		"--server-address=" + address,
		"--v=WARN", // otherwise a line for each renewal and each pod
	}, os.WriteFile(path, []byte(content), 0o600)
}
