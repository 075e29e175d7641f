// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// The reasons of rejections, as the kubelet has them. OutOf is followed by the name
// of a resource.
const (
	ReasonUnsupported       = "Unsupported"
	ReasonPodOSNotSupported = "PodOSNotSupported"
	ReasonNodeAffinity      = "NodeAffinity"
	ReasonNodePorts         = "NodePorts"
	ReasonOutOf             = "OutOf"
)

// Admit implements podsync.Admitter: a pod that needs something this node does not
// have, or more than is left, fails, and its owner may make it elsewhere.
func (p *Provider) Admit(_ context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return podsync.Reject(ReasonPodOSNotSupported, fmt.Sprintf("the pod is for the OS %s, and the OS of the node is %s", os.Name, runtime.GOOS))
	}
	if why := p.unsupported(pod); why != "" {
		return podsync.Reject(ReasonUnsupported, why)
	}
	if p.caps.checker != nil {
		if err := p.caps.checker.Check(pod); err != nil {
			if reject := (*podsync.RejectError)(nil); errors.As(err, &reject) {
				return err
			}
			return podsync.Reject(ReasonUnsupported, err.Error())
		}
	}
	if p.cfg.NodeLabels != nil {
		if name, set := p.cfg.NodeLabels(); !selects(&pod.Spec, name, set) {
			return podsync.Reject(ReasonNodeAffinity, "the node does not match the node selector or the required node affinity of the pod")
		}
	}
	return fits(pod, active, p.cfg.Allocatable)
}

// unsupported returns the parts of a pod that this Provider can't have with its
// Runtime, or nothing.
func (p *Provider) unsupported(pod *corev1.Pod) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; !podenv.IsData(v) && v.EmptyDir == nil && v.HostPath == nil {
			add("volume %s: only emptyDir, hostPath and data from the API", v.Name)
		}
	}
	for _, c := range containersOf(&pod.Spec) {
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && probe.GRPC != nil && p.cfg.GRPC == nil {
				add("container %s: gRPC probe", c.Name)
			}
			if probe != nil && probe.Exec != nil && p.caps.execer == nil {
				add("container %s: exec probe", c.Name)
			}
		}
		if l := c.Lifecycle; l != nil && p.caps.execer == nil {
			for _, hook := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
				if hook != nil && hook.Exec != nil {
					add("container %s: exec hook", c.Name)
				}
			}
		}
	}
	if p.caps.sandboxer == nil && len(pod.Spec.HostAliases) > 0 {
		add("hostAliases: the pod has the /etc/hosts of the node")
	}
	return strings.Join(why, "; ")
}

// selects reports whether a node matches the node selector and the required node
// affinity of a pod.
func selects(spec *corev1.PodSpec, name string, set labels.Set) bool {
	for key, value := range spec.NodeSelector {
		if got, ok := set[key]; !ok || got != value {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	// Terms are alternatives; one without requirements matches nothing.
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			return false
		}
		fields := labels.Set{"metadata.name": name}
		return matches(term.MatchExpressions, set) && matches(term.MatchFields, fields)
	})
}

// matches reports whether all requirements hold for set.
func matches(requirements []corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	return !slices.ContainsFunc(requirements, func(r corev1.NodeSelectorRequirement) bool {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		return err != nil || !requirement.Matches(set)
	})
}

// fits rejects a pod for which there is no room. The scheduler has counted too, but
// perhaps before another pod was bound.
func fits(pod *corev1.Pod, active iter.Seq[*corev1.Pod], allocatable func() corev1.ResourceList) error {
	left := corev1.ResourceList{}
	if allocatable != nil {
		left = allocatable().DeepCopy()
	}
	total := left.DeepCopy()
	ports := hostPorts(pod)
	for other := range active {
		for _, port := range hostPorts(other) {
			if slices.ContainsFunc(ports, port.conflicts) {
				return podsync.Reject(ReasonNodePorts, fmt.Sprintf("another pod has the host port %d", port.number))
			}
		}
		for name, q := range left {
			q.Sub(request(other, name))
			left[name] = q
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		q, want := left[name], request(pod, name)
		q.Sub(want)
		if q.Sign() < 0 && want.Sign() > 0 {
			have := total[name]
			return podsync.Reject(ReasonOutOf+string(name), fmt.Sprintf("the node has %s of %s in all, and not enough is left", have.String(), name))
		}
	}
	return nil
}

// A hostPort is a port of the node that a pod takes.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	number   int32
}

// conflicts reports whether two pods can't have both ports.
func (a hostPort) conflicts(b hostPort) bool {
	return a.number == b.number && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "" || b.ip == "")
}

// hostPorts returns the ports of the node that a pod takes.
func hostPorts(pod *corev1.Pod) (ports []hostPort) {
	for _, c := range containersOf(&pod.Spec) {
		if c.kind == initKind || c.kind == ephemeral {
			continue
		}
		for _, p := range c.Ports {
			number := p.HostPort
			if number == 0 && pod.Spec.HostNetwork {
				number = p.ContainerPort
			}
			if number == 0 {
				continue
			}
			port := hostPort{p.HostIP, p.Protocol, number}
			if port.protocol == "" {
				port.protocol = corev1.ProtocolTCP
			}
			if port.ip == "0.0.0.0" || port.ip == "::" {
				port.ip = ""
			}
			ports = append(ports, port)
		}
	}
	return ports
}
