// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimstore compares resourceslice/claimstore with the checkpoint manager
// of the kubelet, with which DRA drivers keep the claims that they have prepared.
package claimstore
