// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsync compares controllers that run the pods of a node: this
// library's, virtual-kubelet's and kwok's, in the same run, with providers that
// do nothing. Each controller runs in its own process.
//
//	go test -run '^$' -bench Stub ./podsync                        # a server that takes 10 ms
//	KUBEWRIGHT_E2E=1 go test -run '^$' -bench RealServer ./podsync # etcd and kube-apiserver
//
// All use their own defaults: virtual-kubelet has 10 workers and a rate limit
// of 10 pods a second after a burst of 100, kwok has 4 workers. The case
// virtual-kubelet-unlimited turns that limit off and has 50 workers. In the
// case kwok-terminal, kwok's stages write the last status of a pod before they
// delete it, as a kubelet does and as this library always does. kwok's own
// stages omit that write.
package podsync
