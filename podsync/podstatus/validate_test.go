// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestValidate has statuses with one defect each. Validate finds it, and Next leaves
// just that part out of a report and returns an error for it.
func TestValidate(t *testing.T) {
	user := func(uid, gid int64, groups ...int64) func(*corev1.PodStatus) {
		return func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: uid, GID: gid, SupplementalGroups: groups}}
		}
	}
	health := func(name corev1.ResourceName, list ...corev1.ResourceHealth) func(*corev1.PodStatus) {
		return func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].AllocatedResourcesStatus = []corev1.ResourceStatus{{Name: name, Resources: list}}
		}
	}
	image := func(ref string) func(*corev1.PodStatus) {
		return func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].VolumeMounts = []corev1.VolumeMountStatus{{Name: "v", MountPath: "/v", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: ref}}}}
		}
	}
	ok := corev1.ResourceHealth{ResourceID: "a", Health: corev1.ResourceHealthStatusHealthy}
	for _, tc := range []struct {
		name   string
		change func(s *corev1.PodStatus)
		want   string // field of the only error; "" = valid
		silent bool   // ignored by Next, as not the provider's to report
	}{
		{name: "as stored", change: func(s *corev1.PodStatus) {}},
		{name: "qosClass changes", change: func(s *corev1.PodStatus) { s.QOSClass = corev1.PodQOSGuaranteed }, want: "status.qosClass", silent: true},
		{name: "qosClass left out", change: func(s *corev1.PodStatus) { s.QOSClass = "" }},
		{name: "nominated, though bound", change: func(s *corev1.PodStatus) { s.NominatedNodeName = "n2" }, want: "status.nominatedNodeName", silent: true},
		{name: "nominated nonsense", change: func(s *corev1.PodStatus) { s.NominatedNodeName = "N 2" }, want: "status.nominatedNodeName", silent: true},
		{name: "observedGeneration", change: func(s *corev1.PodStatus) { s.ObservedGeneration = -1 }, want: "status.observedGeneration", silent: true},
		{name: "condition type", change: func(s *corev1.PodStatus) {
			s.Conditions = append(s.Conditions, corev1.PodCondition{Type: "-", Status: "True"})
		}, want: "status.conditions[0].type"},
		{name: "container that completed runs", change: func(s *corev1.PodStatus) { s.ContainerStatuses[1] = testContainer("c2", "run") }, want: "status.containerStatuses[1].state"},
		{name: "two addresses of a family", change: func(s *corev1.PodStatus) {
			s.PodIP, s.PodIPs = "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}
		}, want: "status.podIPs"},
		{name: "both families", change: func(s *corev1.PodStatus) {
			s.PodIP, s.PodIPs = "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
		}},
		{name: "no address", change: func(s *corev1.PodStatus) { s.PodIP, s.PodIPs = "x", []corev1.PodIP{{IP: "x"}} }, want: "status.podIPs[0]"},
		{name: "podIP alone", change: func(s *corev1.PodStatus) { s.PodIP = "10.0.0.1" }, want: "status.podIP", silent: true},
		{name: "no host address", change: func(s *corev1.PodStatus) { s.HostIP, s.HostIPs = "x", []corev1.HostIP{{IP: "x"}} }, want: "status.hostIPs[0]"},
		{name: "hostIP alone", change: func(s *corev1.PodStatus) { s.HostIP = "10.0.0.1" }},
		{name: "hostIP is not the first", change: func(s *corev1.PodStatus) { s.HostIP, s.HostIPs = "10.0.0.2", []corev1.HostIP{{IP: "fd00::1"}} }, want: "status.hostIP", silent: true},
		{name: "user", change: user(4294967295, 2147483647, 0)},
		{name: "uid", change: user(-1, 0), want: "status.containerStatuses[0].user.linux.uid"},
		{name: "gid", change: user(0, 2147483648), want: "status.containerStatuses[0].user.linux.gid"},
		{name: "groups", change: user(0, 0, 1, -1), want: "status.containerStatuses[0].user.linux.supplementalGroups[1]"},
		{name: "image volume", change: image("sha256:1")},
		{name: "image volume without image", change: image(""), want: "status.containerStatuses[0].volumeMounts[0].volumeStatus.image.imageRef"},
		{name: "image volume, too long", change: image(strings.Repeat("x", 257)), want: "status.containerStatuses[0].volumeMounts[0].volumeStatus.image.imageRef"},
		{name: "health of a request", change: health("example.com/gpu", ok)},
		{name: "health of a claim", change: health("claim:c/r", ok)},
		{name: "health of no claim", change: health("claim:c", ok), want: "status.containerStatuses[0].allocatedResourcesStatus[0].name"},
		{name: "health of nothing", change: health("memory", ok), want: "status.containerStatuses[0].allocatedResourcesStatus[0].name"},
		{name: "health twice", change: health("example.com/gpu", ok, ok), want: "status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].resourceID"},
		{name: "health of a resource whose ID is no text", change: health("example.com/gpu", corev1.ResourceHealth{ResourceID: "\xff", Health: "Healthy"}), want: "status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].resourceID"},
		{name: "no health", change: health("example.com/gpu", corev1.ResourceHealth{Health: "Fine"}), want: "status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health"},
		{name: "health with an empty message", change: health("example.com/gpu", corev1.ResourceHealth{Health: "Healthy", Message: new("")}), want: "status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].message"},
		{name: "health of a container that the spec doesn't have", change: func(s *corev1.PodStatus) {
			s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: "z", AllocatedResourcesStatus: []corev1.ResourceStatus{{Name: "any", Resources: []corev1.ResourceHealth{{Health: "Fine"}}}}})
		}, want: "status.containerStatuses[2].allocatedResourcesStatus[0].resources[0].health"},
		{name: "health of a debug container", change: func(s *corev1.PodStatus) {
			s.EphemeralContainerStatuses = testStatus("e1=run").EphemeralContainerStatuses
			s.EphemeralContainerStatuses[0].AllocatedResourcesStatus = []corev1.ResourceStatus{{Name: "cpu"}}
		}, want: "status.ephemeralContainerStatuses[0].allocatedResourcesStatus[0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod("Never c1 c2 e1|Running c1=run c2=0")
			pod.Status.QOSClass, pod.Spec.NodeName = corev1.PodQOSBurstable, "n1"
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}, Claims: []corev1.ResourceClaim{{Name: "c", Request: "r"}}}
			status := pod.Status.DeepCopy()
			tc.change(status)

			errs := Validate(pod, status)
			switch {
			case tc.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs)
			case tc.want != "" && (len(errs) != 1 || errs[0].Field != tc.want):
				t.Errorf("got %v, want an error of %s", errs, tc.want)
			}
			next, problems := Next(pod, Update{Observed: *status, Now: t1})
			if errs := Validate(pod, &next); len(errs) > 0 {
				t.Errorf("Next returns %v", errs)
			}
			if want := tc.want != "" && !tc.silent; want != (len(problems) > 0) {
				t.Errorf("problems %v, want some: %v", problems, want)
			}
		})
	}
}

// TestValidateWindows: Windows has no Linux users.
func TestValidateWindows(t *testing.T) {
	pod := testPod("Always c1|Running c1=run")
	pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	status := pod.Status.DeepCopy()
	status.ContainerStatuses[0].User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{}}
	if errs := Validate(pod, status); len(errs) != 1 || errs[0].Field != "status.containerStatuses[0].user.linux" {
		t.Errorf("got %v", errs)
	}
}

// TestValidateExtendedClaim: the claim that the scheduler made for extended
// resources is one of the container's.
func TestValidateExtendedClaim(t *testing.T) {
	pod := testPod("Always c1|Running c1=run")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c1", ResourceName: "example.com/gpu", RequestName: "r0"}}}
	for name, want := range map[corev1.ResourceName]int{"claim:made/r0": 0, "claim:made/r1": 1, "claim:made": 1, "claim:other/r0": 1} {
		status := pod.Status.DeepCopy()
		status.ContainerStatuses[0].AllocatedResourcesStatus = []corev1.ResourceStatus{{Name: name}}
		if errs := Validate(pod, status); len(errs) != want {
			t.Errorf("%s: %v, want %d errors", name, errs, want)
		}
	}
}
