// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"math"
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	p := Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second}
	for _, tc := range []struct {
		failures int
		r        float64
		want     time.Duration
	}{
		{-1, 0.5, 0},
		{0, 0.5, 0},
		{1, 0, 100 * time.Millisecond},
		{1, 1, 200 * time.Millisecond},
		{2, 1, 400 * time.Millisecond},
		{3, 1, 800 * time.Millisecond},
		{6, 1, 6400 * time.Millisecond},
		{7, 1, 7 * time.Second},
		{7, 0, 3500 * time.Millisecond},
		{62, 1, 7 * time.Second},
		{63, 1, 7 * time.Second},
		{64, 1, 7 * time.Second},
		{65, 1, 7 * time.Second},
		{math.MaxInt, 1, 7 * time.Second},
	} {
		if got := p.DelayAt(tc.failures, tc.r); got != tc.want {
			t.Errorf("delay(%d, %v) = %v, want %v", tc.failures, tc.r, got, tc.want)
		}
	}
}

func TestDelayStaysInTheUpperHalf(t *testing.T) {
	p := Policy{Base: time.Second, Cap: time.Minute}
	for failures := 1; failures < 200; failures++ {
		top := p.DelayAt(failures, 1)
		if got := p.Delay(failures); got < top/2 || got > top {
			t.Fatalf("Delay(%d) = %v, want it within [%v, %v]", failures, got, top/2, top)
		}
	}
}
