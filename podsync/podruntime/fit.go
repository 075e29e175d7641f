// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// The reasons of rejections, as the kubelet has them. OutOf is followed by the name
// of a resource.
const (
	ReasonUnsupported       = "Unsupported"
	ReasonPodOSNotSupported = "PodOSNotSupported"
	ReasonNodeAffinity      = "NodeAffinity"
	ReasonNodePorts         = "NodePorts"
	ReasonTaintToleration   = "TaintToleration"
	ReasonOutOf             = "OutOf"
)

// mismatch returns the rejection of a pod that a Node is not for. As with the kubelet,
// only taints with the effect NoExecute count: another component may bind a pod in
// spite of the others.
func mismatch(ctx context.Context, pod *corev1.Pod, node *corev1.Node) error {
	if !selects(&pod.Spec, node.Name, node.Labels) {
		return podsync.Reject(ReasonNodeAffinity, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		tolerates := func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.FromContext(ctx), taint, true) }
		if taint.Effect == corev1.TaintEffectNoExecute && !slices.ContainsFunc(pod.Spec.Tolerations, tolerates) {
			return podsync.Reject(ReasonTaintToleration, "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
		}
	}
	return nil
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

// A portSet has the ports of the node that a pod takes. A port with the address anyIP stands for
// those with the same number, whatever their addresses.
type portSet map[hostPort]bool

// anyIP is no address of a port.
const anyIP = "any"

func portsOf(ports []hostPort) portSet {
	set := portSet{}
	for _, p := range ports {
		set[p], set[hostPort{anyIP, p.protocol, p.number}] = true, true
	}
	return set
}

// conflict returns one of the ports that the set has, too, and whether there is one. Ports without
// an address are those of all addresses.
func (s portSet) conflict(ports []hostPort) (number int32, taken bool) {
	for _, p := range ports {
		all := hostPort{"", p.protocol, p.number}
		if s[p] || s[all] || p == all && s[hostPort{anyIP, p.protocol, p.number}] {
			return p.number, true
		}
	}
	return 0, false
}

// A hostPort is a port of the node that a pod takes.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	number   int32
}

// hostPorts returns the ports of the node that a pod takes.
func hostPorts(pod *corev1.Pod) (ports []hostPort) {
	for _, c := range containersOf(&pod.Spec) {
		if c.kind == core.Init || c.kind == core.Ephemeral {
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
