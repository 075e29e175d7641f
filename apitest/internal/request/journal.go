// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"sync"
)

// Journal keeps the requests since it was last reset.
type Journal struct {
	mu   sync.Mutex
	seq  int
	kept []*Request
}

// Begin numbers and keeps a request.
func (j *Journal) Begin(r *Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	r.Seq = j.seq
	j.kept = append(j.kept, r)
}

// Update changes a request that may be in the journal.
func (j *Journal) Update(r *Request, f func(*Request)) {
	j.mu.Lock()
	f(r)
	j.mu.Unlock()
}

// Kept returns copies of the requests since the last Reset, in the order in which they
// arrived.
func (j *Journal) Kept() []Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]Request, len(j.kept))
	for i, r := range j.kept {
		all[i] = *r
	}
	return all
}

// Reset forgets the requests so far.
func (j *Journal) Reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kept = nil
}
