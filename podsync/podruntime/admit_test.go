// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

func asking(cpu string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
}

// rejection returns the reason and the message of a rejection, nothing for nil.
func rejection(t *testing.T, err error) (reason, message string) {
	t.Helper()
	reject := (*podsync.RejectError)(nil)
	if err != nil && !errors.As(err, &reject) {
		t.Fatalf("%v is no rejection", err)
	}
	if reject == nil {
		return "", ""
	}
	return reject.Reason, reject.Message
}

func TestAPodWithoutRoomIsRejected(t *testing.T) {
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
	pod := func(resources ...string) *corev1.Pod {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
		for i := 0; i < len(resources); i += 2 {
			c.Resources.Requests[corev1.ResourceName(resources[i])] = resource.MustParse(resources[i+1])
		}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	for name, tc := range map[string]struct {
		active          []*corev1.Pod
		pod             *corev1.Pod
		reason, message string
	}{
		"alone":          {nil, pod("cpu", "2"), "", ""},
		"too large":      {nil, pod("cpu", "2001m"), "OutOfcpu", "Node didn't have enough resource: cpu, requested: 2001, used: 0, capacity: 2000"},
		"beside another": {[]*corev1.Pod{pod("cpu", "500m")}, pod("cpu", "1500m"), "", ""},
		"no cpu left":    {[]*corev1.Pod{pod("cpu", "501m")}, pod("cpu", "1500m"), "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1500, used: 501, capacity: 2000"},
		"no memory left": {[]*corev1.Pod{pod("memory", "1Gi")}, pod("memory", "1"), "OutOfmemory", "Node didn't have enough resource: memory, requested: 1, used: 1073741824, capacity: 1073741824"},
		"no place left":  {[]*corev1.Pod{pod(), pod(), pod()}, pod(), "OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		"the first of several": {nil, pod("hugepages-2Mi", "2Mi", "memory", "2Gi", "cpu", "3"), "OutOfcpu",
			"Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		"nothing of an overcommitted resource": {[]*corev1.Pod{pod("cpu", "4")}, pod("memory", "1"), "", ""},
		"one that the node does not have":      {nil, pod("hugepages-2Mi", "2Mi"), "OutOfhugepages-2Mi", "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0"},
		"one of the cluster":                   {nil, pod("example.com/license", "1"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoom(func() corev1.ResourceList { return allocatable }, false, false, nil)
			reason, message := rejection(t, r.admit(t.Context(), tc.pod, slices.Values(tc.active)))
			if reason != tc.reason || message != tc.message {
				t.Errorf("%s: %s; want %s: %s", reason, message, tc.reason, tc.message)
			}
		})
	}
}

func TestTheNodeKeepsPodsAway(t *testing.T) {
	stale := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}}
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "b"}}}
	tainted := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: "drain", Value: "now", Effect: corev1.TaintEffectNoSchedule}, {Key: "drain", Value: "now", Effect: corev1.TaintEffectNoExecute},
	}}}
	scheduled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: tainted.Spec.Taints[:1]}}
	zone := func(z string) corev1.PodSpec { return corev1.PodSpec{NodeSelector: map[string]string{"zone": z}} }
	tolerates := func(t corev1.Toleration) corev1.PodSpec {
		return corev1.PodSpec{Tolerations: []corev1.Toleration{t}}
	}
	read := func(n *corev1.Node, err error) func(context.Context) (*corev1.Node, error) {
		return func(context.Context) (*corev1.Node, error) { return n, err }
	}
	const affinity = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	const taint = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
	for name, tc := range map[string]struct {
		node            *corev1.Node
		read            func(context.Context) (*corev1.Node, error)
		spec            corev1.PodSpec
		reason, message string
		fails           bool // with another error
	}{
		"labels that match":              {stale, nil, zone("a"), "", "", false},
		"others":                         {stale, nil, zone("b"), ReasonNodeAffinity, affinity, false},
		"labels that have changed":       {stale, read(fresh, nil), zone("b"), "", "", false},
		"labels that have not":           {stale, read(stale, nil), zone("b"), ReasonNodeAffinity, affinity, false},
		"labels that can't be read":      {stale, read(nil, errors.New("away")), zone("b"), "", "", true},
		"no read if they match":          {stale, read(nil, errors.New("away")), zone("a"), "", "", false},
		"a node that is not known":       {nil, nil, zone("a"), "", "", true},
		"one that can be read":           {nil, read(stale, nil), zone("a"), "", "", false},
		"one that a proxy makes up":      {stale, read(&corev1.Node{}, nil), zone("b"), "", "", true},
		"only by a proxy":                {nil, read(&corev1.Node{}, nil), corev1.PodSpec{}, "", "", true},
		"a taint NoExecute":              {tainted, nil, corev1.PodSpec{}, ReasonTaintToleration, taint, false},
		"a taint that has gone":          {tainted, read(scheduled, nil), corev1.PodSpec{}, "", "", false},
		"a taint NoSchedule":             {scheduled, nil, corev1.PodSpec{}, "", "", false},
		"a tolerated taint":              {tainted, nil, tolerates(corev1.Toleration{Key: "drain", Value: "now"}), "", "", false},
		"for a time":                     {tainted, nil, tolerates(corev1.Toleration{Key: "drain", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(5))}), "", "", false},
		"a toleration of another effect": {tainted, nil, tolerates(corev1.Toleration{Key: "drain", Value: "now", Effect: corev1.TaintEffectNoSchedule}), ReasonTaintToleration, taint, false},
		"a toleration of another value":  {tainted, nil, tolerates(corev1.Toleration{Key: "drain", Value: "later"}), ReasonTaintToleration, taint, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{
				Runtime: bare{}, Root: "/absent", Environment: &podenv.Resolver{}, HostIPs: []string{"192.0.2.1"},
				Node: func() *corev1.Node { return tc.node }, ReadNode: tc.read,
			})
			if err != nil {
				t.Fatal(err)
			}
			err = p.Admit(t.Context(), &corev1.Pod{Spec: tc.spec}, slices.Values([]*corev1.Pod{}))
			if tc.fails {
				if reject := (*podsync.RejectError)(nil); err == nil || errors.As(err, &reject) {
					t.Errorf("%v, want an error that is no rejection", err)
				}
				return
			}
			if reason, message := rejection(t, err); reason != tc.reason || message != tc.message {
				t.Errorf("%s: %s; want %s: %s", reason, message, tc.reason, tc.message)
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
		"init, then a sidecar":  {corev1.PodSpec{InitContainers: []corev1.Container{asking("1"), side}, Containers: []corev1.Container{asking("500m")}}, "1"},
		"two of init":           {corev1.PodSpec{InitContainers: []corev1.Container{asking("5"), asking("4")}, Containers: []corev1.Container{asking("1")}}, "5"},
		"an ephemeral one":      {corev1.PodSpec{Containers: []corev1.Container{asking("1")}, EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(asking("1"))}}}, "1"},
		"overhead":              {corev1.PodSpec{Containers: []corev1.Container{asking("1")}, Overhead: asking("250m").Resources.Requests}, "1250m"},
		"a pod without CPUs":    {corev1.PodSpec{Resources: &corev1.ResourceRequirements{}, Containers: []corev1.Container{asking("1")}}, "1"},
		"of the pod":            {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: asking("7").Resources.Requests}, Containers: []corev1.Container{asking("1")}}, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			got := RequestOf(&corev1.Pod{Spec: tc.spec}, corev1.ResourceCPU)
			if want := resource.MustParse(tc.want); got.Cmp(want) != 0 {
				t.Errorf("%s, want %s", got.String(), tc.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	limited := func(cpu string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Limits: asking(cpu).Resources.Requests}}
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string // empty: none
	}{
		"none":            {corev1.PodSpec{Containers: []corev1.Container{asking("1")}, Overhead: asking("1").Resources.Requests}, ""},
		"one has a limit": {corev1.PodSpec{Containers: []corev1.Container{limited("1"), {}}}, "1"},
		"of init alone":   {corev1.PodSpec{InitContainers: []corev1.Container{limited("1")}, Containers: []corev1.Container{{}}}, "1"},
		"of an ephemeral": {corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(limited("1"))}}}, ""},
		"with overhead":   {corev1.PodSpec{Containers: []corev1.Container{limited("1")}, Overhead: asking("500m").Resources.Requests}, "1500m"},
		"of the pod":      {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Limits: asking("3").Resources.Requests}, Containers: []corev1.Container{limited("1")}}, "3"},
		"a limit of zero": {corev1.PodSpec{Containers: []corev1.Container{limited("0")}}, "0"},
		"two limits":      {corev1.PodSpec{Containers: []corev1.Container{limited("1"), limited("2")}}, "3"},
	} {
		got, ok := LimitOf(&corev1.Pod{Spec: tc.spec}, corev1.ResourceCPU)
		if ok != (tc.want != "") || ok && got.Cmp(resource.MustParse(tc.want)) != 0 || !ok && !got.IsZero() {
			t.Errorf("%s: %s, %v, want %q", name, got.String(), ok, tc.want)
		}
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
		"none":                  {corev1.PodSpec{}, true},
		"a label":               {corev1.PodSpec{NodeSelector: map[string]string{"zone": "a"}}, true},
		"another value":         {corev1.PodSpec{NodeSelector: map[string]string{"zone": "b"}}, false},
		"an empty value is one": {corev1.PodSpec{NodeSelector: map[string]string{"absent": ""}}, false},
		"In":                    {affinity(label("zone", corev1.NodeSelectorOpIn, "b", "a")), true},
		"NotIn":                 {affinity(label("zone", corev1.NodeSelectorOpNotIn, "a")), false},
		"Exists":                {affinity(label("zone", corev1.NodeSelectorOpExists)), true},
		"DoesNotExist":          {affinity(label("zone", corev1.NodeSelectorOpDoesNotExist)), false},
		"Gt":                    {affinity(label("cores", corev1.NodeSelectorOpGt, "7")), true},
		"Lt":                    {affinity(label("cores", corev1.NodeSelectorOpLt, "8")), false},
		"the name":              {affinity(name("n1")), true},
		"another name":          {affinity(name("n2")), false},
		"one of two terms":      {affinity(name("n2"), label("zone", corev1.NodeSelectorOpExists)), true},
		"labels and the name": {affinity(corev1.NodeSelectorTerm{
			MatchExpressions: label("zone", corev1.NodeSelectorOpExists).MatchExpressions, MatchFields: name("n1").MatchFields}), true},
		"labels and another name": {affinity(corev1.NodeSelectorTerm{
			MatchExpressions: label("zone", corev1.NodeSelectorOpExists).MatchExpressions, MatchFields: name("n2").MatchFields}), false},
		"other labels and the name": {affinity(corev1.NodeSelectorTerm{
			MatchExpressions: label("none", corev1.NodeSelectorOpExists).MatchExpressions, MatchFields: name("n1").MatchFields}), false},
		"one of two requirements": {affinity(corev1.NodeSelectorTerm{MatchExpressions: append(label("zone", corev1.NodeSelectorOpExists).MatchExpressions,
			label("none", corev1.NodeSelectorOpExists).MatchExpressions...)}), false},
		"no affinity to nodes":      {corev1.PodSpec{Affinity: &corev1.Affinity{}}, true},
		"a preferred affinity":      {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}, true},
		"one of two labels":         {corev1.PodSpec{NodeSelector: map[string]string{"zone": "a", "cores": "9"}}, false},
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
	ports := func(list ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: list}}}}
	}
	sidecar := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers, nil
		pod.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		return pod
	}
	for what, tc := range map[string]struct {
		a, b *corev1.Pod
		ok   bool
	}{
		"the same":               {pod("", ""), pod("", corev1.ProtocolTCP), false},
		"another protocol":       {pod("", ""), pod("", corev1.ProtocolUDP), true},
		"other addresses":        {pod("192.0.2.1", ""), pod("192.0.2.2", ""), true},
		"one of them everywhere": {pod("192.0.2.1", ""), pod("0.0.0.0", ""), false},
		"both orders":            {pod("", ""), pod("192.0.2.1", ""), false},
		"everywhere of IPv6":     {pod("192.0.2.1", ""), pod("::", ""), false},
		"the same address":       {pod("192.0.2.1", ""), pod("192.0.2.1", ""), false},
		"no host ports at all":   {ports(corev1.ContainerPort{ContainerPort: 80}), ports(corev1.ContainerPort{ContainerPort: 80}), true},
		"another port":           {pod("", ""), ports(corev1.ContainerPort{ContainerPort: 80, HostPort: 8081}), true},
		"the second port":        {pod("", ""), ports(corev1.ContainerPort{HostPort: 1}, corev1.ContainerPort{HostPort: 8080}), false},
		"an init container":      {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{InitContainers: pod("", "").Spec.Containers}}, true},
		"a sidecar":              {pod("", ""), sidecar(pod("", "")), false},
		"an ephemeral container": {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon(pod("", "").Spec.Containers[0])}}}}, true},
		"the host's network, with another port": {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8081}}}}}}, true},
		"no host port":                          {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}}}, true},
		"the host's network":                    {pod("", ""), &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}}}, false},
	} {
		t.Run(what, func(t *testing.T) {
			err := newRoom(nil, false, false, nil).admit(t.Context(), tc.b, slices.Values([]*corev1.Pod{tc.a}))
			if reject := (*podsync.RejectError)(nil); (err == nil) != tc.ok || err != nil && (!errors.As(err, &reject) || reject.Reason != ReasonNodePorts) {
				t.Errorf("%v, want success %v", err, tc.ok)
			}
		})
	}
}

