// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/podsync"
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
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node, err := p.cfg.ReadNode(ctx)
	if err == nil && node.Name == "" { // a proxy has made it up
		err = apierr.ErrAnswer
	}
	if err != nil {
		return fmt.Errorf("podruntime: read the Node: %w", err)
	}
	return mismatch(ctx, pod, node)
}

// unsupported returns the parts of a pod that a Provider can't have with its Runtime, or
// nothing.
func (n *node) unsupported(pod *corev1.Pod) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			add("volume %s: an emptyDir with medium %s", v.Name, v.EmptyDir.Medium)
		}
		if v.EmptyDir != nil && v.EmptyDir.Mode != nil {
			add("volume %s: an emptyDir with a mode", v.Name)
		}
	}
	for _, c := range containersOf(&pod.Spec) {
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && probe.GRPC != nil && n.cfg.GRPC == nil {
				add("container %s: gRPC probe", c.Name)
			} else if probe != nil && probe.GRPC != nil && probe.GRPC.Mode != nil && *probe.GRPC.Mode != corev1.GRPCProbeModePlaintext {
				add("container %s: gRPC probe with %s", c.Name, *probe.GRPC.Mode)
			}
			if probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Protocol != nil && *probe.HTTPGet.Protocol != corev1.HTTPProtocolHTTP1 {
				add("container %s: HTTP probe with %s", c.Name, *probe.HTTPGet.Protocol)
			}
			if probe != nil && probe.Exec != nil && n.caps.execer == nil {
				add("container %s: exec probe", c.Name)
			}
		}
		if l := c.Lifecycle; l != nil && n.caps.execer == nil {
			for _, hook := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
				if hook != nil && hook.Exec != nil {
					add("container %s: exec hook", c.Name)
				}
			}
		}
		for _, m := range c.VolumeMounts {
			if len(m.BindMountOptions) > 0 {
				add("container %s: bindMountOptions of the mount at %s", c.Name, m.MountPath)
			}
		}
	}
	if n.caps.sandboxer == nil {
		if len(pod.Spec.HostAliases) > 0 {
			add("hostAliases: the pod has the /etc/hosts of the node")
		}
		if policy := pod.Spec.DNSPolicy; policy == corev1.DNSNone || policy == corev1.DNSClusterFirstWithHostNet {
			add("dnsPolicy %s: the pod has the /etc/resolv.conf of the node", policy)
		}
		if c := pod.Spec.DNSConfig; c != nil && len(c.Nameservers)+len(c.Searches)+len(c.Options) > 0 {
			add("dnsConfig: the pod has the /etc/resolv.conf of the node")
		}
	}
	return strings.Join(why, "; ")
}
