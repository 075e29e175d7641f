// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"context"
	"errors"
	"maps"
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

// A listing is what the Runtime lists of one pod; the zero value if that is nothing.
type listing struct {
	runs    []Container // by name and attempt
	sandbox *Sandbox    // the newest one
	err     error       // not nil: nothing is known of the pod; see ListError
}

// equal reports whether two lists of a pod are known and the same.
func (l listing) equal(other listing) bool {
	if l.err != nil || other.err != nil || (l.sandbox == nil) != (other.sandbox == nil) {
		return false
	}
	if a, b := l.sandbox, other.sandbox; a != nil && (a.ID != b.ID || a.Ready != b.Ready || !slices.Equal(a.IPs, b.IPs)) {
		return false
	}
	return slices.EqualFunc(l.runs, other.runs, func(a, b Container) bool {
		if !a.StartedAt.Equal(b.StartedAt) || !a.FinishedAt.Equal(b.FinishedAt) {
			return false
		}
		a.StartedAt, a.FinishedAt = b.StartedAt, b.FinishedAt
		return a == b
	})
}

// listPod lists one pod. An error means that nothing is known of it.
func (n *node) listPod(ctx context.Context, uid types.UID) (listing, error) {
	all, err := n.listRuntime(ctx, uid)
	if err == nil {
		err = all[uid].err
	}
	return all[uid], err
}

// listRuntime lists one pod, or all. The error is nil if something is known of at least one pod.
func (n *node) listRuntime(ctx context.Context, uid types.UID) (map[types.UID]listing, error) {
	all, unknown := map[types.UID]listing{}, map[types.UID]error{}
	// complete reports whether the list is, but for the pods of a ListError.
	complete := func(err error) bool {
		some := (*ListError)(nil)
		if errors.As(err, &some) {
			maps.Copy(unknown, some.Pods)
			return true
		}
		return err == nil
	}
	list, err := n.cfg.Runtime.List(ctx, uid)
	if !complete(err) {
		return nil, err
	}
	for _, c := range list {
		l := all[c.ID.Pod]
		l.runs = append(l.runs, c)
		all[c.ID.Pod] = l
	}
	for _, l := range all {
		slices.SortFunc(l.runs, func(a, b Container) int {
			return cmp.Or(cmp.Compare(a.ID.Name, b.ID.Name), cmp.Compare(a.ID.Attempt, b.ID.Attempt))
		})
	}
	if n.caps.sandboxer != nil {
		boxes, err := n.caps.sandboxer.ListPods(ctx, uid)
		if !complete(err) {
			return nil, err
		}
		for i := range boxes {
			l := all[boxes[i].Pod]
			l.sandbox = &boxes[i]
			all[boxes[i].Pod] = l
		}
	}
	for uid, err := range unknown {
		all[uid] = listing{err: err}
	}
	return all, nil
}
