// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import "github.com/kubewright/kubewright/internal/enum"

// A Stage is how far a pod has come between its binding to the node and the
// moment this package forgets it.
type Stage int

// The stages in their order. A pod goes back only from Running to Starting, when
// the provider has lost it and [Policy.Lost] lets it start again; from Stopped or
// later to Terminating, when the provider broke its promise and runs it again;
// and from Final or later to Stopped, when somebody has undone its end in the API,
// where it is then written again.
const (
	// StageUnsynced: the provider has not yet said whether it holds the pod.
	// Nothing is called and nothing written.
	StageUnsynced Stage = iota
	// StageWaiting: the pod may not start yet: another pod of its name has not
	// stopped, it has not been admitted, or there was no free call.
	StageWaiting
	// StageStarting: Start was called and has not succeeded yet.
	StageStarting
	// StageRunning: Start has succeeded, or the provider listed the pod.
	StageRunning
	// StageTerminating: the pod is to stop.
	StageTerminating
	// StageStopped: nothing of the pod runs.
	StageStopped
	// StageFinal: the API has the final status, or the object is gone.
	StageFinal
	// StageReleased: the API has been told that the pod may disappear, or it
	// rests there as completed.
	StageReleased
)

// String returns the name of the stage, fit for a label of a metric.
func (s Stage) String() string {
	return enum.Name(s, "Unsynced", "Waiting", "Starting", "Running", "Terminating", "Stopped", "Final", "Released")
}
