// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package serve answers requests: it looks up the kind of a path, authorizes, reads and
// writes the store, and streams watches. It sees a request after the transport has parsed
// it and no fault has kept it away.
package serve
