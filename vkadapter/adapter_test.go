// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/vkadapter"
)

func newPod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec:       corev1.PodSpec{NodeName: nodeName, RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

func newAdapter(t testing.TB, h habits, cfg vkadapter.Config) (*vkadapter.Adapter, *provider) {
	t.Helper()
	p := &provider{cloud: newCloud(), habits: h, known: map[types.UID]*corev1.Pod{}, late: map[types.UID]bool{}, own: map[string]bool{}}
	cfg.NodeName = nodeName
	a, err := vkadapter.New(p.handler(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, p
}

// The adapter of each provider that needs no API server keeps podsync's contract.
func TestConformance(t *testing.T) {
	for name, c := range wild {
		if c.listsCluster || c.loopInCreate || c.lag > 0 || c.stopTime > 0 || c.noNames || c.jobNames || c.polls || c.noContainers || c.blips || c.foreign || c.createTimesOut || c.inLabels {
			continue // needs a controller beside it, or more time than virtual-kubelet's callers have
		}
		t.Run(name, func(t *testing.T) {
			podsynctest.TestProvider(t, podsynctest.Suite{
				New: func(t testing.TB) podsync.Provider {
					a, _ := newAdapter(t, c.habits, vkadapter.Config{ListOnce: c.once})
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan struct{})
					go func() { defer close(done); _ = a.Watch(ctx, func(podsync.State) {}) }()
					t.Cleanup(func() { cancel(); <-done })
					return a
				},
				Nameless: c.noUIDs || c.hostObjects,
			})
		})
	}
}

func TestAMismatchIsNoEnd(t *testing.T) {
	ctx := t.Context()
	a, p := newAdapter(t, habits{notFound: known, silent: true}, vkadapter.Config{})
	if err := p.CreatePod(ctx, newPod("web", "of another process")); err != nil {
		t.Fatal(err)
	}
	ref := podsync.RefOf(newPod("web", "1"))
	if st, err := a.Stop(ctx, ref, podsync.StopOptions{Pod: newPod("web", "1")}); !errors.Is(err, vkadapter.ErrOtherPod) || st.Stopped {
		t.Errorf("Stop = %+v, %v, want ErrOtherPod", st, err)
	}
	if _, err := a.Inspect(ctx, ref); !errors.Is(err, vkadapter.ErrOtherPod) {
		t.Errorf("Inspect = %v, want ErrOtherPod", err)
	}
	if _, err := a.Start(ctx, newPod("web", "1")); !errors.Is(err, vkadapter.ErrOtherPod) {
		t.Errorf("Start = %v, want ErrOtherPod", err)
	}
	if n := p.count("DeletePod"); n != 0 {
		t.Errorf("DeletePod was called %d times", n)
	}
}

func TestNothingFollowsFromAnError(t *testing.T) {
	for name, h := range map[string]habits{"an error": {silent: true}, "nil and nil": {silent: true, lies: true}} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			a, p := newAdapter(t, h, vkadapter.Config{})
			pod := newPod("web", "1")
			if _, err := a.Start(ctx, pod); err != nil {
				t.Fatal(err)
			}
			p.setAway(true)
			ref := podsync.RefOf(pod)
			if st, err := a.Stop(ctx, ref, podsync.StopOptions{Pod: pod}); !errors.Is(err, errAway) || st.Stopped {
				t.Errorf("Stop = %+v, %v, want the error of the back end", st, err)
			}
			if _, err := a.Start(ctx, pod); !errors.Is(err, errAway) {
				t.Errorf("Start = %v, want the error of the back end", err)
			}
			if err := a.Release(ctx, ref); !errors.Is(err, errAway) {
				t.Errorf("Release = %v, want the error of the back end", err)
			}
			if _, err := a.Inspect(ctx, ref); !errors.Is(err, errAway) {
				t.Errorf("Inspect = %v, want the error of the back end", err)
			}
			if p.started("1") != 1 {
				t.Errorf("the pod was started %d times", p.started("1"))
			}
		})
	}
}

