// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// hashGateInterval is how often a node that is held back asks again.
const hashGateInterval = time.Minute

// HashGate returns a Config.Admit that lets a share of the nodes take a new
// configuration: those for which the hash of node name and content falls below
// percent of its range. The order of the nodes differs from one content to the
// next, so that it is not always the same ones that go first; raising the
// share adds nodes and takes none away. At 0 or less nobody is admitted, at
// 100 or more everybody.
//
// percent is called each time a node asks, which it does again between half a
// minute and one and a half, at a time that follows from the hash as well:
// when the share is raised, the nodes it lets in don't all restart at once.
func HashGate(node string, percent func() int) func(context.Context, Payload) (time.Duration, error) {
	return func(_ context.Context, p Payload) (time.Duration, error) {
		digest := DigestOf(p.Data)
		sum := sha256.Sum256(append([]byte(node+"\x00"), digest[:]...))
		// 2^64 divided by 100 is not whole: the shares differ by less than
		// one node in 10^17.
		if share := int(binary.BigEndian.Uint64(sum[:8]) % 100); share < percent() {
			return 0, nil
		}
		fraction := float64(binary.BigEndian.Uint32(sum[8:12])) / (1 << 32)
		return hashGateInterval/2 + time.Duration(fraction*float64(hashGateInterval)), nil
	}
}
