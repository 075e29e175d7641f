// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package apitest compares servers for tests of controllers in the same run:
// this library's apitest, the fake clientset of client-go, the fake client of
// controller-runtime, and etcd with kube-apiserver as test/controlplane starts
// them, which is how envtest works too.
//
//	KUBEWRIGHT_E2E=1 go test -run '^$' -bench . ./apitest
//
// Without KUBEWRIGHT_E2E=1 the control plane is left out. The figures of apitest
// and of the control plane include the encoding of the client. The fakes hand over
// Go objects.
package apitest
