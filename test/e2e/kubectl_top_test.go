// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKubectlTopShowsWhatMetricsServerReadsFromTheNode runs the metrics-server of
// module test/metricsserver, with its own manifests, beside examples/kubelet.
func TestKubectlTopShowsWhatMetricsServerReadsFromTheNode(t *testing.T) {
	busy(t)
	cluster := shared.Cluster(t)
	const module = "../metricsserver"
	build := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		var out, complaint bytes.Buffer
		cmd.Dir, cmd.Stdout, cmd.Stderr = module, &out, &complaint
		if err := cmd.Run(); err != nil {
			t.Fatalf("go %q: %v\n%s", args, err, &complaint)
		}
		return strings.TrimSpace(out.String())
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "metrics-server")
	build("build", "-o", binary, "sigs.k8s.io/metrics-server/cmd/metrics-server")
	manifests := filepath.Join(build("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/metrics-server"), "manifests", "base")

	r := newKubeletRig(t, cluster, "top-node")
	// Busy a tenth of the time or so, because other tests run beside this one.
	r.create("busy", corev1.RestartPolicyNever, "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.2; done", podRuns)

	// The API server finds metrics-server by a Service, which is an alias of this machine here.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"rbac.yaml", "apiservice.yaml"} {
		cluster.Kubectl(t, "apply", "-f", filepath.Join(manifests, file))
	}
	t.Cleanup(func() {
		// Other tests share the control plane, whose discovery would report an API
		// server that is away. The test's context is done.
		out, err := cluster.KubectlCommand(context.Background(), "delete", "--ignore-not-found", "-n", "kube-system", "apiservice/v1beta1.metrics.k8s.io", "service/metrics-server").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	_, err = r.client.CoreV1().Services("kube-system").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-server"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Kubectl(t, "patch", "apiservice/v1beta1.metrics.k8s.io", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"service":{"port":%d}}}`, port))

	kubeconfig := cluster.ServiceAccountKubeconfig(t, "kube-system", "metrics-server")
	startBinary(t, binary, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+dir, "--metric-resolution=10s", "--kubelet-request-timeout=5s",
		"--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-insecure-tls") // the node's certificate is self-signed

	// The usage of CPU is the difference of two scrapes.
	top := func(args ...string) (fields []string) {
		t.Helper()
		var out, complaint string
		for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Second) {
			var status int
			if out, complaint, status = r.kubectl(nil, append([]string{"top"}, args...)...); status == 0 && out != "" {
				return strings.Fields(out)
			}
		}
		t.Fatalf("kubectl top %q: %q %q", args, out, complaint)
		return nil
	}
	amount := func(text, unit string) (n int) {
		t.Helper()
		if _, err := fmt.Sscanf(text, "%d"+unit, &n); err != nil {
			t.Errorf("%q is no number of %s", text, unit)
		}
		return n
	}
	pod := top("pod", "busy", "--containers", "--no-headers")
	if len(pod) != 4 || pod[0] != "busy" || pod[1] != "c" {
		t.Fatalf("kubectl top pod: %q", pod)
	}
	if cpu, memory := amount(pod[2], "m"), amount(pod[3], "Mi"); cpu == 0 || cpu > 1100 || memory == 0 || memory > 100 {
		t.Errorf("a shell that is busy uses %q of CPU and %q of memory", pod[2], pod[3])
	}
	node := top("node", r.node, "--no-headers")
	if len(node) != 5 || node[0] != r.node {
		t.Fatalf("kubectl top node: %q", node)
	}
	if cpu, memory := amount(node[1], "m"), amount(node[3], "Mi"); cpu == 0 || memory < 50 || !strings.HasSuffix(node[2], "%") || !strings.HasSuffix(node[4], "%") {
		t.Errorf("the node uses %q", node)
	}
}
