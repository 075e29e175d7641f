// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package store holds the objects of the API server and their history in memory.
//
// Invariants: a stored object never changes. resourceVersions are unique and ordered over
// all kinds. Each version of an object is encoded once for all readers.
package store
