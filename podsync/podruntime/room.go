// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A room counts the resources and the ports of the node that pods have.
//
// Invariant: no admission and no resize takes more of a resource than is left.
// Invariant: the resources of a resize count from the moment in which it is granted.
type room struct {
	allocatable func() corev1.ResourceList // nil: everything fits
	resizes     bool                       // the Runtime is a Resizer
	resizesPod  bool                       // the Runtime is a PodResizer
	// granted is called, without locks, for a pod whose resize waited for room.
	granted func(types.UID)
	panics  panics

	mu      sync.Mutex
	tenants map[types.UID]*tenant
}

// A tenant is a pod that was admitted and has not stopped.
type tenant struct {
	pod  *corev1.Pod // with the resources that it has; never changed, only replaced
	held bool        // the Provider has it; else it was admitted and not started yet
	// A resize that waits for room.
	want  *corev1.Pod // nil: none
	since time.Time
}

// A pending is the reason why the resources of a pod are not those of its spec. The
// zero value says that they are.
type pending struct{ reason, message string }

func newRoom(allocatable func() corev1.ResourceList, resizes, resizesPod bool, granted func(types.UID)) *room {
	return &room{allocatable: allocatable, resizes: resizes, resizesPod: resizesPod, granted: granted, tenants: map[types.UID]*tenant{}}
}

// admit makes a pod a tenant, or returns the rejection of a pod for which there is no
// room. The scheduler has counted too, but perhaps before another pod was bound.
// active are the pods that podsync has admitted.
func (r *room) admit(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
	list := slices.Collect(active)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[types.UID]bool{}
	var others []*corev1.Pod
	for _, other := range list {
		known[other.UID] = true
		if t := r.tenants[other.UID]; t != nil {
			other = t.pod
		}
		others = append(others, other)
	}
	maps.DeleteFunc(r.tenants, func(uid types.UID, t *tenant) bool { return !t.held && !known[uid] })
	for _, other := range others {
		if port, taken := conflict(pod, other); taken {
			return podsync.Reject(ReasonNodePorts, fmt.Sprintf("Predicate NodePorts failed: another pod has the host port %d", port))
		}
	}
	if r.allocatable != nil {
		total, err := r.total(ctx)
		if err != nil {
			return err
		}
		for _, name := range namesOf(total, pod) {
			want, used, capacity := RequestOf(pod, name), sum(others, name), total[name]
			if !enough(want, used, capacity) {
				return podsync.Reject(ReasonOutOf+string(name), shortage(name, want, used, capacity))
			}
		}
	}
	r.tenants[pod.UID] = &tenant{pod: pod}
	return nil
}

// total returns the allocatable resources of the node.
func (r *room) total(ctx context.Context) (list corev1.ResourceList, err error) {
	err = r.panics.contain(ctx, "Config.Allocatable", func() error { list = r.allocatable(); return nil })
	return list, err
}

// hold makes a pod that the Provider has a tenant, whether or not there is room.
func (r *room) hold(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tenants[pod.UID] = &tenant{pod: pod, held: true}
}

// leave frees the resources of a pod.
func (r *room) leave(ctx context.Context, uid types.UID) {
	r.mu.Lock()
	delete(r.tenants, uid)
	r.mu.Unlock()
	r.retry(ctx)
}

// spec returns a tenant that the Provider has, with the resources in force, or nil.
func (r *room) spec(uid types.UID) *corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tenants[uid]; t != nil && t.held {
		return t.pod
	}
	return nil
}

// update replaces the spec of a tenant by desired, and returns it with the resources
// that the pod has: those of desired if there is room for them.
func (r *room) update(ctx context.Context, desired *corev1.Pod, now time.Time) (*corev1.Pod, pending) {
	r.mu.Lock()
	t := r.tenants[desired.UID]
	if t == nil { // it has stopped
		r.mu.Unlock()
		return desired, pending{}
	}
	why := r.decideResize(ctx, t, desired)
	switch why.reason {
	case "":
		t.pod, t.want = desired, nil
	case corev1.PodReasonDeferred:
		if t.want == nil {
			t.since = now
		}
		t.pod, t.want = withResourcesOf(desired, t.pod), desired
	default:
		t.pod, t.want = withResourcesOf(desired, t.pod), nil
	}
	spec := t.pod
	r.mu.Unlock()
	if why.reason == "" { // it may have less than before
		r.retry(ctx)
	}
	return spec, why
}

// retry grants the resizes that wait, as far as there is room now. As with the
// kubelet, pods of a higher priority come first, then guaranteed pods, then those
// that have waited for longer.
func (r *room) retry(ctx context.Context) {
	var granted []types.UID
	r.mu.Lock()
	waiting := slices.DeleteFunc(slices.Collect(maps.Values(r.tenants)), func(t *tenant) bool { return t.want == nil })
	slices.SortFunc(waiting, func(a, b *tenant) int {
		return cmp.Or(
			cmp.Compare(priority(b.pod), priority(a.pod)),
			cmp.Compare(guaranteed(b.pod), guaranteed(a.pod)),
			a.since.Compare(b.since),
			strings.Compare(string(a.pod.UID), string(b.pod.UID)),
		)
	})
	for _, t := range waiting {
		if r.decideResize(ctx, t, t.want).reason == "" {
			t.pod, t.want = t.want, nil
			granted = append(granted, t.pod.UID)
		}
	}
	r.mu.Unlock()
	for _, uid := range granted {
		r.granted(uid)
	}
}

