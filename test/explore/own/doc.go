// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package own explores the controllers of this library.
package own
