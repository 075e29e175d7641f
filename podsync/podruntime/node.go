// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
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
	panics  panics
	groups  [activities]apierr.Group
	reports reports // about what is done for all pods
}

// An activity is something that may fail for many pods at once, which is reported once.
type activity int

const (
	relisting activity = iota
	watching
	stopping
	removing
	straying
	mounting
	sandboxing
	refreshing
	recording
	remembering
	measuring
	evicting
	breaking // of invariants; it has no end
	activities
)

// works is what the log says at the end of the failures of an activity.
var works = [activities]string{
	relisting:   "The containers can be listed again",
	watching:    "The watch of the runtime works again",
	stopping:    "Containers can be stopped again",
	removing:    "Old runs can be removed again",
	straying:    "Containers without a pod can be removed again",
	mounting:    "Volumes are mounted again",
	sandboxing:  "Sandbox calls work again",
	refreshing:  "Volumes are refreshed again",
	recording:   "Records can be written again",
	remembering: "What containers have read can be written again",
	measuring:   "The disk usage of pods can be measured again",
	evicting:    "Evictions because of disk usage work again",
}

// reports report the failures of a pod, of a container, or of the node, to the log.
type reports struct {
	groups  *[activities]apierr.Group // of the node
	members [activities]apierr.Member
}

func (r *reports) fail(ctx context.Context, a activity, err error, msg string, keysAndValues ...any) {
	r.groups[a].Fail(ctx, nil, &r.members[a], err, msg, keysAndValues...)
}

func (r *reports) ok(ctx context.Context, a activity) {
	r.groups[a].OK(ctx, &r.members[a], works[a])
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
