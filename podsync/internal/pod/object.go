// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A Compact is one version of a pod in its encoded form. It is immutable.
type Compact struct {
	// key has the namespace, name, UID and resourceVersion one after the other, and
	// ends their ends: four strings would take twice the memory.
	key    string
	ends   [3]int32
	data   []byte                // protobuf
	writer unique.Handle[string] // see lastWriter
}

// Encode encodes a pod without its managedFields.
func Encode(pod *corev1.Pod) (Compact, error) {
	slim := *pod // a clientset in memory may share pod with its store
	slim.ManagedFields = nil
	data, err := slim.Marshal()
	if err != nil {
		return Compact{}, fmt.Errorf("podsync: encode pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	p := Compact{key: pod.Namespace + pod.Name + string(pod.UID) + pod.ResourceVersion, data: data, writer: unique.Make(lastWriter(pod))}
	p.ends[0] = int32(len(pod.Namespace))
	p.ends[1] = p.ends[0] + int32(len(pod.Name))
	p.ends[2] = p.ends[1] + int32(len(pod.UID))
	return p, nil
}

func (p *Compact) uid() types.UID { return types.UID(p.key[p.ends[1]:p.ends[2]]) }

func (p *Compact) resourceVersion() string { return p.key[p.ends[2]:] }

// Meta returns the namespace, name, UID and resourceVersion of the pod.
func (p *Compact) Meta() *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: p.key[:p.ends[0]], Name: p.key[p.ends[0]:p.ends[1]], UID: p.uid(), ResourceVersion: p.resourceVersion()}
}

// Pod returns the pod, a new copy at each call.
func (p *Compact) Pod() *corev1.Pod {
	pod := &corev1.Pod{}
	_ = pod.Unmarshal(p.data) // can't fail: Marshal made the data
	return pod
}

// A Version is one version of a pod, as the informer keeps it or as a request has returned it.
//
// Invariant: pod or compact is set, except in the zero Version, which is no pod. If both are, they are equal.
type Version struct {
	pod     *corev1.Pod // never changed; nil while only compact is kept
	compact *Compact    // nil unless the informer keeps compact pods
	cached  bool        // it is from the informer
}

// Cached returns a version that the informer has.
func Cached(pod *corev1.Pod) *Version { return &Version{pod: pod, cached: true} }

// CachedCompact returns a version that the informer has in encoded form.
func CachedCompact(compact *Compact) *Version { return &Version{compact: compact, cached: true} }

// Known returns a version that is known from elsewhere.
func Known(pod *corev1.Pod) *Version { return &Version{pod: pod} }

// UID returns the UID of the pod without decoding it.
func (v *Version) UID() types.UID {
	if v.compact != nil {
		return v.compact.uid()
	}
	return v.pod.UID
}

// ResourceVersion returns the resourceVersion of the pod without decoding it.
func (v *Version) ResourceVersion() string {
	if v.compact != nil {
		return v.compact.resourceVersion()
	}
	return v.pod.ResourceVersion
}

// Writer returns the field manager of the client that wrote the status last, as far as it is known.
func (v *Version) Writer() string {
	if v.compact != nil {
		return v.compact.writer.Value()
	}
	return lastWriter(v.pod)
}

// FieldManager is the manager of the status fields that the driver writes.
const FieldManager = "kubewright-podsync"

// lastWriter returns the field manager of the last other client that wrote the status of a pod; ""
// if managedFields has none.
func lastWriter(pod *corev1.Pod) (manager string) {
	var last *metav1.Time
	for i := range pod.ManagedFields {
		e := &pod.ManagedFields[i]
		if e.Subresource == "status" && e.Manager != FieldManager && (last == nil || last.Before(e.Time)) {
			manager, last = e.Manager, e.Time
		}
	}
	return manager
}

// Open returns the pod, and keeps it until the version is closed.
func (v *Version) Open() *corev1.Pod {
	if v.pod == nil {
		v.pod = v.compact.Pod()
	}
	return v.pod
}

// close drops the decoded pod if it can be decoded again.
func (v *Version) close() {
	if v.compact != nil {
		v.pod = nil
	}
}

// Private returns a copy of the pod that the caller may change; nil if the version is no pod.
// The receiver is a copy of a version, so no lock is needed.
func (v Version) Private() *corev1.Pod {
	if v.compact != nil {
		return v.compact.Pod()
	}
	return v.pod.DeepCopy()
}

