// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

const (
	// appears is the time that a pod may take after CreatePod to be returned by GetPod or
	// GetPods: that of virtual-kubelet.
	appears = time.Minute
	// strayFor is the time for which a pod is remembered that the provider has reported and
	// podsync has not asked about.
	strayFor = 10 * time.Minute
)

// holdings is what the adapter remembers of the pods that the provider holds, or held: what
// it was handed, and what it said last. It calls neither the provider nor podsync, except
// for its public methods.
type holdings struct {
	controller func() *podsync.Controller // its result may be nil
	notifies   bool                       // the provider implements NotifyPods

	mu     sync.Mutex // guards what follows
	report func(podsync.State)
	pods   map[podsync.Ref]*holding            // without a UID if it isn't known
	named  map[types.NamespacedName][]*holding // the same by name
	names  map[types.NamespacedName]types.UID  // of the pods that hold their names
}

// A holding is one pod.
type holding struct {
	ref podsync.Ref
	// pod is the newest version that the provider was handed, or else the one that it
	// returned, without its status. It has the names of the containers.
	pod     *corev1.Pod
	handed  bool      // pod came from the API
	first   version   // the first one that came from the API
	last    version   // the newest one
	adopted bool      // an earlier process has called CreatePod
	started bool      // when it was adopted, its status said that it had started
	wanted  bool      // podsync has asked about the pod
	since   time.Time // the first call or the last report about it, or when needless last asked the Controller
	before  before

	// Invariant: a pod that waits to appear was created by this process and is not gone.
	created time.Time // when CreatePod has succeeded; zero once the provider has shown the pod
	gone    bool      // the provider no longer holds the pod; status is its last one
	ending  bool      // DeletePod has succeeded
	deletes int       // how often it has
	doomed  time.Time // the end of the grace period of the first one
	listed  bool      // GetPods has shown the pod under its name
	// releasing says that DeletePod is called for a stray that has ended.
	releasing bool
	absent    bool      // GetPods has left the pod out, and GetPod does not find it
	premature time.Time // since when the provider shows an end whose containers wait; zero: it does not
	failing   time.Time // since when GetPod has failed without saying that there is no pod; zero: it does not
	said      bool      // a failure since then was recorded as an event

	// status is the newest that was notified or polled, and shown the one in a pod that GetPod
	// or GetPods has returned: nil, or without a phase, if it says nothing.
	status, shown *corev1.PodStatus
	told          bool      // status was notified, not polled
	echoed        bool      // the last pod that GetPod or GetPods has returned had a status of the API
	polling       bool      // a call of GetPodStatus is under way
	asked         time.Time // when poll last called GetPodStatus
	looking       bool      // a call of GetPod for a list is under way

	annotations, labels ledger
	deleting            bool   // the provider has set a deletionTimestamp
	generation          int64  // of the spec that the provider has shown; 0: unknown
	node                string // spec.nodeName
}

// A version is the status of a pod in the API at one resourceVersion.
type version struct {
	resource string // "": none
	status   *corev1.PodStatus
}

// before is what Start has found under the name of a pod that it has not created yet. CreatePod may
// fail after it has created the pod, so an instance without a UID is the pod's if the name was free.
type before int

const (
	unasked before = iota
	taken          // the instance of another pod, or Start has not looked yet
	free           // nothing
)

func newHoldings(controller func() *podsync.Controller) *holdings {
	return &holdings{controller: controller, pods: make(map[podsync.Ref]*holding), named: make(map[types.NamespacedName][]*holding), names: make(map[types.NamespacedName]types.UID)}
}

