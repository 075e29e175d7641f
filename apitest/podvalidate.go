// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePod checks what controllers get wrong: the shape of a pod, what may
// change after it was made, and what a status may say. It is not the whole of
// the server's validation.
func validatePod(w *write, obj, old runtime.Object) field.ErrorList {
	p := obj.(*corev1.Pod)
	if old == nil {
		return validatePodSpec(&p.Spec)
	}
	o := old.(*corev1.Pod)
	switch w.r.Subresource {
	case "status":
		return validatePodStatus(w, p, o)
	case "":
		return append(validatePodSpec(&p.Spec), validatePodChange(&p.Spec, &o.Spec)...)
	case "ephemeralcontainers":
		return validateEphemeral(p.Spec.EphemeralContainers, o.Spec.EphemeralContainers)
	case "resize":
		if was := o.Status.QOSClass; qosClass(&p.Spec) != was {
			return field.ErrorList{field.Invalid(field.NewPath("spec"), was, "Pod QOS Class may not change as a result of resizing")}
		}
	}
	return nil
}

func validatePodSpec(s *corev1.PodSpec) (errs field.ErrorList) {
	path := field.NewPath("spec")
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	names := map[string]bool{}
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"containers", s.Containers}, {"initContainers", s.InitContainers}} {
		for i, c := range list.containers {
			at := path.Child(list.name).Index(i)
			if c.Name == "" {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else {
				for _, msg := range utilvalidation.IsDNS1123Label(c.Name) {
					errs = append(errs, field.Invalid(at.Child("name"), c.Name, msg))
				}
			}
			if names[c.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
			}
			names[c.Name] = true
			if c.Image == "" {
				errs = append(errs, field.Required(at.Child("image"), ""))
			}
		}
	}
	switch s.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), s.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	if s.NodeName != "" {
		for _, msg := range apivalidation.NameIsDNSSubdomain(s.NodeName, false) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), s.NodeName, msg))
		}
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	return errs
}

// podMayChange is the server's list of the fields of a spec that are not
// immutable.
const podMayChange = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func validatePodChange(s, o *corev1.PodSpec) (errs field.ErrorList) {
	path := field.NewPath("spec")
	if len(s.Containers) != len(o.Containers) {
		return append(errs, field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(s.InitContainers) != len(o.InitContainers) {
		return append(errs, field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	deadline := path.Child("activeDeadlineSeconds")
	switch n, d := s.ActiveDeadlineSeconds, o.ActiveDeadlineSeconds; {
	case n == nil && d != nil:
		errs = append(errs, field.Invalid(deadline, n, "must not update from a positive integer to nil value"))
	case n != nil && d != nil && *n > *d:
		errs = append(errs, field.Invalid(deadline, *n, "must be less than or equal to previous value"))
	}
	for _, was := range o.Tolerations {
		if !slices.ContainsFunc(s.Tolerations, func(t corev1.Toleration) bool {
			t.TolerationSeconds = was.TolerationSeconds
			return equality.Semantic.DeepEqual(t, was)
		}) {
			errs = append(errs, field.Forbidden(path.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds"))
			break
		}
	}
	// All that is left must be the same.
	n := s.DeepCopy()
	for i := range n.Containers {
		n.Containers[i].Image = o.Containers[i].Image
	}
	for i := range n.InitContainers {
		n.InitContainers[i].Image = o.InitContainers[i].Image
	}
	n.ActiveDeadlineSeconds, n.Tolerations, n.SchedulingGates = o.ActiveDeadlineSeconds, o.Tolerations, o.SchedulingGates
	if !equality.Semantic.DeepEqual(n, o) {
		errs = append(errs, field.Forbidden(path, podMayChange))
	}
	return errs
}

func validateEphemeral(s, o []corev1.EphemeralContainer) (errs field.ErrorList) {
	for i := range o {
		if i >= len(s) || !equality.Semantic.DeepEqual(s[i], o[i]) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "existing ephemeral containers \""+o[i].Name+"\" may not be removed or changed\n"))
		}
	}
	return errs
}

func validatePodStatus(w *write, p, o *corev1.Pod) (errs field.ErrorList) {
	path := field.NewPath("status")
	if p.Status.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), p.Status.ObservedGeneration, "must be a non-negative integer"))
	}
	if p.Status.QOSClass != o.Status.QOSClass {
		errs = append(errs, field.Invalid(path.Child("qosClass"), p.Status.QOSClass, apivalidation.FieldImmutableErrorMsg))
	}
	if n := p.Status.NominatedNodeName; n != "" && n != o.Status.NominatedNodeName && o.Spec.NodeName != "" && w.s.minor >= 35 {
		errs = append(errs, field.Forbidden(path.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node"))
	}
	errs = append(errs, validateTransition(p.Status.ContainerStatuses, o.Status.ContainerStatuses, &o.Spec, path.Child("containerStatuses"))...)
	families := map[bool]bool{}
	for i, ip := range p.Status.PodIPs {
		at := path.Child("podIPs").Index(i)
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			errs = append(errs, field.Invalid(at, ip.IP, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
			continue
		}
		if families[addr.Is4()] {
			errs = append(errs, field.Invalid(path.Child("podIPs"), internalIPs(p.Status.PodIPs), "may specify no more than one IP for each IP family"))
		}
		families[addr.Is4()] = true
	}
	return errs
}

// internalIPs are addresses as the server's own type has them, which its error
// messages quote.
func internalIPs(ips []corev1.PodIP) (out []struct{ IP string }) {
	for _, ip := range ips {
		out = append(out, struct{ IP string }{ip.IP})
	}
	return out
}

// validateTransition refuses to bring a container back that ended for good.
func validateTransition(s, o []corev1.ContainerStatus, spec *corev1.PodSpec, path *field.Path) (errs field.ErrorList) {
	for i, was := range o {
		if was.State.Terminated == nil {
			continue
		}
		for _, now := range s {
			if now.Name == was.Name && now.State.Terminated == nil && !mayRestart(spec, was.Name, was.State.Terminated.ExitCode) {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

// mayRestart says whether a container that ended with code is to be started
// again, by its own policy and rules or else by the pod's.
func mayRestart(spec *corev1.PodSpec, name string, code int32) bool {
	policy := spec.RestartPolicy
	for _, c := range spec.Containers {
		if c.Name != name {
			continue
		}
		for _, rule := range c.RestartPolicyRules {
			if codes := rule.ExitCodes; codes != nil {
				in := false
				for _, v := range codes.Values {
					in = in || v == code
				}
				if in == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
					return true
				}
			}
		}
		if c.RestartPolicy != nil {
			policy = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}
