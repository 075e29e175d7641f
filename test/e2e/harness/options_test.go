// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"slices"
	"strings"
	"testing"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestArguments(t *testing.T) {
	if got := (Options{}).arguments(); !slices.Equal(got, []string{"up"}) {
		t.Errorf("arguments %q", got)
	}
	got := Options{
		Version:       "1.36",
		SingleProcess: true,
		Without:       []string{Scheduler},
		Extra:         []string{"kube-scheduler-2"},
		FeatureGates:  map[string]bool{"B": false, "A": true},
		RuntimeConfig: map[string]bool{"g/v1": false, "g/v1beta1": true},
		ExtraArgs:     map[string][]string{ControllerManager: {"--x=1", "--y"}, APIServer: {"--z"}},
		Audit:         true,
	}.arguments()
	want := []string{
		"up", "--version=1.36", "--single-process", "--without=kube-scheduler", "--extra=kube-scheduler-2", "--feature-gates=A=true,B=false",
		"--runtime-config=g/v1=false,g/v1beta1=true", "--arg=kube-apiserver=--z",
		"--arg=kube-controller-manager=--x=1", "--arg=kube-controller-manager=--y", "--audit",
	}
	if !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

// TestLeaseCandidates: the API of coordinated leader election is served only on request, independently of the feature
// gate.
func TestLeaseCandidates(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	candidate := &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "example", BinaryVersion: "1.0.0", EmulationVersion: "1.0.0", Strategy: "OldestEmulationVersion",
		},
	}
	served := map[string]bool{"coordination.k8s.io/v1beta1": true}
	for name, tc := range map[string]struct {
		options Options
		served  bool
	}{
		"default":            {served: false}, // of the shared cluster
		"served":             {Options{Without: bare.Without, RuntimeConfig: served}, true},
		"served and gate on": {Options{RuntimeConfig: served, FeatureGates: map[string]bool{"CoordinatedLeaderElection": true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := shared.Cluster(t)
			if tc.served {
				cluster = Start(t, tc.options)
			}
			client := newClient(t, cluster.AdminConfig())
			_, err := client.CoordinationV1beta1().LeaseCandidates("default").Create(t.Context(), candidate, metav1.CreateOptions{})
			if tc.served && err != nil || !tc.served && !apierrors.IsNotFound(err) {
				t.Errorf("creating a LeaseCandidate: %v; served: %t", err, tc.served)
			}
		})
	}
}

// TestOldResourceAPI starts a server that serves ResourceSlices only as v1beta1. Only some components of a current
// version support this: the Node authorizer and the scheduler need v1 and never become ready.
func TestOldResourceAPI(t *testing.T) {
	t.Parallel()
	o := bare
	o.RuntimeConfig = map[string]bool{"resource.k8s.io/v1": false, "resource.k8s.io/v1beta1": true}
	o.ExtraArgs = map[string][]string{APIServer: {"--authorization-mode=RBAC"}}
	client := newClient(t, Start(t, o).AdminConfig())
	if _, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("v1: %v, want 404", err)
	}
	slice := &resourcev1beta1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: resourcev1beta1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: "n",
			Pool: resourcev1beta1.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1},
		},
	}
	if _, err := client.ResourceV1beta1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Errorf("v1beta1: %v", err)
	}
}

// versionsVariable is a comma-separated list of further Kubernetes versions that TestVersions starts. Each must be
// built first, which takes minutes, so "make test" runs only the default version.
const versionsVariable = "KUBEWRIGHT_E2E_VERSIONS"

// TestVersions: with every version, in both modes, a pod is created and scheduled to a node that the test has made
// Ready.
func TestVersions(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	versions := []string{""}
	if s := os.Getenv(versionsVariable); s != "" {
		versions = strings.Split(s, ",")
	}
	for _, version := range versions {
		for _, single := range []bool{false, true} {
			name := version + " separate processes"
			if single {
				name = version + " single process"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := Start(t, Options{Version: version, SingleProcess: single})
				if got := c.Kubectl(t, "get", "--raw=/version"); !strings.Contains(got, `"gitVersion": "`+c.Version()+`"`) {
					t.Errorf("the server says %s, want version %s", got, c.Version())
				}
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: readyStatus()}
				if _, err := newClient(t, c.NodeConfig(t, "n")).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.Kubectl(t, "wait", "--for=condition=Ready", "node/n", "--timeout=60s")
				c.Kubectl(t, "create", "deployment", "d", "--image=none")
				c.Kubectl(t, "wait", "--for=create", "pod", "--selector=app=d", "--timeout=60s")
				c.Kubectl(t, "wait", "--for=condition=PodScheduled", "pod", "--selector=app=d", "--timeout=60s")
			})
		}
	}
}

// readyStatus returns the status of a node to which pods can be scheduled.
func readyStatus() corev1.NodeStatus {
	room := corev1.ResourceList{"cpu": *resource.NewQuantity(4, resource.DecimalSI), "memory": *resource.NewQuantity(8<<30, resource.DecimalSI), "pods": *resource.NewQuantity(10, resource.DecimalSI)}
	now := metav1.Now()
	return corev1.NodeStatus{
		Capacity:    room,
		Allocatable: room,
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
}
