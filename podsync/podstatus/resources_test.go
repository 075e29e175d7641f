// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func cpu(n string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
}

func TestResourcesOfTheSpecAreFilledInOnceTheyApply(t *testing.T) {
	pending := []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}}
	for name, tc := range map[string]struct {
		observed  corev1.PodStatus
		accepted  int64
		stopped   bool
		want      string // requests in resources
		allocated string
	}{
		"the spec applies":                    {testStatus("c1=ready"), 2, false, "2", "2"},
		"an older spec applies":               {testStatus("c1=ready"), 1, false, "1", "1"},
		"a resize waits":                      {corev1.PodStatus{ContainerStatuses: testStatus("c1=ready").ContainerStatuses, Conditions: pending}, 2, false, "1", "1"},
		"the pod has stopped":                 {testStatus("c1=0"), 2, true, "1", "1"},
		"the report leaves the container out": {corev1.PodStatus{}, 2, false, "1", "1"},
		"the provider reports resources": {func() corev1.PodStatus {
			s := testStatus("c1=ready")
			s.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: cpu("3")}
			return s
		}(), 2, false, "3", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod("Always c1 | Running c1=ready")
			pod.Generation = 2
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: cpu("2"), Limits: cpu("4")}
			pod.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: cpu("1")}
			pod.Status.ContainerStatuses[0].AllocatedResources = cpu("1")
			next, problems := Next(pod, Update{Now: t1, Observed: tc.observed, Generation: tc.accepted, Stopped: tc.stopped})
			cs := next.ContainerStatuses[0]
			if len(problems) > 0 || cs.Resources == nil || cs.Resources.Requests.Cpu().String() != tc.want || cs.AllocatedResources.Cpu().String() != tc.allocated {
				t.Errorf("%+v, %+v, %v; want %s and %s", cs.Resources, cs.AllocatedResources, problems, tc.want, tc.allocated)
			}
		})
	}
}

func TestPodScheduledIsWrittenWithTheGenerationObserved(t *testing.T) {
	bySch := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Reason: "Bound"}
	for name, tc := range map[string]struct {
		node       string
		stored     []corev1.PodCondition
		generation int64
		want       string // of the reason; "none" without the condition
	}{
		"the scheduler has written it":      {"n1", []corev1.PodCondition{bySch}, 1, "Bound"},
		"created with a node name":          {"n1", nil, 1, ""},
		"not bound":                         {"", nil, 0, "none"},
		"not scheduled, and bound all over": {"n1", []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod("Always c1")
			pod.Spec.NodeName, pod.Status.Conditions = tc.node, tc.stored
			next, _ := Next(pod, Update{Now: t1, Generation: 1})
			at := indexOf(next.Conditions, corev1.PodScheduled)
			if tc.want == "none" {
				if at >= 0 {
					t.Errorf("%+v", next.Conditions[at])
				}
				return
			}
			if at < 0 || next.Conditions[at].ObservedGeneration != tc.generation || next.Conditions[at].Reason != tc.want || next.Conditions[at].Status != corev1.ConditionTrue {
				t.Errorf("%+v", next.Conditions)
			}
		})
	}
}

// A provider that keeps no restart counts, and reports the wait before a restart,
// is counted for.
func TestRestartsAreCountedAcrossWaiting(t *testing.T) {
	pod := testPod("Always c1 | Running c1=ready")
	for n := range int32(3) {
		for _, report := range []string{"c1=1", "c1=crash:1", "c1=crash:1", "c1=ready", "c1=ready"} {
			next, problems := Next(pod, Update{Now: t1, Observed: testStatus(report)})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			pod.Status = next
		}
		if got := pod.Status.ContainerStatuses[0].RestartCount; got != n+1 {
			t.Errorf("restart count %d after %d restarts", got, n+1)
		}
	}
}

func TestAWaitWithoutReasonHasTheDefaultReason(t *testing.T) {
	for desc, want := range map[string]string{"Always c1": ReasonContainerCreating, "Always i1 c1": ReasonPodInitializing} {
		pod := testPod(desc)
		next, _ := Next(pod, Update{Now: t1, Observed: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}},
		}}})
		if got := next.ContainerStatuses[0].State.Waiting.Reason; got != want {
			t.Errorf("%s: reason %q, want %q", desc, got, want)
		}
	}
}

func TestAnImageIDIsKeptForItsImageOnly(t *testing.T) {
	for name, tc := range map[string]struct{ image, id, want string }{
		"the same image":       {"img", "", "sha256:old"},
		"no image":             {"", "", "sha256:old"},
		"another image":        {"new", "", ""},
		"another ID":           {"img", "sha256:new", "sha256:new"},
		"another image and ID": {"new", "sha256:new", "sha256:new"},
	} {
		pod := testPod("Always c1 | Running c1=ready")
		pod.Status.ContainerStatuses[0].ImageID = "sha256:old"
		observed := testStatus("c1=ready")
		observed.ContainerStatuses[0].Image, observed.ContainerStatuses[0].ImageID = tc.image, tc.id
		next, _ := Next(pod, Update{Now: t1, Observed: observed})
		if got := next.ContainerStatuses[0].ImageID; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A rule of one container that restarts all of them lets each leave Terminated.
func TestARuleThatRestartsThePodLetsContainersLeaveTerminated(t *testing.T) {
	for _, inits := range []bool{false, true} {
		pod := testPod("Never i1 c1 | Running i1=0 c1=0")
		never := corev1.ContainerRestartPolicyNever
		c := &pod.Spec.Containers[0]
		if inits {
			c = &pod.Spec.InitContainers[0]
		}
		c.RestartPolicy, c.RestartPolicyRules = &never, []corev1.ContainerRestartRule{rule(restartAll, in, 0)}
		next, problems := Next(pod, Update{Now: t1, Observed: testStatus("i1=0 c1=ready")})
		if len(problems) > 0 || next.ContainerStatuses[0].State.Running == nil {
			t.Errorf("rule of an init container %v: %v, %+v", inits, problems, next.ContainerStatuses[0].State)
		}
	}
	pod := testPod("Never c1 | Running c1=0")
	if _, problems := Next(pod, Update{Now: t1, Observed: testStatus("c1=ready")}); len(problems) == 0 {
		t.Error("a container that is not restarted leaves Terminated")
	}
}
