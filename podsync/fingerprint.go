// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"hash/maphash"
	"sync"
)

// fingerprints tell whether a report says anything new, without keeping the
// last one: eight bytes a pod, and no allocation for a report that does not.
// Two reports of one pod that differ have the same one once in 2^64 cases.
type fingerprints struct {
	seed    maphash.Seed
	buffers sync.Pool // of *[]byte
}

func newFingerprints() *fingerprints {
	return &fingerprints{seed: maphash.MakeSeed(), buffers: sync.Pool{New: func() any { return new([]byte) }}}
}

// of returns the fingerprint of a state. It is never 0.
func (f *fingerprints) of(st *State) uint64 {
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	size := st.Status.Size()
	if cap(*buffer) < size {
		*buffer = make([]byte, 0, 2*size)
	}
	b := (*buffer)[:size]
	// The encoding is the API's own, with maps in order of their keys.
	n, err := st.Status.MarshalToSizedBuffer(b)
	if err != nil {
		n = 0 // can't happen: the buffer has the size asked for
	}
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.Write(b[size-n:])
	tail := [9]byte{0: bit(st.Stopped)}
	for i := range 8 {
		tail[1+i] = byte(st.Generation >> (8 * i))
	}
	_, _ = h.Write(tail[:])
	return h.Sum64() | 1
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