func nameOf(ref podsync.Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// get returns the holding of ref, which it makes if there is none. h.mu must be held.
func (h *holdings) get(ref podsync.Ref) *holding {
	p, ok := h.pods[ref]
	if !ok {
		p = &holding{ref: ref, since: time.Now()}
		h.pods[ref] = p
		h.named[nameOf(ref)] = append(h.named[nameOf(ref)], p)
	}
	return p
}

// drop forgets a pod, if it is known. h.mu must be held.
func (h *holdings) drop(ref podsync.Ref) {
	delete(h.pods, ref)
	name := nameOf(ref)
	h.named[name] = slices.DeleteFunc(h.named[name], func(p *holding) bool { return p.ref == ref })
	if len(h.named[name]) == 0 {
		delete(h.named, name)
	}
}

// name records that ref holds its name. An instance that no pod of the API is known for does
// not take the name of one that has a pod. h.mu must be held.
func (h *holdings) name(ref podsync.Ref) {
	if h.heldByAnother(ref) && !h.get(ref).handed {
		return
	}
	if ref.UID != "" && !isStray(ref) {
		h.names[nameOf(ref)] = ref.UID
		h.drop(podsync.Ref{Namespace: ref.Namespace, Name: ref.Name}) // it is this pod
		h.drop(podsync.Ref{Namespace: ref.Namespace, Name: ref.Name, UID: strayUID(nameOf(ref))})
	}
}

// want records that podsync asks about the pod, and what the API has of it. It reports whether
// another pod holds the name: the provider may answer with the instance of that one.
func (h *holdings) want(ref podsync.Ref, api *corev1.Pod) (others bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	p.wanted = true
	if api == nil && !p.handed {
		if c := h.controller(); c != nil {
			if info, ok := c.Get(ref); ok {
				api = info.Pod
			}
		}
	}
	if api != nil && !p.handed {
		p.hand(api)
		p.adopted, p.started = true, podstatus.HasStarted(&api.Status)
	}
	return h.heldByAnother(ref)
}

// heldByAnother reports whether another pod than ref, one that the API has or had, holds the name.
// h.mu must be held.
func (h *holdings) heldByAnother(ref podsync.Ref) bool {
	holder := h.holder(ref)
	return holder != nil && holder.ref != ref && holder.handed && !holder.gone
}

// holder returns the holding of the pod that holds the name of ref, or that of an instance without
// a UID, or nil. h.mu must be held.
func (h *holdings) holder(ref podsync.Ref) *holding {
	ref.UID = h.names[nameOf(ref)]
	if p := h.pods[ref]; p != nil || ref.UID != "" {
		return p
	}
	return h.pods[strayOf(ref)]
}

// hand records the pod as the API has it. h.mu must be held.
func (p *holding) hand(api *corev1.Pod) {
	p.pod, p.handed, p.node = api.DeepCopy(), true, api.Spec.NodeName
	p.last = version{api.ResourceVersion, p.pod.Status.DeepCopy()}
	if p.first.resource == "" {
		p.first = p.last
	}
	p.pod.Status = corev1.PodStatus{}
	p.annotations.hand(api.Annotations)
	p.labels.hand(api.Labels)
	p.labels.add(storedLabels(api))
}

// handOver records that the provider is handed pod.
func (h *holdings) handOver(pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(podsync.RefOf(pod)).hand(pod)
}

// create records that CreatePod is about to be called, and reports whether it may be: not while an
// earlier pod's end under the name is deleted. What the provider reports during the call counts.
func (h *holdings) create(pod *corev1.Pod) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ref := podsync.RefOf(pod)
	if s := h.pods[strayOf(ref)]; s != nil && s.releasing {
		return false
	}
	p := h.get(ref)
	annotations, labels := p.annotations, p.labels
	if !p.unborn() { // the versions of an instance that is gone do not come back
		annotations.given, labels.given = nil, nil
	}
	*p = holding{ref: ref, wanted: true, since: time.Now(), before: p.before, annotations: annotations, labels: labels}
	p.hand(pod)
	h.name(ref)
	return true
}

// looking records that Start begins.
func (h *holdings) looking(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.get(ref); p.before == unasked {
		p.before = taken
	}
}

// looked records with which error Start has looked for the pod.
func (h *holdings) looked(ref podsync.Ref, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch p := h.get(ref); {
	case errors.Is(err, ErrOtherPod), errors.Is(err, errEarlier):
		p.before = taken
	case errors.Is(err, podsync.ErrNotFound):
		p.before = free
	}
}