// Shares reports whether the version is the one of the informer, and keeps no second copy of it.
func (v Version) Shares(informer *Version) bool {
	return v.ResourceVersion() == informer.ResourceVersion() && (v.compact != nil || v.pod == informer.pod)
}

// Older reports whether the resourceVersion a is older than b.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// older reports whether a is an older version than b.
func older(a, b *corev1.Pod) bool { return Older(a.ResourceVersion, b.ResourceVersion) }

// setPod takes a version of the object: from the informer, or the answer to a
// request. It reports whether the version is new. That the object exists is for the
// informer to say: an answer may come after the object was deleted.
func (t *State) setPod(now Instant, next *Version) bool {
	before := t.api.pod
	if next.cached {
		defer func() { t.api.cachedVersion = next.ResourceVersion() }()
	}
	if before != nil {
		if Older(next.ResourceVersion(), before.ResourceVersion()) && !t.rewound(next) {
			return false
		}
		if before.ResourceVersion() == next.ResourceVersion() && Stands(before.Open(), next.Open()) {
			*before = *next // the same version from the other source: keep the informer's
			return false
		}
	}
	var old *corev1.Pod
	if before != nil {
		old = before.Open()
	}
	pod := next.Open()
	t.api.pod, t.api.node, t.api.deleting = next, pod.Spec.NodeName, pod.DeletionTimestamp != nil
	switch {
	case old != nil && !Stands(old, pod):
		t.dispute()
	case t.provider.generation > pod.Generation:
		t.dispute() // it was reported before the pod was seen
	}
	if t.write.read != readNothing {
		t.write.read, t.write.retryAt = readNothing, 0
	}
	wasDeleted, grace := old != nil && old.DeletionTimestamp != nil, graceOf(pod)
	if t.atOnce() && !t.finalized() && t.api.goingAt == 0 {
		t.api.goingAt = now
	}
	if t.deleted() {
		t.beginTermination(now, StopDeleted, nil, grace)
	}
	if old == nil || old.Generation != pod.Generation || t.deleted() != wasDeleted ||
		pod.Generation == 0 && mutableChanged(&old.Spec, &pod.Spec) {
		t.call.retryAt, t.call.failures = 0, 0 // the call may succeed now
	}
	switch {
	case podstatus.IsTerminal(pod.Status.Phase):
		t.beginTermination(now, StopCompleted, nil, SpecGrace(pod))
	case t.final():
		t.write.end = endUnwritten // another client has undone the end: it is written again
	}
	t.write.news.overwritten = true
	return true
}

// rewound reports whether v, which is older than the newest version, was stored later
// anyway, because the API server was restored from a backup. An informer never
// goes back to an older version than it had, and a GET returns none that is older
// than those seen before it was sent. Answers to writes prove nothing: the
// informer may lag behind them.
func (t *State) rewound(v *Version) bool {
	switch {
	case v.cached:
		return Older(v.ResourceVersion(), t.api.cachedVersion)
	case t.write.inflight != nil && t.write.inflight.Op == Get:
		return Older(v.ResourceVersion(), t.write.inflight.Pod.ResourceVersion)
	}
	return false
}

// markDeleted records that the object is gone.
func (t *State) markDeleted(now Instant) {
	if t.gone() && t.api.presence != missing {
		return
	}
	t.api.presence = gone
	t.call.retryAt = 0
	if t.end == nil { // a termination under way keeps its grace period
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}

// markMissing records that the API seems to have no such object. A pod that ends
// anyway, or that the provider does not hold, is gone with that.
func (t *State) markMissing(now Instant) {
	if t.gone() {
		return
	}
	if t.end != nil || t.Known() && !t.Held() {
		t.markDeleted(now)
		return
	}
	t.doubt(now)
}

// vanishedGrace returns the grace period of a pod that is gone from the API without having
// been marked as deleted: that of its spec.
func (t *State) vanishedGrace() time.Duration {
	if t.api.pod == nil {
		return MinGrace
	}
	return SpecGrace(t.Pod())
}

// answer applies the object in the answer to a request. If the watch was faster, the
// informer has the same version, and the answer is dropped: it would be a second copy
// of every pod.
func (t *State) answer(now Instant, pod *corev1.Pod) {
	if t.lacks(pod) {
		t.setPod(now, Known(pod))
	}
}

// lacks reports whether pod is not the newest version that is known.
func (t *State) lacks(pod *corev1.Pod) bool {
	return t.api.pod == nil || t.api.pod.ResourceVersion() != pod.ResourceVersion
}

// mutableChanged compares the fields of a spec that the API lets change.
func mutableChanged(a, b *corev1.PodSpec) bool {
	images := func(x, y []corev1.Container) bool {
		if len(x) != len(y) {
			return true
		}
		for i := range x {
			if x[i].Image != y[i].Image || !equality.Semantic.DeepEqual(x[i].Resources, y[i].Resources) {
				return true
			}
		}
		return false
	}
	return images(a.Containers, b.Containers) || images(a.InitContainers, b.InitContainers) ||
		!equality.Semantic.DeepEqual(a.EphemeralContainers, b.EphemeralContainers) ||
		!equality.Semantic.DeepEqual(a.Resources, b.Resources) ||
		!equality.Semantic.DeepEqual(a.ActiveDeadlineSeconds, b.ActiveDeadlineSeconds) ||
		!equality.Semantic.DeepEqual(a.Tolerations, b.Tolerations)
}

// seconds returns n seconds, limited to Horizon. The API does not limit grace periods:
// the largest integer often stands for no limit, and a negative one means 0.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(Horizon/time.Second))) * time.Second
}

