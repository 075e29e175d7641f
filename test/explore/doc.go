// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore holds package apitest/explore to its promises: folder planted has
// reconcilers with known bugs, each of which must be found, manager has a manager of
// controller-runtime, and own has the controllers of this library, in which nothing must be
// found. The nested module public has public controllers, with what is found in them.
package explore