// created records that CreatePod has succeeded. The provider may keep its copy of the pod, and go on
// changing it: what it has written counts when it returns or reports the pod.
func (h *holdings) created(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	p.created = time.Now()
	p.accepted()
}

// failed records that CreatePod has failed.
func (h *holdings) failed(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(ref).status = nil
	h.unname(ref)
}

// updated records that UpdatePod has succeeded.
func (h *holdings) updated(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(ref).accepted()
}

// accepted records that the provider has accepted the pod that it was handed.
func (p *holding) accepted() {
	p.annotations.accept()
	p.labels.accept()
}

// deleted records that DeletePod has succeeded, and what it has written into after. A final
// status in it is all that some providers tell of the end.
func (h *holdings) deleted(ref podsync.Ref, before, after *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	p.created, p.ending = time.Time{}, true
	if p.deletes++; p.deletes == 1 && before.DeletionGracePeriodSeconds != nil {
		p.doomed = time.Now().Add(time.Duration(*before.DeletionGracePeriodSeconds) * time.Second)
	}
	if hasEnded(&after.Status) && !podstatus.Equal(&before.Status, &after.Status) {
		p.status = after.Status.DeepCopy()
	}
}

// fewestDeletes is the number of calls of DeletePod that must succeed before a pod that runs counts as
// stopped: a back end may lose a request.
const fewestDeletes = 3

// survives reports whether a pod that runs has outlived DeletePod and its grace period by timeout. A
// negative timeout is none.
func (h *holdings) survives(ref podsync.Ref, timeout time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	return timeout >= 0 && p.deletes >= fewestDeletes && time.Since(p.doomed) >= timeout
}

// read records the annotations and labels that the provider has written into a pod.
func (p *holding) read(pod *corev1.Pod) {
	if p.handed {
		p.annotations.take(pod.Annotations, p.adopted)
		p.labels.take(pod.Labels, p.adopted)
	}
}

// restore gives a pod for the provider what the provider has written into an earlier version of it
// and the API does not have.
func (h *holdings) restore(ref podsync.Ref, pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	pod.Annotations = merged(maps.Clone(p.annotations.values), pod.Annotations)
	pod.Labels = merged(maps.Clone(p.labels.values), pod.Labels)
}

// holders returns the pods that hold their names.
func (h *holdings) holders() map[types.NamespacedName]types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.names)
}

// identify returns the Ref of a pod that the provider has returned. A pod without a UID is
// the one that holds its name, as far as it is known, or a stray if no pod of the API has
// its name, or one that waits for the name. Otherwise podsync finds the pod by its name. holders are
// those of the time before the provider was asked: if another pod holds the name now, it is not
// known whose the instance is.
func (h *holdings) identify(pod *corev1.Pod, holders map[types.NamespacedName]types.UID, taken func(types.NamespacedName) bool) (_ podsync.Ref, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ref := podsync.RefOf(pod)
	if ref.UID != "" {
		return ref, true
	}
	name := nameOf(ref)
	uid, ok := h.names[name]
	switch {
	case uid != holders[name]:
		return ref, false
	case ok:
		ref.UID = uid
	case h.isAwaited(name), !taken(name):
		ref.UID = strayUID(name)
	}
	return ref, true
}

// strayPrefix begins the UIDs of strays: instances that the provider returns without a UID
// under a name that no pod of the API has. A stray needs a UID to be an orphan of podsync.
const strayPrefix = "unknown:"

func strayUID(name types.NamespacedName) types.UID { return types.UID(strayPrefix + name.String()) }

// strayOf returns the stray under the name of a pod.
func strayOf(ref podsync.Ref) podsync.Ref {
	ref.UID = strayUID(nameOf(ref))
	return ref
}

func isStray(ref podsync.Ref) bool { return strings.HasPrefix(string(ref.UID), strayPrefix) }

