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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

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
	others := r.others(list)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[types.UID]bool{}
	for _, other := range list {
		known[other.UID] = true
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

// others returns the tenants of the pods. A pod that has none gets one that is not in the room, made
// without the lock.
func (r *room) others(pods []*corev1.Pod) []*tenant {
	others := make([]*tenant, len(pods))
	r.mu.Lock()
	for i, pod := range pods {
		others[i] = r.tenants[pod.UID]
	}
	r.mu.Unlock()
	for i, pod := range pods {
		if others[i] == nil {
			others[i] = newTenant(pod, false)
		}
	}
	return others
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

// The reasons of rejections, as the kubelet has them. OutOf is followed by the name
// of a resource.
const (
	ReasonUnsupported       = "Unsupported"
	ReasonPodOSNotSupported = "PodOSNotSupported"
	ReasonNodeAffinity      = "NodeAffinity"
	ReasonNodePorts         = "NodePorts"
	ReasonTaintToleration   = "TaintToleration"
	ReasonOutOf             = "OutOf"
)

// mismatch returns the rejection of a pod that a Node is not for. As with the kubelet,
// only taints with the effect NoExecute count: another component may bind a pod in
// spite of the others.
func mismatch(ctx context.Context, pod *corev1.Pod, node *corev1.Node) error {
	if !selects(&pod.Spec, node.Name, node.Labels) {
		return podsync.Reject(ReasonNodeAffinity, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		tolerates := func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.FromContext(ctx), taint, true) }
		if taint.Effect == corev1.TaintEffectNoExecute && !slices.ContainsFunc(pod.Spec.Tolerations, tolerates) {
			return podsync.Reject(ReasonTaintToleration, "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
		}
	}
	return nil
}

// selects reports whether a node matches the node selector and the required node
// affinity of a pod.
func selects(spec *corev1.PodSpec, name string, set labels.Set) bool {
	for key, value := range spec.NodeSelector {
		if got, ok := set[key]; !ok || got != value {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	// Terms are alternatives; one without requirements matches nothing.
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			return false
		}
		fields := labels.Set{"metadata.name": name}
		return matches(term.MatchExpressions, set) && matches(term.MatchFields, fields)
	})
}

// matches reports whether all requirements hold for set.
func matches(requirements []corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	return !slices.ContainsFunc(requirements, func(r corev1.NodeSelectorRequirement) bool {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		return err != nil || !requirement.Matches(set)
	})
}

// A portSet has the ports of the node that a pod takes. A port with the address anyIP stands for
// those with the same number, whatever their addresses.
type portSet map[hostPort]bool

// anyIP is no address of a port.
const anyIP = "any"

func portsOf(ports []hostPort) portSet {
	set := portSet{}
	for _, p := range ports {
		set[p], set[hostPort{anyIP, p.protocol, p.number}] = true, true
	}
	return set
}

// conflict returns one of the ports that the set has, too, and whether there is one. Ports without
// an address are those of all addresses.
func (s portSet) conflict(ports []hostPort) (number int32, taken bool) {
	for _, p := range ports {
		all := hostPort{"", p.protocol, p.number}
		if s[p] || s[all] || p == all && s[hostPort{anyIP, p.protocol, p.number}] {
			return p.number, true
		}
	}
	return 0, false
}

// A hostPort is a port of the node that a pod takes.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	number   int32
}