// A provider whose GetPods does not show the pod, and that has no error for "not found", may fail
// to answer once. Only a failure that lasts means that the pod is gone.
func TestAFailureOfGetPodMustLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		first, p := newAdapter(t, habits{notFound: errPlain, jobNames: true, noUIDs: true, silent: true}, vkadapter.Config{})
		pod := newPod("web", "1")
		ref := podsync.RefOf(pod)
		if _, err := first.Start(ctx, pod); err != nil {
			t.Fatal(err)
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}}
		second, err := vkadapter.New(p.handler(), vkadapter.Config{NodeName: nodeName})
		if err != nil {
			t.Fatal(err)
		}
		for name, a := range map[string]*vkadapter.Adapter{"the process that started it": first, "a later one": second} {
			for range 3 { // each failure counts from its beginning
				p.getErr = errAway
				if _, err := a.Start(ctx, pod); !errors.Is(err, errAway) {
					t.Errorf("%s: Start = %v, want the error of GetPod", name, err)
				}
				p.getErr = nil
				time.Sleep(50 * time.Second)
				if _, err := a.Start(ctx, pod); err != nil {
					t.Errorf("%s: Start = %v", name, err)
				}
			}
		}
		if n := p.count("CreatePod"); n != 1 {
			t.Errorf("CreatePod was called %d times", n)
		}
		delete(p.jobs, key("default", "web"))
		for _, a := range []*vkadapter.Adapter{first, second} {
			if _, err := a.Inspect(ctx, ref); !errors.Is(err, errPlain) {
				t.Errorf("Inspect = %v, want the error of GetPod", err)
			}
		}
		time.Sleep(time.Minute)
		for _, a := range []*vkadapter.Adapter{first, second} {
			if _, err := a.Inspect(ctx, ref); !errors.Is(err, podsync.ErrNotFound) {
				t.Errorf("Inspect after a minute = %v, want ErrNotFound", err)
			}
		}
	})
}

// mute reports only what a test has it report.
type mute struct{ *provider }

func (m mute) NotifyPods(_ context.Context, notify func(*corev1.Pod)) { m.notify = notify }

// watched returns an adapter that is watched until the end of the test, and its reports.
func watched(t *testing.T, h habits) (*vkadapter.Adapter, *provider, *[]podsync.State) {
	t.Helper()
	_, p := newAdapter(t, h, vkadapter.Config{})
	a, err := vkadapter.New(mute{p}, vkadapter.Config{NodeName: nodeName})
	if err != nil {
		t.Fatal(err)
	}
	reports := &[]podsync.State{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Watch(ctx, func(st podsync.State) { *reports = append(*reports, st) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return a, p, reports
}

// listed returns what List has of the pod web.
func listed(t *testing.T, a *vkadapter.Adapter) (of []podsync.State) {
	t.Helper()
	states, err := a.List(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, st := range states {
		if st.Name == "web" {
			of = append(of, st)
		}
	}
	return of
}

// A pod of an earlier process whose instance GetPods returns without a UID ends twelve minutes
// later. Its last report counts, and so does a report that podsync has not asked about.
func TestTheLastReportOfAnAdoptedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p, reports := watched(t, habits{notFound: known, noUIDs: true})
		if err := p.CreatePod(t.Context(), newPod("web", "1")); err != nil {
			t.Fatal(err)
		}
		pod := newPod("web", "1")
		pod.Status.Phase = corev1.PodRunning
		for range 12 {
			p.notify(pod)
			listed(t, a)
			time.Sleep(time.Minute)
		}
		delete(p.jobs, key("default", "web"))
		pod.UID = ""
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 42}}},
		}}
		p.notify(pod)
		for what, states := range map[string][]podsync.State{"the last report": (*reports)[len(*reports)-1:], "the list": listed(t, a)} {
			if len(states) != 1 || states[0].UID != "1" || !states[0].Stopped || states[0].Status.ContainerStatuses[0].State.Terminated.ExitCode != 42 {
				t.Errorf("%s has %+v, want the end with exit code 42", what, states)
			}
		}
	})
}

func TestAReportedPodIsRememberedFromItsLastReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p, _ := watched(t, habits{notFound: known, noUIDs: true, unlisted: true})
		if err := p.CreatePod(t.Context(), newPod("web", "1")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			pod := newPod("web", "1")
			pod.Status.Phase = corev1.PodRunning
			p.notify(pod)
			time.Sleep(9 * time.Minute)
		}
		if states := listed(t, a); len(states) != 0 {
			t.Errorf("the list has %v", states)
		}
		p.unlisted = false
		if states := listed(t, a); len(states) != 1 || states[0].UID != "1" {
			t.Errorf("the list has %v, want the UID of the report", states)
		}
		p.unlisted = true
		time.Sleep(2 * time.Minute)
		listed(t, a)
		p.unlisted = false
		if states := listed(t, a); len(states) != 1 || states[0].UID != "" {
			t.Errorf("the list has %v, want no UID eleven minutes after the last report", states)
		}
	})
}