// shown records that the provider has returned pod for ref, in a list or not, and returns its
// state.
func (h *holdings) shown(ref podsync.Ref, pod *corev1.Pod, inList bool) podsync.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	p.seen(pod)
	p.there()
	p.listed = p.listed || inList
	if p.echoed = h.isEcho(p, pod); !p.echoed && !h.isPremature(p, &pod.Status) {
		p.shown = h.believed(p, pod.Status.DeepCopy())
	}
	h.name(ref)
	return p.state()
}

// isEcho reports whether the status of pod, which the provider has returned for p, is one that the API
// has or had. Then the provider has read it there, or has kept it since it was handed the pod: it says
// nothing about the instance, and podsync would store its own words again. A pod with the UID of p and a
// resourceVersion that the provider was not handed comes from the API, and its status may be any older
// one. h.mu must be held.
func (h *holdings) isEcho(p *holding, pod *corev1.Pod) bool {
	if pod.Status.Phase == "" {
		return false
	}
	if pod.UID == p.ref.UID && pod.ResourceVersion != "" && p.handed {
		switch pod.ResourceVersion {
		case p.first.resource:
			return podstatus.Equal(p.first.status, &pod.Status)
		case p.last.resource:
			return podstatus.Equal(p.last.status, &pod.Status)
		}
		return true
	}
	c := h.controller()
	if c == nil {
		return false
	}
	info, ok := c.Get(p.ref)
	return ok && info.Pod != nil && podstatus.Equal(&info.Pod.Status, &pod.Status)
}

// believed returns a status of the provider, which it may change. If its condition Ready is True, the
// containers that run are ready: virtual-kubelet writes the condition as it is, and the provider of Perian
// reports no container as ready. podsync derives the condition from the containers. Conditions that the
// provider has read from the API say nothing. h.mu must be held.
func (h *holdings) believed(p *holding, status *corev1.PodStatus) *corev1.PodStatus {
	doubtful := func(c corev1.ContainerStatus) bool { return c.State.Running != nil && !c.Ready }
	ready := func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }
	if status.Phase != corev1.PodRunning || !slices.ContainsFunc(status.ContainerStatuses, doubtful) ||
		!slices.ContainsFunc(status.Conditions, ready) || h.hasConditions(p, status) {
		return status
	}
	for i := range status.ContainerStatuses {
		if c := &status.ContainerStatuses[i]; doubtful(*c) {
			c.Ready = true
		}
	}
	return status
}

// hasConditions reports whether the API has, or had when the provider was handed the pod, a condition of
// status: one of the same type and time. h.mu must be held.
func (h *holdings) hasConditions(p *holding, status *corev1.PodStatus) bool {
	type moment struct {
		kind corev1.PodConditionType
		time int64
	}
	momentOf := func(c corev1.PodCondition) moment { return moment{c.Type, c.LastTransitionTime.UnixNano()} }
	stored := []*corev1.PodStatus{p.first.status, p.last.status}
	if c := h.controller(); c != nil {
		if info, ok := c.Get(p.ref); ok && info.Pod != nil {
			stored = append(stored, &info.Pod.Status)
		}
	}
	known := map[moment]bool{}
	for _, from := range stored {
		if from != nil {
			for _, c := range from.Conditions {
				known[momentOf(c)] = true
			}
		}
	}
	return slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool {
		return !c.LastTransitionTime.IsZero() && known[momentOf(c)]
	})
}

// isPremature reports whether status, which the provider has not reported itself, is an end that must last
// for a minute before it counts: a final phase with a container that waits. virtual-kubelet reads only
// reports of a provider with NotifyPods, so what such a provider returns until the first one may be
// anything: that of Perian has the phase Failed then. h.mu must be held.
func (h *holdings) isPremature(p *holding, status *corev1.PodStatus) bool {
	waits := slices.ContainsFunc(status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Waiting != nil })
	if !h.notifies || !waits || !podstatus.IsTerminal(status.Phase) {
		p.premature = time.Time{}
		return false
	}
	if p.premature.IsZero() {
		p.premature = time.Now()
	}
	return time.Since(p.premature) < appears
}

