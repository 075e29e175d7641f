// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync"
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

// Admit implements podsync.Admitter: a pod that needs something this node does not
// have, or more than is left, fails, and its owner may make it elsewhere.
func (p *Provider) Admit(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
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
	if err := p.matchesNode(ctx, pod); err != nil {
		return err
	}
	return p.room.admit(ctx, pod, active)
}

// matchesNode rejects a pod that the Node's labels or taints keep away. The Node is
// read again before that: its labels may have changed just before the pod was bound.
func (p *Provider) matchesNode(ctx context.Context, pod *corev1.Pod) error {
	if p.cfg.Node == nil {
		return nil
	}
	node := p.cfg.Node()
	if node == nil && p.cfg.ReadNode == nil {
		return errors.New("podruntime: the Node is not known yet")
	}
	if node != nil {
		if err := mismatch(ctx, pod, node); err == nil || p.cfg.ReadNode == nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	node, err := p.cfg.ReadNode(ctx)
	if err != nil {
		return fmt.Errorf("podruntime: read the Node: %w", err)
	}
	return mismatch(ctx, pod, node)
}

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

// unsupported returns the parts of a pod that this Provider can't have with its
// Runtime, or nothing.
func (p *Provider) unsupported(pod *corev1.Pod) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			add("volume %s: an emptyDir with medium %s", v.Name, v.EmptyDir.Medium)
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

// conflict returns a port of the node that two pods want, and whether there is one.
func conflict(pod, other *corev1.Pod) (number int32, taken bool) {
	ports := hostPorts(pod)
	for _, port := range hostPorts(other) {
		if slices.ContainsFunc(ports, port.conflicts) {
			return port.number, true
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
