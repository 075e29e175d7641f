// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package requests evaluates the journal of an apitest server for the tests of
// this module.
package requests

import (
	"time"

	"github.com/kubewright/kubewright/apitest"
)

// PerSecond returns a histogram of list: the number of requests that arrived in
// each second. The first second is the whole second in which the first request
// arrived.
func PerSecond(list []apitest.Request) (histogram []int) {
	if len(list) == 0 {
		return nil
	}
	start := list[0].Time.Truncate(time.Second)
	for _, r := range list {
		second := int(r.Time.Sub(start) / time.Second)
		for len(histogram) <= second {
			histogram = append(histogram, 0)
		}
		histogram[second]++
	}
	return histogram
}

// OpenWatches returns the number of watches that match m and are open. A watch
// from before the last ResetJournal is not counted.
func OpenWatches(s *apitest.Server, m apitest.Match) (n int) {
	m.Verb = "watch"
	for _, r := range s.Requests(m) {
		if !r.Done {
			n++
		}
	}
	return n
}
