// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// ready returns the status of the Node's Ready condition.
func ready(s *apitest.Server) corev1.ConditionStatus {
	if node := apitest.Get[*corev1.Node](s, "", "n1"); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status
			}
		}
	}
	return ""
}

func web() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "registry.example/web:1"}}},
	}
}

func phase(s *apitest.Server) corev1.PodPhase {
	if pod := apitest.Get[*corev1.Pod](s, "default", "web"); pod != nil {
		return pod.Status.Phase
	}
	return "gone"
}

const kubectlRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kubectl}
rules:
- {apiGroups: [""], resources: [nodes/log, nodes/healthz], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubectl}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kubectl}
subjects:
- {kind: ServiceAccount, namespace: kubewright, name: kubectl}
`

// The program as a user starts it, with the credentials of a node.
func TestKubelet(t *testing.T) {
	// The API server's own user has this role for kubectl; here a ServiceAccount has it.
	kubectl := filepath.Join(t.TempDir(), "kubectl.yaml")
	if err := os.WriteFile(kubectl, []byte(kubectlRole), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "rbac/nodeapi-clients.yaml", kubectl)
	program := startProgram(t, "--kubeconfig", kubeconfig(t, s, apitest.NodeUser("n1")), "--node-name", "n1", "--node-credentials", "--port", "0")
	eventually(t, s, "the node to be ready", func() bool { return ready(s) == corev1.ConditionTrue })
	node := apitest.Get[*corev1.Node](s, "", "n1")
	if pods, name := node.Status.Allocatable.Pods().Value(), node.Labels[corev1.LabelHostname]; pods != 110 || name != "n1" {
		t.Errorf("%d allocatable pods, host name %q; want 110 and n1", pods, name)
	}
	s.Put(web())
	eventually(t, s, "the pod to run", func() bool { return phase(s) == corev1.PodRunning })

	token := func(name string) string {
		s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
		s.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kubewright", Name: name}})
		issued, err := s.Client(apitest.User{}).CoreV1().ServiceAccounts("kubewright").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return issued.Status.Token
	}
	kubectlToken, scraperToken := token("kubectl"), token("scraper")
	address := regexp.MustCompile(`https://\S+`).FindString(program.Output())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	get := func(path, token string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status + " " + string(body)
	}
	for path, want := range map[string]string{
		"/containerLogs/default/web/main": "200 OK main pretends to run registry.example/web:1\n",
		"/healthz":                        "200 OK ok",
	} {
		if got := get(path, kubectlToken); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := get("/containerLogs/default/web/main", scraperToken); !strings.HasPrefix(got, "403 ") {
		t.Errorf("the log for Prometheus: %q", got)
	}
	metrics := get("/metrics", scraperToken)
	for _, want := range []string{
		`kubewright_lease_nodes{phase="Held"} 1`, `kubewright_podsync_pods{stage="Running"} 1`,
		`kubewright_healthy{controller="podsync"} 1`, "kubewright_nodeapi_certificate_expiry_seconds",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in %s", want, metrics)
		}
	}

	if err := s.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, s, "the pod to be gone", func() bool { return phase(s) == "gone" })
	if err := program.Stop(); err != nil {
		t.Error(err)
	}
	if got := ready(s); got != corev1.ConditionFalse {
		t.Errorf("after its end the node is Ready=%s", got)
	}
	nothingRefused(t, s)
}

func TestWrongArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	for args, want := range map[string]string{
		"":                          "set --kubeconfig",
		"--node-ip=here":            `--node-ip: "here" is not an IP address`,
		"--kubeconfig=none":         "none: no such file",
		"--node-name=n1 unexpected": `unexpected argument "unexpected"`,
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
