// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/podsync"
)

func asking(cpu string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
}

func TestFits(t *testing.T) {
	allocatable := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("3")}
	pod := func(cpu string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{asking(cpu)}}}
	}
	for name, tc := range map[string]struct {
		active []*corev1.Pod
		pod    *corev1.Pod
		want   string
	}{
		"alone":          {nil, pod("2"), ""},
		"too large":      {nil, pod("2001m"), "OutOfcpu"},
		"beside another": {[]*corev1.Pod{pod("500m")}, pod("1500m"), ""},
		"no cpu left":    {[]*corev1.Pod{pod("501m")}, pod("1500m"), "OutOfcpu"},
		"no place left":  {[]*corev1.Pod{pod("0"), pod("0"), pod("0")}, pod("0"), "OutOfpods"},
	} {
		t.Run(name, func(t *testing.T) {
			err := fits(tc.pod, slices.Values(tc.active), func() corev1.ResourceList { return allocatable })
			var reject *podsync.RejectError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("rejected: %v", err)
			case tc.want != "" && (!errors.As(err, &reject) || reject.Reason != tc.want):
				t.Errorf("%v, want a rejection with %s", err, tc.want)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	side := asking("100m")
	side.RestartPolicy = &always
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"sum":                   {corev1.PodSpec{Containers: []corev1.Container{asking("1"), asking("2")}}, "3"},
		"a large init":          {corev1.PodSpec{InitContainers: []corev1.Container{asking("5")}, Containers: []corev1.Container{asking("1")}}, "5"},
		"sidecar":               {corev1.PodSpec{InitContainers: []corev1.Container{side}, Containers: []corev1.Container{asking("1")}}, "1100m"},
		"init beside a sidecar": {corev1.PodSpec{InitContainers: []corev1.Container{side, asking("5")}, Containers: []corev1.Container{asking("1")}}, "5100m"},
		"of the pod":            {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: asking("7").Resources.Requests}, Containers: []corev1.Container{asking("1")}}, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			got := request(&corev1.Pod{Spec: tc.spec}, corev1.ResourceCPU)
			if want := resource.MustParse(tc.want); got.Cmp(want) != 0 {
				t.Errorf("%s, want %s", got.String(), tc.want)
			}
		})
	}
}

func TestNodeSelectors(t *testing.T) {
	set := map[string]string{"zone": "a", "cores": "8"}
	affinity := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}}
	}
	label := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	name := func(values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: values}}}
	}
	for what, tc := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"none":                      {corev1.PodSpec{}, true},
		"a label":                   {corev1.PodSpec{NodeSelector: map[string]string{"zone": "a"}}, true},
		"another value":             {corev1.PodSpec{NodeSelector: map[string]string{"zone": "b"}}, false},
		"an empty value is one":     {corev1.PodSpec{NodeSelector: map[string]string{"absent": ""}}, false},
		"In":                        {affinity(label("zone", corev1.NodeSelectorOpIn, "b", "a")), true},
		"NotIn":                     {affinity(label("zone", corev1.NodeSelectorOpNotIn, "a")), false},
		"Exists":                    {affinity(label("zone", corev1.NodeSelectorOpExists)), true},
		"DoesNotExist":              {affinity(label("zone", corev1.NodeSelectorOpDoesNotExist)), false},
		"Gt":                        {affinity(label("cores", corev1.NodeSelectorOpGt, "7")), true},
		"Lt":                        {affinity(label("cores", corev1.NodeSelectorOpLt, "8")), false},
		"the name":                  {affinity(name("n1")), true},
		"another name":              {affinity(name("n2")), false},
		"one of two terms":          {affinity(name("n2"), label("zone", corev1.NodeSelectorOpExists)), true},
		"a term without anything":   {affinity(corev1.NodeSelectorTerm{}), false},
		"no term":                   {affinity(), false},
		"an operator of the future": {affinity(label("zone", "Near", "a")), false},
	} {
		t.Run(what, func(t *testing.T) {
			if got := selects(&tc.spec, "n1", set); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

func TestHostPortsAreTakenOnce(t *testing.T) {
	pod := func(ip string, protocol corev1.Protocol) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: ip, Protocol: protocol}}}}}}
	}
	for what, tc := range map[string]struct {
		a, b *corev1.Pod
		ok   bool
	}{
		"the same":               {pod("", ""), pod("", corev1.ProtocolTCP), false},
		"another protocol":       {pod("", ""), pod("", corev1.ProtocolUDP), true},
		"other addresses":        {pod("192.0.2.1", ""), pod("192.0.2.2", ""), true},
		"one of them everywhere": {pod("192.0.2.1", ""), pod("0.0.0.0", ""), false},
		"no host port":           {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}}}, true},
		"the host's network":     {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}}}, false},
	} {
		t.Run(what, func(t *testing.T) {
			err := fits(tc.b, slices.Values([]*corev1.Pod{tc.a}), nil)
			if reject := (*podsync.RejectError)(nil); (err == nil) != tc.ok || err != nil && (!errors.As(err, &reject) || reject.Reason != ReasonNodePorts) {
				t.Errorf("%v, want success %v", err, tc.ok)
			}
		})
	}
}

// A bare is a Runtime without capabilities.
type bare struct{ Runtime }

func TestPodsThatCantRunHereAreRejected(t *testing.T) {
	p := &Provider{cfg: Config{Runtime: bare{}}}
	container := func(c corev1.Container) corev1.PodSpec { return corev1.PodSpec{Containers: []corev1.Container{c}} }
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{}}
	for what, tc := range map[string]struct {
		spec   corev1.PodSpec
		reason string
	}{
		"plain":         {corev1.PodSpec{}, ""},
		"linux":         {corev1.PodSpec{OS: &corev1.PodOS{Name: corev1.OSName(runtime.GOOS)}}, ""},
		"another OS":    {corev1.PodSpec{OS: &corev1.PodOS{Name: "plan9"}}, ReasonPodOSNotSupported},
		"a volume":      {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}}, ReasonUnsupported},
		"an emptyDir":   {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}, ""},
		"a gRPC probe":  {container(corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}}), ReasonUnsupported},
		"an exec probe": {container(corev1.Container{ReadinessProbe: &corev1.Probe{ProbeHandler: exec}}), ReasonUnsupported},
		"an exec hook":  {container(corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}}), ReasonUnsupported},
		"host aliases":  {corev1.PodSpec{HostAliases: []corev1.HostAlias{{}}}, ReasonUnsupported},
	} {
		t.Run(what, func(t *testing.T) {
			err := p.Admit(t.Context(), &corev1.Pod{Spec: tc.spec}, slices.Values([]*corev1.Pod{}))
			reject := (*podsync.RejectError)(nil)
			if (err == nil) != (tc.reason == "") || err != nil && (!errors.As(err, &reject) || reject.Reason != tc.reason) {
				t.Errorf("%v, want reason %q", err, tc.reason)
			}
		})
	}
}
