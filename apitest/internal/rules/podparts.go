// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateEphemeral checks a write to /ephemeralcontainers, which may only add containers.
func validateEphemeral(s *corev1.PodSpec, o []corev1.EphemeralContainer) (errs field.ErrorList) {
	path := field.NewPath("spec", "ephemeralContainers")
	volumes, _ := validateVolumes(s.Volumes, path) // they do not change here
	names := sets.New[string]()
	for _, c := range s.InitContainers {
		names.Insert(c.Name)
	}
	for _, c := range s.Containers {
		names.Insert(c.Name)
	}
	targets := names.Clone()
	byName := map[string]*corev1.EphemeralContainer{}
	for i := range s.EphemeralContainers {
		e, at := &s.EphemeralContainers[i], path.Index(i)
		c := (*corev1.Container)(&e.EphemeralContainerCommon)
		errs = append(errs, validateNames(c, names, at)...)
		errs = append(errs, validateContainer(c, volumes, at)...)
		if t := e.TargetContainerName; t != "" && !targets.Has(t) {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), t))
		}
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"ports", c.Ports != nil}, {"resources", !equality.Semantic.DeepEqual(c.Resources, corev1.ResourceRequirements{})},
			{"resizePolicy", c.ResizePolicy != nil}, {"restartPolicy", c.RestartPolicy != nil}, {"restartPolicyRules", c.RestartPolicyRules != nil},
			{"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil}, {"startupProbe", c.StartupProbe != nil}, {"lifecycle", c.Lifecycle != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(at.Child(f.name), "cannot be set for an Ephemeral Container"))
			}
		}
		for j, m := range c.VolumeMounts {
			if m.SubPath != "" || m.SubPathExpr != "" {
				errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(j).Child("subPath"), "cannot be set for an Ephemeral Container"))
			}
		}
		byName[e.Name] = e
	}
	for i := range o {
		if e := byName[o[i].Name]; e == nil || !equality.Semantic.DeepEqual(*e, o[i]) {
			errs = append(errs, field.Forbidden(path, "existing ephemeral containers \""+o[i].Name+"\" may not be removed or changed\n"))
		}
	}
	return errs
}

// resized returns containers with the resources of a write to /resize. If the write adds,
// removes, renames or reorders containers, it returns those of the write, which
// validateResize refuses.
func resized(containers, old []corev1.Container) []corev1.Container {
	if len(containers) != len(old) {
		return containers
	}
	out := make([]corev1.Container, len(old))
	for i := range old {
		if containers[i].Name != old[i].Name {
			return containers
		}
		out[i] = old[i]
		out[i].Resources, out[i].ResizePolicy = containers[i].Resources, containers[i].ResizePolicy
	}
	return out
}

// validateResize checks a write to /resize, which may change CPU and memory of containers.
func validateResize(w *Write, p, o *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePodSpec(&p.Spec, path)
	if was := o.Status.QOSClass; qosClass(&p.Spec) != was {
		errs = append(errs, field.Invalid(path, was, "Pod QOS Class may not change as a result of resizing"))
	}
	fixed := func(*corev1.Container) bool { return false }
	errs = append(errs, validateResized(p.Spec.Containers, o.Spec.Containers, fixed, "containers")...)
	if w.Minor < 36 {
		fixed = func(c *corev1.Container) bool {
			return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
		}
	}
	return append(errs, validateResized(p.Spec.InitContainers, o.Spec.InitContainers, fixed, "initContainers")...)
}

func validateResized(containers, old []corev1.Container, fixed func(*corev1.Container) bool, list string) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	path := spec.Child(list)
	if len(containers) != len(old) {
		return field.ErrorList{field.Forbidden(path, list+" may not be added or removed on resize")}
	}
	for i := range old {
		c, o := containers[i], &old[i]
		switch {
		case c.Name != o.Name:
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), list+" may not be renamed or reordered on resize"))
			continue
		case fixed(o):
			if !equality.Semantic.DeepEqual(c, *o) {
				errs = append(errs, field.Forbidden(spec, "resources for non-sidecar init containers are immutable"))
			}
			continue
		}
		if removed(c.Resources.Requests, o.Resources.Requests) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("resources", "requests"), "resource requests cannot be removed"))
		}
		if removed(c.Resources.Limits, o.Resources.Limits) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("resources", "limits"), "resource limits cannot be removed"))
		}
		c.Resources.Requests, c.Resources.Limits = without(c.Resources.Requests, o.Resources.Requests), without(c.Resources.Limits, o.Resources.Limits)
		if !equality.Semantic.DeepEqual(c, *o) {
			errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
		}
	}
	return errs
}

// removed reports whether a list lacks a resource of old.
func removed(list, old corev1.ResourceList) bool {
	for name := range old {
		if _, ok := list[name]; !ok {
			return true
		}
	}
	return false
}

// without returns list with the CPU and memory of old.
func without(list, old corev1.ResourceList) corev1.ResourceList {
	list = maps.Clone(list)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		delete(list, name)
		if q, ok := old[name]; ok {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = q
		}
	}
	return list
}
