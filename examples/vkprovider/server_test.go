// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"

	"github.com/kubewright/kubewright/nodeapi"
)

var webContainer = nodeapi.Container{Pod: nodeapi.Pod{Namespace: "default", Name: "web", UID: "1"}, Name: "c"}

func TestAdaptedProviderHasEveryCapability(t *testing.T) {
	cloud := newCloud("vk")
	pod := newPod("web", "1")
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}}}
	if err := cloud.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	backend := AdaptServer(cloud)
	all := corev1.LogStreamAll
	for want, opts := range map[string]nodeapi.LogOptions{
		"container c of image i\nA=1\nB=2\n": {},
		"B=2\n":                              {TailLines: new(int64(1))},
		"":                                   {TailLines: new(int64(0))},
		"cont":                               {LimitBytes: new(int64(4))},
	} {
		opts.Stream = &all
		reader, err := backend.(nodeapi.LogSource).Logs(t.Context(), webContainer, opts)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(reader); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	var out bytes.Buffer
	if err := backend.(nodeapi.Executor).Exec(t.Context(), webContainer, []string{"a", "b"}, nodeapi.Streams{Stdout: &out}); err != nil || out.String() != "default/web/c: a b\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	if err := backend.(nodeapi.Attacher).Attach(t.Context(), webContainer, nodeapi.Streams{Stdin: strings.NewReader("x\ny\n"), Stdout: &out}); err != nil || out.String() != "x\ny\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	summary, err := backend.(nodeapi.StatsSource).StatsSummary(t.Context())
	if err != nil || len(summary.Pods) != 1 || len(summary.Pods[0].Containers) != 1 || summary.Node.NodeName != "vk" {
		t.Errorf("%+v, %v", summary, err)
	}
	families, err := backend.(nodeapi.MetricsSource).MetricsResource(t.Context())
	if err != nil || len(families) != 3 {
		t.Errorf("%v, %v", families, err)
	}
}

func TestErrorsOfAProviderGetTheirStatus(t *testing.T) {
	all := corev1.LogStreamAll
	_, err := AdaptServer(newCloud("vk")).(nodeapi.LogSource).Logs(t.Context(), webContainer, nodeapi.LogOptions{Stream: &all})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `"default/web" not found`) {
		t.Errorf("a pod that is not there: %v", err)
	}
	bare := AdaptServer(silent{newCloud("vk")})
	if _, ok := bare.(nodeapi.MetricsSource); ok {
		t.Error("a provider without GetMetricsResource has metrics of its own")
	}
	err = bare.(nodeapi.Executor).Exec(t.Context(), webContainer, []string{"a"}, nodeapi.Streams{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != 501 || !strings.Contains(err.Error(), "RunInContainer") {
		t.Errorf("a method that is not there: %v", err)
	}
}

func TestTerminalSizesReachTheProvider(t *testing.T) {
	sizes := make(chan nodeapi.TerminalSize, 1)
	sizes <- nodeapi.TerminalSize{Width: 80, Height: 24}
	close(sizes)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	io := newAttachIO(ctx, nodeapi.Streams{TTY: true, Resize: sizes})
	if got := <-io.Resize(); got != (vkapi.TermSize{Width: 80, Height: 24}) {
		t.Errorf("%v", got)
	}
	if got, more := <-io.Resize(); more {
		t.Errorf("%v after the end", got)
	}
	if io.Stdin() != nil || io.Stdout() != nil || io.Stderr() != nil {
		t.Error("a stream that the client did not ask for is not nil")
	}
}
