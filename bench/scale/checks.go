// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// verdict is a claim, whether it held, and the observed values.
type verdict struct {
	Claim string
	Holds bool
	Seen  string
}

const (
	// backWithin is how long a Node may be absent. After that, the pod garbage
	// collector deletes its pods.
	backWithin = 40 * time.Second
	// growth is the relative difference between the end and the beginning of
	// the churn up to which a value counts as flat.
	growth = 0.10
	// memorySlack and goroutineSlack are added to the limit, so that noise on
	// small values does not count as growth.
	memorySlack    = 8 << 20
	goroutineSlack = 10
	// kept is the share of the pods' memory that may remain after they are
	// gone, because maps do not shrink.
	kept = 0.25
)

// judge returns the verdicts on a contender.
func judge(r *result, o options) []verdict {
	if r.Error != "" {
		return []verdict{{"The run comes to its end", false, r.Error}}
	}
	early, late := quarters(r.during(r.Churn))
	deleted := deletedNodes(r.Churn.Others)
	grown := max(float64(r.Loaded.Heap)-float64(r.Empty.Heap), 0)
	return []verdict{
		{
			fmt.Sprintf("All %d pods are Running and Ready when the churn is over, and there is no other", o.Pods),
			r.Found.Pods == o.Pods && r.Found.Running == o.Pods,
			fmt.Sprintf("%d of %d", r.Found.Running, r.Found.Pods),
		},
		{
			"No pod that was not deleted ended, stopped being Ready or disappeared",
			r.Lost.Count == 0,
			r.Lost.String(),
		},
		{
			fmt.Sprintf("No Node turned not Ready after the ramp-up, and all %d are Ready at the end", o.Nodes),
			r.Flips.Count == 0 && r.Found.Ready == o.Nodes && r.Found.Nodes == o.Nodes,
			fmt.Sprintf("%d of %d at the end; %s", r.Found.Ready, r.Found.Nodes, r.Flips),
		},
		{
			fmt.Sprintf("Every Node that was deleted is Ready again within %v", backWithin),
			r.Churn.Absences.N == deleted && r.Churn.Absences.Max <= backWithin,
			fmt.Sprintf("%d deleted, %d back within %s", deleted, r.Churn.Absences.N, inSeconds(r.Churn.Absences.Max)),
		},
		{
			fmt.Sprintf("Memory is flat: at the end of the churn at most %.0f %% more than at its beginning", growth*100),
			flat(early.resident, late.resident, memorySlack) && flat(float64(r.Loaded.Heap), float64(r.Churned.Heap), memorySlack),
			fmt.Sprintf("resident %s, then %s; heap after a collection %s, then %s", inMiB(early.resident), inMiB(late.resident), inMiB(r.Loaded.Heap), inMiB(r.Churned.Heap)),
		},
		{
			"Goroutines are flat, likewise",
			flat(early.goroutines, late.goroutines, goroutineSlack),
			fmt.Sprintf("%.0f, then %.0f", early.goroutines, late.goroutines),
		},
		{
			"The API server refused nothing: no answer 401, 403, 422, 429 or 5xx",
			refused(r.Whole) == 0,
			fmt.Sprintf("%d", refused(r.Whole)),
		},
		{
			"Every pod that is deleted goes",
			r.Stuck == 0,
			fmt.Sprintf("%d had to be deleted by force", r.Stuck),
		},
		{
			"Nothing is left behind: no pod, Node or lease, and the program ends with status 0",
			r.Left == survey{} && r.Ended == "",
			fmt.Sprintf("%d pods, %d Nodes, %d leases; %s", r.Left.Pods, r.Left.Nodes, r.Left.Leases, cmp.Or(r.Ended, "status 0")),
		},
		{
			fmt.Sprintf("The memory of the pods is given back: at most %.0f %% of it is kept when they are gone", kept*100),
			float64(r.Drained.Heap) <= float64(r.Empty.Heap)+max(kept*grown, memorySlack),
			fmt.Sprintf("heap after a collection %s before them, %s with them, %s after them", inMiB(r.Empty.Heap), inMiB(r.Loaded.Heap), inMiB(r.Drained.Heap)),
		},
	}
}

// flat reports whether a value stayed within the limit of growth.
func flat(before, after, slack float64) bool { return after <= before*(1+growth)+slack }

// quarter holds the median values of a quarter of the churn.
type quarter struct{ resident, goroutines float64 }

// quarters returns the first and the last quarter of samples.
func quarters(samples []sample) (first, last quarter) {
	n := (len(samples) + 3) / 4
	return middle(samples[:n]), middle(samples[len(samples)-n:])
}

func middle(samples []sample) quarter {
	var resident, goroutines []float64
	for _, s := range samples {
		resident = append(resident, float64(s.Resident))
		goroutines = append(goroutines, float64(s.Goroutines))
	}
	return quarter{median(resident), median(goroutines)}
}

// deletedNodes returns the number of Nodes that the driver has deleted.
func deletedNodes(all []requests) (n int) {
	for _, r := range all {
		if r.Agent == driverAgent && r.Verb == "delete" && r.Resource == "nodes" && r.Code == 200 {
			n += r.Count
		}
	}
	return n
}

// refused returns the number of requests whose answer indicates a mistake or
// overload. A missing (404) or changed (409) object is part of the protocol.
func refused(all []requests) (n int) {
	for _, r := range all {
		switch {
		case r.Code == 401, r.Code == 403, r.Code == 422, r.Code == 429, r.Code >= 500:
			n += r.Count
		}
	}
	return n
}

// holds reports whether all claims hold.
func holds(verdicts []verdict) bool {
	for _, v := range verdicts {
		if !v.Holds {
			return false
		}
	}
	return true
}

// String returns the number of faults and names the first.
func (f faults) String() string {
	if f.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", f.Count, strings.Join(f.Examples, "; "))
}

// inMiB formats a number of bytes.
func inMiB[T uint64 | float64](bytes T) string {
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// inSeconds formats a long duration.
func inSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// inMillis formats a short duration.
func inMillis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
