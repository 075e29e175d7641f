// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease compares processes that each renew ten thousand node leases:
// with this library, with the lease controller of k8s.io/component-helpers (the
// kubelet's) and with that of kwok, in the same run.
//
// The server and each of the three clients are separate processes, so that CPU
// time, heap and goroutines belong to one of them. They use HTTP/2 and TLS on
// loopback. The server stores leases like an API server as far as the clients
// can tell (resourceVersion, UID, conflicts, watch) and answers after a
// configured latency. It counts the renewals of each second.
//
//	go test -run '^$' -bench . ./lease
//
// A run takes about five minutes. Compare only figures of the same run.
package lease