// A bare is a Runtime without capabilities.
type bare struct{ Runtime }

func TestPodsThatCantRunHereAreRejected(t *testing.T) {
	p := &Provider{node: &node{cfg: Config{Runtime: bare{}}, room: newRoom(nil, false, false, nil)}}
	emptyDir := func(medium corev1.StorageMedium) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}}}
	}
	container := func(c corev1.Container) corev1.PodSpec { return corev1.PodSpec{Containers: []corev1.Container{c}} }
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{}}
	http := func(p *corev1.HTTPProtocol) corev1.PodSpec {
		return container(corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Protocol: p}}}})
	}
	for what, tc := range map[string]struct {
		spec   corev1.PodSpec
		reason string
	}{
		"plain":         {corev1.PodSpec{}, ""},
		"linux":         {corev1.PodSpec{OS: &corev1.PodOS{Name: corev1.OSName(runtime.GOOS)}}, ""},
		"another OS":    {corev1.PodSpec{OS: &corev1.PodOS{Name: "plan9"}}, ReasonPodOSNotSupported},
		"a volume":      {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}}, ""},
		"an image":      {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}}, ""},
		"an emptyDir":   {emptyDir(""), ""},
		"in memory":     {emptyDir(corev1.StorageMediumMemory), ""},
		"in huge pages": {emptyDir("HugePages-2Mi"), ReasonUnsupported},
		"a gRPC probe":  {container(corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}}), ReasonUnsupported},
		"an exec probe": {container(corev1.Container{ReadinessProbe: &corev1.Probe{ProbeHandler: exec}}), ReasonUnsupported},
		"an exec hook":  {container(corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}}), ReasonUnsupported},
		"exec at start": {container(corev1.Container{StartupProbe: &corev1.Probe{ProbeHandler: exec}}), ReasonUnsupported},
		"a TCP probe":   {container(corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}}), ""},
		"after a start": {container(corev1.Container{Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}}), ReasonUnsupported},
		"another hook":  {container(corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{}}}}), ""},
		"host aliases":  {corev1.PodSpec{HostAliases: []corev1.HostAlias{{}}}, ReasonUnsupported},

		"the cluster's DNS":               {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, DNSConfig: &corev1.PodDNSConfig{}}, ""},
		"the cluster's DNS for a host's":  {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet}, ReasonUnsupported},
		"name servers":                    {corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}}, ReasonUnsupported},
		"search domains":                  {corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Searches: []string{"a.example"}}}, ReasonUnsupported},
		"DNS options":                     {corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots"}}}}, ReasonUnsupported},
		"no DNS":                          {corev1.PodSpec{DNSPolicy: corev1.DNSNone}, ReasonUnsupported},
		"the mode of an emptyDir":         {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Mode: new(int32(0o700))}}}}}, ReasonUnsupported},
		"options of a mount":              {container(corev1.Container{VolumeMounts: []corev1.VolumeMount{{BindMountOptions: []string{"noexec"}}}}), ReasonUnsupported},
		"an HTTP probe":                   {http(nil), ""},
		"an HTTP probe that names HTTP/1": {http(new(corev1.HTTPProtocolHTTP1)), ""},
		"an HTTP probe with HTTP/2":       {http(new(corev1.HTTPProtocolHTTP2)), ReasonUnsupported},
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

