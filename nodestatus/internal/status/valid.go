// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DropInvalid removes the parts of node that the API server would refuse, because it
// refuses everything else in the same write, and returns the reasons. The same node
// gives the same text: it is reported once.
func DropInvalid(node *corev1.Node, nodeCredentials bool) (problems []string) {
	drop := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		if problem := labelProblem(key, node.Labels[key], nodeCredentials); problem != "" {
			drop("label %q: %s", key, problem)
			delete(node.Labels, key)
		}
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		size += len(key) + len(node.Annotations[key])
		switch problems := validation.IsQualifiedName(strings.ToLower(key)); {
		case len(problems) > 0:
			drop("annotation %q: %s", key, problems[0])
		case size > apivalidation.TotalAnnotationSizeLimitB:
			drop("annotation %q: all of them together are larger than %d bytes", key, apivalidation.TotalAnnotationSizeLimitB)
		default:
			continue
		}
		size -= len(key) + len(node.Annotations[key])
		delete(node.Annotations, key)
	}
	for _, list := range []struct {
		name      string
		resources corev1.ResourceList
	}{{"capacity", node.Status.Capacity}, {"allocatable", node.Status.Allocatable}} {
		for _, name := range slices.Sorted(maps.Keys(list.resources)) {
			if problem := quantityProblem(name, list.resources[name]); problem != "" {
				drop("%s of %s: %s", list.name, name, problem)
				delete(list.resources, name)
			}
		}
	}
	node.Status.Addresses = dropRepeated(node.Status.Addresses, func(a corev1.NodeAddress) { drop("address %s %q: is there twice", a.Type, a.Address) })
	node.Status.DeclaredFeatures = slices.DeleteFunc(node.Status.DeclaredFeatures, func(name string) bool {
		bad := !declaredFeature.MatchString(name) || len(name) > validation.DNS1123SubdomainMaxLength
		if bad {
			drop("declared feature %q: must be segments of letters and digits, separated by slashes, the first of them in UpperCamelCase", name)
		}
		return bad
	})
	slices.Sort(node.Status.DeclaredFeatures)
	node.Status.DeclaredFeatures = slices.Compact(node.Status.DeclaredFeatures)
	var taints []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if problem := taintProblem(taint, taints); problem != "" {
			drop("taint %s: %s", taint.ToString(), problem)
			continue
		}
		taints = append(taints, taint)
	}
	node.Spec.Taints = taints
	return problems
}

// labelProblem returns the reason why the API server would refuse a label.
func labelProblem(key, value string, nodeCredentials bool) string {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return problems[0]
	}
	if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
		return problems[0]
	}
	if nodeCredentials && !MayLabel(key) {
		return "node credentials may not set it; see MayLabel"
	}
	return ""
}

// quantityProblem returns the reason why the API server would refuse a quantity:
// resources that are counted have no fractions, and none is less than nothing.
func quantityProblem(name corev1.ResourceName, quantity resource.Quantity) string {
	domain, _, extended := strings.Cut(string(name), "/")
	extended = extended && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
	switch {
	case quantity.Sign() < 0:
		return "is negative"
	case (extended || name == corev1.ResourcePods) && quantity.MilliValue()%1000 != 0:
		return "must be an integer"
	}
	return ""
}

// declaredFeature is the form of the name of a declared feature (KEP-5328).
var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// taintProblem returns the reason why the API server would refuse a taint after
// others.
func taintProblem(taint corev1.Taint, others []corev1.Taint) string {
	if problems := validation.IsQualifiedName(taint.Key); len(problems) > 0 {
		return problems[0]
	}
	if problems := validation.IsValidLabelValue(taint.Value); len(problems) > 0 {
		return problems[0]
	}
	switch taint.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		return fmt.Sprintf("has the effect %q", taint.Effect)
	}
	if slices.ContainsFunc(others, func(o corev1.Taint) bool { return o.MatchTaint(&taint) }) {
		return "is there twice"
	}
	return ""
}

// dropRepeated returns list without the elements that are there already.
func dropRepeated[E comparable](list []E, dropped func(E)) []E {
	var kept []E
	for _, e := range list {
		if slices.Contains(kept, e) {
			dropped(e)
			continue
		}
		kept = append(kept, e)
	}
	return kept
}
