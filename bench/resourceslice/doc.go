// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceslice compares this library's device publisher with the
// helper for DRA drivers, k8s.io/dynamic-resource-allocation/resourceslice, in
// the same run. It also checks this library's slices with the scheduler's own
// allocator.
//
//	go test -run TestCompare -v ./resourceslice     # writes, time, incomplete window
//	go test -run TestCompare -v ./resourceslice -args -100k
//	go test -run TestMemory -v ./resourceslice      # heap of a publisher of 100,000 devices
//	go test -run '^$' -bench . ./resourceslice      # a Set or Update that changes nothing
//	go test -run TestAllocator ./resourceslice      # every intermediate state, through the allocator
//
// TestCompare runs in virtual time against the in-memory API server, which
// answers writes after ten milliseconds. Its times are round trips and delays,
// do not depend on the machine, and can be compared between runs. Compare the
// figures of the other tests only within one run. The helper publishes slices
// that the driver builds; its driver here does so like most drivers: 128
// devices each, in the order of the list.
package resourceslice
