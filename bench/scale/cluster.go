// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a control plane on loopback, run by the program in
// test/controlplane.
type cluster struct {
	Version    string      `json:"version"`
	Kubeconfig string      `json:"kubeconfig"`
	AuditLog   string      `json:"auditLog"`
	Components []component `json:"components"`

	launcher string // the path of the program
	name     string
	cmd      *exec.Cmd
	stdin    io.Closer // the control plane ends when it is closed
	client   *kubernetes.Clientset
}

// component is a process of a control plane.
type component struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
}

// startCluster starts etcd, an API server and a controller manager. There is no
// scheduler, because each pod is created with its node.
func startCluster(ctx context.Context, launcher, name string) (*cluster, error) {
	c := &cluster{launcher: launcher, name: name}
	c.cmd = exec.CommandContext(ctx, launcher, "up", "--name="+name, "--audit", "--without=kube-scheduler")
	c.cmd.Stderr = os.Stderr // the first start builds Kubernetes and reports its progress
	c.cmd.Cancel = func() error { return c.stdin.Close() }
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	var answer struct {
		Error  string          `json:"error"`
		Result json.RawMessage `json:"result"`
	}
	err = json.NewDecoder(stdout).Decode(&answer)
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err == nil {
		err = json.Unmarshal(answer.Result, c)
	}
	if err == nil {
		c.client, err = adminClient(c.Kubeconfig)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a control plane: %w", err), c.stop())
	}
	return c, nil
}

// stop stops the control plane and removes its files.
func (c *cluster) stop() error {
	_ = c.stdin.Close() // or it is already closed
	return c.cmd.Wait()
}

// adminClient returns a client that uses protobuf and has no rate limit. It
// must be cheap, because it shares the CPU with the measured programs.
func adminClient(kubeconfig string) (*kubernetes.Clientset, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.UserAgent = driverAgent
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.DisableCompression = true
	return kubernetes.NewForConfig(cfg)
}

// driverAgent is the user agent of this program.
const driverAgent = "kubewright-scale"

// apply applies manifests: paths, or "-" for stdin.
func (c *cluster) apply(ctx context.Context, stdin string, paths ...string) error {
	args := []string{"kubectl", "--name=" + c.name, "apply"}
	for _, path := range paths {
		args = append(args, "--filename="+path)
	}
	cmd := exec.CommandContext(ctx, c.launcher, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return quietly(cmd)
}

// serviceAccount returns the path of a kubeconfig file for a ServiceAccount.
func (c *cluster) serviceAccount(ctx context.Context, namespacedName string) (string, error) {
	out, err := exec.CommandContext(ctx, c.launcher, "kubeconfig", "--name="+c.name, "--serviceaccount="+namespacedName).Output()
	if err != nil {
		return "", fmt.Errorf("credentials of %s: %w", namespacedName, err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// pid returns the process of a component.
func (c *cluster) pid(name string) int {
	for _, component := range c.Components {
		if component.Name == name {
			return component.PID
		}
	}
	return 0
}

// quietly runs a command and returns its output if it fails.
func quietly(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(strings.Join(cmd.Args, " ")), err, out)
	}
	return nil
}

// repository returns the directory of the root module.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "examples", "fleet")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run this in the bench module of the repository")
		}
	}
}
