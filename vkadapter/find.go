// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// uidHandler is the proposed extension of virtual-kubelet (virtual-kubelet#1295) that
// interLink uses: a provider that identifies pods by UID.
type uidHandler interface {
	GetPodByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error)
	GetPodStatusByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.PodStatus, error)
}

// A finder asks the provider which pods it holds.
type finder struct {
	nodeName   string
	provider   node.PodLifecycleHandler
	byUID      uidHandler       // nil if the provider isn't one
	notifier   node.PodNotifier // nil if the provider isn't one
	held       *holdings
	client     corev1client.CoreV1Interface // may be nil
	controller func() *podsync.Controller   // its result may be nil
	listOnce   bool
	notFound   func(error) bool

	environment environment

	listing sync.Mutex    // guards what follows
	listed  bool          // GetPods has succeeded, and isn't called again if listOnce is set
	last    []podsync.Ref // the result of the last list
	lastAt  time.Time     // when that list began

	asking sync.Mutex              // guards what follows
	absent map[podsync.Ref]*absent // the calls about pods that cannot exist since asked
	asked  time.Time

	outdated atomic.Bool  // the last list failed, left a pod unknown, may lack one, or have one too many
	echo     sync.Once    // says that the provider returns what the API has
	begun    atomic.Int64 // calls of GetPods
	outlived atomic.Int64 // those whose context was used after the next call had begun
	polls    group        // calls that a List does not wait for, or no longer
}

// A group is a WaitGroup to which a List that comes too late adds nothing.
type group struct {
	mu    sync.Mutex
	ended bool
	wg    sync.WaitGroup
}

// begin calls f in a goroutine, and returns true, unless wait was called.
func (g *group) begin(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.wg.Go(f)
	}
	return !g.ended
}

// wait waits for the functions that were begun, and ends the group.
func (g *group) wait() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.wg.Wait()
}

// ErrOtherPod is wrapped by the error of a call about a pod whose name another pod has in
// the provider, if the adapter knows neither: it is not known whether the pod runs. A provider that
// returns no UIDs has one pod of a name: the next one gets this error until that one is released.
var ErrOtherPod = errors.New("vkadapter: the provider holds another pod of this name")

// find returns the state of a pod. The error wraps podsync.ErrNotFound if the provider
// does not hold it, and ErrOtherPod if the provider holds a pod of its name and another
// UID. Any other error means that nothing is known. api is the pod as the API has it, or
// nil.
func (f *finder) find(ctx context.Context, ref podsync.Ref, api *corev1.Pod) (podsync.State, error) {
	state, err := f.locate(ctx, ref, api)
	if err == nil && f.notifier == nil && f.ask(ctx, ref) {
		state = f.held.state(ref)
	}
	return state, err
}

// locate is find without the status that GetPodStatus has.
func (f *finder) locate(ctx context.Context, ref podsync.Ref, api *corev1.Pod) (podsync.State, error) {
	others := f.held.want(ref, api)
	pod, err := f.getPod(ctx, ref)
	switch {
	case err == nil && pod != nil:
		return f.found(ctx, ref, pod, others, false)
	case err == nil:
		// Some providers return this also if their back end does not answer. The status
		// is what virtual-kubelet goes by.
		status, err := f.getPodStatus(ctx, ref)
		if err == nil && status != nil {
			if err := f.held.claim(ref, status, others); err != nil {
				return podsync.State{}, err
			}
			return f.held.polled(ref, status), nil
		}
		if err != nil && !f.notFound(err) && !f.held.unborn(ref) {
			return podsync.State{}, &unclearError{ref, "GetPodStatus", err}
		}
	case f.notFound(err):
		return podsync.State{}, notHeld(ref)
	default:
		err = &unclearError{ref, "GetPod", err}
	}
	return f.confirm(ctx, ref, others, err)
}

// unclearError is an answer of the provider that may mean that it does not hold the pod.
type unclearError struct {
	ref    podsync.Ref
	method string
	err    error
}

func (e *unclearError) Error() string {
	return fmt.Sprintf("pod %s: %s: %v (if that means that there is no such pod, Config.NotFound must report it)", e.ref, e.method, e.err)
}

func (e *unclearError) Unwrap() error { return e.err }

