// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"slices"
	"testing"
	"time"

	"github.com/kubewright/kubewright/apitest"
)

func TestPerSecondCountsFromTheFirstRequest(t *testing.T) {
	at := func(ms int) apitest.Request {
		return apitest.Request{Time: time.Date(2000, 1, 1, 0, 0, 7, ms*int(time.Millisecond), time.UTC)}
	}
	if got, want := PerSecond([]apitest.Request{at(900), at(1000), at(1999), at(3000)}), []int{1, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := PerSecond(nil); got != nil {
		t.Errorf("%v of no request", got)
	}
}
