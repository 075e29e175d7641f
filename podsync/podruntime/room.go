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
//
// Invariant: requests, ports and quality are those of pod, and wanted those of want. They are
// computed without the lock, because a pod can have thousands of containers.
type tenant struct {
	pod      *corev1.Pod // with the resources that it has; never changed, only replaced
	requests corev1.ResourceList
	ports    []hostPort
	held     bool // the Provider has it; else it was admitted and not started yet
	// A resize that waits for room.
	want    *corev1.Pod // nil: none
	wanted  corev1.ResourceList
	quality int // 1 for a guaranteed pod
	since   time.Time
}

// newTenant returns a tenant with the resources of a pod.
func newTenant(pod *corev1.Pod, held bool) *tenant {
	return &tenant{pod: pod, requests: PodResources(pod).Requests, ports: hostPorts(pod), held: held}
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
	list, t := slices.Collect(active), newTenant(pod, false)
	ports := portsOf(t.ports)
	var total corev1.ResourceList
	if r.allocatable != nil {
		var err error
		if total, err = r.total(ctx); err != nil {
			return err
		}
	}
	strangers := r.strangers(list)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[types.UID]bool{}
	var others []*tenant
	for _, other := range list {
		known[other.UID] = true
		o := r.tenants[other.UID]
		if o == nil {
			o = strangers[other.UID]
		}
		if o == nil { // it has left in the meantime
			o = newTenant(other, false)
		}
		others = append(others, o)
	}
	maps.DeleteFunc(r.tenants, func(uid types.UID, t *tenant) bool { return !t.held && !known[uid] })
	for _, other := range others {
		if port, taken := ports.conflict(other.ports); taken {
			return podsync.Reject(ReasonNodePorts, fmt.Sprintf("Predicate NodePorts failed: another pod has the host port %d", port))
		}
	}
	if r.allocatable != nil {
		for _, name := range namesOf(total, t.requests) {
			want, used, capacity := requestIn(t.requests, name), sum(others, name), total[name]
			if !enough(want, used, capacity) {
				return podsync.Reject(ReasonOutOf+string(name), shortage(name, want, used, capacity))
			}
		}
	}
	r.tenants[pod.UID] = t
	return nil
}

// strangers returns those of the pods that are no tenants, as tenants would be.
func (r *room) strangers(pods []*corev1.Pod) map[types.UID]*tenant {
	r.mu.Lock()
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return r.tenants[pod.UID] != nil })
	r.mu.Unlock()
	all := map[types.UID]*tenant{}
	for _, pod := range pods {
		all[pod.UID] = newTenant(pod, false)
	}
	return all
}

// total returns the allocatable resources of the node.
func (r *room) total(ctx context.Context) (list corev1.ResourceList, err error) {
	err = r.panics.contain(ctx, "Config.Allocatable", func() error { list = r.allocatable(); return nil })
	return list, err
}

