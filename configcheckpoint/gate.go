// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// hashGateInterval is the time after which a node that is held back asks again.
const hashGateInterval = time.Minute

// HashGate returns a Config.Admit that admits a share of the nodes to a new
// configuration: those for which the hash of node name and content falls below
// percent of its range. The order of the nodes differs between contents, so that
// the first nodes are not always the same; raising the share adds nodes and
// removes none. A percent of 0 or less admits no node, 100 or more every node.
//
// percent is called each time a node asks. A node that is held back asks again
// after half a minute to one and a half, at a time that follows from the hash
// too: when the share is raised, the nodes that it admits don't all restart at
// once.
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
