// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// amounts returns CPUs and memory, those that are not empty.
func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if text != "" {
			list[name] = resource.MustParse(text)
		}
	}
	return list
}

// equally returns requests and limits of the same amounts.
func equally(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: amounts(cpu, memory), Limits: amounts(cpu, memory)}
}

func sized(name string, r corev1.ResourceRequirements, restarting ...corev1.ResourceName) corev1.Container {
	c := corev1.Container{Name: name, Resources: r}
	for _, resource := range restarting {
		c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: resource, RestartPolicy: corev1.RestartContainer})
	}
	return c
}

// inPlace makes the resize policies of a container those without a restart.
func inPlace(c corev1.Container) corev1.Container {
	for i := range c.ResizePolicy {
		c.ResizePolicy[i].RestartPolicy = corev1.NotRequired
	}
	return c
}

func TestTheResourcesOfAPodAsAWhole(t *testing.T) {
	init, sidecar := sized("i", equally("3", "1")), sized("s", equally("500m", "1"))
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	none := corev1.ResourceRequirements{}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want corev1.ResourceRequirements
	}{
		"nothing": {corev1.PodSpec{Containers: []corev1.Container{sized("a", none)}}, none},
		"the sum": {corev1.PodSpec{Containers: []corev1.Container{sized("a", equally("1", "2")), sized("b", equally("2", "3"))}}, equally("3", "5")},
		"one container has no limit of memory": {
			corev1.PodSpec{Containers: []corev1.Container{sized("a", equally("1", "2")), sized("b", equally("2", ""))}},
			corev1.ResourceRequirements{Requests: amounts("3", "2"), Limits: amounts("3", "")},
		},
		"a limit of zero is none": {
			corev1.PodSpec{Containers: []corev1.Container{sized("a", equally("1", "0"))}},
			corev1.ResourceRequirements{Requests: amounts("1", "0"), Limits: amounts("1", "")},
		},
		"an init container is larger": {corev1.PodSpec{InitContainers: []corev1.Container{init}, Containers: []corev1.Container{sized("a", equally("1", "2"))}}, equally("3", "2")},
		"a sidecar":                   {corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{sized("a", equally("1", "2"))}}, equally("1500m", "3")},
		"an ephemeral container has none": {corev1.PodSpec{
			Containers:          []corev1.Container{sized("a", equally("1", "2"))},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}},
		}, equally("1", "2")},
		"the pod has a limit of CPU": {
			corev1.PodSpec{Resources: new(equally("4", "")), Containers: []corev1.Container{sized("a", equally("1", "2")), sized("b", none)}},
			corev1.ResourceRequirements{Requests: amounts("4", "2"), Limits: amounts("4", "")},
		},
		"of the pod alone": {corev1.PodSpec{Resources: new(equally("4", "8")), Containers: []corev1.Container{sized("a", none)}}, equally("4", "8")},
		"overhead": {
			corev1.PodSpec{Overhead: amounts("1", "1"), Containers: []corev1.Container{sized("a", equally("1", ""))}},
			corev1.ResourceRequirements{Requests: amounts("2", "1"), Limits: amounts("2", "")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := PodResources(&corev1.Pod{Spec: tc.spec}); !sameRequirements(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAContainerWithoutALimitHasThatOfThePod(t *testing.T) {
	pod := &corev1.Pod{}
	own, none := sized("own", equally("1", "")), sized("none", equally("0", "0"))
	expect := func(c *corev1.Container, cpu, memory, text string) {
		t.Helper()
		for name, want := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if got := ContainerLimit(pod, c, name); got.Cmp(resource.MustParse(want)) != 0 {
				t.Errorf("%s has %s of %s, want %s", c.Name, &got, name, want)
			}
		}
		if got := grantOf(pod, c).text(); got != text {
			t.Errorf("%s has the grant %s, want %s", c.Name, got, text)
		}
	}
	expect(&own, "1", "0", `{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}`)
	expect(&none, "0", "0", `{"limits":{"cpu":"0","memory":"0"},"requests":{"cpu":"0","memory":"0"}}`)
	pod.Spec.Resources = new(equally("2", "8"))
	expect(&own, "1", "8", `{"limits":{"cpu":"1"},"requests":{"cpu":"1"},"inherited":{"memory":"8"}}`)
	expect(&none, "2", "8", `{"limits":{"cpu":"0","memory":"0"},"requests":{"cpu":"0","memory":"0"},"inherited":{"cpu":"2","memory":"8"}}`)
}

func TestThePlanOfAResize(t *testing.T) {
	none := corev1.ResourceRequirements{}
	two := func(a, b corev1.Container) []corev1.Container { return []corev1.Container{a, b} }
	type outcome struct {
		restart, resize string
		apply, shrink   bool
	}
	for name, tc := range map[string]struct {
		had, have       []corev1.Container // of the spec before and now
		podHad, podHave *corev1.ResourceRequirements
		change          func(*sizing)
		want            outcome
	}{
		"nothing has changed": {had: two(sized("a", equally("1", "1")), sized("b", none)), want: outcome{shrink: true}},
		"a container":         {had: two(sized("a", equally("1", "1")), sized("b", none)), have: two(sized("a", equally("2", "1")), sized("b", none)), want: outcome{resize: "a", apply: true, shrink: true}},
		"two containers":      {had: two(sized("a", none), sized("b", none)), have: two(sized("a", equally("2", "1")), sized("b", equally("1", ""))), want: outcome{resize: "ab", apply: true, shrink: true}},
		"a restart": {
			had: two(sized("a", equally("1", "1")), sized("b", none)), have: two(sized("a", equally("2", "1"), corev1.ResourceCPU), sized("b", none)),
			want: outcome{restart: "a", apply: true},
		},
		"a restart for another resource": {
			had: two(sized("a", equally("1", "1")), sized("b", none)), have: two(sized("a", equally("2", "1"), corev1.ResourceMemory), sized("b", none)),
			want: outcome{resize: "a", apply: true, shrink: true},
		},
		"a policy without a restart": {
			had: two(sized("a", equally("1", "1")), sized("b", none)), have: two(inPlace(sized("a", equally("2", "1"), corev1.ResourceCPU)), sized("b", none)),
			want: outcome{resize: "a", apply: true, shrink: true},
		},
		"a restart for a request": {
			had:  two(sized("a", none), sized("b", none)),
			have: two(sized("a", corev1.ResourceRequirements{Requests: amounts("1", "")}, corev1.ResourceCPU), sized("b", none)), want: outcome{restart: "a", apply: true},
		},
		"a restart beside a resize": {
			had: two(sized("a", equally("1", "")), sized("b", equally("1", ""))), have: two(sized("a", equally("2", ""), corev1.ResourceCPU), sized("b", equally("2", ""))),
			want: outcome{restart: "a", resize: "b", apply: true},
		},
		"while a container ends, the pod has grown": {
			had: two(sized("a", equally("2", "")), sized("b", none)), have: two(sized("a", equally("1", "")), sized("b", none)),
			change: func(s *sizing) { s.runs[0].busy, s.grown = true, &s.want },
		},
		"a resize that failed and was withdrawn": {
			had:    two(sized("a", equally("1", "1")), sized("b", none)),
			change: func(s *sizing) { s.runs[0].unsure, s.grown = true, &s.whole }, want: outcome{resize: "a", apply: true, shrink: true},
		},
		"one of a container that ends": {
			had:    two(sized("a", equally("1", "1")), sized("b", none)),
			change: func(s *sizing) { s.runs[0].unsure, s.runs[0].busy, s.grown = true, true, &s.whole },
		},
		"when it has ended": {
			had: two(sized("a", equally("2", "")), sized("b", equally("1", ""))), have: two(sized("a", equally("1", "")), sized("b", equally("1", ""))),
			change: func(s *sizing) { s.runs, s.grown = s.runs[1:], &s.want }, want: outcome{apply: true, shrink: true},
		},
		"the pod": {
			had: two(sized("a", equally("1", "1")), sized("b", equally("1", "1"))), podHad: new(equally("4", "4")), podHave: new(equally("5", "4")),
			want: outcome{apply: true, shrink: true},
		},
		"the pod, whose limits a container has": {
			had: two(sized("a", equally("1", "1")), sized("b", equally("1", ""))), podHad: new(equally("4", "4")), podHave: new(equally("4", "5")),
			want: outcome{resize: "b", apply: true, shrink: true},
		},
		"a restart for a limit of the pod": {
			had:    two(sized("a", equally("1", "1"), corev1.ResourceMemory), sized("b", equally("1", ""), corev1.ResourceMemory)),
			podHad: new(equally("4", "4")), podHave: new(equally("4", "5")), want: outcome{restart: "b", apply: true},
		},
		"no restart for another limit of the pod": {
			had:    two(sized("a", none, corev1.ResourceMemory), sized("b", equally("1", "1"))),
			podHad: new(equally("4", "4")), podHave: new(equally("5", "4")), want: outcome{resize: "a", apply: true, shrink: true},
		},
		"the pod's limit becomes the container's own": {
			had: two(sized("a", none, corev1.ResourceCPU), sized("b", equally("1", ""))), have: two(sized("a", corev1.ResourceRequirements{Limits: amounts("4", "")}, corev1.ResourceCPU), sized("b", equally("1", ""))),
			podHad: new(equally("4", "")), podHave: new(equally("4", "")), want: outcome{resize: "a", apply: true, shrink: true},
		},
		"a resize that began and was withdrawn": {
			had:    two(sized("a", equally("1", "1")), sized("b", none)),
			change: func(s *sizing) { s.grown = new(equally("2", "2")) }, want: outcome{apply: true, shrink: true},
		},
		"a resize that began with another size": {
			had: two(sized("a", equally("1", "1")), sized("b", none)), have: two(sized("a", equally("2", "1")), sized("b", none)),
			change: func(s *sizing) { s.runs[0].busy, s.grown = true, &s.whole }, want: outcome{apply: true},
		},
		"a runtime without pods as a whole": {
			had: two(sized("a", equally("1", "1")), sized("b", none)), podHad: new(equally("4", "4")), podHave: new(equally("4", "4")),
			change: func(s *sizing) { s.resizesPod, s.whole = false, none }, want: outcome{shrink: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := &corev1.Pod{Spec: corev1.PodSpec{Containers: tc.had, Resources: tc.podHad}}
			now := before.DeepCopy()
			if now.Spec.Resources = tc.podHave; tc.have != nil {
				now.Spec.Containers = tc.have
			}
			s := sizing{pod: now, whole: PodResources(before), want: PodResources(now), resizesPod: true}
			for i := range tc.had {
				s.runs = append(s.runs, sizedRun{spec: &now.Spec.Containers[i], has: grantOf(before, &before.Spec.Containers[i]).text()})
			}
			if tc.change != nil {
				tc.change(&s)
			}
			plan := planResize(s)
			names := func(list []int) (text string) {
				for _, i := range list {
					text += s.runs[i].spec.Name
				}
				return text
			}
			if got := (outcome{names(plan.restart), names(plan.resize), plan.apply, plan.shrink}); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestTheKernelKillsTheContainersFirstThatRequestLess(t *testing.T) {
	const node = 1000
	request := func(name, memory string) corev1.Container {
		return sized(name, corev1.ResourceRequirements{Requests: amounts("", memory)})
	}
	sidecar := func(memory string) corev1.Container {
		c := request("s", memory)
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		return c
	}
	whole := func(memory string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Requests: amounts("", memory)}
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want map[string]int64
	}{
		"best effort": {corev1.PodSpec{Containers: []corev1.Container{sized("a", corev1.ResourceRequirements{})}}, map[string]int64{"a": 1000}},
		"guaranteed":  {corev1.PodSpec{Containers: []corev1.Container{sized("a", equally("1", "1"))}}, map[string]int64{"a": -997}},
		"critical":    {corev1.PodSpec{Priority: new(int32(2_000_000_000)), Containers: []corev1.Container{request("a", "100")}}, map[string]int64{"a": -997}},
		"not quite":   {corev1.PodSpec{Priority: new(int32(1_999_999_999)), Containers: []corev1.Container{request("a", "100")}}, map[string]int64{"a": 900}},
		"burstable": {
			corev1.PodSpec{Containers: []corev1.Container{request("a", "100"), request("b", "999"), sized("c", equally("1", ""))}},
			map[string]int64{"a": 900, "b": 3, "c": 999},
		},
		"a sidecar is like the least container": {
			corev1.PodSpec{InitContainers: []corev1.Container{sidecar("50")}, Containers: []corev1.Container{request("a", "200"), request("b", "100"), request("c", "300")}},
			map[string]int64{"s": 900, "b": 900},
		},
		"a large sidecar":                    {corev1.PodSpec{InitContainers: []corev1.Container{sidecar("150")}, Containers: []corev1.Container{request("a", "100")}}, map[string]int64{"s": 850}},
		"an init container":                  {corev1.PodSpec{InitContainers: []corev1.Container{request("i", "50")}, Containers: []corev1.Container{request("a", "100")}}, map[string]int64{"i": 950}},
		"a sidecar before an init container": {corev1.PodSpec{InitContainers: []corev1.Container{sidecar("50"), request("i", "70")}, Containers: []corev1.Container{request("a", "100")}}, map[string]int64{"s": 900, "i": 930}},
		"more than the machine has":          {corev1.PodSpec{Containers: []corev1.Container{request("a", "1001")}}, map[string]int64{"a": 3}},
		"a pod without memory":               {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: amounts("1", "")}, Containers: []corev1.Container{request("a", "50")}}, map[string]int64{"a": 950}},
		"the rest of the pod":                {corev1.PodSpec{Resources: whole("400"), InitContainers: []corev1.Container{sidecar("0")}, Containers: []corev1.Container{request("a", "50"), request("b", "50")}}, map[string]int64{"a": 850, "s": 850}},
		"no rest of the pod":                 {corev1.PodSpec{Resources: whole("100"), Containers: []corev1.Container{request("a", "50"), request("b", "50")}}, map[string]int64{"a": 950}},
		"less than containers":               {corev1.PodSpec{Resources: whole("60"), Containers: []corev1.Container{request("a", "50"), request("b", "50")}}, map[string]int64{"a": 950}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range slices.Concat(tc.spec.InitContainers, tc.spec.Containers) {
				want, ok := tc.want[c.Name]
				if got := OOMScoreAdjust(&corev1.Pod{Spec: tc.spec}, &c, node); ok && got != want {
					t.Errorf("%s has %d, want %d", c.Name, got, want)
				}
			}
		})
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{request("a", "100")}}}
	if got := OOMScoreAdjust(pod, &pod.Spec.Containers[0], 0); got != 999 {
		t.Errorf("without the size of the machine it is %d", got)
	}
}
