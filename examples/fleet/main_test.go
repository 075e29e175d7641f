// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

var fleetUser = apitest.ServiceAccountUser("kubewright", "virtual-node")

func TestFleetIsRegisteredAndRenewed(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml")
	probes := exampletest.FreeAddress(t)
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--probe-address", probes, "--nodes", "200", "--report-interval", "100ms")
	exampletest.Eventually(t, s, "200 nodes and leases", func() bool {
		return len(s.Requests(apitest.Match{Verb: "create", Resource: "leases"})) == 200
	})
	exampletest.Eventually(t, s, "the progress line", func() bool {
		return strings.Contains(program.Output(), "200 of 200 nodes registered")
	})
	exampletest.Has(t, probes, "/metrics", "kubewright_lease_", "kubewright_nodestatus_", "kubewright_podsync_", `kubewright_healthy{controller="podsync"} 1`)
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if n := len(apitest.List[*corev1.Node](s, "")); n != 200 {
		t.Errorf("%d nodes are left, want all 200", n)
	}
	exampletest.NothingRefused(t, s)
}

// The second process asks for no lease while the first one lives.
func TestASecondFleetOfTheMachineWaits(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml")
	kubeconfig, locks := exampletest.Kubeconfig(t, s, fleetUser), t.TempDir()
	start := func(prefix string) *exampletest.Program {
		return exampletest.Start(t, run, "--kubeconfig", kubeconfig, "--nodes", "2",
			"--node-prefix", prefix, "--lock-dir", locks, "--report-interval", "50ms")
	}
	runs := func(p *exampletest.Program) func() bool {
		return func() bool { return strings.Contains(p.Output(), "2 of 2 nodes registered") }
	}
	first := start("a-")
	exampletest.Eventually(t, s, "the first fleet", runs(first))
	second, other := start("a-"), start("b-")
	exampletest.Eventually(t, s, "that the second fleet waits", func() bool {
		return strings.Contains(second.Output(), "another process manages the nodes a-*: waiting for its end")
	})
	exampletest.Eventually(t, s, "the fleet of another prefix", runs(other))
	if runs(second)() {
		t.Error("two processes manage the same nodes")
	}
	if err := first.Stop(); err != nil {
		t.Errorf("the first program ended with %v", err)
	}
	exampletest.Eventually(t, s, "the second fleet after the first", runs(second))
	for _, program := range []*exampletest.Program{second, other} {
		if err := program.Stop(); err != nil {
			t.Errorf("a program ended with %v", err)
		}
	}
}

func TestFleetServesProfiles(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml")
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "1", "--pprof-address", "127.0.0.1:0")
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/debug/pprof/`)
	exampletest.Eventually(t, s, "the address of the profiles", func() bool { return address.MatchString(program.Output()) })
	for _, profile := range []string{"goroutine", "heap"} {
		resp, err := http.Get(address.FindString(program.Output()) + profile)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK || n == 0 {
			t.Errorf("the %s profile: %s, %d bytes, %v", profile, resp.Status, n, err)
		}
	}
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
}

func TestFleetRefusesNumbersThatItCantUse(t *testing.T) {
	for _, arg := range []string{"--nodes=-1", "--report-interval=0s", "--report-interval=-1s"} {
		name, _, _ := strings.Cut(arg, "=")
		if err := run(t.Context(), []string{arg}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), name+" must") {
			t.Errorf("%s: run = %v", arg, err)
		}
	}
}

func TestFleetRefusesAnAddressOfOthers(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml")
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "1", "--pprof-address", "192.0.2.1:1")
	if err := program.Wait(); err == nil || !strings.HasPrefix(err.Error(), "profiles: ") {
		t.Errorf("the program ended with %v, want that it can't serve profiles there", err)
	}
}

func TestFleetRunsPods(t *testing.T) {
	const pods = 40
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml")
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "4", "--pod-duration", "10ms", "--report-interval", "50ms")
	for i := range pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i)},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprint("fleet-", i%4), RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		if i%2 == 0 {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
		s.Put(pod)
	}
	s.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-another-node"},
		Spec:       corev1.PodSpec{NodeName: "elsewhere", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	})
	phases := func() map[corev1.PodPhase]int {
		count := make(map[corev1.PodPhase]int)
		for _, pod := range apitest.List[*corev1.Pod](s, "default") {
			count[pod.Status.Phase]++
		}
		return count
	}
	exampletest.Eventually(t, s, "half of the pods to run and half to have succeeded", func() bool {
		got := phases()
		return got[corev1.PodRunning] == pods/2 && got[corev1.PodSucceeded] == pods/2
	})
	exampletest.Eventually(t, s, "the progress line", func() bool {
		return strings.Contains(program.Output(), fmt.Sprint(pods/2, " pods running"))
	})
	client := s.Client(apitest.User{})
	if err := client.CoreV1().Pods("default").Delete(t.Context(), "pod-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	exampletest.Eventually(t, s, "the deleted pod to be gone", func() bool {
		return apitest.Get[*corev1.Pod](s, "default", "pod-1") == nil
	})
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if pod := apitest.Get[*corev1.Pod](s, "default", "of-another-node"); pod.Status.Phase != "" {
		t.Errorf("a pod of another node was made %s", pod.Status.Phase)
	}
	exampletest.NothingRefused(t, s)
}

func TestFleetUnregisters(t *testing.T) {
	// The README describes the additional permission for --unregister.
	content, err := os.ReadFile("../rbac/nodestatus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deleting := filepath.Join(t.TempDir(), "nodestatus.yaml")
	if err := os.WriteFile(deleting, bytes.Replace(content, []byte("verbs: [get, list, watch, create]"), []byte("verbs: [get, list, watch, create, delete]"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/podsync.yaml", deleting)
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, fleetUser), "--nodes", "50", "--unregister", "--report-interval", "100ms")
	exampletest.Eventually(t, s, "50 nodes whose leases are held", func() bool {
		return strings.Contains(program.Output(), "50 of 50 nodes registered")
	})
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if n := len(apitest.List[*corev1.Node](s, "")); n != 0 {
		t.Errorf("%d nodes are left, want none", n)
	}
	exampletest.NothingRefused(t, s)
}