// there records that the provider holds the pod.
func (p *holding) there() {
	p.created, p.gone, p.absent = time.Time{}, false, false
	p.answered()
}

// answered records that the provider shows the pod: GetPod has not failed since.
func (p *holding) answered() { p.failing, p.said = time.Time{}, false }

// failingFor records that GetPod fails, and returns for how long.
func (p *holding) failingFor() time.Duration {
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	return time.Since(p.failing)
}

// seen records what a pod of the provider says besides its status. The generation of an object
// that is not the API's, and its node, say nothing.
func (p *holding) seen(pod *corev1.Pod) {
	if p.pod == nil {
		p.pod = pod.DeepCopy()
		p.pod.Namespace, p.pod.Name, p.pod.UID = p.ref.Namespace, p.ref.Name, p.ref.UID
		p.pod.Status = corev1.PodStatus{}
	}
	p.read(pod)
	p.deleting = p.deleting || pod.DeletionTimestamp != nil
	if pod.Generation > 0 && pod.UID == p.ref.UID {
		p.generation = pod.Generation
	}
	if pod.Spec.NodeName != "" && !p.handed && !isStray(p.ref) {
		p.node = pod.Spec.NodeName
	}
}

// notified records a pod that the provider has reported on its own, and reports it.
func (h *holdings) notified(pod *corev1.Pod) {
	if pod == nil || pod.Name == "" {
		return
	}
	pod = pod.DeepCopy() // at once: the provider goes on changing it
	h.mu.Lock()
	ref := podsync.RefOf(pod)
	if ref.UID == "" {
		ref.UID = h.names[nameOf(ref)]
	}
	if ref.UID == "" && h.isAwaited(nameOf(ref)) {
		h.mu.Unlock()
		return
	}
	p := h.get(ref)
	p.seen(pod)
	p.since = time.Now()
	if !p.gone || podstatus.IsTerminal(pod.Status.Phase) { // the report may be older than the end
		p.status, p.shown, p.told = h.believed(p, &pod.Status), nil, true
	}
	if !p.gone {
		p.absent = false
		p.answered()
		h.name(ref) // GetPods may have no UID for it
	}
	state, report := p.state(), h.report
	h.mu.Unlock()
	if report != nil {
		report(state)
	}
}

// watch begins or, with nil, ends the reports. What was reported before counts.
func (h *holdings) watch(report func(podsync.State)) {
	h.mu.Lock()
	h.report = report
	var states []podsync.State
	for _, p := range h.pods {
		if report != nil && p.status != nil && !p.gone {
			states = append(states, p.state())
		}
	}
	h.mu.Unlock()
	for _, state := range states {
		report(state)
	}
}

// polled records the result of GetPodStatus, and returns the state. A pod that went during the call
// stays gone: another one may have its name.
func (h *holdings) polled(ref podsync.Ref, status *corev1.PodStatus) podsync.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	if !p.gone {
		p.there()
		if !h.isPremature(p, status) {
			p.status, p.told = h.believed(p, status.DeepCopy()), false
		}
		h.name(ref)
	}
	return p.state()
}

// beginPoll reports whether GetPodStatus must be called in the round that has begun then, and
// records that it is.
func (h *holdings) beginPoll(ref podsync.Ref, begun time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	if p.polling || p.ended() || !p.asked.Before(begun) {
		return false
	}
	p.polling, p.asked = true, time.Now()
	return true
}

func (h *holdings) endPoll(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(ref).polling = false
}

// beginLook reports whether no call of GetPod for a list is under way, and records that one is.
func (h *holdings) beginLook(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	if p.looking {
		return false
	}
	p.looking = true
	return true
}

func (h *holdings) endLook(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(ref).looking = false
}

// knows reports whether the UID is that of an earlier pod of a name, and not one that the provider
// has made up.
func (h *holdings) knows(name types.NamespacedName, uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.named[name], func(p *holding) bool { return p.ref.UID == uid && p.handed })
}