// SpecGrace returns the grace period in the pod's spec.
func SpecGrace(pod *corev1.Pod) time.Duration {
	if pod == nil || pod.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds * time.Second
	}
	return max(MinGrace, seconds(*pod.Spec.TerminationGracePeriodSeconds))
}

// graceOf returns the grace period of the pod's deletion.
func graceOf(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return SpecGrace(pod)
	}
	return max(MinGrace, seconds(*pod.DeletionGracePeriodSeconds))
}

// controlled reports whether a controller will make another pod if this one is deleted.
func controlled(pod *corev1.Pod) bool { return metav1.GetControllerOfNoCopy(pod) != nil }

// A status that another client has written may be newer than the last report: some providers
// write to the API themselves. So it is contested until a report that began later contradicts
// it, and no status that is not final is written until then. A report that equals it says only
// that the provider has read the API.

// foreign applies a version that is not the answer to a write. It reports whether the version
// is new.
func (t *State) foreign(now Instant, seq uint64, v *Version) bool {
	before := t.api.pod
	if !t.setPod(now, v) {
		return false
	}
	if n := &t.write.news; before != nil && t.Known() && t.Held() && t.contests(&before.Open().Status, &t.Pod().Status) {
		n.contestedAt, n.asked = seq, false
	}
	return true
}

// contests reports whether two versions of a status differ in what the reports decide.
func (t *State) contests(before, after *corev1.PodStatus) bool {
	return !podstatus.Equal(t.decided(before), t.decided(after))
}

// decided returns the part of a status that the reports decide.
func (t *State) decided(status *corev1.PodStatus) *corev1.PodStatus {
	out := &corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Message: status.Message, StartTime: status.StartTime,
		HostIP: status.HostIP, HostIPs: status.HostIPs, PodIP: status.PodIP, PodIPs: status.PodIPs,
		InitContainerStatuses: status.InitContainerStatuses, ContainerStatuses: status.ContainerStatuses,
		EphemeralContainerStatuses: status.EphemeralContainerStatuses,
	}
	for _, c := range status.Conditions {
		switch c.Type {
		case corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodReadyToStartContainers:
		default:
			if !slices.Contains(t.provider.conditions, c.Type) {
				continue
			}
		}
		out.Conditions = append(out.Conditions, c)
	}
	return out
}

// confirmed records that the last report still holds at seq. It reports whether the status of
// another client is no longer contested.
func (t *State) confirmed(seq uint64) bool {
	n := &t.write.news
	if n.contestedAt == 0 || seq <= n.contestedAt || !t.provider.reports.any {
		return false // or the provider has no opinion
	}
	n.contestedAt = 0
	return true
}

// echoes reports whether a report is the status that another client has written.
func (t *State) echoes(report *corev1.PodStatus) bool {
	return t.write.news.contestedAt != 0 && podstatus.Equal(report, &t.Pod().Status)
}

// takeEcho records a report that echoes.
func (t *State) takeEcho(now Instant, st *Report) {
	n := &t.write.news
	upToDate := n.statusSeq == n.storedSeq
	st.Status.Conditions = nil // which of them are the provider's own it does not say
	t.take(now, st)
	n.contestedAt = 0
	if upToDate {
		n.storedSeq, n.overwritten, n.reportedAt = n.statusSeq, false, 0
	}
}

