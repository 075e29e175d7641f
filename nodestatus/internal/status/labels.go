// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import "strings"

// MayLabel reports whether an identity of the form system:node:NAME may set a
// label with this key on its own Node (NodeRestriction admission plugin). Keys
// outside the namespaces kubernetes.io and k8s.io are free, except for those under
// node-restriction.kubernetes.io.
func MayLabel(key string) bool {
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	switch {
	case within(namespace, "node-restriction.kubernetes.io"):
		return false
	case !within(namespace, "kubernetes.io") && !within(namespace, "k8s.io"):
		return true
	case within(namespace, "kubelet.kubernetes.io") || within(namespace, "node.kubernetes.io"):
		return true
	}
	// The list is that of k8s.io/kubelet/pkg/apis, less the labels that the namespaces
	// above cover.
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
		"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone":
		return true
	}
	return false
}

// within reports whether namespace is domain or below it.
func within(namespace, domain string) bool {
	return namespace == domain || strings.HasSuffix(namespace, "."+domain)
}