// holds reports whether the provider held the pod when it last answered.
func (h *holdings) holds(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(ref).holds()
}

// unborn reports whether nothing says that the pod ever had an instance.
func (h *holdings) unborn(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	return p.unborn()
}

func (p *holding) unborn() bool {
	return !p.started && !p.gone && p.created.IsZero() && !p.holds()
}

// mayRun reports whether the pod had an instance of which nothing says that it is gone.
func (h *holdings) mayRun(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	return !p.gone && !p.unborn()
}

// claim returns nil if an instance without a UID, under the name of ref and with this status, is
// taken for that of ref. Otherwise it is that of another pod: a pod that never had an instance
// waits until that one is released, and one that had does not have it any more. others says that
// another pod held the name when the provider was asked. A pod that was thought gone is there again.
func (h *holdings) claim(ref podsync.Ref, status *corev1.PodStatus, others bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	unborn := p.unborn() && ref.UID != "" && !isStray(ref)
	holder := h.holder(ref)
	if holder != nil && (holder == p || holder.gone) {
		holder = nil
	}
	switch {
	case unborn && (others || holder != nil && holder.ref.UID != "" && !isStray(holder.ref)):
		return fmt.Errorf("pod %s: %w", ref, ErrOtherPod)
	case others || holder != nil && holder.handed:
		return notHeld(ref)
	case !unborn || p.before == free: // it is the pod's
	case holder != nil && holder.listed && !(isStray(holder.ref) && hasEnded(status)): // podsync stops it
		return fmt.Errorf("pod %s: %w, without a UID", ref, ErrOtherPod)
	case hasEnded(status):
		return errEarlier
	}
	p.there()
	return nil
}

// awaited reports whether ref is a stray, and a pod waits for its name.
func (h *holdings) awaited(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return isStray(ref) && h.isAwaited(nameOf(ref))
}

// beginRelease reports whether the instance of ref is to be deleted by Release. Stop has seen what is
// gone go, and a stray too: what has the name now is not it. But one that had ended before still
// has the name for which a pod waits, and keeps it until endRelease.
func (h *holdings) beginRelease(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	if !isStray(ref) {
		return !p.gone
	}
	p.releasing = !p.gone && h.isAwaited(nameOf(ref)) && !h.heldByAnother(ref)
	return p.releasing
}

func (h *holdings) endRelease(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.pods[ref]; p != nil {
		p.releasing = false
	}
}

// isAwaited reports whether a pod waits for the name: Start was called, and the name was not free.
// podsync would take an instance without a UID for that of this pod. h.mu must be held.
func (h *holdings) isAwaited(name types.NamespacedName) bool {
	return slices.ContainsFunc(h.named[name], func(p *holding) bool { return p.before == taken && p.unborn() })
}

func (p *holding) holds() bool { return !p.gone && (p.status != nil || p.shown != nil) }

// doubts reports whether a failure of GetPod is not yet to be taken for "not found", although
// GetPods succeeds without the pod: it may run, or its job may wait for DeletePod, and GetPods
// has never shown it. Such a failure must last. If GetPods does not tell which pods there are,
// known is false: then a pod that had an instance may have it for as long as GetPod fails.
func (h *holdings) doubts(ref podsync.Ref, known bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	switch {
	case !known && !p.unborn():
		return true
	case known && (p.listed || p.ending || p.gone || !p.holds() && !p.started):
		return false
	}
	return p.failingFor() < appears
}

// ran reports whether the pod was last known to run, and was not deleted.
func (h *holdings) ran(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(ref).ran()
}

// isOurs reports whether the pod was last known to run, and no other pod has its name.
func (h *holdings) isOurs(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(ref).ran() && !h.heldByAnother(ref)
}

func (p *holding) ran() bool { return !p.gone && !p.ending && !p.unborn() && !p.ended() }