// An object of the back end that stands for a pod has a node and a generation of its own, and an
// instance of another cluster does not take the name of a pod.
func TestObjectsOfTheBackEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p, reports := watched(t, habits{notFound: known, hostObjects: true})
		pod := newPod("web", "1")
		pod.Generation = 5
		st, err := a.Start(t.Context(), pod)
		if err != nil || st.NodeName != nodeName || st.Generation != 0 {
			t.Errorf("Start = node %q, generation %d, %v", st.NodeName, st.Generation, err)
		}
		p.extra = []*corev1.Pod{newPod("web", "of another cluster")}
		p.extra[0].Spec.NodeName = ""
		if states := listed(t, a); len(states) != 2 {
			t.Errorf("the list has %v", states)
		}
		report := newPod("web", "")
		report.Generation, report.Status.Phase = 1, corev1.PodRunning
		p.notify(report)
		if last := (*reports)[len(*reports)-1]; last.UID != "1" || last.NodeName != nodeName || last.Generation != 0 {
			t.Errorf("the report is about %v, node %q, generation %d", last.Ref, last.NodeName, last.Generation)
		}
		report.UID, report.Generation = "1", 4
		p.notify(report)
		if last := (*reports)[len(*reports)-1]; last.Generation != 4 {
			t.Errorf("generation %d, want that of the API's object", last.Generation)
		}
	})
}

// Labels that the provider writes are stored in an annotation, and the provider finds them as
// labels. A label of the API counts more.
func TestLabelsOfTheProviderAreStored(t *testing.T) {
	bubble(t, habits{notFound: known, inLabels: true}, func(w *world) {
		w.pod("web", corev1.RestartPolicyAlways)
		w.start()
		apitest.Edit(w.s, "default", "web", func(p *corev1.Pod) { p.Labels = map[string]string{"mine": "1"} })
		pass(time.Minute)
		if w.p.last == nil || w.p.last.Labels["mine"] != "1" || w.p.last.Labels["JobID"] != "job-1" {
			t.Errorf("UpdatePod got %+v", w.p.last)
		}
		for range 2 {
			if pod := w.get("web"); pod.Annotations[vkadapter.LabelsAnnotation] != `{"JobID":"job-1"}` || len(pod.Labels) != 1 {
				t.Errorf("annotations %v, labels %v", pod.Annotations, pod.Labels)
			}
			selector, err := labels.Parse("JobID=job-1")
			if err != nil {
				t.Fatal(err)
			}
			listed, err1 := w.p.pods.Pods("default").List(selector)
			got, err2 := w.p.pods.Pods("default").Get("web")
			if err := errors.Join(err1, err2); err != nil || len(listed) != 1 || got.Labels["JobID"] != "job-1" {
				t.Fatalf("the lister has %v, %v, %v", listed, got, err)
			}
			w.kill()
			w.start()
		}
		// In this order: a process that has not written the annotation yet repairs it, once.
		for _, c := range []struct{ annotation, want string }{{`{"JobID":"job-1","mine":"0"}`, "job-1"}, {"spoiled", ""}} {
			apitest.Edit(w.s, "default", "web", func(p *corev1.Pod) { p.Annotations[vkadapter.LabelsAnnotation] = c.annotation })
			pass(time.Second)
			if got, err := w.p.pods.Pods("default").Get("web"); err != nil || got.Labels["JobID"] != c.want || got.Labels["mine"] != "1" {
				t.Errorf("with the annotation %s the lister has the labels %v, %v", c.annotation, got.Labels, err)
			}
		}
	})
}

// What the provider has written into a pod is in each later version that it is handed.
func TestTheProviderGetsBackWhatItHasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, p := newAdapter(t, habits{notFound: known, inLabels: true, silent: true}, vkadapter.Config{})
		pod := newPod("web", "1")
		if _, err := a.Start(ctx, pod); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Update(ctx, pod); err != nil || p.last.Labels["JobID"] != "job-1" {
			t.Errorf("UpdatePod got the labels %v, %v", p.last.Labels, err)
		}
		delete(p.jobs, key("default", "web"))
		time.Sleep(2 * time.Minute)
		got := ""
		p.createErr = func(pod *corev1.Pod) error { got = pod.Labels["JobID"]; return nil }
		if _, err := a.Start(ctx, pod); err != nil || got != "job-1" {
			t.Errorf("CreatePod got the job %q, %v", got, err)
		}
		if st, err := a.Stop(ctx, podsync.RefOf(pod), podsync.StopOptions{Pod: pod}); err != nil || !st.Stopped || len(p.names()) != 0 {
			t.Errorf("Stop = %+v, %v; the cloud has %v", st, err, p.names())
		}
	})
}

