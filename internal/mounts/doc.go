// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package mounts finds and removes the mounts below a directory. Only Linux has any.
package mounts