// A judge is a Checker with one verdict.
type judge struct{ verdict error }

func (j judge) Check(*corev1.Pod) error { return j.verdict }

func TestACheckerGivesTheReason(t *testing.T) {
	for name, tc := range map[string]struct {
		verdict         error
		reason, message string
	}{
		"it can run":  {nil, "", ""},
		"it can't":    {errors.New("no GPU"), ReasonUnsupported, "no GPU"},
		"a rejection": {podsync.Reject("NoGPU", "none"), "NoGPU", "none"},
	} {
		p := &Provider{node: &node{caps: capabilities{checker: judge{tc.verdict}}, room: newRoom(nil, false, false, nil)}}
		if reason, message := rejection(t, p.Admit(t.Context(), &corev1.Pod{}, slices.Values([]*corev1.Pod{}))); reason != tc.reason || message != tc.message {
			t.Errorf("%s: %s: %s", name, reason, message)
		}
	}
}

// TestAllThatCantRunHereIsNamed, and nothing is if the Runtime has the capabilities.
func TestAllThatCantRunHereIsNamed(t *testing.T) {
	exec := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		HostAliases: []corev1.HostAlias{{}},
		Volumes:     []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages"}}}},
		Containers: []corev1.Container{{
			Name: "c", LivenessProbe: exec, ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}},
			Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}},
		}},
	}}
	p := &Provider{node: &node{}}
	const want = "volume v: an emptyDir with medium HugePages; container c: exec probe; container c: gRPC probe; container c: exec hook; hostAliases: the pod has the /etc/hosts of the node"
	if why := p.unsupported(pod); why != want {
		t.Errorf("got  %s\nwant %s", why, want)
	}
	p.node = &node{cfg: Config{GRPC: struct{ GRPCProber }{}}, caps: capabilities{execer: struct{ Execer }{}, sandboxer: struct{ Sandboxer }{}}}
	if why := p.unsupported(pod); why != "volume v: an emptyDir with medium HugePages" {
		t.Errorf("with all capabilities: %s", why)
	}
	grpc := pod.Spec.Containers[0].ReadinessProbe.GRPC
	pod.Spec.Volumes, pod.Spec.DNSPolicy = nil, corev1.DNSNone
	for mode, want := range map[corev1.GRPCProbeMode]string{corev1.GRPCProbeModePlaintext: "", corev1.GRPCProbeModeTLS: "container c: gRPC probe with TLS"} {
		grpc.Mode = &mode
		if why := p.unsupported(pod); why != want {
			t.Errorf("gRPC with mode %s: %q, want %q", mode, why, want)
		}
	}
}