// confirm asks GetPods about a pod that GetPod does not return. cause is the error of GetPod, nil
// if it has returned nothing. Many providers have no error of their own for a pod that isn't
// there. If they can tell which are there, this one is not.
func (f *finder) confirm(ctx context.Context, ref podsync.Ref, others bool, cause error) (podsync.State, error) {
	var pods []*corev1.Pod
	if !f.listOnce {
		var err error
		if pods, err = f.callGetPods(ctx); err != nil {
			return podsync.State{}, cmp.Or(cause, fmt.Errorf("pod %s: GetPod returns nothing, and GetPods: %w (if GetPods can't tell, set Config.ListOnce)", ref, err))
		}
	}
	pod, known := pick(pods, ref)
	switch {
	case pod != nil:
		return f.found(ctx, ref, pod, others, true)
	case cause != nil && (f.isUnknown(ctx, ref, cause) || f.held.doubts(ref, known)):
		return podsync.State{}, cause
	case cause == nil && len(pods) == 0 && !f.listOnce:
		return podsync.State{}, errSilence
	}
	return podsync.State{}, notHeld(ref)
}

// isUnknown reports whether an error of GetPod, which is not a "not found", says nothing about a pod that
// was last known to run: GetPod has another answer for a pod that cannot exist. The list may leave a pod
// out for the same reason, so it says nothing either. If that lasts, it is logged, and recorded as an event.
func (f *finder) isUnknown(ctx context.Context, ref podsync.Ref, cause error) bool {
	unclear, ok := errors.AsType[*unclearError](cause)
	if !ok || unclear.method != "GetPod" || !f.held.ran(ref) {
		return false
	}
	if err := f.noSuchPod(ctx, ref); err != nil && strings.NewReplacer(absentName, ref.Name, absentUID, string(ref.UID)).Replace(err.Error()) == unclear.err.Error() {
		return false
	}
	if pod := f.held.unknown(ref); pod != nil {
		klog.FromContext(ctx).Info("It is not known whether the provider still runs a pod, so the pod keeps its status", "pod", ref, "why", cause.Error())
		f.environment.event(pod, corev1.EventTypeWarning, "ProviderGetFailed", "GetPod", cause.Error())
	}
	return true
}

// The name and the UID of a pod that cannot exist.
const (
	absentName = "kubewright-no-such-pod"
	absentUID  = "kubewright-no-such-uid"
)

// absentLasts is the time for which the answer about a pod that cannot exist serves for other pods: that
// between two lists.
const absentLasts = 5 * time.Second

// An absent is a call of GetPod about a pod that cannot exist.
type absent struct {
	answered chan struct{} // closed when err is set
	err      error         // nil: a pod, nothing, or a panic
}

// noSuchPod returns the error of GetPod for a pod that cannot exist, in the namespace of ref. All pods that
// need the answer at that time share one call.
func (f *finder) noSuchPod(ctx context.Context, ref podsync.Ref) error {
	other := podsync.Ref{Namespace: ref.Namespace, Name: absentName}
	if ref.UID != "" && !isStray(ref) {
		other.UID = absentUID
	}
	f.asking.Lock()
	if time.Since(f.asked) >= absentLasts {
		f.absent, f.asked = make(map[podsync.Ref]*absent), time.Now()
	}
	a, ok := f.absent[other]
	if !ok {
		a = &absent{answered: make(chan struct{})}
		f.absent[other] = a
	}
	f.asking.Unlock()
	if !ok {
		defer close(a.answered)
		_, a.err = f.getPod(ctx, other)
		return a.err
	}
	select {
	case <-a.answered:
		return a.err
	case <-ctx.Done():
		return nil
	}
}

// errEarlier says that the provider has only the end of an earlier pod under the name of a pod.
var errEarlier = fmt.Errorf("%w: an earlier pod of the name has ended", podsync.ErrNotFound)

// errSilence says that the provider returns no pod at all, and no error: it holds none, or its back
// end is away.
var errSilence = fmt.Errorf("%w: the provider returns none", podsync.ErrNotFound)

func notHeld(ref podsync.Ref) error { return fmt.Errorf("pod %s: %w", ref, podsync.ErrNotFound) }

// pick returns the pod of ref in a list, and whether the list tells that there is none: one
// of pods without names does not.
func pick(pods []*corev1.Pod, ref podsync.Ref) (pod *corev1.Pod, known bool) {
	known = true
	for _, p := range pods {
		switch {
		case p == nil:
		case p.Name == "":
			known = false
		case p.Namespace == ref.Namespace && p.Name == ref.Name && (pod == nil || p.UID == ref.UID):
			pod = p
		}
	}
	return pod, known
}

