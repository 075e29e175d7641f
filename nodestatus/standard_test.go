// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestStandardIsWhatANodeNeeds(t *testing.T) {
	node := &corev1.Node{}
	node.Name = node1
	for _, set := range Standard(
		ContainerRuntime("pretend://1"),
		Capacity(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}, nil),
	) {
		if err := set(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	s := node.Status
	if n := s.Allocatable.Pods().Value(); n != DefaultPods || s.Capacity.Pods().Value() != n || s.Allocatable.Cpu().Value() != 8 {
		t.Errorf("the capacity is %v, allocatable %v", s.Capacity, s.Allocatable)
	}
	if len(s.Addresses) != 1 || s.Addresses[0] != (corev1.NodeAddress{Type: corev1.NodeHostName, Address: node1}) {
		t.Errorf("the addresses are %v", s.Addresses)
	}
	if info := s.NodeInfo; !strings.HasPrefix(info.KubeletVersion, "v1.") || info.Architecture == "" || info.ContainerRuntimeVersion != "pretend://1" {
		t.Errorf("the facts are %+v", info)
	}
	if node.Labels[corev1.LabelHostname] != node1 || node.Labels[corev1.LabelOSStable] == "" {
		t.Errorf("the labels are %v", node.Labels)
	}
}

func TestTheVersionIsThatOfTheProgramsClient(t *testing.T) {
	dep := func(version string) *debug.Module { return &debug.Module{Path: "k8s.io/client-go", Version: version} }
	replaced := dep("v0.36.1")
	replaced.Replace = dep("v0.37.1")
	for want, deps := range map[string][]*debug.Module{
		"v1.38.4":       {{Path: "k8s.io/api", Version: "v0.40.0"}, dep("v0.38.4")},
		"v1.38.0-alpha": {dep("v0.38.0-alpha")},
		"v1.37.1":       {replaced},
		builtWith:       {dep("v0.0.0-20261122000000-0123456789ab")},
	} {
		if got := kubernetesVersion(&debug.BuildInfo{Deps: deps}, true); got != want {
			t.Errorf("version %q of %v, want %q", got, deps, want)
		}
	}
	if got := kubernetesVersion(nil, false); got != builtWith {
		t.Errorf("version %q without build information", got)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "k8s.io/client-go v0." + strings.TrimPrefix(builtWith, "v1."); !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not require %s", want)
	}
}
