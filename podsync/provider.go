// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"iter"
	"maps"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/optional"
)

// A Ref names one pod instance. It is comparable, and it is the only key that
// this package uses: two pods that follow one another under the same namespace
// and name have different UIDs and are never taken for each other.
type Ref struct {
	// UID is metadata.uid.
	UID types.UID
	// Namespace and Name are for logs, and for backends that identify pods by name.
	Namespace, Name string
}

// RefOf returns the Ref of a pod.
func RefOf(pod *corev1.Pod) Ref {
	return Ref{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}

// String returns namespace/name(UID), for logs.
func (r Ref) String() string { return r.Namespace + "/" + r.Name + "(" + string(r.UID) + ")" }

// A State is a provider's view of one pod at one moment.
type State struct {
	// Ref says which pod. A provider whose backend can't store the UID may
	// leave it empty: the State is then taken to be that of the pod with the
	// same namespace and name if exactly one is known. If two are, it is dropped,
	// and in a List says no more than that none of them is missing. If none is, a
	// report is kept as [Controller.Report] says, and counts if the status in the
	// API, or the Checkpoint, says that the pod had started. What it says of a pod
	// whose start was stored nowhere before the process died, such as the exit code,
	// is lost: it can't be told from that of an earlier pod of the name. An
	// instance without a UID is never removed as an orphan.
	Ref
	// NodeName is the node that the instance was started for: spec.nodeName of
	// the pod that Start was called with. A backend that several nodes share
	// must set it, because the credentials of a node can't tell pods of other
	// nodes from pods that are gone. Empty means unknown.
	NodeName string
	// Stopped says that nothing of the pod runs, and that nothing will, restarts
	// included: podsync restarts no containers. Status is final then. Stopped is a
	// promise: as soon as it is given, another pod may use the name, and the pod may
	// be deleted from the API.
	Stopped bool
	// Generation is the metadata.generation of the spec in force; 0 means that
	// of the pod last handed over by Start or Update.
	Generation int64
	// Status has addresses, container statuses, and conditions of the provider's
	// own types. Zero fields express no opinion. The phase and the standard
	// conditions are derived from the container statuses, except under
	// [Policy.TrustPhase]. Each State replaces the one before: it is complete, not a
	// change.
	Status corev1.PodStatus
	// Annotations are merged into the pod's metadata, for example the identity of the
	// job in the backend. Keep them few and small. A new or changed one is written at
	// once, with the status and guarded by the UID: through the subresource pods/status,
	// which the credentials of a node may write. One that a State no longer has is left
	// alone, and so is one that another client changes. podsync itself never reads
	// them. If the process dies between Start and the write, the annotation is lost: a
	// provider that can't bear that is an [Annotator]. Annotations that the API server
	// refuses are dropped with DroppedInvalid.
	Annotations map[string]string
	// Delete asks that the pod be deleted from the API when its final status is stored,
	// for a backend whose jobs can be removed behind podsync's back. It counts only
	// with Stopped, cannot be withdrawn, and counts only for a pod that has a controller among its owners
	// (metadata.ownerReferences), because only a controller makes another pod. Any
	// other pod stays with its final status, until a client deletes it.
	Delete bool
}

// private returns a copy that shares no memory with st.
func (st State) private() State {
	st.Status = *st.Status.DeepCopy()
	st.Annotations = maps.Clone(st.Annotations)
	return st
}

// A Provider runs pods, and restarts their containers as spec.restartPolicy says:
// podsync itself restarts no container. Package podruntime is a Provider that does so
// on top of a container runtime. The three methods are idempotent. For one pod at
// most one method is called at a time, except for List, which is about all pods. For
// different pods the methods are called concurrently, up to [Config.MaxCalls].
//
// The context of a call is canceled when Run's context is. That of Start and Update is
// also canceled when the pod must be stopped, and that of Stop when its grace period
// has become shorter. A call that waits should return then; Stop follows once it has.
// Calls have no deadline, because pulling an image may take an hour. A call that never
// returns blocks its own pod only. After five minutes an event of the pod and the log say so.
//
// A panic in a method fails the call with a [PanicError].
//
// A provider may keep the values of a context, such as its logger, but not its
// cancellation: that of Start, Update and Stop is canceled when the call has returned.
// Work that outlives a call takes context.WithoutCancel of it, or the context of Watch,
// which is canceled only when Run's context is or when Watch returns.
//
// The pods passed in are private copies.
type Provider interface {
	// Start makes the pod exist. It is repeated, with backoff, until it
	// returns nil or a rejection (see [Reject]); a call for a UID that exists
	// already adopts the instance. It need not wait until containers run.
	Start(ctx context.Context, pod *corev1.Pod) (State, error)
	// Stop ends the pod within the grace period. State.Stopped in the result
	// means that it has ended, with exit codes in Status if known; otherwise
	// Stop has begun it and the end is reported later, or seen by List. It is
	// repeated, with a grace period that never grows, until the pod has
	// stopped. A pod that the provider does not know is Stopped, not an error.
	// ref.UID is empty if the provider listed an instance without a UID under
	// the name of a pod that was never started.
	Stop(ctx context.Context, ref Ref, opts StopOptions) (State, error)
	// List returns every pod that the provider holds, including stopped ones
	// that it has not forgotten. An error means that nothing is known: it is
	// never taken for an empty list, and a provider must not return an empty
	// or partial list because its backend did not answer. Nor must it return
	// pods of other nodes, unless State.NodeName says so. The context has a
	// deadline: two minutes, or [Config.Relist] if that is longer.
	List(ctx context.Context) ([]State, error)
}

// StopOptions say how and why a pod is stopped.
type StopOptions struct {
	// Grace is the time that the containers have to end after they were asked to. It
	// is at least a second.
	Grace time.Duration
	// Reason is the reason to stop the pod.
	Reason StopReason
	// Pod is the pod as last seen, a private copy; nil for an orphan.
	Pod *corev1.Pod
}

// A StopReason is a reason to stop a pod.
type StopReason string

// The reasons to stop a pod.
const (
	// StopDeleted: the pod is being deleted or is gone from the API.
	StopDeleted StopReason = "Deleted"
	// StopCompleted: all containers have ended, or the pod has a terminal phase in
	// the API. The call removes the rest of the instance.
	StopCompleted StopReason = "Completed"
	// StopEvicted: [Controller.Evict] was called.
	StopEvicted StopReason = "Evicted"
	// StopDeadline: spec.activeDeadlineSeconds is over.
	StopDeadline StopReason = "DeadlineExceeded"
	// StopRejected: Start was called and returned a rejection.
	StopRejected StopReason = "Rejected"
	// StopLost: the provider no longer lists the pod, and the pod fails. The call
	// makes sure that nothing is left.
	StopLost StopReason = "Lost"
	// StopOrphaned: the provider holds a pod that the API does not have.
	StopOrphaned StopReason = "Orphaned"
)

// The interfaces below are optional capabilities of a Provider. New asserts them once:
// a wrapper must have the methods of the Provider that it wraps. New refuses a Provider
// whose method has the name of one of theirs and another signature.

// An Updater takes changes of a running pod's spec. Without it a change is
// acknowledged in status.observedGeneration, unless State.Generation says that
// the provider runs an older generation: then a Warning event and, of a resize,
// the condition PodResizePending say that the change is not applied.
type Updater interface {
	// Update brings the running pod to a new spec. It is repeated, always with the
	// newest pod, until it returns nil or a rejection (see [Reject]). A rejection is
	// shown like a change that can't be applied. The rules of [Provider] for Start
	// apply. Update is never called for a pod that is being stopped.
	Update(ctx context.Context, pod *corev1.Pod) (State, error)
}

// A Watcher reports changes on its own, so that List is needed only for reports that
// were missed.
type Watcher interface {
	// Watch calls report for each change until ctx is done, and then returns. A
	// provider that needs a loop runs it here. If Watch returns sooner, with or
	// without an error, it is called again after a backoff, and List is called.
	//
	// Watch is called when Run begins: before the first List, and before the pods of
	// the API are known. What it reports then is kept until its pod is seen.
	//
	// report never blocks and may be called from any goroutine, also during
	// other calls. It must not be called after Watch has returned; use
	// [Controller.Report] for that.
	Watch(ctx context.Context, report func(State)) error
}

// An Inspector looks up one pod, cheaply. With it a pod that List left out is
// known to be lost at once and not after a second List.
type Inspector interface {
	// Inspect returns the state of the pod, or an error that wraps
	// [ErrNotFound] if the provider does not hold it. Any other error means
	// that nothing is known.
	Inspect(ctx context.Context, ref Ref) (State, error)
}

// A Releaser separates ending a pod from forgetting it. With it the exit codes
// of a stopped pod survive a crash of this process, because List still returns
// them: a provider whose pods outlive the process should have it.
type Releaser interface {
	// Release forgets a stopped pod: its exit codes, logs and disks. It is
	// called once the API no longer needs them, and repeated until it
	// returns nil. A pod that the provider does not know is no error.
	Release(ctx context.Context, ref Ref) error
}

// An Admitter decides whether a pod may start at all, knowing those that have
// been admitted.
type Admitter interface {
	// Admit returns nil to let pod start, a rejection (see [Reject]) to fail it
	// for good, or another error to be asked again later. It is called once
	// for each new pod before its first Start, for one pod of this Controller
	// at a time, so that two pods are not both given the last place; it should
	// decide from memory, since the next pod waits. active are the pods admitted
	// before that have not stopped, including those adopted at the start. They
	// are copies made on iteration.
	Admit(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error
}

// An Annotator stores its key to a pod in the API before the pod starts, so that the key
// is not lost if the process dies during Start.
type Annotator interface {
	// Annotate returns annotations for the pod. Start is called when the API has
	// them, and gets a pod that has them. It is called after Admit, and again by each
	// process that has to start the pod: it should return the values that the pod has
	// already. Errors and rejections (see [Reject]) are those of Start. While the API
	// can't be written, no pod that needs new annotations starts.
	Annotate(ctx context.Context, pod *corev1.Pod) (map[string]string, error)
}

// capabilities are the optional methods of a provider, nil if it does not have them.
type capabilities struct {
	updater   Updater
	watcher   Watcher
	inspector Inspector
	releaser  Releaser
	admitter  Admitter
	annotator Annotator
}

// optionalMethods are the methods of the optional interfaces.
var optionalMethods = []optional.Method{
	optional.Of(Updater.Update, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Update") }),
	optional.Of(Watcher.Watch, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Watch") }),
	optional.Of(Inspector.Inspect, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Inspect") }),
	optional.Of(Releaser.Release, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Release") }),
	optional.Of(Admitter.Admit, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Admit") }),
	optional.Of(Annotator.Annotate, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Annotate") }),
}

func capabilitiesOf(p Provider) (c capabilities) {
	c.updater, _ = p.(Updater)
	c.watcher, _ = p.(Watcher)
	c.inspector, _ = p.(Inspector)
	c.releaser, _ = p.(Releaser)
	c.admitter, _ = p.(Admitter)
	c.annotator, _ = p.(Annotator)
	return c
}
