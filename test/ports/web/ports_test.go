// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package web runs the provider "web" of virtual-kubelet v0.10, which forwards each call to
// an HTTP server, with vkadapter and with virtual-kubelet's own node package, side by side.
package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"old.invalid/virtual-kubelet/providers/web"

	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/test/ports/internal/side"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// broker is a fake of the HTTP server that the provider calls. The provider has no client of
// its own, so the broker is the default transport of the process.
type broker struct {
	side.Cloud

	mu   sync.Mutex
	pods map[string]*corev1.Pod
}

func newBroker(t *testing.T) *broker {
	b := &broker{pods: map[string]*corev1.Pod{}}
	t.Setenv("WEB_ENDPOINT_URL", "http://broker.invalid")
	before := http.DefaultTransport
	http.DefaultTransport = b
	t.Cleanup(func() { http.DefaultTransport = before })
	return b
}

func (b *broker) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		sent, _ = io.ReadAll(r.Body)
	}
	switch err := b.Call(r.Context()); err {
	case nil:
	case side.ErrAway:
		return response(http.StatusInternalServerError, nil), nil
	default:
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name := r.URL.Query().Get("namespace") + "/" + r.URL.Query().Get("name")
	switch r.URL.Path {
	case "/createPod", "/updatePod", "/deletePod":
		var pod corev1.Pod
		if err := json.Unmarshal(sent, &pod); err != nil {
			return response(http.StatusBadRequest, err.Error()), nil
		}
		name = pod.Namespace + "/" + pod.Name
		had := b.pods[name]
		switch {
		case r.Method == http.MethodPost:
		case had == nil:
			return response(http.StatusNotFound, nil), nil
		case r.Method == http.MethodPut:
			pod.Status = had.Status
			b.pods[name] = &pod
			return response(http.StatusOK, nil), nil
		default:
			delete(b.pods, name)
			b.Stopped(name)
			return response(http.StatusOK, nil), nil
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}}
		b.pods[name] = &pod
		b.Started(name, string(pod.UID))
		return response(http.StatusOK, nil), nil
	case "/getPods":
		pods := []*corev1.Pod{}
		for _, pod := range b.pods {
			pods = append(pods, pod)
		}
		return response(http.StatusOK, pods), nil
	case "/getPod", "/getPodStatus":
		pod := b.pods[name]
		switch {
		case pod == nil:
			return response(http.StatusNotFound, nil), nil
		case r.URL.Path == "/getPod":
			return response(http.StatusOK, pod), nil
		}
		return response(http.StatusOK, pod.Status), nil
	}
	return response(http.StatusNotImplemented, nil), nil
}

func response(code int, body any) *http.Response {
	var sent []byte
	if body != nil {
		sent, _ = json.Marshal(body)
	}
	return &http.Response{
		StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Body: io.NopCloser(bytes.NewReader(sent)),
		ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
	}
}

// exit ends the containers of a pod with exit code 0.
func (b *broker) exit(pod string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	status := &b.pods["default/"+pod].Status
	status.Phase, status.ContainerStatuses[0].Ready = corev1.PodSucceeded, false
	status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now())}}
}

func process(t *testing.T) side.Process {
	provider, err := web.NewBrokerProvider(side.NodeName, "Linux", 10250)
	if err != nil {
		t.Fatal(err)
	}
	return func(nodeutil.ProviderConfig) node.PodLifecycleHandler { return provider }
}

func TestSideBySide(t *testing.T) {
	side.Compare(t, func(t *testing.T) *side.Port {
		b := newBroker(t)
		return &side.Port{Cloud: &b.Cloud, Process: process, Exit: b.exit, Silence: true}
	}, map[string][]string{
		side.Kubewright: side.Alive,
		// The pod that comes during the silence fails in some runs, though its instance runs. Two
		// processes create the pod "two" twice in some runs.
		side.VirtualKubelet: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 1 instances, at most 1 for a pod; new Failed ProviderFailed, web Running",
			"after two minutes of silence: 2 instances, at most 1 for a pod; late (Running|Failed NotFound), new Failed ProviderFailed, web Running",
			"after a minute without the API server, web ended: 2 instances, at most 1 for a pod; late (Running|Failed NotFound), new Failed ProviderFailed, web Succeeded",
			"with a second process: 3 instances, at most (1|2) for a pod; late (Running|Failed NotFound), new Failed ProviderFailed, two Running, web Succeeded",
			"deleted: 0 instances, at most (1|2) for a pod; ",
		},
	})
}