// What the provider writes into the pod that it is handed is in the API, and nothing else.
func TestAnnotationsOfTheProviderAreStored(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.pod("web", corev1.RestartPolicyAlways)
		apitest.Edit(w.s, "default", "web", func(p *corev1.Pod) { p.Annotations = map[string]string{"mine": "1"} })
		w.start()
		if got := w.get("web").Annotations; got["JobID"] != "job-1" || got["mine"] != "1" {
			t.Errorf("annotations %v, want JobID of the provider", got)
		}
		apitest.Edit(w.s, "default", "web", func(p *corev1.Pod) { p.Annotations["mine"] = "2" })
		pass(5 * time.Minute)
		if got := w.get("web").Annotations["mine"]; got != "2" {
			t.Errorf("the user's annotation became %q", got)
		}
		if n := w.p.count("UpdatePod"); n != 2 {
			t.Errorf("UpdatePod was called %d times, want once for each change of the annotations", n)
		}
	})
}

// A context of the provider lives as long as Run, and has the values of its call.
func TestContextsLiveAsLongAsRun(t *testing.T) {
	_, p := newAdapter(t, habits{notFound: known}, vkadapter.Config{})
	kept := &keeper{provider: p}
	a, err := vkadapter.New(kept, vkadapter.Config{NodeName: nodeName})
	if err != nil {
		t.Fatal(err)
	}
	type word struct{}
	call, cancel := context.WithCancel(context.WithValue(t.Context(), word{}, "value"))
	if _, err := a.Start(call, newPod("web", "1")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.List(call); err != nil {
		t.Fatal(err)
	}
	cancel()
	run, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Watch(run, func(podsync.State) {}) }()
	for what, ctx := range kept.contexts {
		if ctx.Err() != nil || ctx.Value(word{}) != "value" {
			t.Errorf("the context of %s after the call: %v, value %v", what, ctx.Err(), ctx.Value(word{}))
		}
	}
	end()
	<-done
	for what, ctx := range kept.contexts {
		child, cancel := context.WithCancel(ctx)
		<-child.Done()
		cancel()
		if ctx.Err() == nil {
			t.Errorf("the context of %s has no end after Run", what)
		}
	}
}

type keeper struct {
	*provider
	contexts map[string]context.Context
}

func (k *keeper) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	k.contexts = map[string]context.Context{"CreatePod": ctx}
	return k.provider.CreatePod(ctx, pod)
}

func (k *keeper) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	k.contexts["GetPods"] = ctx
	return k.provider.GetPods(ctx)
}

func TestListOnceCallsGetPodsOnce(t *testing.T) {
	for _, once := range []bool{false, true} {
		bubble(t, habits{notFound: errPlain, loopInGetPods: true}, func(w *world) {
			w.change = func(cfg *vkadapter.NodeConfig) {
				cfg.Adapter = func(a *vkadapter.Config) { a.ListOnce = once }
			}
			w.pod("web", corev1.RestartPolicyAlways)
			w.start()
			w.pod("later", corev1.RestartPolicyAlways)
			pass(20 * time.Minute)
			w.phase("after 20 minutes", "later", corev1.PodRunning)
			if n := w.p.count("GetPods"); once != (n == 1) {
				t.Errorf("ListOnce %v: GetPods was called %d times", once, n)
			}
			w.phase("after 20 minutes", "web", corev1.PodRunning)
		})
	}
}

func TestErrorsOfCreatePod(t *testing.T) {
	failing := map[string]func(error) func(*corev1.Pod) error{
		"always": func(err error) func(*corev1.Pod) error { return func(*corev1.Pod) error { return err } },
	}
	for name, c := range map[string]struct {
		err    error
		change func(pod *corev1.Pod, err error) error
		policy corev1.RestartPolicy
		failed bool
	}{
		"invalid input":                        {errdefs.InvalidInput("no such GPU"), nil, corev1.RestartPolicyAlways, true},
		"wrapped invalid input":                {fmt.Errorf("create: %w", errdefs.AsInvalidInput(errPlain)), nil, corev1.RestartPolicyNever, true},
		"any other error":                      {errPlain, nil, corev1.RestartPolicyNever, false},
		"FailNever, policy Never":              {errPlain, vkadapter.FailNever, corev1.RestartPolicyNever, true},
		"FailNever, policy Always":             {errPlain, vkadapter.FailNever, corev1.RestartPolicyAlways, false},
		"FailNever, invalid input and Always":  {errdefs.InvalidInput("no such GPU"), vkadapter.FailNever, corev1.RestartPolicyAlways, false},
		"a function of the program, temporary": {errdefs.AsInvalidInput(errPlain), func(_ *corev1.Pod, err error) error { return err }, corev1.RestartPolicyNever, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known, createErr: failing["always"](c.err)}, func(w *world) {
				w.change = func(cfg *vkadapter.NodeConfig) {
					cfg.Adapter = func(a *vkadapter.Config) { a.CreateError = c.change }
				}
				w.pod("web", c.policy)
				w.start()
				pass(time.Minute)
				status := w.get("web").Status
				if c.failed != (status.Phase == corev1.PodFailed) || c.failed != (status.Reason == vkadapter.ReasonProviderFailed) {
					t.Errorf("phase %s, reason %s; failed %v is wanted", status.Phase, status.Reason, c.failed)
				}
				if n := w.p.count("CreatePod"); c.failed != (n == 1) {
					t.Errorf("CreatePod was called %d times", n)
				}
			})
		})
	}
}

