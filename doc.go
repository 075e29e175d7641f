// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubewright is the root of a library of node controllers for people
// who build their own kubelets, virtual nodes and device drivers. It holds no
// code. Each controller is a package of its own that imports none of the
// others:
//
//   - [github.com/kubewright/kubewright/lease] keeps the Lease of a node
//     renewed, for one node or thousands in a process.
//   - [github.com/kubewright/kubewright/nodestatus] registers the Node, keeps
//     its conditions and status true, and notices when it is deleted or
//     replaced.
//   - [github.com/kubewright/kubewright/podsync] reconciles the Pods bound to a
//     node with a provider that the embedder writes.
//   - [github.com/kubewright/kubewright/election] elects a leader among the
//     replicas of a program, the best of them, and never two at once.
//   - [github.com/kubewright/kubewright/resourceslice] publishes devices as
//     ResourceSlices for Dynamic Resource Allocation.
//   - [github.com/kubewright/kubewright/configcheckpoint] keeps the last-known-good
//     configuration: checkpoint, trial, promotion, roll-back.
//
// An embedder composes them in its own main, through functions: what one
// controller needs to know of another is a field of its Config.
package kubewright