// decideResize returns why a tenant can't have the resources of desired now. A resource
// whose request does not grow is always granted. r.mu must be held.
func (r *room) decideResize(ctx context.Context, t *tenant, desired *corev1.Pod) pending {
	switch {
	case sameResources(t.pod, desired):
		return pending{}
	case !r.resizes:
		return pending{corev1.PodReasonInfeasible, "the runtime can't change the resources of running containers"}
	case !r.resizesPod && !apiequality.Semantic.DeepEqual(t.pod.Spec.Resources, desired.Spec.Resources):
		return pending{corev1.PodReasonInfeasible, "the runtime can't change the resources of a running pod as a whole"}
	case r.allocatable == nil:
		return pending{}
	}
	var others []*corev1.Pod
	for _, other := range r.tenants {
		if other != t {
			others = append(others, other.pod)
		}
	}
	total, err := r.total(ctx)
	if err != nil { // it is tried again with each list
		return pending{corev1.PodReasonDeferred, err.Error()}
	}
	deferred := pending{}
	for _, name := range namesOf(total, desired) {
		had, want, used, capacity := RequestOf(t.pod, name), RequestOf(desired, name), sum(others, name), total[name]
		switch {
		case want.Cmp(had) <= 0:
		case want.Cmp(capacity) > 0:
			return pending{corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d",
				name, amount(name, want), amount(name, capacity))}
		case deferred.reason == "" && !enough(want, used, capacity):
			deferred = pending{corev1.PodReasonDeferred, shortage(name, want, used, capacity)}
		}
	}
	return deferred
}

// enough reports whether a request fits beside the used part of the capacity.
func enough(want, used, capacity resource.Quantity) bool {
	left := capacity.DeepCopy()
	left.Sub(used)
	return want.Sign() <= 0 || want.Cmp(left) <= 0
}

// shortage returns the kubelet's message about a request that does not fit.
func shortage(name corev1.ResourceName, want, used, capacity resource.Quantity) string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		name, amount(name, want), amount(name, used), amount(name, capacity))
}

// sum returns how much of a resource pods take.
func sum(pods []*corev1.Pod, name corev1.ResourceName) (q resource.Quantity) {
	for _, pod := range pods {
		q.Add(RequestOf(pod, name))
	}
	return q
}

// amount returns a quantity as a number, of CPUs in thousandths.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// namesOf returns the resources to compare, in the kubelet's order: those of the node
// and those that the pod requests. A requested resource with a domain that the node
// does not have is left out: it may be one of the cluster.
func namesOf(total corev1.ResourceList, pod *corev1.Pod) []corev1.ResourceName {
	names := slices.Collect(maps.Keys(total))
	native := func(requests corev1.ResourceList) {
		for name := range requests {
			if !strings.Contains(string(name), "/") {
				names = append(names, name)
			}
		}
	}
	for _, c := range containersOf(&pod.Spec) {
		native(c.Resources.Requests)
	}
	if r := pod.Spec.Resources; r != nil {
		native(r.Requests)
	}
	first := []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	slices.SortFunc(names, func(a, b corev1.ResourceName) int {
		i, j := slices.Index(first, a), slices.Index(first, b)
		if (i < 0) != (j < 0) {
			return cmp.Compare(j, i)
		}
		return cmp.Or(cmp.Compare(i, j), cmp.Compare(a, b))
	})
	return slices.Compact(names)
}

// priority returns the priority of a pod.
func priority(pod *corev1.Pod) int32 {
	if p := pod.Spec.Priority; p != nil {
		return *p
	}
	return 0
}

// guaranteed returns 1 for a guaranteed pod.
func guaranteed(pod *corev1.Pod) int {
	if podstatus.QOSClass(&pod.Spec) == corev1.PodQOSGuaranteed {
		return 1
	}
	return 0
}

// resizable returns the resources of a container that a resize may change, or nil.
func resizable(spec *corev1.PodSpec, name string) *corev1.ResourceRequirements {
	for _, c := range containersOf(spec) {
		if c.Name == name && c.kind != core.Ephemeral {
			return &c.Resources
		}
	}
	return nil
}

// sameResources reports whether two versions of a pod have the same resources.
func sameResources(a, b *corev1.Pod) bool {
	for _, c := range containersOf(&a.Spec) {
		if other := resizable(&b.Spec, c.Name); other != nil && !apiequality.Semantic.DeepEqual(c.Resources, *other) {
			return false
		}
	}
	return apiequality.Semantic.DeepEqual(a.Spec.Resources, b.Spec.Resources)
}

// withResourcesOf returns desired with the resources of another version of the pod.
func withResourcesOf(desired, of *corev1.Pod) *corev1.Pod {
	out := desired.DeepCopy()
	for _, c := range containersOf(&out.Spec) {
		if had := resizable(&of.Spec, c.Name); had != nil {
			had.DeepCopyInto(&c.Resources)
		}
	}
	out.Spec.Resources = of.Spec.Resources.DeepCopy()
	return out
}