func TestEventsOfVirtualKubelet(t *testing.T) {
	recorder := events.NewFakeRecorder(20)
	a, p := newAdapter(t, habits{notFound: known, silent: true}, vkadapter.Config{EventRecorder: recorder})
	pod, ctx := newPod("web", "1"), t.Context()
	p.createErr = func(*corev1.Pod) error { return errPlain }
	_, _ = a.Start(ctx, pod)
	p.createErr = nil
	_, _ = a.Start(ctx, pod)
	_, _ = a.Start(ctx, pod) // adopts
	_, _ = a.Update(ctx, pod)
	_, _ = a.Stop(ctx, podsync.RefOf(pod), podsync.StopOptions{Pod: pod})
	for _, want := range []string{"Warning ProviderCreateFailed 404 Not Found", "Normal ProviderCreateSuccess ", "Normal ProviderUpdateSuccess ", "Normal ProviderDeleteSuccess "} {
		select {
		case got := <-recorder.Events:
			if !strings.HasPrefix(got, want) {
				t.Errorf("event %q, want %q", got, want)
			}
		default:
			t.Errorf("no event %q", want)
		}
	}
	if len(recorder.Events) > 0 {
		t.Errorf("one more event: %s", <-recorder.Events)
	}
}

// A pod whose provider has set a deletionTimestamp is deleted when it has ended.
func TestADeletionTimestampOfTheProviderDeletesThePod(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.pod("web", corev1.RestartPolicyNever)
		yes := true
		apitest.Edit(w.s, "default", "web", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j", Controller: &yes}}
		})
		w.start()
		w.phase("at first", "web", corev1.PodRunning)
		now := metav1.Now()
		w.cloud.mu.Lock()
		w.cloud.jobs["default/web"].pod.DeletionTimestamp = &now
		w.cloud.mu.Unlock()
		w.cloud.exit("web", 0)
		pass(time.Minute)
		if pod := w.get("web"); pod != nil {
			t.Errorf("the pod is there: %v", pod.Status)
		}
		w.holds("after the end")
	})
}

// One pod whose GetPodStatus panics or hangs holds up no other.
func TestOneBadPodHoldsUpNoOther(t *testing.T) {
	for name, h := range map[string]habits{"panics": {panics: true}, "hangs": {hangs: true}} {
		t.Run(name, func(t *testing.T) {
			h.silent, h.notFound, h.noStatus = true, known, true
			bubble(t, h, func(w *world) {
				w.start()
				w.pod("good", corev1.RestartPolicyNever)
				w.pod("bad", corev1.RestartPolicyNever)
				pass(time.Minute)
				w.cloud.exit("good", 0)
				pass(time.Minute)
				w.phase("after the exit", "good", corev1.PodSucceeded)
				if n := apitest.Get[*corev1.Node](w.s, "", nodeName); !isReady(n) {
					t.Errorf("the node is not ready: %v", n.Status.Conditions)
				}
			})
		})
	}
}

// A CreatePod that panics fails that call, also after a report, and is called again.
func TestAPanicOfCreatePodIsAFailureOfTheCall(t *testing.T) {
	for name, reports := range map[string]bool{"at once": false, "after a report": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known}, func(w *world) {
				w.start()
				panics := 3
				w.p.createErr = func(pod *corev1.Pod) error {
					if pod.Name != "bad" || panics == 0 {
						return nil
					}
					panics--
					if reports {
						pod := pod.DeepCopy()
						pod.Status.Phase = corev1.PodRunning
						w.p.report(pod)
					}
					panic("no such image")
				}
				bad, good := w.pod("bad", corev1.RestartPolicyNever), w.pod("good", corev1.RestartPolicyNever)
				pass(time.Second)
				w.phase("after a panic", "good", corev1.PodRunning)
				w.holds("after a panic", "good")
				pass(10 * time.Minute)
				w.phase("after three panics", "bad", corev1.PodRunning)
				w.once("after three panics", bad, good)
				w.holds("after three panics", "bad", "good")
			})
		})
	}
}

// What CreatePod has reported before it panics says nothing: there may be no such instance.
func TestAReportBeforeAPanicDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p, _ := watched(t, habits{notFound: known})
		p.createErr = func(pod *corev1.Pod) error {
			pod = pod.DeepCopy()
			pod.Status.Phase = corev1.PodSucceeded
			p.notify(pod)
			panic("no such image")
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost: podsync reports it")
				}
			}()
			_, _ = a.Start(t.Context(), newPod("web", "1"))
		}()
		if states := listed(t, a); len(states) != 0 {
			t.Errorf("the list has %+v", states)
		}
	})
}

