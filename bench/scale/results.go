// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"time"
)

// results are all figures of a run, in the format of run.json.
type results struct {
	When       time.Time `json:"when"`
	Machine    machine   `json:"machine"`
	Options    options   `json:"options"`
	Contenders []result  `json:"contenders"`
}

// result holds the figures of one contender.
type result struct {
	Name       string `json:"name"`
	What       string `json:"what"`
	Kubernetes string `json:"kubernetes"`
	// Error is the reason why the run was aborted, or "".
	Error string `json:"error,omitempty"`

	NodesReady float64 `json:"nodesReady"` // seconds from the start of the program until all Nodes were Ready
	RampUp     stage   `json:"rampUp"`     // from the first pod created until all are Running
	Churn      stage   `json:"churn"`
	Drain      stage   `json:"drain"` // from the first pod deleted until all are gone

	// Resource use of the program: with Nodes only, with all pods before and
	// after the churn, and when all pods are gone.
	Empty   footprint `json:"empty"`
	Loaded  footprint `json:"loaded"`
	Churned footprint `json:"churned"`
	Drained footprint `json:"drained"`

	Found survey `json:"found"` // after the churn
	Left  survey `json:"left"`  // after the program ended
	// Ended describes how the program ended on SIGTERM; "" means cleanly.
	Ended string `json:"ended,omitempty"`

	Stuck   int    `json:"stuck"`   // pods that remained after their deletion
	Made    int    `json:"made"`    // pods created in total
	Lost    faults `json:"lost"`    // pods that disappeared without having been deleted
	Flips   faults `json:"flips"`   // Nodes that became not Ready during or after the churn
	Trouble faults `json:"trouble"` // failed requests of the driver

	Server  []latency  `json:"server"` // reported by the API server for the churn
	Whole   []requests `json:"whole"`  // the contender's, until it got SIGTERM
	Samples []sample   `json:"samples"`
}

// stage is a part of a run. Times are seconds since the start of the program.
type stage struct {
	From     float64      `json:"from"`
	To       float64      `json:"to"`
	Starts   distribution `json:"starts"`   // of pods, from bound to Running
	Ends     distribution `json:"ends"`     // of pods, from deleted to gone
	Absences distribution `json:"absences"` // of Nodes, from gone to Ready again
	Own      []requests   `json:"own"`      // the contender's
	Others   []requests   `json:"others"`
}

// length returns the duration of a stage in seconds.
func (s stage) length() float64 { return s.To - s.From }

// perSecond returns n divided by the length of a stage, or 0 for a stage that
// was not reached.
func (s stage) perSecond(n int) float64 {
	if s.length() <= 0 {
		return 0
	}
	return float64(n) / s.length()
}

// latency summarizes a histogram of the API server. Its quantiles are
// estimates.
type latency struct {
	What  string        `json:"what"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
}

// footprint is the resource use of a process.
type footprint struct {
	Heap       uint64 `json:"heap"`     // bytes, after a collection
	Resident   uint64 `json:"resident"` // bytes, before it
	Goroutines int    `json:"goroutines"`
}

// survey counts objects that the API server lists.
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

// load reads a file that save has written.
func load(path string) (*results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r results
	return &r, json.Unmarshal(data, &r)
}
