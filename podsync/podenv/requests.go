// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"crypto"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// forgetCertificate is the age after which the API server deletes a request for a certificate.
const forgetCertificate = 15 * time.Minute

// A projection is a source of a volume that asks for a certificate.
type projection struct {
	pod    types.UID
	volume string
	source int
}

// A certificateRequest is a PodCertificateRequest without an answer.
type certificateRequest struct {
	name string
	key  crypto.Signer
	made time.Time
}

// requests keeps the requests of calls that gave up waiting for the signer. They live
// no longer than their objects.
type requests struct {
	mu   sync.Mutex
	open map[projection]*certificateRequest
}

// take returns the open request of a source, or nil, and removes it.
func (r *requests) take(id projection) *certificateRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	req := r.open[id]
	delete(r.open, id)
	return req
}

// put keeps a request for the next call.
func (r *requests) put(id projection, req *certificateRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[projection]*certificateRequest{}
	}
	for id, old := range r.open {
		if time.Since(old.made) > forgetCertificate {
			delete(r.open, id)
		}
	}
	r.open[id] = req
}
