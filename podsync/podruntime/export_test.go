// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

// The constants that tests wait for.
const (
	CallTimeout   = callTimeout
	VolumeRefresh = volumeRefresh
)

// Check lets a Provider that does not run yet call f with each invariant that a step of a pod
// breaks.
func (p *Provider) Check(f func(error)) { p.checked = f }