// unknown records that GetPod fails for a pod that may run. If that has lasted, it returns the pod, once.
func (h *holdings) unknown(ref podsync.Ref) *corev1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	if lasts := p.failingFor() >= appears; !lasts || p.said || p.pod == nil {
		return nil
	}
	p.said = true
	return p.pod.DeepCopy()
}

// vanished records that GetPod does not find a pod that the list lacks.
func (h *holdings) vanished(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(ref).absent = true
}

// handed reports whether the provider was handed the pod, or an earlier process has handed it
// over.
func (h *holdings) handed(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pods[ref]
	return p != nil && p.handed
}

// silent reports whether only GetPodStatus tells how the pod is: the provider has not reported it,
// and the pods that it returns have no status, or that of the API.
func (h *holdings) silent(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	return p.newest().Phase == "" || !p.told && (p.echoed || p.status != nil)
}

// echoes reports whether a pod had the status of the API when the provider last returned it.
func (h *holdings) echoes() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pods {
		if p.echoed && !p.told {
			return true
		}
	}
	return false
}

// fresh reports whether CreatePod has succeeded so recently that the provider need not
// show the pod yet.
func (h *holdings) fresh(ref podsync.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(ref).fresh()
}

// waiting reports whether the provider need not show a pod yet.
func (h *holdings) waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pods {
		if p.fresh() {
			return true
		}
	}
	return false
}

func (p *holding) fresh() bool { return !p.created.IsZero() && time.Since(p.created) < appears }

// candidates returns the pods that the provider may hold and that are not in listed: those that
// are not known to be gone, and those of the API.
func (h *holdings) candidates(listed []podsync.Ref) (refs []podsync.Ref) {
	done := make(map[podsync.Ref]bool, len(listed))
	for _, ref := range listed {
		done[ref] = true
	}
	add := func(ref podsync.Ref) {
		if !done[ref] {
			refs, done[ref] = append(refs, ref), true
		}
	}
	if c := h.controller(); c != nil {
		for ref, info := range c.All() {
			if info.Pod != nil {
				add(ref)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref, p := range h.pods {
		if !p.gone && ref.UID != "" && (p.wanted || p.status != nil || p.shown != nil) {
			add(ref)
		}
	}
	return refs
}

// leftOut returns the pods that the provider's list lacks and that it may hold nevertheless: some
// providers list only a part of their pods. About a pod that GetPod did not find it need not be
// asked again.
func (h *holdings) leftOut(listed []podsync.Ref) []podsync.Ref {
	refs := h.candidates(listed)
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(refs, func(ref podsync.Ref) bool {
		p := h.pods[ref]
		return p != nil && (p.absent || p.gone || p.ended() || !p.wanted)
	})
}

// others returns the states of pods that the provider's list leaves out: those that have
// ended, until podsync no longer needs them, and those that were created just now.
func (h *holdings) others(listed map[podsync.Ref]bool) (states []podsync.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref, p := range h.pods {
		switch {
		case listed[ref], isStray(ref) && !p.gone && p.looking: // returns has not been answered yet
		case ref.UID == "", isStray(ref) && !p.gone, !p.wanted && time.Since(p.since) > strayFor:
			h.drop(ref)
			h.unname(ref)
		case p.fresh(), p.ended():
			states = append(states, p.state())
		case h.needless(p):
			h.drop(ref)
			h.unname(ref)
		}
	}
	return states
}

// needless reports whether podsync no longer has a pod without an instance, for which it never calls Release. The
// Controller is asked once in ten minutes. h.mu must be held.
func (h *holdings) needless(p *holding) bool {
	c := h.controller()
	if c == nil || p.holds() || time.Since(p.since) <= strayFor {
		return false
	}
	p.since = time.Now()
	_, known := c.Get(p.ref)
	return !known
}

// ended reports whether the last that the provider has said of the pod is its end.
func (p *holding) ended() bool {
	if p.gone {
		return true
	}
	return hasEnded(p.newest())
}

func hasEnded(status *corev1.PodStatus) bool {
	return podstatus.IsTerminal(status.Phase) && !podstatus.MayBeRunning(status)
}

// own records that a stray is the instance of a pod.
func (h *holdings) own(stray, ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(stray)
	h.name(ref)
	h.get(ref)
}

// stopped records that the provider does not hold the pod, and returns its last state.
func (h *holdings) stopped(ref podsync.Ref) podsync.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	p.gone, p.created = true, time.Time{}
	h.unname(ref)
	return p.state()
}

// forget drops the pod.
func (h *holdings) forget(ref podsync.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(ref)
	h.unname(ref)
}

// unname records that the pod does not hold its name. h.mu must be held.
func (h *holdings) unname(ref podsync.Ref) {
	if h.names[nameOf(ref)] == ref.UID {
		delete(h.names, nameOf(ref))
	}
}

// state returns the state of the pod as it is known.
func (h *holdings) state(ref podsync.Ref) podsync.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(ref).state()
}

// pod returns a pod for DeletePod, as it is known.
func (h *holdings) pod(ref podsync.Ref) *corev1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.get(ref)
	pod := &corev1.Pod{}
	if p.pod != nil {
		pod = p.pod.DeepCopy()
	}
	pod.Namespace, pod.Name = ref.Namespace, ref.Name
	if pod.UID = ref.UID; isStray(ref) {
		pod.UID = ""
	}
	pod.Annotations = merged(pod.Annotations, p.annotations.values)
	pod.Status = *p.newest().DeepCopy()
	return pod
}

