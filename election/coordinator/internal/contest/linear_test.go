// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubewright/kubewright/internal/lineartest"
)

// TestADecisionAboutManyCandidatesIsLinear: whoever may create LeaseCandidates may create many.
func TestADecisionAboutManyCandidatesIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	crowd := func(n int) (list []*candidate) {
		for i := range n {
			list = append(list, nominee(fmt.Sprint("c", i), i))
		}
		list[n-1].pingedAgo(time.Second)
		return append(list, nominee("gone", 0).pingedAgo(6*time.Second))
	}
	for name, scene := range map[string]func(n int) *scene{
		"vacant": func(n int) *scene { return vacant(crowd(n)...) },
		"silent": func(n int) *scene { return held("c0", time.Minute, crowd(n)...).looked() },
		"held":   func(n int) *scene { return held("c0", time.Second, crowd(n)...) },
	} {
		t.Run(name, func(t *testing.T) {
			lineartest.Check(t, 2500, func(n int) func() {
				s := scene(n)
				return func() {
					s.Apply(decideNow, Tick{})
					if d := s.Next(decideNow); d.Do == Wait && d.WakeAt.IsZero() {
						t.Error("nothing is decided")
					}
				}
			})
		})
	}
}
