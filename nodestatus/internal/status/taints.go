// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// MissingTaints returns the taints of keep that have lacks.
func MissingTaints(keep, have []corev1.Taint) []corev1.Taint {
	var missing []corev1.Taint
	for _, taint := range keep {
		if !slices.ContainsFunc(have, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value }) {
			missing = append(missing, taint)
		}
	}
	return missing
}

// withTaints returns taints with more, each in the place of one with its key and
// effect.
func withTaints(taints, more []corev1.Taint) []corev1.Taint {
	kept := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(more, func(m corev1.Taint) bool { return m.MatchTaint(&t) })
	})
	return append(kept, more...)
}
