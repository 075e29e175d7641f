// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const manifest = `# a comment
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: widgets, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
`

// TestRun starts the program and uses it through its kubeconfig.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "m.yaml"), filepath.Join(dir, "k")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--load", file, "--kubeconfig", kubeconfig, "--fault", "409 @ delete pods default/p #1"}, out)
		out.Close()
	}()
	line := make([]byte, 200)
	if n, err := ready.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "serving on http://127.0.0.1:") {
		t.Fatalf("%s, %v, %v", line[:n], err, <-done)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(cfg)
	pods := client.CoreV1().Pods("default")
	p, err := pods.Get(ctx, "p", metav1.GetOptions{})
	if err != nil || p.Status.Phase != "Running" {
		t.Errorf("the pod: %v, %v", p, err)
	}
	if b, err := client.RESTClient().Get().AbsPath("/apis/example.com/v1/widgets/w").DoRaw(ctx); err != nil {
		t.Errorf("the custom resource: %s, %v", b, err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the first deletion: %v", err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the second deletion: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"--fault", "409"}, {"--fault", "crash before @ get pods"}, {"--fault", "409 @ web: get pods"}, {"--load", "absent"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
