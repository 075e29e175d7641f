// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Scale runs a thousand virtual nodes and twenty thousand pods in one process,
// on a real control plane, with pods and nodes deleted and created throughout:
// first examples/fleet, then kwok with the same work on a fresh control plane.
// It writes a report (report.md), a picture over time (scale.svg) and all
// figures (run.json), and ends with status 0 only if the claims that it checks
// hold for examples/fleet.
//
//	go run ./scale                                      # in bench: 28 minutes
//	go run ./scale --duration=1m --nodes=100 --pods=1000
//	go run ./scale --draw=run.json                      # report and picture again
//
// "make scale" does the same from the root of the repository.
//
// What runs is the programs that people run: examples/fleet built from this work
// tree, and the kwok command of the version in go.mod, each with a ServiceAccount,
// RBAC and FlowSchema of its own manifests. Both are looked at from outside: by
// one watch of pods and one of nodes, the audit log and the metrics of the API
// server, /proc and the pprof endpoint.
package main
