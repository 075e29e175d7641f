// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsync measures controllers that run the pods of a node: this
// library's, virtual-kubelet's and kwok's, in the same run, with providers that
// do nothing. Each controller is a process of its own.
//
//	go test -run '^$' -bench Stub ./podsync                        # a server that takes 10 ms
//	KUBEWRIGHT_E2E=1 go test -run '^$' -bench RealServer ./podsync # etcd and kube-apiserver
//
// All have their own defaults: 10 workers and a rate limit of 10 pods a second
// after a burst of 100 for virtual-kubelet, 4 workers for kwok. In the case
// named virtual-kubelet-unlimited that limit is off and there are 50 workers. In
// the case named kwok-terminal its stages write the last status of a pod before
// they delete it, as a kubelet does and as this library always does; with its own
// stages kwok leaves that write out.
package podsync
