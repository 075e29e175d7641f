// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{
		"0":       {0},
		"0-3":     {0, 1, 2, 3},
		"0-1,4,6": {0, 1, 4, 6},
	} {
		if got, err := parseCPUs(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"", "a", "1-", "-1", "1,,2"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
}

func TestCPUDevices(t *testing.T) {
	sys := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("online", "1-2")
	write("cpu1/topology/core_id", "7")
	write("cpu1/topology/physical_package_id", "0")
	devices, err := cpuDevices(sys)
	if err != nil || len(devices) != 2 || devices[0].Name != "cpu-1" || devices[1].Name != "cpu-2" {
		t.Fatalf("%+v, %v", devices, err)
	}
	if a := devices[0].Attributes; *a["cpu"].IntValue != 1 || *a["core"].IntValue != 7 || *a["package"].IntValue != 0 {
		t.Errorf("the first has %+v", a)
	}
	if a := devices[1].Attributes; len(a) != 1 || *a["cpu"].IntValue != 2 {
		t.Errorf("of the second no more is known than its number: %+v", a)
	}
	if _, err := cpuDevices(t.TempDir()); err == nil {
		t.Error("a machine that does not say what it has")
	}
}

// claim is a claim that is allocated to a pod.
func claim(pod *corev1.Pod, results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim"},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}},
		},
	}
}

func device(request, name string) resourcev1.DeviceRequestAllocationResult {
	return resourcev1.DeviceRequestAllocationResult{Request: request, Driver: cpuDriver, Pool: "n1", Device: name}
}

func TestAllocated(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	foreign := device("a", "cpu-1")
	foreign.Driver = "gpu.example.com"
	elsewhere := device("a", "cpu-1")
	elsewhere.Pool = "n2"
	for name, tc := range map[string]struct {
		claim   *resourcev1.ResourceClaim
		request string
		want    []int
		wrong   string
	}{
		"all":             {claim(pod, device("a", "cpu-3"), device("b", "cpu-1")), "", []int{3, 1}, ""},
		"one request":     {claim(pod, device("a", "cpu-3"), device("b", "cpu-1")), "b", []int{1}, ""},
		"a subrequest":    {claim(pod, device("a/big", "cpu-3"), device("ab", "cpu-1")), "a", []int{3}, ""},
		"another driver":  {claim(pod, foreign), "", nil, "gpu.example.com"},
		"another node":    {claim(pod, elsewhere), "", nil, "no device"},
		"no such device":  {claim(pod, device("a", "cpu-x")), "", nil, "cpu-x"},
		"another pod's":   {claim(&corev1.Pod{}, device("a", "cpu-1")), "", nil, "not allocated"},
		"not yet":         {&resourcev1.ResourceClaim{}, "", nil, "not allocated"},
		"not of this one": {claim(pod, foreign, device("b", "cpu-1")), "b", []int{1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := claims{nodeName: "n1"}.allocated(tc.claim, pod, tc.request)
			if tc.wrong == "" && (err != nil || !slices.Equal(got, tc.want)) {
				t.Errorf("%v, %v, want %v", got, err, tc.want)
			}
			if tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
				t.Errorf("%v, %v, want an error with %q", got, err, tc.wrong)
			}
		})
	}
}

func TestClaimName(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "own", ResourceClaimName: new("c1")},
			{Name: "made", ResourceClaimTemplateName: new("t")},
			{Name: "needless", ResourceClaimTemplateName: new("t")},
			{Name: "late", ResourceClaimTemplateName: new("t")},
		}},
		Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{
			{Name: "made", ResourceClaimName: new("c2")}, {Name: "needless"},
		}},
	}
	for called, want := range map[string]string{"own": "c1", "made": "c2", "needless": ""} {
		if got, err := claimName(pod, called); got != want || err != nil {
			t.Errorf("%s: %q, %v", called, got, err)
		}
	}
	if _, err := claimName(pod, "late"); err == nil {
		t.Error("a claim that was not created yet is not missed")
	}
}

// TestACPUOfANeedlessClaimIsNone: a status entry without a name needs no claim,
// so the container starts.
func TestACPUOfANeedlessClaimIsNone(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "needless"}}}}
	container := &corev1.Container{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "needless"}}}}
	if numbers, err := (claims{}).cpus(t.Context(), pod, container); err != nil || len(numbers) != 0 {
		t.Errorf("CPUs %v, %v", numbers, err)
	}
}

func TestCPUsArePublishedAndPinned(t *testing.T) {
	k := newNode(t, "--publish-cpus")
	var cpu string
	exampletest.Eventually(t, k.api, "the slice", func() bool {
		for _, s := range apitest.List[*resourcev1.ResourceSlice](k.api, "") {
			if s.Spec.Driver == cpuDriver && s.Spec.Pool.Name == "n1" && len(s.Spec.Devices) > 0 {
				cpu = s.Spec.Devices[0].Name
				return true
			}
		}
		return false
	})
	out := filepath.Join(t.TempDir(), "out")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pinned", UID: "pinned-uid"},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyNever,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "cpu", ResourceClaimName: new("claim")}},
			Containers: []corev1.Container{{
				Name: "c", Image: "none", Command: []string{"sh", "-c", "grep Cpus_allowed_list /proc/self/status > " + out},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "cpu"}}},
			}},
		},
	}
	k.api.Put(claim(pod, device("a", cpu)))
	k.api.Put(pod)
	k.await("pinned", "to succeed", phase(corev1.PodSucceeded))
	want := "Cpus_allowed_list:\t" + strings.TrimPrefix(cpu, devicePrefix) + "\n"
	if got, err := os.ReadFile(out); err != nil || string(got) != want {
		t.Errorf("the container has %q, %v, want %q", got, err, want)
	}
	k.stop()
	exampletest.NothingRefused(t, k.api)
}