// found returns the state of the pod that the provider has returned for ref, in a list or not.
// others is that of claim.
func (f *finder) found(ctx context.Context, ref podsync.Ref, pod *corev1.Pod, others, inList bool) (podsync.State, error) {
	if pod.UID != "" && ref.UID != "" && pod.UID != ref.UID {
		if f.held.knows(nameOf(ref), pod.UID) || hasEnded(&pod.Status) && f.held.unborn(ref) {
			return podsync.State{}, notHeld(ref)
		}
		return podsync.State{}, fmt.Errorf("pod %s: %w: %s returns the UID %s instead of %s", ref, ErrOtherPod, methodOf(inList), pod.UID, ref.UID)
	}
	if pod.UID == "" {
		status := &pod.Status
		if status.Phase == "" && f.held.unborn(ref) { // some providers have it only there
			if polled, err := f.getPodStatus(ctx, ref); err == nil && polled != nil {
				status = polled
			}
		}
		if err := f.held.claim(ref, status, others); err != nil {
			return podsync.State{}, err
		}
	}
	return f.held.shown(ref, pod, inList), nil
}

func methodOf(inList bool) string {
	if inList {
		return "GetPods"
	}
	return "GetPod"
}

func (f *finder) getPod(ctx context.Context, ref podsync.Ref) (*corev1.Pod, error) {
	if f.byUID != nil && ref.UID != "" && !isStray(ref) {
		return f.byUID.GetPodByUID(ctx, ref.Namespace, ref.Name, ref.UID)
	}
	return f.provider.GetPod(ctx, ref.Namespace, ref.Name)
}

func (f *finder) getPodStatus(ctx context.Context, ref podsync.Ref) (*corev1.PodStatus, error) {
	if f.byUID != nil && ref.UID != "" && !isStray(ref) {
		return f.byUID.GetPodStatusByUID(ctx, ref.Namespace, ref.Name, ref.UID)
	}
	return f.provider.GetPodStatus(ctx, ref.Namespace, ref.Name)
}

const (
	// pollPlaces is the number of pods whose status is asked for at once.
	pollPlaces = 16
	// pollPatience is the time that a List waits for the statuses. The last known ones
	// stand in for those that are late.
	pollPatience = 10 * time.Second
	// listPatience is the time after which a call of GetPods is given up, and made again.
	listPatience = 10 * time.Minute
	// listLasts is the time after which GetPods is called again, although GetPodStatus has an
	// answer for each pod of the last list. virtual-kubelet calls GetPods only once.
	listLasts = time.Minute
)

// states returns the states of all pods. It calls GetPodStatus of each pod that has not ended,
// and, unless settled says that this is enough, GetPods before or afterwards. If the provider
// implements NotifyPods, it calls GetPodStatus only of pods without a status: an earlier process
// may have had the last report. The provider gets own; states waits until ctx is done.
func (f *finder) states(ctx, own context.Context) ([]podsync.State, error) {
	begun := time.Now()
	refs, settled := f.settled()
	if !settled || !f.poll(ctx, own, refs, begun) {
		var err error
		if refs, err = f.list(own); err != nil {
			return nil, err
		}
		polled := refs
		if f.notifier != nil {
			polled = slices.DeleteFunc(slices.Clone(refs), func(ref podsync.Ref) bool { return !f.held.silent(ref) })
			if f.held.echoes() {
				f.echo.Do(func() {
					klog.FromContext(ctx).Info("The provider returns statuses that it has read from the API, or written there itself. " +
						"GetPodStatus is called in their place. Report statuses with the function that NotifyPods gets, and do not write them")
				})
			}
		}
		f.poll(ctx, own, polled, begun)
	}
	states := make([]podsync.State, 0, len(refs))
	listed := make(map[podsync.Ref]bool, len(refs))
	for _, ref := range refs {
		if !listed[ref] {
			states, listed[ref] = append(states, f.held.state(ref)), true
		}
	}
	return append(states, f.held.others(listed)...), nil
}

// settled returns the pods of the last list, and reports whether GetPodStatus of each of them can
// replace another one: nothing has changed since which pods there are, and each is known.
func (f *finder) settled() ([]podsync.Ref, bool) {
	f.listing.Lock()
	defer f.listing.Unlock()
	return f.last, f.notifier == nil && time.Since(f.lastAt) < listLasts && !f.outdated.Load() && !f.held.waiting()
}

// list returns the pods that the provider holds.
func (f *finder) list(ctx context.Context) ([]podsync.Ref, error) {
	f.listing.Lock()
	defer f.listing.Unlock()
	f.outdated.Store(false) // before the call: what changes during it is not in its result
	f.last, f.lastAt = nil, time.Now()
	refs, err := f.getPods(ctx)
	if err != nil || slices.ContainsFunc(refs, func(ref podsync.Ref) bool { return ref.UID == "" }) {
		f.outdated.Store(true)
	}
	f.last = refs
	return refs, err
}