func isReady(n *corev1.Node) bool {
	return condition(n, corev1.NodeReady).Status == corev1.ConditionTrue
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	if n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

// nodeProvider is a NodeProvider that a test drives.
type nodeProvider struct {
	mu   sync.Mutex
	cb   func(*corev1.Node)
	ping error
}

func (p *nodeProvider) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ping
}

func (p *nodeProvider) NotifyNodeStatus(_ context.Context, cb func(*corev1.Node)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cb = cb
}

func (p *nodeProvider) set(node *corev1.Node, ping error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ping = ping
	if node != nil {
		p.cb(node)
	}
}

// taintsOf returns the keys of the taints that are not Kubernetes' own.
func taintsOf(n *corev1.Node) string {
	var keys []string
	for _, taint := range n.Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			keys = append(keys, taint.Key)
		}
	}
	return strings.Join(keys, " ")
}

func TestTheNodeProviderDecidesAboutTheNode(t *testing.T) {
	np := &nodeProvider{}
	bubble(t, habits{notFound: known}, func(w *world) {
		defer w.manifests("lease.yaml", "nodestatus.yaml", "podsync.yaml", "podenv.yaml", "nodeapi.yaml", "vkadapter.yaml")()
		w.nodes = np
		w.template = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "test"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}, {Key: "goes", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{
				Capacity:   corev1.ResourceList{"cpu": resource.MustParse("1")},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}, {Type: corev1.NodeDiskPressure}},
			},
		}
		w.start()
		n := apitest.Get[*corev1.Node](w.s, "", nodeName)
		if !isReady(n) || n.Status.Capacity.Cpu().String() != "1" || n.Labels["type"] != "test" || taintsOf(n) != "own goes" {
			t.Fatalf("the first Node: %+v %+v", n.ObjectMeta, n.Status)
		}
		apitest.Edit(w.s, "", nodeName, func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "admin", Effect: corev1.TaintEffectNoExecute})
		})
		pushed := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"ping": "pong"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}, {Key: "new", Value: "v", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{
				Capacity:   corev1.ResourceList{"cpu": resource.MustParse("2")},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.77"}},
				Conditions: []corev1.NodeCondition{{Type: "Remote", Status: corev1.ConditionTrue, Reason: "Up"}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}},
			},
		}
		np.set(pushed, nil)
		pushed.Annotations["ping"] = "changed by the provider later"
		pass(5 * time.Second)
		n = apitest.Get[*corev1.Node](w.s, "", nodeName)
		if !isReady(n) || n.Status.Capacity.Cpu().String() != "2" || n.Labels["type"] != "test" || n.Annotations["ping"] != "pong" ||
			len(n.Status.Addresses) != 1 || n.Status.Addresses[0].Address != "192.0.2.77" || condition(n, "Remote").Status != corev1.ConditionTrue {
			t.Errorf("the pushed Node: %+v %+v", n.ObjectMeta, n.Status)
		}
		if got := taintsOf(n); got != "own new admin" {
			t.Errorf("taints %q", got)
		}
		apitest.Remove[*corev1.Node](w.s, "", nodeName) // the taints of the template come back with it
		pass(15 * time.Second)
		if n = apitest.Get[*corev1.Node](w.s, "", nodeName); n == nil || taintsOf(n) != "own new" {
			t.Fatalf("the Node that is registered again: %v", n.Spec.Taints)
		}
		down := pushed.DeepCopy()
		down.Status.Conditions[1] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "RemoteDown", Message: "no queue"}
		np.set(down, nil)
		pass(time.Second)
		if c := condition(apitest.Get[*corev1.Node](w.s, "", nodeName), corev1.NodeReady); c.Status != corev1.ConditionFalse || c.Reason != "RemoteDown" || !strings.Contains(c.Message, "no queue") {
			t.Errorf("Ready is %+v while the provider says RemoteDown", c)
		}
		np.set(pushed, errPlain)
		pass(15 * time.Second)
		if c := condition(apitest.Get[*corev1.Node](w.s, "", nodeName), corev1.NodeReady); c.Status != corev1.ConditionFalse || c.Reason != vkadapter.ReasonPingFailed {
			t.Errorf("Ready is %+v while Ping fails", c)
		}
		np.set(nil, nil)
		pass(15 * time.Second)
		if !isReady(apitest.Get[*corev1.Node](w.s, "", nodeName)) {
			t.Error("the node is not ready again")
		}
	})
}