// asksAgain reports whether a List must show whether the provider contradicts another client.
// It is asked for once.
func (t *State) asksAgain(now Instant) bool {
	n := &t.write.news
	if n.contestedAt == 0 || n.asked || t.write.inflight != nil || now < t.write.retryAt || t.stopped() || t.gone() {
		return false
	}
	n.asked = true
	return true
}

// statusStored records that the API has the status of c: it had it already, or resp
// has it. same says that the status of resp is the computed one, so that no write of
// another client is left to react to.
func (t *State) statusStored(now Instant, c *Call, resp *corev1.Pod, same bool) {
	t.write.inflight = nil
	t.write.failures, t.write.retryAt = 0, 0
	t.write.rivals.conflicts = 0
	t.annotationsSettled(c.Annotations)
	if resp != nil {
		t.paceWrites(now)
	}
	if resp == nil {
		resp, same = c.Pod, true
	} else {
		if t.write.news.statusSeq == t.write.news.storedSeq {
			t.repaired(now)
		}
		t.answer(now, resp)
	}
	t.write.news.storedSeq = c.want
	ours := t.Pod().ResourceVersion == resp.ResourceVersion
	if ours && same {
		t.write.news.contestedAt = 0 // the informer may have shown this version before
	}
	if t.write.news.statusSeq != c.want {
		return
	}
	switch {
	case ours && same:
		t.write.news.overwritten, t.provider.lost, t.provider.withdrawn = false, nil, nil
		if !t.provider.reports.reason || t.running() || t.end != nil { // else the object does not have the reported reason
			t.setMirror() // from here on the object is its own report
		}
	case ours && resp.ResourceVersion == c.Pod.ResourceVersion:
		t.write.news.overwritten, t.write.news.contestedAt, t.provider.lost, t.provider.withdrawn = false, 0, nil, nil // the server drops fields: a feature gate is off
	}
	if c.Over && podstatus.IsTerminal(t.Pod().Status.Phase) { // which may be newer than resp
		t.becomeFinal()
	}
}

// paceWrites lets a burst of statuses through, and then one each writeInterval:
// a provider that reports each change of a message must not write each of them.
func (t *State) paceWrites(now Instant) {
	t.write.pace.spent = max(t.write.pace.spent-(now-t.write.pace.lastAt), 0) + writeInterval
	t.write.pace.lastAt = now
	t.write.pace.notBefore = now + t.write.pace.spent - writeBurst*writeInterval
}

// repaired records a status write that no report caused. If another client undoes
// each write, the writes become rarer.
func (t *State) repaired(now Instant) {
	if now-t.write.rivals.repairedAt > 2*t.rules.Retry.Cap {
		t.write.rivals.repairs = 0
	}
	t.write.rivals.repairedAt = now
	t.write.rivals.repairs = min(t.write.rivals.repairs+1, 250)
	if t.write.rivals.repairs > repairsAtOnce {
		t.write.retryAt = now + t.rules.Retry.Delay(int(t.write.rivals.repairs-repairsAtOnce))
	}
}

// statusRejected records that the API refused the status as invalid. The status is not
// sent again until it changes. A final status is sent again as podstatus.Minimal. If
// that is refused too, it stays unwritten: it must not keep the pod from being
// deleted.
func (t *State) statusRejected(c *Call) {
	t.write.inflight = nil
	t.write.news.rejectedSeq = c.want
	if c.Over {
		t.becomeInvalid()
	}
}

// annotationsRejected records that the API refused the annotations as invalid. They are not
// sent again unless they change.
func (t *State) annotationsRejected(c *Call) {
	t.write.inflight = nil
	t.annotationsSettled(c.Annotations)
	t.write.news.statusSeq++ // the status is sent without them
}

// notFound records the answer "no such pod".
func (t *State) notFound(now Instant) {
	t.write.inflight = nil
	if t.api.notFoundAt == 0 {
		t.api.notFoundAt = now
	}
}

// deleteSent records that the API has accepted the DELETE. Finalizers may still keep the
// object.
func (t *State) deleteSent(now Instant) {
	t.write.inflight, t.write.unread = nil, true
	t.write.failures, t.write.retryAt = 0, 0
	t.becomeReleased(now)
}

