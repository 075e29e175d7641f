// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package vksuite runs the end-to-end tests that virtual-kubelet offers to the
// authors of providers against examples/vkprovider, on a real control plane. It is
// a module of its own because of its requirements.
package vksuite

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	vk "github.com/virtual-kubelet/virtual-kubelet/test/e2e"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

const (
	nodeName  = "vk"
	namespace = "suite"
	// podAddress is the address of a pod that stands for the node. The API server
	// connects to it through the proxy of this test only.
	podAddress = "192.0.2.1:10250"
	// nodeIP is the address of the Node: the API server does not proxy to a loopback
	// address either.
	nodeIP   = "192.0.2.2"
	patience = 2 * time.Minute
)

func TestVirtualKubeletsSuitePassesWhole(t *testing.T) {
	if !harness.Enabled() {
		t.Skip("needs a real control plane: KUBEWRIGHT_E2E=1")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "egress.sock")
	cluster := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{
		harness.APIServer: {"--egress-selector-config-file=" + egressConfig(t, dir, socket)},
	}})
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	for _, file := range []string{"serviceaccount", "lease", "nodestatus", "podsync", "podenv", "nodeapi", "nodeapi-clients"} {
		cluster.Kubectl(t, "apply", "-f", "../../examples/rbac/"+file+".yaml")
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Kubectl(t, "wait", "-n", namespace, "--for=create", "--timeout=90s", "serviceaccount/default")

	startProvider(t, dir, cluster)
	port := awaitPort(t, client)
	nodeAddress := net.JoinHostPort("127.0.0.1", port)
	token := cluster.ServiceAccountConfig(t, "kubewright", "scraper").BearerToken // of nodeapi-clients.yaml
	serveEgress(t, socket, map[string]string{
		podAddress:                     serveWithToken(t, nodeAddress, token),
		net.JoinHostPort(nodeIP, port): nodeAddress,
	})
	makeNodePod(t, client)

	vk.NewEndToEndTestSuite(vk.EndToEndTestSuiteConfig{
		Kubeconfig: cluster.AdminKubeconfig(), Namespace: namespace, NodeName: nodeName, WatchTimeout: patience,
	}).Run(t)
}

// startProvider runs examples/vkprovider with the permissions of examples/rbac.
func startProvider(t *testing.T, dir string, cluster *harness.Cluster) {
	t.Helper()
	binary := filepath.Join(dir, "vkprovider")
	if out, err := exec.Command("go", "build", "-C", "../../examples/vkprovider", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build examples/vkprovider: %v\n%s", err, out)
	}
	output, err := os.Create(filepath.Join(dir, "vkprovider.log"))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node")
	cmd := exec.Command(binary, "--kubeconfig="+kubeconfig, "--node-name="+nodeName, "--node-ip="+nodeIP, "--address=127.0.0.1:0", "--lock-dir="+dir)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the provider ended with %v", err)
		}
		_ = output.Close()
		if t.Failed() {
			log, _ := os.ReadFile(output.Name())
			t.Logf("the provider printed:\n%s", log)
		}
	})
}

// awaitPort waits for the Node and returns the port that it serves.
func awaitPort(t *testing.T, client kubernetes.Interface) (port string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil || node.Status.DaemonEndpoints.KubeletEndpoint.Port == 0 {
			return false, nil // not registered yet
		}
		port = fmt.Sprint(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
		return true, nil
	})
	if err != nil {
		t.Fatalf("the Node does not report its port: %v", err)
	}
	return port
}

// makeNodePod makes the pod through which the suite reads stats: it asks the API
// server for the port 10250 of a pod with the name of the node. The pod is never
// scheduled.
func makeNodePod(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods := client.CoreV1().Pods(namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "kubewright.dev/address-only"}},
			Containers:      []corev1.Container{{Name: "none", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(podAddress)
	pod.Status.PodIP, pod.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// serveWithToken serves a proxy that adds a token to requests for the node, because
// the API server sends no credentials to pods. It returns its address.
func serveWithToken(t *testing.T, nodeAddress, token string) string {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: nodeAddress})
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	server := httptest.NewTLSServer(proxy)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// egressConfig writes the configuration by which the API server connects to nodes
// and pods through a socket.
func egressConfig(t *testing.T, dir, socket string) string {
	t.Helper()
	path := filepath.Join(dir, "egress.yaml")
	config := `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
  - name: cluster
    connection:
      proxyProtocol: HTTPConnect
      transport: {uds: {udsName: ` + socket + `}}
`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveEgress is the proxy behind the socket. It connects to the addresses in
// instead rather than to those that are asked for.
func serveEgress(t *testing.T, socket string, instead map[string]string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go connect(conn, instead)
		}
	}()
}

// connect serves one CONNECT request.
func connect(client net.Conn, instead map[string]string) {
	defer func() { _ = client.Close() }()
	buffered := bufio.NewReader(client)
	req, err := http.ReadRequest(buffered)
	if err != nil || req.Method != http.MethodConnect {
		return
	}
	address := req.RequestURI
	if other, ok := instead[address]; ok {
		address = other
	}
	upstream, err := net.Dial("tcp", address)
	if err != nil {
		_, _ = io.WriteString(client, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer func() { _ = upstream.Close() }()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(upstream, buffered)
		_ = upstream.Close()
	}()
	_, _ = io.Copy(client, upstream)
}
