// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fieldManager is who managedFields names as the writer of Leases and
// LeaseCandidates: one for all candidates and controllers, so that a Lease has
// one entry for all of them.
const fieldManager = "kubewright-election"

// do sends the request that a move is.
func (c *Candidate) do(ctx context.Context, m move) (*coordinationv1.Lease, error) {
	leases := c.cfg.Client.Leases(c.cfg.Lease.Namespace)
	switch {
	case m.op == OpRead:
		return leases.Get(ctx, c.cfg.Lease.Name, metav1.GetOptions{})
	case m.lease == nil:
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": m.patch}})
		if err != nil {
			return nil, fmt.Errorf("election: encode record: %w", err)
		}
		return leases.Patch(ctx, c.cfg.Lease.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	case m.lease.ResourceVersion == "":
		return leases.Create(ctx, m.lease, metav1.CreateOptions{FieldManager: fieldManager})
	default:
		return leases.Update(ctx, m.lease, metav1.UpdateOptions{FieldManager: fieldManager})
	}
}
