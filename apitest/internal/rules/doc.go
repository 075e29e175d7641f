// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rules has the kinds that the API server serves, and what it does with the
// objects of each: defaults, admission, validation, the fields that a client must not
// change, selectable fields, grace periods.
//
// A kind is a row, the type Kind. The rows of the kinds that controllers of nodes depend
// on are written by hand, each in a file of its own; a new one is also named in special,
// in catalog.go. All others of client-go come from generic.go.
//
// The rules know nothing of requests, of the store and of the server but what Write says.
package rules
