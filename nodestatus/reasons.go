// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import "github.com/kubewright/kubewright/nodestatus/internal/status"

// The reasons of the conditions that the controller writes on its own.
const (
	// ReasonReady is the reason of Ready=True.
	ReasonReady = "NodeReady"
	// ReasonHealthCheckFailed: a health check, or SetNotReady, gave an error without
	// a reason of its own.
	ReasonHealthCheckFailed = "HealthCheckFailed"
	// ReasonHealthCheckTimeout: a health check did not return in time.
	ReasonHealthCheckTimeout = "HealthCheckTimeout"
	// ReasonSetterFailed: a setter failed before all had succeeded once, so
	// that part of the status was never known.
	ReasonSetterFailed = "StatusSetterFailed"
	// ReasonSetterTimeout: a setter did not return in time.
	ReasonSetterTimeout = "StatusSetterTimeout"
	// ReasonShutdown: Run ended under ShutdownNotReady.
	ReasonShutdown = "NodeShutdown"
	// ReasonNoPressure is the reason of the pressure conditions that no setter
	// sets.
	ReasonNoPressure = "NoPressureReported"
)

// MayLabel reports whether an identity of the form system:node:NAME may set a
// label with this key on its own Node (NodeRestriction admission plugin). Keys
// outside the namespaces kubernetes.io and k8s.io are free, except for those under
// node-restriction.kubernetes.io.
func MayLabel(key string) bool { return status.MayLabel(key) }
