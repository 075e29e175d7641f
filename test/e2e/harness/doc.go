// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package harness starts real Kubernetes control planes for end-to-end tests.
//
// It runs the program in test/controlplane, a separate module because it needs a thousand packages that the library
// does not need, and communicates with it over standard input and output. When a test ends, is interrupted or is
// killed, the program's input ends and it removes everything.
//
// Tests that use this package run only if KUBEWRIGHT_E2E=1. "make test" sets it; a plain "go test ./..." skips the
// tests. The first start builds Kubernetes, which takes minutes. Run "go run . build" in test/controlplane beforehand,
// so that the build does not count against the timeout of go test.
//
//	func TestNodeBecomesReady(t *testing.T) {
//		cluster := harness.Start(t, harness.Options{})
//		client := kubernetes.NewForConfigOrDie(cluster.NodeConfig(t, "worker-1"))
//		…
//		cluster.Pause(t, harness.APIServer)
//	}
//
// Tests of any other module can use this package too: examples/controlplane shows how.
//
// A cluster takes about 4 s to start. Tests that do not disturb it can share one: see Shared.
package harness
