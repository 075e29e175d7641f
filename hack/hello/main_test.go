// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	cfg.CertData, cfg.KeyData, err = other.issue(administrator)
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

// TestHello runs hello with examples/kubelet, in real time: a Lease is renewed
// after ten seconds.
func TestHello(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles examples/kubelet")
	}
	// go test repeats this test if a file that it reads has changed, not if one
	// has that the compiler reads.
	if err := filepath.WalkDir(filepath.Join("..", ".."), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".git") {
			return filepath.SkipDir
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	build := exec.Command("go", "build", "-o", kubelet, ".")
	build.Dir = filepath.Join("..", "..", "examples", "kubelet")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("prints each step", func(t *testing.T) { testSteps(t, kubelet) })
	t.Run("leaves no process after an interrupt", func(t *testing.T) { testInterrupt(t, kubelet) })
}

func testSteps(t *testing.T, kubelet string) {
	var out bytes.Buffer
	if err := run(t.Context(), kubelet, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"Node hello is Ready", "Lease hello is held by hello", "Pod hello is Running", "hello from process ",
		"Lease hello is renewed", "Pod hello is gone, and so is its process", "the node has ended cleanly",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("hello did not print %q:\n%s", want, &out)
		}
	}
}

// An untilRunning interrupts hello as soon as it prints that the pod runs.
type untilRunning struct {
	bytes.Buffer
	interrupt func()
}

func (o *untilRunning) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("is Running")) {
		o.interrupt()
	}
	return o.Buffer.Write(p)
}

func testInterrupt(t *testing.T, kubelet string) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	out := &untilRunning{interrupt: cancel}
	if err := run(ctx, kubelet, out); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted hello returns %v, want %v:\n%s", err, context.Canceled, out)
	}
	if !strings.Contains(out.String(), "is Running") || !strings.Contains(out.String(), "Pod hello is gone") {
		t.Errorf("the pod did not run, or is not removed; hello printed:\n%s", out)
	}
	// The shim of a container has its folder in its command line.
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(os.TempDir()+"/")) {
			t.Errorf("%s is left: %q", path, line)
		}
	}
}

func TestANodeThatExitsEndsHelloAtOnce(t *testing.T) {
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(kubelet, []byte("#!/bin/sh\necho the disk is full\nexit 7\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), kubelet, &out)
	for _, want := range []string{"exit status 7", "the disk is full"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