// getPods calls GetPods, and looks up the pods that its result lacks. f.listing must be held.
func (f *finder) getPods(ctx context.Context) ([]podsync.Ref, error) {
	if f.listed && f.listOnce {
		return f.lookUp(ctx, f.held.candidates(nil)), nil
	}
	holders := f.held.holders()
	pods, err := within(ctx, listPatience, &f.polls, "GetPods", podsync.Ref{}, func() ([]*corev1.Pod, error) { return f.callGetPods(ctx) })
	if err != nil {
		return nil, err
	}
	f.listed = true
	refs, nameless, taken := make([]podsync.Ref, 0, len(pods)), false, f.takenNames()
	for _, pod := range pods {
		switch {
		case pod == nil:
		case pod.Name == "":
			nameless = true
		default:
			ref, known := f.held.identify(pod, holders, taken)
			if !known || f.foreign(ref, pod) {
				continue
			}
			if isStray(ref) && !f.returns(ctx, ref) {
				nameless = true
				continue
			}
			f.held.shown(ref, pod, true)
			refs = append(refs, ref)
		}
	}
	if nameless { // the list does not tell which pods there are
		return append(refs, f.lookUp(ctx, f.held.candidates(refs))...), nil
	}
	return append(refs, f.lookUp(ctx, f.held.leftOut(refs))...), nil
}

// callGetPods calls GetPods. It logs once if two calls have begun something that goes on, because each
// call would begin it again.
func (f *finder) callGetPods(ctx context.Context) ([]*corev1.Pod, error) {
	f.begun.Add(1)
	own := &outliving{Context: ctx, f: f}
	defer own.end()
	return f.provider.GetPods(own)
}

// lasting is the time after which a context that is still used is not one of a request that ends.
const lasting = time.Second

// An outliving is the context of a call of GetPods. It notes that it is used after the next call, as by a
// loop that this call has begun.
type outliving struct {
	context.Context
	f *finder

	ended atomic.Pointer[ending] // nil until the call returns
	once  sync.Once
}

// An ending is the end of a call of GetPods: when, and the number of calls until then.
type ending struct {
	at    time.Time
	begun int64
}

func (o *outliving) end() { o.ended.Store(&ending{time.Now(), o.f.begun.Load()}) }

func (o *outliving) note() {
	if end := o.ended.Load(); end == nil || o.f.begun.Load() == end.begun || time.Since(end.at) < lasting {
		return
	}
	o.once.Do(func() {
		if o.f.outlived.Add(1) == 2 {
			klog.FromContext(o.Context).Info("GetPods begins something that goes on after it has returned, and begins it again in each call. Set Config.ListOnce")
		}
	})
}

func (o *outliving) Done() <-chan struct{} {
	o.note()
	return o.Context.Done()
}

func (o *outliving) Err() error {
	o.note()
	return o.Context.Err()
}

func (o *outliving) Value(key any) any {
	o.note()
	return o.Context.Value(key)
}

// foreign reports whether pod runs on another node and is no pod of this one: some back ends are
// shared, and list everything. A pod that this node's API has may run on a node of a second
// cluster.
func (f *finder) foreign(ref podsync.Ref, pod *corev1.Pod) bool {
	if ref.UID == "" || pod.Spec.NodeName == "" || pod.Spec.NodeName == f.nodeName || f.held.handed(ref) || f.held.awaited(ref) {
		return false
	}
	if c := f.controller(); c != nil {
		if info, ok := c.Get(ref); ok && info.Pod != nil {
			return false
		}
	}
	return true
}

// returns reports whether GetPod returns a stray by its name. If not, the names in GetPods are
// not those of pods, and a call of DeletePod with one could end the instance of another pod.
func (f *finder) returns(ctx context.Context, stray podsync.Ref) bool {
	if !f.held.beginLook(stray) {
		return false // GetPod has not answered yet
	}
	pod, err := within(ctx, pollPatience, &f.polls, "GetPod", stray, func() (*corev1.Pod, error) {
		defer f.held.endLook(stray)
		return f.getPod(ctx, stray)
	})
	return err == nil && pod != nil
}

// takenNames returns a function that reports whether a pod of the API has a name.
func (f *finder) takenNames() func(types.NamespacedName) bool {
	var names map[types.NamespacedName]bool
	return func(name types.NamespacedName) bool {
		c := f.controller()
		if c == nil || f.client == nil {
			return true // nobody could tell
		}
		if names == nil {
			names = make(map[types.NamespacedName]bool)
			for ref, info := range c.All() {
				if info.Pod != nil {
					names[nameOf(ref)] = true
				}
			}
		}
		return names[name]
	}
}

