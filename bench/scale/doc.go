// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Scale runs a thousand virtual nodes and twenty thousand pods in one process
// on a real control plane, and deletes and creates pods and nodes throughout.
// It first runs examples/fleet, then kwok with the same load on a fresh control
// plane. It writes a report (report.md), a picture over time (scale.svg) and
// all figures (run.json). It exits with status 0 only if its claims hold for
// examples/fleet.
//
//	go run ./scale                                      # in bench: 28 minutes
//	go run ./scale --duration=1m --nodes=100 --pods=1000
//	go run ./scale --draw=run.json                      # report and picture again
//
// "make scale" does the same from the root of the repository.
//
// It runs the programs that users run: examples/fleet from this work tree, and
// the kwok command of the version in go.mod, each with a ServiceAccount and
// with the RBAC and FlowSchema of its own manifests. It observes both from
// outside: with one watch of pods and one of nodes, the audit log and the
// metrics of the API server, /proc and the pprof endpoint.
package main
