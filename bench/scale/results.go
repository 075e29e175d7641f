// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"time"
)

// results are all figures of a run, as run.json has them.
type results struct {
	When       time.Time `json:"when"`
	Machine    machine   `json:"machine"`
	Options    options   `json:"options"`
	Contenders []result  `json:"contenders"`
}

// result is that of one contender.
type result struct {
	Name       string `json:"name"`
	What       string `json:"what"`
	Kubernetes string `json:"kubernetes"`
	// Error is why the run was given up before its end; "" if it wasn't.
	Error string `json:"error,omitempty"`

	NodesReady float64 `json:"nodesReady"` // seconds from the start of the program until all Nodes were Ready
	RampUp     stage   `json:"rampUp"`     // from the first pod until all are Running
	Churn      stage   `json:"churn"`
	Drain      stage   `json:"drain"` // from the first pod deleted until all are gone

	// What the program takes: with Nodes only, with all pods before the churn and
	// after it, and when all pods are gone.
	Empty   footprint `json:"empty"`
	Loaded  footprint `json:"loaded"`
	Churned footprint `json:"churned"`
	Drained footprint `json:"drained"`

	Found survey `json:"found"` // after the churn
	Left  survey `json:"left"`  // when the program had ended
	// Ended is how the program ended when it was told to; "" is in order.
	Ended string `json:"ended,omitempty"`

	Stuck   int    `json:"stuck"`   // pods that did not go when they were deleted
	Made    int    `json:"made"`    // pods that were created in all
	Lost    faults `json:"lost"`    // pods that went without having been deleted
	Flips   faults `json:"flips"`   // Nodes that turned not Ready during or after the churn
	Trouble faults `json:"trouble"` // requests of the driver that failed

	Server  []latency  `json:"server"` // as the API server says, during the churn
	Whole   []requests `json:"whole"`  // the contender's, until it was told to end
	Samples []sample   `json:"samples"`
}

// stage is a part of a run. Times are seconds since the program was started.
type stage struct {
	From     float64      `json:"from"`
	To       float64      `json:"to"`
	Starts   distribution `json:"starts"`   // of pods, from bound to Running
	Ends     distribution `json:"ends"`     // of pods, from deleted to gone
	Absences distribution `json:"absences"` // of Nodes, from gone to Ready again
	Own      []requests   `json:"own"`      // the contender's
	Others   []requests   `json:"others"`
}

// length returns how long a stage took, in seconds.
func (s stage) length() float64 { return s.To - s.From }

// perSecond returns the rate of n in a stage, 0 for one that was never reached.
func (s stage) perSecond(n int) float64 {
	if s.length() <= 0 {
		return 0
	}
	return float64(n) / s.length()
}

// latency is a histogram of the API server, of which quantiles are estimates.
type latency struct {
	What  string        `json:"what"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
}

// footprint is what a process takes.
type footprint struct {
	Heap       uint64 `json:"heap"`     // bytes, after a collection
	Resident   uint64 `json:"resident"` // bytes, before it
	Goroutines int    `json:"goroutines"`
}

// survey is what lists of the API server show.
type survey struct {
	Pods    int `json:"pods"`
	Running int `json:"running"` // and Ready
	Nodes   int `json:"nodes"`
	Ready   int `json:"ready"`
	Leases  int `json:"leases"` // in kube-node-lease
}

// during returns the samples of a stage.
func (r *result) during(s stage) (samples []sample) {
	for _, sample := range r.Samples {
		if sample.At >= s.From && sample.At < s.To {
			samples = append(samples, sample)
		}
	}
	return samples
}

// save writes results to a file.
func (r *results) save(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// load reads what save has written.
func load(path string) (*results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r results
	return &r, json.Unmarshal(data, &r)
}