// ownerOf returns the pod whose instance a stray is after all: one of its name that has
// started. The informer may have shown it too late, or it is a pod of another node, which the
// credentials of a node can't see.
func (f *finder) ownerOf(ctx context.Context, ref podsync.Ref) (owner *corev1.Pod, err error) {
	if f.client == nil {
		return nil, nil // a pod that has not started waits for the name
	}
	pod, err := f.client.Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case err == nil && podstatus.HasStarted(&pod.Status):
		return pod, nil
	case err == nil || apierrors.IsNotFound(err):
		return nil, nil
	case !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("is there a pod %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	pods, err := f.client.Pods(ref.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"metadata.name": ref.Name, "spec.nodeName": f.nodeName}.String(),
	})
	if err != nil {
		return nil, fmt.Errorf("is there a pod %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	for i := range pods.Items {
		if podstatus.HasStarted(&pods.Items[i].Status) {
			owner = &pods.Items[i]
		}
	}
	return owner, nil
}

// lookUp asks for each pod that may be there. A pod about which the provider fails to answer, or
// does not answer in time, is taken to be there, if it was: no other one must wait for it.
func (f *finder) lookUp(ctx context.Context, candidates []podsync.Ref) (refs []podsync.Ref) {
	for _, ref := range candidates {
		err := f.lookFor(ctx, ref)
		if errors.Is(err, podsync.ErrNotFound) {
			f.held.vanished(ref)
			continue
		}
		if err != nil {
			f.outdated.Store(true)
		}
		if err == nil || f.held.mayRun(ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// lookFor calls locate, unless an earlier call for the pod has not returned yet.
func (f *finder) lookFor(ctx context.Context, ref podsync.Ref) error {
	if !f.held.beginLook(ref) {
		return fmt.Errorf("pod %s: GetPod has not answered yet", ref)
	}
	_, err := within(ctx, pollPatience, &f.polls, "GetPod", ref, func() (podsync.State, error) {
		defer f.held.endLook(ref)
		return f.locate(ctx, ref, nil)
	})
	return err
}

// poll asks for the status of each pod that has not ended and was not asked about since begun.
// The pods of which the former answer has not come yet are left out. It reports whether there
// was a status, and no answer without one; those that are late say nothing.
func (f *finder) poll(ctx, own context.Context, refs []podsync.Ref, begun time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, pollPatience)
	defer cancel()
	places, answers := make(chan struct{}, pollPlaces), make(chan bool, len(refs))
	asked := 0
	for _, ref := range refs {
		if !f.held.beginPoll(ref, begun) {
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			f.held.endPoll(ref)
			continue
		}
		if !f.polls.begin(func() {
			answered := f.ask(own, ref)
			<-places
			f.held.endPoll(ref)
			answers <- answered
		}) {
			f.held.endPoll(ref)
			return false // Watch has ended
		}
		asked++
	}
	succeeded, failed := false, false
	for range asked {
		select {
		case answered := <-answers:
			succeeded, failed = succeeded || answered, failed || !answered
		case <-ctx.Done():
			return succeeded && !failed
		}
	}
	return succeeded && !failed
}

// guard calls f. A panic is logged, and is an error: f runs in a goroutine of the adapter.
func guard(ctx context.Context, method string, ref podsync.Ref, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			stack := debug.Stack()
			err = &podsync.PanicError{Callback: method, Value: value, Stack: stack}
			klog.FromContext(ctx).Error(nil, "A method of the provider panicked", "method", method, "pod", ref, "panic", value, "stack", string(stack))
		}
	}()
	return f()
}

// ask calls GetPodStatus, and reports whether it has returned a status. One that panics has not.
func (f *finder) ask(ctx context.Context, ref podsync.Ref) (answered bool) {
	err := guard(ctx, "GetPodStatus", ref, func() error {
		status, err := f.getPodStatus(ctx, ref)
		if answered = err == nil && status != nil; answered {
			f.held.polled(ref, status)
		}
		return nil
	})
	return answered && err == nil
}

// within calls f in a goroutine and waits until it returns, for as long as patience. After that f goes
// on, and its result is lost. ctx is that of the provider, which ends with Watch.
func within[T any](ctx context.Context, patience time.Duration, g *group, method string, ref podsync.Ref, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	late, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if g.begin(func() {
		var a answer
		a.err = guard(ctx, method, ref, func() (err error) { a.value, err = f(); return err })
		answers <- a
	}) {
		select {
		case a := <-answers:
			return a.value, a.err
		case <-late.Done():
		}
	}
	var none T
	return none, fmt.Errorf("%s has not answered: %w", method, cmp.Or(late.Err(), context.Canceled))
}
