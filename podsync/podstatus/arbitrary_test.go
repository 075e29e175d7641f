// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dice makes arbitrary pods and reports out of bytes, so that a fuzzer can steer
// it. Without bytes left it throws zeros.
type dice struct{ data []byte }

func diceOf(seed uint64) *dice {
	rng := rand.New(rand.NewPCG(seed, 1))
	d := &dice{data: make([]byte, 200+rng.IntN(1200))}
	for i := range d.data {
		d.data[i] = byte(rng.Uint32())
	}
	return d
}

func (d *dice) roll(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func (d *dice) yes(oneIn int) bool { return d.roll(oneIn) == 1 }

func pick[T any](d *dice, of ...T) T { return of[d.roll(len(of))] }

func (d *dice) text() string {
	if d.roll(40) == 39 {
		return strings.Repeat(pick(d, "x", "é", "\xf0\x9f"), 8000*(1+d.roll(3)))
	}
	return pick(d, "", "", "Why", "a longer message", "\xff\xfe broken", "é\xe2\x82", "null", `"quoted" <&>`)
}

func (d *dice) time() metav1.Time {
	switch d.roll(6) {
	case 0:
		return metav1.Time{}
	case 1:
		return metav1.NewTime(time.Unix(int64(d.roll(250)), int64(d.roll(250))*4e6))
	case 2:
		return metav1.NewTime(time.Date(pick(d, -1, 0, 10000, 1969), 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)))
	case 3:
		return metav1.NewTime(time.Time{}.Add(500 * time.Millisecond))
	}
	return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, d.roll(60), d.roll(200)*1e6, time.UTC))
}

// spec has up to three containers of each kind, with any policy.
func (d *dice) spec() corev1.PodSpec {
	s := corev1.PodSpec{RestartPolicy: pick(d, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)}
	for i := range 1 + d.roll(3) {
		s.Containers = append(s.Containers, d.container(fmt.Sprintf("c%d", i), false))
	}
	for i := range d.roll(3) {
		s.InitContainers = append(s.InitContainers, d.container(fmt.Sprintf("i%d", i), true))
	}
	for i := range d.roll(2) {
		s.EphemeralContainers = append(s.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: fmt.Sprintf("e%d", i)}})
	}
	for i := range d.roll(2) {
		s.ReadinessGates = append(s.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(fmt.Sprintf("example.com/gate%d", i))})
	}
	return s
}

func (d *dice) container(name string, init bool) corev1.Container {
	c := corev1.Container{Name: name, Image: pick(d, "", "img")}
	policy := pick(d, "", "", "Never", "OnFailure", "Always")
	if policy != "" {
		c.RestartPolicy = new(corev1.ContainerRestartPolicy(policy))
		if d.yes(3) && (!init || policy != "Always") {
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action: pick(d, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers),
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
					Operator: pick(d, corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn), Values: []int32{1, 42}},
			}}
		}
	}
	if d.yes(3) {
		c.StartupProbe = &corev1.Probe{}
	}
	if d.yes(3) {
		c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return c
}

func (d *dice) state() corev1.ContainerState {
	var s corev1.ContainerState
	switch d.roll(6) {
	case 0:
	case 1:
		s.Waiting = &corev1.ContainerStateWaiting{Reason: d.text(), Message: d.text()}
	case 2:
		s.Running = &corev1.ContainerStateRunning{StartedAt: d.time()}
	case 3, 4:
		s.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(pick(d, 0, 0, 1, 42)), Reason: pick(d, "", ReasonRestartingAllContainers, d.text()),
			Message: d.text(), StartedAt: d.time(), FinishedAt: d.time(), ContainerID: d.text()}
	case 5:
		s.Running = &corev1.ContainerStateRunning{StartedAt: d.time()}
		s.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(d.roll(2))}
	}
	return s
}

