// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// A node is what the pods of a Provider share.
type node struct {
	cfg     Config
	caps    capabilities
	gate    gate
	room    *room
	wg      sync.WaitGroup  // the goroutines of Run and of the pods
	report  func(types.UID) // makes Watch report a pod
	checked func(error)     // of tests; nil: no invariant is checked
}

// listRuntime returns the containers and sandboxes of one pod, or of all, by UID.
func (n *node) listRuntime(ctx context.Context, uid types.UID) (map[types.UID][]Container, map[types.UID]*Sandbox, error) {
	list, err := n.cfg.Runtime.List(ctx, uid)
	if err != nil {
		return nil, nil, err
	}
	runs, sandboxes := map[types.UID][]Container{}, map[types.UID]*Sandbox{}
	for _, c := range list {
		runs[c.ID.Pod] = append(runs[c.ID.Pod], c)
	}
	for _, r := range runs {
		slices.SortFunc(r, func(a, b Container) int {
			return cmp.Or(cmp.Compare(a.ID.Name, b.ID.Name), cmp.Compare(a.ID.Attempt, b.ID.Attempt))
		})
	}
	if n.caps.sandboxer == nil {
		return runs, sandboxes, nil
	}
	all, err := n.caps.sandboxer.ListPods(ctx, uid)
	for i := range all {
		sandboxes[all[i].Pod] = &all[i]
	}
	return runs, sandboxes, err
}
