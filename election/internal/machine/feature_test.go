// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"
)

func TestAHolderThatIsGoneIsWaitedForIfItRenewsAgain(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.holderGone(0, "x")
	b.see(leaseOf("x", 2, atVersion("2")))
	if at := b.claimAt(); at < 15*time.Second {
		t.Errorf("claims at %v", at)
	}
}
