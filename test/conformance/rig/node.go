// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A Kubelet is the process of a kubelet.
type Kubelet struct {
	Name string
	// Dir has its files and its log.
	Dir     string
	cluster *harness.Cluster
	program string
	args    []string
	cmd     *exec.Cmd
	exited  chan struct{}
}

// BuildCrikubelet builds examples/crikubelet.
func BuildCrikubelet(t testing.TB) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "crikubelet")
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the kubelet is built, see BuildKubelet
	cmd.Dir = "../../examples/crikubelet"
	if _, err := os.Stat(cmd.Dir); err != nil { // a test below another directory
		cmd.Dir = "../" + cmd.Dir
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build examples/crikubelet: %v\n%s", err, text)
	}
	return out
}

// Crikubelet starts examples/crikubelet as a node of a cluster.
func Crikubelet(t testing.TB, program string, c *harness.Cluster, r *Runtime, name string, args ...string) *Kubelet {
	t.Helper()
	k := newKubelet(t, c, r, program, name)
	k.args = append([]string{
		"--kubeconfig", c.NodeKubeconfig(t, name), "--node-name", name, "--node-credentials",
		"--container-runtime-endpoint", r.Endpoint(), "--root-dir", filepath.Join(k.Dir, "root"),
		"--cgroup-parent", r.CgroupParent(), "--plugin-registry-dir", r.Plugins(), "--port=0", "--min-free-disk=0", "--max-pods", strconv.Itoa(MaxPods), "--image-gc-high=0", "-v=2",
	}, args...)
	k.Start(t)
	return k
}

// MaxPods is the number of pods that a node takes.
const MaxPods = 250

// kubeletConfiguration is the configuration with which the kubelet of Kubernetes runs
// in one folder, without the limits that need a machine of its own.
const kubeletConfiguration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %[3]d
healthzPort: 0
containerRuntimeEndpoint: %[1]s
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
podLogsDir: %[2]s/logs
maxPods: %[4]d
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
serverTLSBootstrap: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: "1%%", imagefs.available: "1%%", nodefs.inodesFree: "1%%"}
`

// RealKubelet starts the kubelet of Kubernetes as a node of a cluster.
func RealKubelet(t testing.TB, program string, c *harness.Cluster, r *Runtime, name string, port int) *Kubelet {
	t.Helper()
	k := newKubelet(t, c, r, program, name)
	config := filepath.Join(k.Dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeletConfiguration, r.Endpoint(), k.Dir, port, MaxPods), 0o600); err != nil {
		t.Fatal(err)
	}
	k.args = []string{
		"--kubeconfig", c.NodeKubeconfig(t, name), "--hostname-override", name, "--node-ip", "127.0.0.1", "--config", config,
		"--root-dir", filepath.Join(k.Dir, "root"), "--cert-dir", filepath.Join(k.Dir, "pki"),
	}
	k.Start(t)
	return k
}

func newKubelet(t testing.TB, c *harness.Cluster, r *Runtime, program, name string) *Kubelet {
	t.Helper()
	k := &Kubelet{Name: name, Dir: filepath.Join(r.Dir, "node-"+name), cluster: c, program: program}
	if err := os.MkdirAll(k.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

// Log is the path of the kubelet's log.
func (k *Kubelet) Log() string { return filepath.Join(k.Dir, "kubelet.log") }

// PID is the process ID.
func (k *Kubelet) PID() int { return k.cmd.Process.Pid }

// Start starts the process. It ends with this one.
func (k *Kubelet) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(k.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	k.cmd = exec.Command(k.program, k.args...)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	if k.exited, err = start(k.cmd); err != nil {
		t.Fatal(err)
	}
}

// Kill kills the process with SIGKILL.
func (k *Kubelet) Kill() {
	_ = k.cmd.Process.Kill()
	<-k.exited
}

// Stop ends the process.
func (k *Kubelet) Stop() {
	_ = k.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-k.exited:
	case <-time.After(20 * time.Second):
		k.Kill()
	}
}

// AwaitReady waits until the Node is ready.
func (k *Kubelet) AwaitReady(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		node, err := client.CoreV1().Nodes().Get(t.Context(), k.Name, metav1.GetOptions{})
		if err == nil {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return
				}
			}
		}
		select {
		case <-k.exited:
			log, _ := os.ReadFile(k.Log())
			t.Fatalf("the kubelet of node %s has ended: %s", k.Name, log)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %s is not ready: %v; its log is %s", k.Name, err, k.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}
