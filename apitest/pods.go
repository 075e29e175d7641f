// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

var pods = &kind{
	name: "Pod", resource: "pods", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, status: true,
	subresources: []subresource{
		{name: "binding", create: bind, gvk: corev1.SchemeGroupVersion.WithKind("Binding")},
		{name: "ephemeralcontainers"},
		{name: "eviction", create: evict, gvk: policyv1.SchemeGroupVersion.WithKind("Eviction")},
		{name: "resize"},
	},
	validName: apivalidation.NameIsDNSSubdomain, unconditional: true, returnsDeleted: true,
	spec:     func(obj runtime.Object) any { return &obj.(*corev1.Pod).Spec },
	node:     func(obj runtime.Object) string { return obj.(*corev1.Pod).Spec.NodeName },
	fields:   podField,
	defaults: defaultPod,
	onCreate: func(w *write, obj runtime.Object) {
		p := obj.(*corev1.Pod)
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qosClass(&p.Spec)}
		if p.Spec.Priority == nil {
			p.Spec.Priority = ptr.To[int32](0)
			p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
		}
		tolerateAbsence(p)
	},
	onUpdate: updatePod,
	validate: validatePod,
	graceful: func(obj runtime.Object, opts *metav1.DeleteOptions) {
		p := obj.(*corev1.Pod)
		grace := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 0)
		if opts.GracePeriodSeconds != nil {
			grace = *opts.GracePeriodSeconds
		}
		// Nobody would have to stop it: unscheduled, or already ended.
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			grace = 0
		}
		if grace < 0 {
			grace = 1
		}
		opts.GracePeriodSeconds = &grace
	},
}

func podField(obj runtime.Object, path string) (string, bool) {
	p := obj.(*corev1.Pod)
	switch path {
	case "spec.nodeName":
		return p.Spec.NodeName, true
	case "spec.restartPolicy":
		return string(p.Spec.RestartPolicy), true
	case "spec.schedulerName":
		return p.Spec.SchedulerName, true
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, true
	case "spec.hostNetwork":
		return strconv.FormatBool(p.Spec.HostNetwork), true
	case "status.phase":
		return string(p.Status.Phase), true
	case "status.podIP":
		return p.Status.PodIP, true
	case "status.nominatedNodeName":
		return p.Status.NominatedNodeName, true
	}
	return "", false
}

// defaultPod fills in what pods without it would be hard to read for: what
// the kubelet and its like look at. Probes and volumes are left as they are.
func defaultPod(obj runtime.Object) {
	p := obj.(*corev1.Pod)
	s := &p.Spec
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.SchedulerName == "" {
		s.SchedulerName = corev1.DefaultSchedulerName
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds)
	} else if *s.TerminationGracePeriodSeconds < 0 {
		s.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	eachContainer(p, defaultContainer)
	for i := range s.EphemeralContainers {
		defaultContainer((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	defaultIPs(&p.Status)
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
		if latest(c.Image) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	for k, v := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[k]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[k] = v.DeepCopy()
		}
	}
}

// latest reports whether an image reference means the tag latest.
func latest(image string) bool {
	if image == "" || slices.Contains([]byte(image), '@') {
		return false
	}
	for i := len(image) - 1; i >= 0 && image[i] != '/'; i-- {
		if image[i] == ':' {
			return image[i+1:] == "latest"
		}
	}
	return true
}

// defaultIPs keeps the first address and the list of addresses in step, as
// clients of either age expect.
func defaultIPs(s *corev1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
}

// tolerateAbsence is the admission plugin DefaultTolerationSeconds: a pod
// tolerates for a while that its node is away, and can't be rid of that.
func tolerateAbsence(p *corev1.Pod) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerated := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)})
		}
	}
}

// qosClass is the class of service that a pod's requests and limits make.
func qosClass(s *corev1.PodSpec) corev1.PodQOSClass {
	any, guaranteed := false, len(s.Containers) > 0
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for _, c := range list {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
				any = any || !request.IsZero() || !limit.IsZero()
				guaranteed = guaranteed && !limit.IsZero() && request.Cmp(limit) == 0
			}
		}
	}
	switch {
	case guaranteed:
		return corev1.PodQOSGuaranteed
	case any:
		return corev1.PodQOSBurstable
	}
	return corev1.PodQOSBestEffort
}

// updatePod keeps each path of a pod to its part.
func updatePod(w *write, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	switch w.r.Subresource {
	case "":
		p.Status = o.Status
		tolerateAbsence(p)
	case "status":
		p.Spec = o.Spec
		p.OwnerReferences = o.OwnerReferences
		keepStatus(&p.Status, &o.Status)
	case "ephemeralcontainers":
		ephemeral := p.Spec.EphemeralContainers
		p.Spec, p.Status = o.Spec, o.Status
		p.Spec.EphemeralContainers = ephemeral
		keepMeta(p, o)
	case "resize":
		list := p.Spec.Containers
		p.Spec, p.Status = o.Spec, o.Status
		p.Spec.Containers = slices.Clone(o.Spec.Containers)
		for i := range p.Spec.Containers {
			if i < len(list) && list[i].Name == p.Spec.Containers[i].Name {
				p.Spec.Containers[i].Resources, p.Spec.Containers[i].ResizePolicy = list[i].Resources, list[i].ResizePolicy
			}
		}
		keepMeta(p, o)
	}
}

// keepMeta leaves only what a write of a part of spec may change: nothing.
func keepMeta(p, o *corev1.Pod) {
	p.Labels, p.Annotations = maps.Clone(o.Labels), maps.Clone(o.Annotations)
	p.OwnerReferences, p.Finalizers = o.OwnerReferences, o.Finalizers
}

// keepStatus restores what a status write may leave out without meaning to
// clear it.
func keepStatus(s, o *corev1.PodStatus) {
	if s.QOSClass == "" {
		s.QOSClass = o.QOSClass
	}
	if s.ResourceClaimStatuses == nil {
		s.ResourceClaimStatuses = o.ResourceClaimStatuses
	}
	if s.ExtendedResourceClaimStatus == nil {
		s.ExtendedResourceClaimStatus = o.ExtendedResourceClaimStatus
	}
	if s.ObservedGeneration == 0 {
		s.ObservedGeneration = o.ObservedGeneration
	}
	for i := range s.Conditions {
		if s.Conditions[i].ObservedGeneration != 0 {
			continue
		}
		for _, c := range o.Conditions {
			if c.Type == s.Conditions[i].Type {
				s.Conditions[i].ObservedGeneration = c.ObservedGeneration
			}
		}
	}
}

// setPodCondition adds or changes a condition and reports whether it did.
func setPodCondition(p *corev1.Pod, c corev1.PodCondition) bool {
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	for i := range p.Status.Conditions {
		o := &p.Status.Conditions[i]
		if o.Type != c.Type {
			continue
		}
		if o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
		}
		if *o == c {
			return false
		}
		*o = c
		return true
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
	return true
}
