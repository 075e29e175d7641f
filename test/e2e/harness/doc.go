// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package harness starts real Kubernetes control planes for end-to-end tests.
//
// It runs the command in test/controlplane, which is a module of its own because it needs a thousand packages that the
// library doesn't, and talks to it over its standard input and output. When a test ends, is interrupted or killed, the command
// notices that its input has ended and removes everything.
//
// Tests that use it run only when KUBEWRIGHT_E2E=1; "make test" sets that, a plain "go test ./..." skips them. The first start builds
// Kubernetes, which takes minutes: "go run . build" in test/controlplane does so beforehand, outside the timeout of go test.
//
//	func TestNodeBecomesReady(t *testing.T) {
//		cluster := harness.Start(t, harness.Options{})
//		client := kubernetes.NewForConfigOrDie(cluster.NodeConfig(t, "worker-1"))
//		…
//		cluster.Pause(t, harness.APIServer)
//	}
//
// A cluster takes about 4 s to start. Tests that don't disturb it can share one: see Main.
package harness
