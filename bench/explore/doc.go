// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore compares ways to run a composition of controllers once with a crash after
// one of its writes: apitest/explore, and etcd with kube-apiserver, as envtest starts them,
// where the program is cancelled in place of a crash and started again.
//
//	KUBEWRIGHT_E2E=1 go test -run TestCompare -v ./explore
//
// Without KUBEWRIGHT_E2E=1 the control plane is left out. The scenario is that of a node of
// examples/composetest with three pods, of which one ends and one is deleted. A run in
// apitest/explore includes the comparison of its end, four virtual minutes of work, and the
// check for goroutines that are left. One on the control plane ends with the last step.
package explore
