// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceslice measures this library's publisher of devices beside the
// helper for DRA drivers, k8s.io/dynamic-resource-allocation/resourceslice, in
// the same run, and holds what this one writes against the scheduler's own
// allocator.
//
//	go test -run TestCompare -v ./resourceslice     # writes, time, incomplete window
//	go test -run TestCompare -v ./resourceslice -args -100k
//	go test -run TestMemory -v ./resourceslice      # heap of a publisher of 100,000 devices
//	go test -run '^$' -bench . ./resourceslice      # a Set or Update that changes nothing
//	go test -run TestAllocator ./resourceslice      # every intermediate state, through the allocator
//
// TestCompare runs in virtual time against the in-memory API server, which
// answers writes after ten milliseconds: its times are round trips and delays,
// free of the machine, and can be compared between runs. The others compare
// within one run only. The helper publishes slices that the driver makes, so
// its driver here does what most do: 128 devices each, in the order of the list.
package resourceslice