// newest returns the status that counts. virtual-kubelet reads none but what is notified or
// polled, so that of a pod may be old; it counts if it is final, because an end does not go
// away.
func (p *holding) newest() *corev1.PodStatus {
	switch {
	case p.status == nil && p.shown == nil:
		return &corev1.PodStatus{}
	case p.status == nil, p.shown != nil && podstatus.IsTerminal(p.shown.Phase) && !podstatus.IsTerminal(p.status.Phase):
		return p.shown
	}
	return p.status
}

// state returns the state of the pod. Only a phase that no container contradicts is an end:
// if one runs, DeletePod comes first.
func (p *holding) state() podsync.State {
	status := p.newest().DeepCopy()
	state := podsync.State{
		Ref: p.ref, NodeName: p.node, Generation: p.generation, Stopped: p.ended(),
		Annotations: stored(p.annotations.values, p.labels.values), Delete: p.deleting,
	}
	if p.pod != nil {
		rename(status.InitContainerStatuses, p.pod.Spec.InitContainers)
		rename(status.ContainerStatuses, p.pod.Spec.Containers)
		if state.Stopped && status.Phase == corev1.PodSucceeded {
			status.ContainerStatuses = complete(status.ContainerStatuses, p.pod.Spec.Containers)
		}
	}
	state.Status = *status
	return state
}

// rename gives the statuses of containers that the pod does not have the names of those that
// it has, if there are as many and none fits: some back ends name them after the pod.
func rename(statuses []corev1.ContainerStatus, containers []corev1.Container) {
	if len(statuses) != len(containers) {
		return
	}
	known := make(map[string]bool, len(containers))
	for i := range containers {
		known[containers[i].Name] = true
	}
	if slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return known[s.Name] }) {
		return
	}
	for i := range statuses {
		statuses[i].Name = containers[i].Name
	}
}

// complete returns the statuses of the containers of a pod that has succeeded: with an exit
// code 0 of each whose end the provider does not report.
func complete(statuses []corev1.ContainerStatus, containers []corev1.Container) []corev1.ContainerStatus {
	places := make(map[string]int, len(statuses))
	for i := range slices.Backward(statuses) {
		places[statuses[i].Name] = i // the first one of a name counts
	}
	for _, c := range containers {
		i, ok := places[c.Name]
		if !ok {
			i = len(statuses)
			statuses = append(statuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image})
		}
		if statuses[i].State.Terminated == nil {
			statuses[i].Ready = false
			statuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
		}
	}
	return statuses
}
