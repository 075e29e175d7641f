// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ReasonRestartingAllContainers is the reason of a container that was ended
// because another one's exit restarts the whole pod (the RestartAllContainers
// action of a restart policy rule). Such a container starts again whatever its
// own policy says. A provider that implements the action sets it.
const ReasonRestartingAllContainers = "RestartingAllContainers"

// IsSidecar reports whether c, an element of spec.initContainers, is a sidecar:
// an init container with restartPolicy Always (KEP-753). It runs beside the
// regular containers, and neither its end nor its exit code counts for the
// pod's phase.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ShouldRestart reports whether container c of a pod with this spec is started
// again after it exited with exitCode.
//
// The first of the container's restartPolicyRules that matches the code decides
// (KEP-5307); after them the container's own restartPolicy; after it the
// pod's. Rules of a container without a restartPolicy of its own don't count, as
// the API requires one with them. A pod without a restartPolicy has Always, the
// API's default.
func ShouldRestart(spec *corev1.PodSpec, c *corev1.Container, exitCode int32) bool {
	if c.RestartPolicy == nil {
		return policyRestarts(string(spec.RestartPolicy), exitCode)
	}
	if rule := matchingRule(c, exitCode); rule != nil {
		return true
	}
	return policyRestarts(string(*c.RestartPolicy), exitCode)
}

// RestartsPod reports whether an exit of container c with exitCode starts every
// container of the pod again, the action RestartAllContainers of a rule.
func RestartsPod(c *corev1.Container, exitCode int32) bool {
	rule := matchingRule(c, exitCode)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// matchingRule returns the first rule of c that names exitCode and that has an
// action known here.
func matchingRule(c *corev1.Container, exitCode int32) *corev1.ContainerRestartRule {
	if c.RestartPolicy == nil {
		return nil
	}
	for i := range c.RestartPolicyRules {
		rule := &c.RestartPolicyRules[i]
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn:
		case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
			in = !in
		default:
			continue
		}
		if !in {
			continue
		}
		switch rule.Action {
		case corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers:
			return rule
		}
		// A matching rule ends the search even if only a later API
		// knows its action.
		return nil
	}
	return nil
}

// policyRestarts applies a restartPolicy: pods and containers spell them alike.
func policyRestarts(policy string, exitCode int32) bool {
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return exitCode != 0
	}
	return true
}

// mayRestartPod reports whether some container of the pod has a rule by which
// all of them restart; the API server then lets each leave Terminated.
func mayRestartPod(spec *corev1.PodSpec) bool {
	has := func(cs []corev1.Container) bool {
		for i := range cs {
			for j := range cs[i].RestartPolicyRules {
				if cs[i].RestartPolicyRules[j].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
		return false
	}
	return has(spec.Containers) || has(spec.InitContainers)
}