// hold makes a pod that the Provider has a tenant, whether or not there is room.
func (r *room) hold(pod *corev1.Pod) {
	t := newTenant(pod, true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tenants[pod.UID] = t
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
	for {
		r.mu.Lock()
		t := r.tenants[desired.UID]
		var had *corev1.Pod
		if t != nil {
			had = t.pod
		}
		r.mu.Unlock()
		if t == nil { // it has stopped
			return desired, pending{}
		}
		if spec, why, shrunk, ok := r.resize(ctx, t, had, desired, now); ok {
			if shrunk {
				r.retry(ctx)
			}
			return spec, why
		}
	}
}

// resize is update for a tenant that had a spec a moment ago. It reports whether the tenant has
// less of a resource than before, and ok if the tenant still had that spec.
func (r *room) resize(ctx context.Context, t *tenant, had, desired *corev1.Pod, now time.Time) (spec *corev1.Pod, why pending, shrunk, ok bool) {
	same := sameResources(had, desired)
	kept, requests, quality := desired, t.requests, 0
	var total corev1.ResourceList
	if !same {
		kept, requests, quality = withResourcesOf(desired, had), PodResources(desired).Requests, guaranteed(had)
		if why = r.refusal(had, desired); why.reason == "" && r.allocatable != nil {
			var err error
			if total, err = r.total(ctx); err != nil { // it is tried again with each list
				why = pending{corev1.PodReasonDeferred, err.Error()}
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tenants[desired.UID] != t || t.pod != had {
		return nil, pending{}, false, false
	}
	if !same && why.reason == "" && r.allocatable != nil {
		why = r.fits(t, requests, total)
	}
	switch why.reason {
	case "":
		for name, q := range t.requests {
			left := requests[name]
			shrunk = shrunk || left.Cmp(q) < 0
		}
		t.pod, t.requests, t.want, t.wanted = desired, requests, nil, nil
	case corev1.PodReasonDeferred:
		if t.want == nil {
			t.since = now
		}
		t.pod, t.want, t.wanted, t.quality = kept, desired, requests, quality
	default:
		t.pod, t.want, t.wanted = kept, nil, nil
	}
	return t.pod, why, shrunk, true
}

// retry grants the resizes that wait, as far as there is room now. As with the
// kubelet, pods of a higher priority come first, then guaranteed pods, then those
// that have waited for longer.
func (r *room) retry(ctx context.Context) {
	if len(r.waiting()) == 0 || r.allocatable == nil {
		return
	}
	total, err := r.total(ctx)
	if err != nil {
		return // it is tried again with each list
	}
	var granted []types.UID
	r.mu.Lock()
	for _, t := range r.waitingLocked() {
		if r.fits(t, t.wanted, total).reason == "" {
			t.pod, t.requests, t.want, t.wanted = t.want, t.wanted, nil, nil
			granted = append(granted, t.pod.UID)
		}
	}
	r.mu.Unlock()
	for _, uid := range granted {
		r.granted(uid)
	}
}

// waiting returns the tenants whose resizes wait, the first one first.
func (r *room) waiting() []*tenant {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waitingLocked()
}

// waitingLocked is waiting. r.mu must be held.
func (r *room) waitingLocked() []*tenant {
	waiting := slices.DeleteFunc(slices.Collect(maps.Values(r.tenants)), func(t *tenant) bool { return t.want == nil })
	slices.SortFunc(waiting, func(a, b *tenant) int {
		return cmp.Or(
			cmp.Compare(priority(b.pod), priority(a.pod)),
			cmp.Compare(b.quality, a.quality),
			a.since.Compare(b.since),
			strings.Compare(string(a.pod.UID), string(b.pod.UID)),
		)
	})
	return waiting
}

// refusal returns why a pod can never have the resources of desired here.
func (r *room) refusal(had, desired *corev1.Pod) pending {
	switch {
	case !r.resizes:
		return pending{corev1.PodReasonInfeasible, "the runtime can't change the resources of running containers"}
	case !r.resizesPod && !apiequality.Semantic.DeepEqual(had.Spec.Resources, desired.Spec.Resources):
		return pending{corev1.PodReasonInfeasible, "the runtime can't change the resources of a running pod as a whole"}
	}
	return pending{}
}

// fits returns why a tenant can't have the requests now. A resource whose request does not grow is
// always granted. r.mu must be held.
func (r *room) fits(t *tenant, requests, total corev1.ResourceList) pending {
	var others []*tenant
	for _, other := range r.tenants {
		if other != t {
			others = append(others, other)
		}
	}
	deferred := pending{}
	for _, name := range namesOf(total, requests) {
		had, want, capacity := requestIn(t.requests, name), requestIn(requests, name), total[name]
		if want.Cmp(had) <= 0 {
			continue
		}
		if want.Cmp(capacity) > 0 {
			return pending{corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d",
				name, amount(name, want), amount(name, capacity))}
		}
		if used := sum(others, name); deferred.reason == "" && !enough(want, used, capacity) {
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

// sum returns how much of a resource tenants take.
func sum(tenants []*tenant, name corev1.ResourceName) (q resource.Quantity) {
	for _, t := range tenants {
		q.Add(requestIn(t.requests, name))
	}
	return q
}

// requestIn is RequestOf for a pod with these requests as a whole.
func requestIn(requests corev1.ResourceList, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	return requests[name]
}

// amount returns a quantity as a number, of CPUs in thousandths.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// namesOf returns the resources to compare, in the kubelet's order: those of the node
// and those that a pod requests. A requested resource with a domain that the node
// does not have is left out: it may be one of the cluster.
func namesOf(total, requests corev1.ResourceList) []corev1.ResourceName {
	names := slices.Collect(maps.Keys(total))
	for name := range requests {
		if !strings.Contains(string(name), "/") {
			names = append(names, name)
		}
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

// resizable returns the resources of containers that a resize may change, by name.
func resizable(spec *corev1.PodSpec) map[string]*corev1.ResourceRequirements {
	all := map[string]*corev1.ResourceRequirements{}
	for _, c := range containersOf(spec) {
		if c.kind != core.Ephemeral {
			all[c.Name] = &c.Resources
		}
	}
	return all
}

// sameResources reports whether two versions of a pod have the same resources.
func sameResources(a, b *corev1.Pod) bool {
	others := resizable(&b.Spec)
	for name, own := range resizable(&a.Spec) {
		if other := others[name]; other != nil && !apiequality.Semantic.DeepEqual(own, other) {
			return false
		}
	}
	return apiequality.Semantic.DeepEqual(a.Spec.Resources, b.Spec.Resources)
}

// withResourcesOf returns desired with the resources of another version of the pod.
func withResourcesOf(desired, of *corev1.Pod) *corev1.Pod {
	out := desired.DeepCopy()
	others := resizable(&of.Spec)
	for name, own := range resizable(&out.Spec) {
		if had := others[name]; had != nil {
			had.DeepCopyInto(own)
		}
	}
	out.Spec.Resources = of.Spec.Resources.DeepCopy()
	return out
}
