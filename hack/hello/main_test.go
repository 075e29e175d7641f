// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubewright/kubewright/apitest"
)

func TestAClientIsTheUserThatItsCertificateNames(t *testing.T) {
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	url, shutdown, err := serve(ca)
	if err != nil {
		t.Fatal(err)
	}
	defer shutdown()
	path := t.TempDir() + "/kubeconfig"
	if err := writeKubeconfig(path, ca, url, apitest.NodeUser(nodeName)); err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a node reads its own Node: %v, want 404", err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node deletes a namespace: %v, want 403", err)
	}

	other, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	cfg.CertData, cfg.KeyData, err = other.issue(apitest.User{})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a certificate of another authority is accepted")
	}
}