// hostPorts returns the ports of the node that a pod takes.
func hostPorts(pod *corev1.Pod) (ports []hostPort) {
	for _, c := range containersOf(&pod.Spec) {
		if c.kind == core.Init || c.kind == core.Ephemeral {
			continue
		}
		for _, p := range c.Ports {
			number := p.HostPort
			if number == 0 && pod.Spec.HostNetwork {
				number = p.ContainerPort
			}
			if number == 0 {
				continue
			}
			port := hostPort{p.HostIP, p.Protocol, number}
			if port.protocol == "" {
				port.protocol = corev1.ProtocolTCP
			}
			if port.ip == "0.0.0.0" || port.ip == "::" {
				port.ip = ""
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// RequestOf returns the amount of a resource that a pod takes, by the rules of the
// scheduler: the request of the pod as a whole or the sum of its containers' requests,
// and its overhead.
func RequestOf(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	q, _ := aggregate(&pod.Spec, name, requestsOf)
	q.Add(pod.Spec.Overhead[name])
	return q
}

func requestsOf(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }
func limitsOf(r *corev1.ResourceRequirements) corev1.ResourceList   { return r.Limits }

// LimitOf returns the limit of a pod for a resource, by the same rules, and reports
// whether the pod or one of its containers has one.
func LimitOf(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := aggregate(&pod.Spec, name, limitsOf)
	if ok {
		q.Add(pod.Spec.Overhead[name])
	}
	return q, ok
}

// PodResources returns the resources of a pod as a whole: the requests of RequestOf, and
// the limits of LimitOf that hold. As with the kubelet, a limit holds if the pod has it,
// or if every container has one.
func PodResources(pod *corev1.Pod) (r corev1.ResourceRequirements) {
	var containers int
	limited := map[corev1.ResourceName]int{} // containers with a limit of their own
	for _, c := range containersOf(&pod.Spec) {
		if c.kind == core.Ephemeral {
			continue
		}
		containers++
		for name, q := range c.Resources.Limits {
			if q.Sign() > 0 {
				limited[name]++
			}
		}
	}
	for name, q := range aggregates(&pod.Spec, requestsOf) {
		put(&r.Requests, name, q)
	}
	for name, q := range pod.Spec.Overhead {
		q = q.DeepCopy()
		q.Add(r.Requests[name])
		put(&r.Requests, name, q)
	}
	for name, q := range aggregates(&pod.Spec, limitsOf) {
		own := resource.Quantity{}
		if pod.Spec.Resources != nil {
			own = pod.Spec.Resources.Limits[name]
		}
		if own.Sign() > 0 || limited[name] == containers {
			q.Add(pod.Spec.Overhead[name])
			put(&r.Limits, name, q)
		}
	}
	return r
}

func put(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
}

// ContainerLimit returns the limit of a container for a resource: its own one or, if it
// has none, that of the pod. Zero says that there is no limit.
func ContainerLimit(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; q.Sign() > 0 || pod.Spec.Resources == nil {
		return q
	}
	return pod.Spec.Resources.Limits[name]
}

// aggregate returns the quantity for a whole pod, and whether the pod or a container
// names it.
func aggregate(spec *corev1.PodSpec, name corev1.ResourceName, of func(*corev1.ResourceRequirements) corev1.ResourceList) (q resource.Quantity, named bool) {
	q, named = aggregates(spec, func(r *corev1.ResourceRequirements) corev1.ResourceList {
		if q, ok := of(r)[name]; ok {
			return corev1.ResourceList{name: q}
		}
		return nil
	})[name]
	return q, named
}

// aggregates returns the quantities for a whole pod, of all resources that the pod or a container
// names. If the pod does not name one, regular containers and sidecars run together, and
// before them each init container with the sidecars that come before it.
func aggregates(spec *corev1.PodSpec, of func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	sums, peaks := corev1.ResourceList{}, corev1.ResourceList{}
	for _, c := range containersOf(spec) {
		if c.kind == core.Ephemeral {
			continue
		}
		for name, q := range of(&c.Resources) {
			total := sums[name].DeepCopy()
			total.Add(q)
			if c.kind != core.Init {
				sums[name] = total
			} else if peak, ok := peaks[name]; !ok || total.Cmp(peak) > 0 {
				peaks[name] = total
			}
		}
	}
	for name, peak := range peaks {
		if sum, ok := sums[name]; !ok || peak.Cmp(sum) > 0 {
			sums[name] = peak
		}
	}
	if spec.Resources != nil {
		for name, q := range of(spec.Resources) {
			sums[name] = q.DeepCopy()
		}
	}
	return sums
}