// The listers that the provider is made with need no permission to list Secrets, and wait
// for the pods.
func TestListersOfTheProvider(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		there := metav1.ObjectMeta{Namespace: "default", Name: "there"}
		w.s.Put(&corev1.Secret{ObjectMeta: there})
		w.s.Put(&corev1.ConfigMap{ObjectMeta: there})
		w.s.Put(&corev1.Service{ObjectMeta: there})
		var pc nodeutil.ProviderConfig
		n, err := vkadapter.NewNode(nodeName, func(c nodeutil.ProviderConfig) (node.PodLifecycleHandler, node.NodeProvider, error) {
			pc = c
			c.Node.Labels["from"] = "provider"
			return (&provider{cloud: w.cloud, habits: habits{notFound: known, silent: true}}).handler(), nil, nil
		}, vkadapter.NodeConfig{Client: w.s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newPipes(), LockDir: w.lockDir})
		if err != nil {
			t.Fatal(err)
		}
		if pods, err := pc.Pods.List(labels.Everything()); err == nil {
			t.Errorf("before Run there are the pods %v, want an error", pods)
		}
		w.pod("web", corev1.RestartPolicyAlways)
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		listed := make(chan int, 1)
		refuse := w.s.Inject(apitest.Fault{Match: apitest.Match{Resource: "pods"}, Err: apitest.ErrConnRefused})
		go func() { done <- n.Run(ctx) }()
		pass(time.Second)
		go func() {
			pods, _ := pc.Pods.List(labels.Everything())
			listed <- len(pods)
		}()
		pass(10 * time.Minute)
		select {
		case got := <-listed:
			t.Errorf("%d pods while the API server does not answer: to a provider they are gone", got)
		default:
		}
		refuse()
		pass(time.Minute)
		if got := <-listed; got != 1 {
			t.Errorf("%d pods are listed, want 1", got)
		}
		if pod, err := pc.Pods.Pods("default").Get("web"); err != nil || pod.UID != "uid-1" {
			t.Errorf("the pod: %v, %v", pod, err)
		}
		if _, err := pc.Pods.Pods("default").Get("absent"); !errdefs.IsNotFound(err) && !strings.Contains(err.Error(), "not found") {
			t.Errorf("an absent pod: %v", err)
		}
		secret, err1 := pc.Secrets.Secrets("default").Get("there")
		configMap, err2 := pc.ConfigMaps.ConfigMaps("default").Get("there")
		services, err3 := pc.Services.Services("default").List(labels.Everything())
		if err := errors.Join(err1, err2, err3); err != nil || secret.Name != "there" || configMap.Name != "there" || len(services) != 1 {
			t.Errorf("%v, %v, %v, %v", secret, configMap, services, err)
		}
		if got := apitest.Get[*corev1.Node](w.s, "", nodeName).Labels["from"]; got != "provider" {
			t.Errorf("label %q, want that of the provider", got)
		}
		for _, r := range w.s.Requests(apitest.Match{}) {
			if (r.Verb == "list" || r.Verb == "watch") && (r.Resource == "secrets" || r.Resource == "configmaps") {
				t.Errorf("a %s of %s was sent", r.Verb, r.Resource)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := pc.Pods.List(labels.Everything()); err == nil {
			t.Error("the lister lists after Run")
		}
	})
}

// Of two processes of one node name on a machine one acts, and the other waits and says so.
// One of another name runs beside them.
func TestTheSecondProcessOfANodeWaits(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.start()
		uid := w.pod("web", corev1.RestartPolicyAlways)
		var mu sync.Mutex
		var log strings.Builder
		logger := funcr.New(func(prefix, args string) { mu.Lock(); defer mu.Unlock(); log.WriteString(prefix + args + "\n") }, funcr.Options{})
		start := func(name string) (p *provider, end func() error) {
			p = &provider{cloud: w.cloud, habits: w.habits}
			n, err := vkadapter.NewNode(name, func(nodeutil.ProviderConfig) (node.PodLifecycleHandler, node.NodeProvider, error) {
				return p.handler(), nil, nil
			}, vkadapter.NodeConfig{Client: w.s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newPipes(), LockDir: w.lockDir})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(klog.NewContext(w.Context(), logger))
			done := make(chan error, 1)
			go func() { done <- n.Run(ctx) }()
			return p, func() error { cancel(); return <-done }
		}
		second, end := start(nodeName)
		other, endOther := start("vk-2")
		pass(time.Minute)
		mu.Lock()
		if !strings.Contains(log.String(), "waiting for its end") {
			t.Errorf("the second process does not say that it waits: %s", log.String())
		}
		mu.Unlock()
		if calls := second.calls(); calls != "" {
			t.Errorf("the second process called %s", calls)
		}
		if other.count("GetPods") == 0 || apitest.Get[*corev1.Node](w.s, "", "vk-2") == nil {
			t.Error("the node of another name does not run")
		}
		w.stop()
		pass(time.Minute)
		if second.count("GetPods") == 0 {
			t.Error("the second process does not go on")
		}
		w.phase("after the change", "web", corev1.PodRunning)
		w.once("after the change", uid)
		if err := errors.Join(end(), endOther()); err != nil {
			t.Error(err)
		}
		if err := w.node.Run(w.Context()); !errors.Is(err, vkadapter.ErrAlreadyRun) {
			t.Errorf("a second Run = %v", err)
		}
	})
}