// conflicted records that another client has written the pod since the version from
// which the status was computed.
func (t *State) conflicted(now Instant) {
	if !older(t.write.inflight.Pod, t.Pod()) { // else the informer has it already
		t.write.read = readRaced
	}
	t.write.unread = t.write.unread || t.write.inflight.Op == Delete
	t.write.inflight = nil
	if phase := t.Pod().Status.Phase; t.write.rivals.conflicts == 0 || t.write.rivals.contested != phase {
		t.write.rivals.contested, t.write.rivals.conflicts = phase, 0
	}
	t.write.rivals.conflicts = min(t.write.rivals.conflicts+1, 250)
	if t.write.failures > 0 {
		// A lost race is no outage: the next try may succeed.
		t.write.retryAt = now + min(t.rules.Retry.Delay(int(t.write.failures)), 4*t.rules.Retry.Base)
	}
	t.write.failures++
}

// pinned reports whether a patch that changes the phase, or a DELETE, must be conditional on the
// version that it is about. Other clients that write again and again without changing the phase
// must not keep it from being done.
func (t *State) pinned() bool {
	return t.write.rivals.conflicts < pinnedTries || t.write.rivals.contested != t.Pod().Status.Phase
}

// finishGet applies the answer to a GET; pod is nil if the instance does not exist.
func (t *State) finishGet(now Instant, seq uint64, pod *corev1.Pod) {
	base, beaten := t.write.inflight.Pod, t.write.read == readRaced
	t.write.read = readNothing
	if pod != nil && t.lacks(pod) {
		t.foreign(now, seq, Known(pod))
	}
	t.write.inflight = nil
	switch {
	case pod != nil:
		t.api.notFoundAt = 0
		t.write.news.overwritten = true
		t.write.unread = t.write.unread && !(t.final() && (pod.DeletionTimestamp != nil || t.provider.deletes)) // else it lives again
		if beaten && pod.ResourceVersion == base.ResourceVersion {
			// No other client has written: the conflict has another cause.
			t.write.retryAt = now + t.rules.Retry.Delay(int(t.write.failures))
		}
	case t.api.notFoundAt == 0:
		t.api.notFoundAt = now
		if t.write.unread {
			t.becomeReleased(now) // the DELETE was stored
		}
	default:
		t.markMissing(now) // the second answer
	}
}

// writeFailed schedules a retry of the current request.
func (t *State) writeFailed(now Instant, ev WriteFailed) {
	if t.write.inflight.Op == Patch && ev.MayBeStored && !older(t.write.inflight.Pod, t.Pod()) {
		// A status computed from the version before might have another start time
		// than the stored one.
		t.write.read = readUnsure
	}
	t.write.unread = t.write.unread || t.write.inflight.Op == Delete && ev.MayBeStored
	t.write.inflight = nil
	t.write.failures++
	delay := t.rules.Retry.Delay(int(t.write.failures))
	if ev.Unanswered {
		delay = min(delay, UnansweredCap)
	}
	t.write.retryAt = now + max(delay, ev.After)
}

// writeStarted records an API request.
func (t *State) writeStarted(now Instant, op Op, wall time.Time) *Call {
	c := &Call{Op: op, Since: now, want: t.write.news.statusSeq, Over: t.stopped(), Pod: t.Pod(), Pinned: t.pinned()}
	if op == Patch {
		c.Base, c.Update, c.Annotations = t.base(), t.update(wall), t.newAnnotations()
		c.Minimal = t.write.end == endInvalid
	}
	t.write.inflight = c
	return c
}

// update returns the argument of podstatus.Next at the time wall. The memory that it refers to is never
// changed.
func (t *State) update(wall time.Time) podstatus.Update {
	u := podstatus.Update{
		Stopped: t.stopped(), KeepPhase: t.rules.TrustPhase, Generation: t.provider.generation,
		Withdrawn: slices.Clone(t.provider.withdrawn), Now: wall,
	}
	pends := func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending }
	if t.running() && t.provider.generation >= t.Pod().Generation && slices.ContainsFunc(t.Pod().Status.Conditions, pends) {
		u.Withdrawn = append(u.Withdrawn, corev1.PodResizePending) // unless the provider reports it
	}
	if report := t.report(); report != nil {
		u.Observed = *report
		if t.provider.mirror != nil {
			t.asReported(&u.Observed)
		}
	}
	switch {
	case u.Stopped:
		if t.report() == nil {
			t.addWaiting(&u.Observed)
		}
		u.Failure, u.Unstarted, u.Generation = t.end.failure, t.end.unstarted, t.Pod().Generation
	case t.running() && !t.rules.Updates && !t.provider.saysGeneration:
		u.Generation = t.Pod().Generation // nothing else can accept it
	case t.unapplied() && t.provider.resources != 0 && t.provider.resources != resourcesOf(t.Pod()):
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: MessageUnapplied,
		})
	case t.provider.refused != nil && t.provider.refused.generation == t.Pod().Generation:
		// Seen and refused. To a resize that is a condition of its own.
		u.Generation = t.Pod().Generation
		if t.provider.resources == resourcesOf(t.Pod()) {
			break
		}
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: t.provider.refused.answer,
		})
	case !t.running() && t.end == nil:
		if t.provider.fp == 0 {
			t.addStarting(&u.Observed)
		}
		u.Generation = t.Pod().Generation // Start is called with the newest
		u.Observed.Reason, u.Observed.Message = "", ""
		switch taken := t.nameTaken(); {
		case taken != nil:
			u.Observed.Reason, u.Observed.Message = ReasonNameTaken, taken.Message
		case t.call.err != nil && t.call.failures > 0:
			u.Observed.Reason, u.Observed.Message = ReasonFailedStart, t.call.err.Error()
		}
	}
	return u
}