func (d *dice) containerStatus(name string) corev1.ContainerStatus {
	cs := corev1.ContainerStatus{
		Name: name, State: d.state(), LastTerminationState: d.state(), Ready: d.yes(2), RestartCount: int32(d.roll(4)) - 1,
		Image: d.text(), ImageID: d.text(), ContainerID: d.text(),
	}
	if d.yes(3) {
		cs.Started = new(d.yes(2))
	}
	if d.yes(4) {
		cs.AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse(pick(d, "1", "1000m", "0.5")), corev1.ResourceName(d.text()): resource.MustParse("1Gi")}
		cs.Resources = &corev1.ResourceRequirements{Limits: cs.AllocatedResources.DeepCopy(), Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
		cs.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: int64(d.roll(5)) - 1, GID: int64(d.roll(9)) - 1, SupplementalGroups: []int64{int64(d.roll(9)) - 1}}}
		cs.VolumeMounts = []corev1.VolumeMountStatus{{Name: "v", MountPath: pick(d, "/v", d.text()),
			VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: pick(d, "sha256:1", d.text())}}}, {Name: "w", MountPath: "/w"}}
		cs.AllocatedResourcesStatus = []corev1.ResourceStatus{{Name: corev1.ResourceName(pick(d, "cpu", "claim:gpu", "claim:gpu/r", d.text())), Resources: []corev1.ResourceHealth{
			{ResourceID: "a", Health: pick(d, corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatus(d.text()))},
			{ResourceID: corev1.ResourceID(pick(d, "a", "b")), Health: corev1.ResourceHealthStatusUnknown, Message: pick(d, nil, new(d.text()))}}}}
		cs.StopSignal = new(corev1.Signal(pick(d, "SIGTERM", d.text())))
	}
	return cs
}

func (d *dice) conditions() []corev1.PodCondition {
	var out []corev1.PodCondition
	for range d.roll(6) {
		out = append(out, corev1.PodCondition{
			Type: pick(d, corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled, corev1.DisruptionTarget,
				corev1.PodReadyToStartContainers, corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
				"example.com/gate0", "example.com/gate1", "Custom", corev1.PodConditionType(d.text())),
			Status:             corev1.ConditionStatus(pick(d, "True", "False", "Unknown", "True", d.text())),
			ObservedGeneration: int64(d.roll(7)) - 1,
			LastProbeTime:      d.time(), LastTransitionTime: d.time(), Reason: d.text(), Message: d.text(),
		})
	}
	return out
}

// report returns a status that a careless provider may report.
func (d *dice) report(spec *corev1.PodSpec) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase:   corev1.PodPhase(pick(d, "", "", "Pending", "Running", "Succeeded", "Failed", "Unknown", d.text())),
		Reason:  d.text(),
		Message: d.text(), QOSClass: corev1.PodQOSClass(d.text()), NominatedNodeName: d.text(),
		PodIP:  pick(d, "", "", "10.0.0.1", "010.0.0.1", "fd00::1", d.text()),
		HostIP: pick(d, "", "", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0"),
	}
	for range d.roll(4) {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: pick(d, "10.0.0.1", "10.0.0.2", "fd00::1", "FD00::1", d.text())})
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: pick(d, "10.0.0.1", "fd00::2", "")})
	}
	if d.yes(3) {
		s.StartTime = new(d.time())
	}
	s.Conditions = d.conditions()
	list := func(prefix string, n int) (out []corev1.ContainerStatus) {
		for i := range n {
			if !d.yes(5) {
				out = append(out, d.containerStatus(fmt.Sprintf("%s%d", prefix, pick(d, i, i, i, 9, 0))))
			}
		}
		return out
	}
	s.ContainerStatuses = list("c", len(spec.Containers))
	s.InitContainerStatuses = list("i", len(spec.InitContainers))
	s.EphemeralContainerStatuses = list("e", len(spec.EphemeralContainers))
	if d.yes(4) {
		s.AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse(pick(d, "1", "2"))}
		s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceName(pick(d, "cpu", "memory", d.text())): resource.MustParse("1")}}
	}
	return s
}

func (d *dice) update(spec *corev1.PodSpec) Update {
	u := Update{Observed: d.report(spec), Stopped: d.yes(3), KeepPhase: d.yes(3), Generation: int64(d.roll(6)), Now: time.Date(2026, 1, 2, 0, 0, d.roll(60), d.roll(100), time.UTC)}
	if d.yes(4) {
		u.Failure = &Failure{Reason: d.text(), Message: d.text(), DisruptionReason: pick(d, "", corev1.PodReasonTerminationByKubelet, d.text())}
	}
	return u
}

// pod is one that others have written to: foreign conditions and fields, and a
// status of its own making.
func (d *dice) pod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1", Generation: 3},
		Spec:       d.spec(),
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort, NominatedNodeName: "n",
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0))},
				{Type: "example.com/gate0", Status: pick(d, corev1.ConditionTrue, corev1.ConditionFalse), Reason: "Theirs", LastProbeTime: metav1.NewTime(time.Unix(1e9, 0))},
			},
			ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: new("p-gpu")}},
		},
	}
	if d.yes(3) {
		// Another writer set it.
		pod.Status.Phase = pick(d, corev1.PodPhase(""), corev1.PodRunning, corev1.PodFailed, corev1.PodSucceeded, corev1.PodUnknown)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady"})
	}
	return pod
}