// A container ends while the API server is away: its exit code is stored afterwards.
func TestAnEndDuringAnOutageOfTheAPIServerIsStored(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		job := w.pod("job", corev1.RestartPolicyNever)
		pass(time.Minute)
		back := w.s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		w.cloud.exit("job", 0)
		pass(time.Minute)
		back()
		pass(5 * time.Minute)
		w.phase("after the outage", "job", corev1.PodSucceeded)
		w.once("after the outage", job)
	})
}

// The methods that a feature needs and that are wrong are named.
func TestNewNamesWhatIsWrong(t *testing.T) {
	for want, f := range map[string]func() error{
		"provider: Required": func() error { _, err := vkadapter.New(nil, vkadapter.Config{NodeName: "n"}); return err },
		"provider: Required value: it runs": func() error {
			_, err := vkadapter.New((*provider)(nil), vkadapter.Config{NodeName: "n"})
			return err
		},
		"NodeName: Required value: the name of the Node": func() error {
			_, err := vkadapter.New(&provider{}, vkadapter.Config{})
			return err
		},
		"provider.GetContainerLogs": func() error { _, err := vkadapter.New(oldLogs{}, vkadapter.Config{NodeName: "n"}); return err },
		"provider.GetPodStatusByUID: Required": func() error {
			_, err := vkadapter.New(halfUID{}, vkadapter.Config{NodeName: "n"})
			return err
		},
		"provider.NotifyPods": func() error { _, err := vkadapter.New(oldNotify{}, vkadapter.Config{NodeName: "n"}); return err },
		"newProvider: Required": func() error {
			_, err := vkadapter.NewNode[node.PodLifecycleHandler]("n", nil, vkadapter.NodeConfig{})
			return err
		},
		"provider: Required value: it": func() error {
			_, err := vkadapter.NewNode("n", func(nodeutil.ProviderConfig) (*provider, node.NodeProvider, error) { return nil, nil, nil },
				vkadapter.NodeConfig{Client: apitest.New(apitest.Options{}).Client(apitest.User{}), InternalIP: "192.0.2.1", LockDir: t.TempDir()})
			return err
		},
		"name: Required": func() error {
			_, err := vkadapter.NewNode("", newNone, vkadapter.NodeConfig{})
			return err
		},
		"Client: Required": func() error {
			_, err := vkadapter.NewNode("n", newNone, vkadapter.NodeConfig{})
			return err
		},
		"Client: Required value: a": func() error {
			_, err := vkadapter.NewNode("n", newNone, vkadapter.NodeConfig{Client: (*kubernetes.Clientset)(nil)})
			return err
		},
		"InternalIP: Required": func() error {
			_, err := vkadapter.NewNode("n", newNone, vkadapter.NodeConfig{Client: apitest.New(apitest.Options{}).Client(apitest.User{})})
			return err
		},
		"InternalIP: Invalid": func() error {
			_, err := vkadapter.NewNode("n", newNone, vkadapter.NodeConfig{InternalIP: "here"})
			return err
		},
		"Template.Name": func() error {
			_, err := vkadapter.NewNode("n", newNone, vkadapter.NodeConfig{Template: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}})
			return err
		},
		"create the provider: 404": func() error {
			_, err := vkadapter.NewNode("n", func(nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
				return nil, nil, errPlain
			}, vkadapter.NodeConfig{Client: apitest.New(apitest.Options{}).Client(apitest.User{}), InternalIP: "192.0.2.1"})
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to name %q", err, want)
		}
	}
}

func newNone(nodeutil.ProviderConfig) (*provider, node.NodeProvider, error) {
	return &provider{}, nil, nil
}

type oldLogs struct{ *provider }

func (oldLogs) GetContainerLogs(context.Context, string, string, string, int) (string, error) {
	return "", nil
}

type halfUID struct{ *provider }

func (halfUID) GetPodByUID(context.Context, string, string, types.UID) (*corev1.Pod, error) {
	return nil, nil
}

type oldNotify struct{ *provider }

func (oldNotify) NotifyPods(func(*corev1.Pod)) {}