// A vigilant is a Runtime that is a Watcher.
type vigilant struct {
	bare
	Watcher
}

func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		runtime Runtime
		cfg     Config
		relist  time.Duration
		backoff Backoff
	}{
		{bare{}, Config{}, DefaultRelist, Backoff{10 * time.Second, 5 * time.Minute, 10 * time.Minute}},
		{vigilant{}, Config{}, DefaultRelistWatched, Backoff{10 * time.Second, 5 * time.Minute, 10 * time.Minute}},
		{bare{}, Config{Relist: time.Hour, Backoff: Backoff{time.Hour, 1, 2}}, time.Hour, Backoff{time.Hour, time.Hour, 2}},
		{bare{}, Config{Backoff: Backoff{1, 2, 3}}, DefaultRelist, Backoff{1, 2, 3}},
	} {
		cfg := tc.cfg
		cfg.Runtime, cfg.Root, cfg.Environment, cfg.HostIPs = tc.runtime, "/absent", &podenv.Resolver{}, []string{"192.0.2.1"}
		if err := cfg.complete(); err != nil || cfg.Relist != tc.relist || cfg.Backoff != tc.backoff {
			t.Errorf("%v, %v, %+v, want %v, %+v", err, cfg.Relist, cfg.Backoff, tc.relist, tc.backoff)
		}
	}
}
