// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package apitest is a Kubernetes API server in memory, for tests that drive
// controllers through the real clientset in testing/synctest bubbles.
//
// A [Server] is an http.RoundTripper's other end: [Server.Client] returns an
// ordinary *kubernetes.Clientset whose requests, JSON or protobuf, it answers
// on the caller's goroutine. Objects get a resourceVersion, UID, creation time
// and managedFields; stale writes conflict; status is a subresource; pods die
// gracefully; watches replay, filter, send bookmarks and expire. Time is that
// of package time, so that inside a bubble latencies, Retry-After and watch
// timeouts take no time and are exact.
//
// What goes wrong is injected with [Server.Inject], [Server.DropWatches],
// [Server.StallWatches] and [Server.Compact]. What was asked is in
// [Server.Journal]: every request with its time, user, body and result.
// [Server.Put], [Get], [Edit] and [Delete] act on objects directly, as
// somebody else who is not under test.
//
// It has no part in what other components do to objects: there are no namespace
// controller, no disruption budgets, no ServiceAccount admission, no quota and
// no priority and fairness. [Server.CollectGarbage] and [Server.NodeLifecycle]
// stand in for the two controllers that the packages here depend on. Of the
// encodings it refuses YAML, CBOR and Tables, and server-side apply with 415.
// What it puts into managedFields is a stub. Validation covers what controllers
// of nodes, pods, leases and devices can get wrong.
//
// How true it is to the real server is decided by package
// internal/conformance, whose cases run against both.
package apitest
