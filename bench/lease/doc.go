// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease measures ten thousand node leases kept renewed by one process:
// with this library, with the lease controller of k8s.io/component-helpers (the
// kubelet's) and with that of kwok, in the same run.
//
// The server and each of the three clients are processes of their own, so that
// CPU time, heap and goroutines belong to one of them. They speak HTTP/2 and TLS
// on loopback. The server stores leases as an API server does as far as the
// clients can tell (resourceVersion, UID, conflicts, watch) and answers after a
// given latency; it counts the renewals of each second.
//
//	go test -run '^$' -bench . ./lease
//
// A run takes about five minutes. Compare within one run only.
package lease