// nameTaken returns why the pod waits for its name; nil if it does not.
func (t *State) nameTaken() *NameTaken {
	taken, _ := t.call.err.(*NameTaken)
	return taken
}

// asReported removes from a stored status the fields that the provider did not report:
// conditions of other types, resources and addresses if they were derived, and why Start failed.
func (t *State) asReported(status *corev1.PodStatus) {
	status.Conditions = ownConditions(t.provider.conditions, status.Conditions)
	if !t.provider.reports.reason && (t.end == nil || !t.end.unstarted) { // else it says why the pod has never run
		status.Reason, status.Message = "", ""
	}
	if !t.provider.reports.hostIP {
		status.HostIP, status.HostIPs = "", nil
	}
	if !t.provider.reports.podIP {
		status.PodIP, status.PodIPs = "", nil
	}
	if t.provider.reports.resources {
		return
	}
	for _, list := range [...]*[]corev1.ContainerStatus{&status.InitContainerStatuses, &status.ContainerStatuses} {
		*list = slices.Clone(*list)
		for i := range *list {
			(*list)[i].Resources, (*list)[i].AllocatedResources = nil, nil
		}
	}
}

// addWaiting adds a status for each container of the spec.
func (t *State) addWaiting(status *corev1.PodStatus) {
	status.ContainerStatuses = waiting(t.Pod().Spec.Containers)
	status.InitContainerStatuses = waiting(t.Pod().Spec.InitContainers)
}

// addStarting adds a status for each container of a pod that the provider has said
// nothing about. One that has not run waits for the reason that the last error of
// Start gives; of others the stored status counts.
func (t *State) addStarting(status *corev1.PodStatus) {
	t.addWaiting(status)
	stored := &t.base().Status
	for _, lists := range [...][2][]corev1.ContainerStatus{
		{status.InitContainerStatuses, stored.InitContainerStatuses}, {status.ContainerStatuses, stored.ContainerStatuses},
	} {
		places := placesOf(lists[1])
		for i := range lists[0] {
			cs := &lists[0][i]
			at, ran := places[cs.Name]
			if ran {
				old := &lists[1][at]
				ran = old.State.Running != nil || old.State.Terminated != nil || old.LastTerminationState.Terminated != nil
			}
			if !ran {
				reason, message := waitingReason(t.call.err, cs.Name)
				cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
			}
		}
	}
}

// waitingReason returns the reason and message that an error of Start, or one that it
// wraps, gives for the waiting container.
func waitingReason(err error, container string) (reason, message string) {
	if err == nil {
		return "", ""
	}
	if e, ok := err.(interface{ WaitingReason(container string) string }); ok {
		if reason = e.WaitingReason(container); reason != "" {
			return reason, err.Error()
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return waitingReason(e.Unwrap(), container)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if reason, message = waitingReason(err, container); reason != "" {
				return reason, message
			}
		}
	}
	return "", ""
}

// waiting returns statuses of containers that nothing is known of yet.
func waiting(containers []corev1.Container) []corev1.ContainerStatus {
	statuses := make([]corev1.ContainerStatus, len(containers))
	for i := range containers {
		statuses[i].Name = containers[i].Name
	}
	return statuses
}

// resourcesOf returns a fingerprint of the resources that a resize changes.
func resourcesOf(pod *corev1.Pod) uint64 {
	h := fnv.New64a()
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			encoded, _ := list[i].Resources.Marshal() // with the maps in order
			_, _ = h.Write(encoded)
			_, _ = h.Write([]byte{0})
		}
	}
	return h.Sum64()
}
