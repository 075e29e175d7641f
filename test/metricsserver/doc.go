// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package metricsserver pins the metrics-server that the end-to-end tests of
// kubectl top build and run. It has no code; the module requires metrics-server as
// a tool, with the versions of its own go.mod:
//
//	go build -o metrics-server sigs.k8s.io/metrics-server/cmd/metrics-server
package metricsserver
