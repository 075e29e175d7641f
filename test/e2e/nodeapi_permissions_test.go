// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// TestPermissionsOfTheNodeAPI runs examples/vkprovider with the manifests of
// examples/rbac, and without those of package nodeapi at first.
func TestPermissionsOfTheNodeAPI(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	applyManifests(t, cluster, "lease.yaml", "nodestatus.yaml", "podsync.yaml", "podenv.yaml")
	for _, file := range []string{"nodeapi.yaml", "nodeapi-clients.yaml"} { // of an earlier run
		cluster.Kubectl(t, "delete", "--ignore-not-found", "-f", "../../examples/rbac/"+file)
	}
	const name = "permissions-node"
	program := startBinary(t, buildExample(t, "vkprovider"), "--kubeconfig="+cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"), "--node-name="+name, "--address=127.0.0.1:0")
	node := awaitNode(t, client, name, "ready and serving", func(n *corev1.Node) bool {
		return isReady(n) && n.Status.DaemonEndpoints.KubeletEndpoint.Port != 0
	})
	url := fmt.Sprintf("https://127.0.0.1:%d", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	token := cluster.ServiceAccountConfig(t, "kubewright", "scraper").BearerToken
	nodes := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}
	defer nodes.CloseIdleConnections()

	// await sends requests until the answer is as wanted: the authorizer of the API
	// server, and the caches of the node, learn of a change later.
	await := func(what, path string, code int, sentence string) {
		t.Helper()
		var got string
		for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Second) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := nodes.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if got = fmt.Sprintf("%d %s", resp.StatusCode, body); resp.StatusCode == code && strings.Contains(string(body), sentence) {
				return
			}
		}
		t.Fatalf("%s: %s, want %d %s", what, got, code, sentence)
	}
	await("without nodeapi.yaml", "/metrics/resource", 503, "the node could not check the bearer token of this request")
	applyManifests(t, cluster, "nodeapi.yaml") // no other test does
	// The node keeps a refusal for half a minute, so the next request has another path.
	await("without nodeapi-clients.yaml", "/stats/summary", 403, `may not get nodes/stats of node "permissions-node"`)
	applyManifests(t, cluster, "nodeapi-clients.yaml")
	await("with both", "/metrics/resource", 200, "node_cpu_usage_seconds_total")
	program.stop() // and its output is complete
	program.mu.Lock()
	out := program.out.String()
	program.mu.Unlock()
	if !strings.Contains(out, "Bearer tokens could not be checked") || !strings.Contains(out, `cannot create resource \"tokenreviews\"`) {
		t.Error("the program has not said that it lacks a permission")
	}
	for _, event := range refusals(t, cluster, serviceAccount, "vkprovider") {
		if !strings.Contains(event.URI, "tokenreviews") {
			t.Errorf("the manifests do not allow %v", event)
		}
	}
}
