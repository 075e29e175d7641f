// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election chooses one leader among the replicas of a program, by a
// Lease (coordination.k8s.io/v1): the best of them by a [Strategy], on every
// cluster, and never two at once.
package election
