// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package web runs the provider "web" of virtual-kubelet v0.10, which forwards each call to
// an HTTP server, with vkadapter and with virtual-kubelet's own node package, side by side.
package web

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"old.invalid/virtual-kubelet/providers/web"

	"github.com/kubewright/kubewright/test/ports/internal/side"
)

func TestMain(m *testing.M) { side.Main(m, newProcess) }

// broker is a fake of the HTTP server that the provider calls.
type broker struct {
	side.Cloud

	mu   sync.Mutex
	pods map[string]*corev1.Pod
}

func newPort() *side.Port {
	b := &broker{pods: map[string]*corev1.Pod{}}
	b.Handler = http.HandlerFunc(b.serve)
	return &side.Port{
		Cloud: &b.Cloud, New: newProcess, Exit: b.exit,
		Env: func(url string) map[string]string { return map[string]string{"WEB_ENDPOINT_URL": url} },
	}
}

func newProcess() (side.Process, error) {
	provider, err := web.NewBrokerProvider(side.NodeName, "Linux", 10250)
	if err != nil {
		return nil, err
	}
	return func(nodeutil.ProviderConfig) node.PodLifecycleHandler { return provider }, nil
}

func (b *broker) serve(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	query := r.URL.Query()
	name := query.Get("namespace") + "/" + query.Get("name")
	pod := b.pods[name]
	var answer any
	switch r.URL.Path {
	case "/createPod", "/updatePod", "/deletePod":
		var sent corev1.Pod
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !b.change(r.Method, &sent) {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	case "/getPods":
		answer = slices.Collect(maps.Values(b.pods))
	case "/getPod":
		answer = pod
	case "/getPodStatus":
		if pod != nil {
			answer = pod.Status
		}
	case "/getContainerLogs":
		pod = b.pods[query.Get("namespace")+"/"+query.Get("podName")]
		if tail, err := strconv.Atoi(query.Get("tail")); pod != nil && err == nil {
			_, _ = io.WriteString(w, logOf(pod.Namespace, pod.Name, query.Get("containerName"), tail))
			return
		}
	}
	if pod == nil && r.URL.Path != "/getPods" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// change creates, updates or deletes a pod. It reports whether the pod exists.
func (b *broker) change(method string, pod *corev1.Pod) bool {
	name := pod.Namespace + "/" + pod.Name
	had := b.pods[name]
	switch {
	case method == http.MethodPost:
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}}
		b.pods[name] = pod
		b.Started(name, string(pod.UID))
	case method == http.MethodDelete:
		delete(b.pods, name)
		b.Stopped(name)
		return had != nil
	case had == nil:
		return false
	default:
		pod.Status = had.Status
		b.pods[name] = pod
	}
	return true
}

// logOf returns the last lines of a log, or all for 0.
func logOf(namespace, pod, container string, tail int) string {
	lines := strings.SplitAfter(fmt.Sprintf("started %s/%s\ncontainer %s\nready\n", namespace, pod, container), "\n")[:3]
	if tail > 0 {
		lines = lines[max(0, len(lines)-tail):]
	}
	return strings.Join(lines, "")
}

// exit ends the containers of a pod with exit code 0.
func (b *broker) exit(pod string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	status := &b.pods["default/"+pod].Status
	status.Phase, status.ContainerStatuses[0].Ready = corev1.PodSucceeded, false
	status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now())}}
}

func TestSideBySide(t *testing.T) {
	side.Compare(t, newPort, map[string][]string{
		side.Kubewright: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 2 instances, at most 1 for a pod; new Running, web Running",
			"after two minutes of silence: 3 instances, at most 1 for a pod; late Running, new Running, web Running",
			"after two minutes of empty answers: 4 instances, at most 1 for a pod; late Running, new Running, void Running, web Running",
			"after a minute without the API server, web ended: 4 instances, at most 1 for a pod; late Running, new Running, void Running, web Succeeded",
			"with a second process: 5 instances, at most 1 for a pod; late Running, new Running, two Running, void Running, web Succeeded",
			"deleted: 0 instances, at most 1 for a pod; ",
		},
		// Two processes create the pod "two" twice in some runs.
		side.VirtualKubelet: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 1 instances, at most 1 for a pod; new Failed ProviderFailed, web Running",
			"after two minutes of silence: 1 instances, at most 1 for a pod; late Failed ProviderFailed, new Failed ProviderFailed, web Running",
			"after two minutes of empty answers: 1 instances, at most 1 for a pod; late Failed ProviderFailed, new Failed ProviderFailed, void Failed NotFound, web Running",
			"after a minute without the API server, web ended: 1 instances, at most 1 for a pod; late Failed ProviderFailed, new Failed ProviderFailed, void Failed NotFound, web Succeeded",
			"with a second process: 2 instances, at most (1|2) for a pod; late Failed ProviderFailed, new Failed ProviderFailed, two Running, void Failed NotFound, web Succeeded",
			"deleted: 0 instances, at most (1|2) for a pod; ",
		},
	})
}

func TestKilled(t *testing.T) {
	side.Killed(t, newPort, map[string]side.Stages{side.Kubewright: side.AliveKilled, side.VirtualKubelet: side.AliveKilled})
}

func TestAnswers(t *testing.T) {
	all := logOf("default", "web", "main", 0)
	side.Answers(t, newPort(), []side.Question{
		{Path: "/containerLogs/default/web/main", Kubewright: "200 " + all},
		{Path: "/containerLogs/default/web/main?tailLines=1", Kubewright: "200 ready\n"},
		{Path: "/containerLogs/default/web/main?tailLines=0", Kubewright: "200 ", VirtualKubelet: "200 " + all},
		{Path: "/containerLogs/default/web/main?tailLines=-1", Kubewright: "422 tailLines: Invalid value: -1: must be greater than or equal to 0\n", VirtualKubelet: "400 \"tailLines\" is -1"},
		{Path: "/containerLogs/default/web/main?limitBytes=5", Kubewright: "200 start", VirtualKubelet: "200 " + all},
		{Path: "/containerLogs/default/web/none", Kubewright: "404 container \"none\" is not in pod default/web, which has: main\n", VirtualKubelet: "200 " + logOf("default", "web", "none", 0)},
		{Path: "/containerLogs/default/none/main", Kubewright: "404 pod default/none is not on node \"port\"\n", VirtualKubelet: "404 error getting container logs?): 404 Not Found"},
		{Path: "/exec/default/web/main?command=hello", Kubewright: ""},
		{
			Path:           "/attach/default/web/main",
			Kubewright:     "error: Internal error occurred: error attaching to container: " + side.NoMethod("AttachToContainer"),
			VirtualKubelet: "error: unable to upgrade connection: 501 not implemented",
		},
		{Path: "/stats/summary", Kubewright: "501 " + side.NoMethod("GetStatsSummary") + "\n", VirtualKubelet: "404 404 request not found\n"},
		{Path: "/metrics/resource", Kubewright: "200 " + side.NoMetrics, VirtualKubelet: "404 404 request not found\n"},
	})
}
