// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/vkadapter"
)

// While the back end is away, each method returns nothing and no error: MassHold keeps the pods,
// because Inspect does not confirm that they are lost.
func TestNoPodIsLostWhileAllMethodsReturnNothing(t *testing.T) {
	for _, silent := range []bool{true, false} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint("silent ", silent, ", restart ", restart), func(t *testing.T) {
				bubble(t, habits{silent: silent, lies: true, nilErrors: true}, func(w *world) {
					w.start()
					var uids []types.UID
					for i := range 4 {
						uids = append(uids, w.pod(fmt.Sprint("web", i), []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever}[i%2]))
					}
					pass(2 * time.Minute)
					w.cloud.setAway(true)
					if restart {
						w.kill()
						w.start()
					}
					pass(3 * time.Minute)
					w.phase("while it is away", "web0", corev1.PodRunning)
					w.phase("while it is away", "web1", corev1.PodRunning)
					w.cloud.setAway(false)
					pass(5 * time.Minute)
					w.once("afterwards", uids...)
					w.holds("afterwards", "web0", "web1", "web2", "web3")
				})
			})
		}
	}
}

// looping is a provider whose GetPods begins a loop: in each call, or only in the first one.
type looping struct {
	*provider
	first bool
	once  sync.Once
}

func (l *looping) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	begin := func() { go l.loop(ctx) }
	if l.first {
		l.once.Do(begin)
	} else {
		begin()
	}
	return l.provider.GetPods(ctx)
}

func (l *looping) loop(ctx context.Context) {
	for {
		l.did("loop")
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// A GetPods that begins a loop begins one more in each call, as interLink's does. That is said, with what
// ends it.
func TestAGetPodsThatBeginsALoop(t *testing.T) {
	for name, c := range map[string]struct {
		first, once bool // once is Config.ListOnce
		said        int
	}{
		"in each call":                   {said: 1},
		"in each call, which is the one": {once: true},
		"in the first call":              {first: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known, silent: true}, func(w *world) {
				w.wrap = func(p *provider) statusByMethod { return &looping{provider: p, first: c.first} }
				w.change = func(cfg *vkadapter.NodeConfig) {
					cfg.Adapter = func(a *vkadapter.Config) { a.ListOnce = c.once }
				}
				said := w.logs("Config.ListOnce")
				w.start()
				w.pod("web", corev1.RestartPolicyNever)
				pass(time.Minute)
				before := w.p.count("loop")
				pass(10 * time.Minute)
				if n := said(); n != c.said {
					t.Errorf("Config.ListOnce was named %d times, want %d", n, c.said)
				}
				if n := w.p.count("loop") - before; c.said == 0 && n != 120 {
					t.Errorf("%d turns of loops in ten minutes, want 120 of one", n)
				}
			})
		})
	}
}

// hasty is a provider that returns the phase Failed, with a container that waits, until it has reported a
// pod after half a minute, as Perian-io/perian-virtual-kubelet does at 8d77a36. If it is mute, it reports none.
type hasty struct {
	*provider
	mute     bool
	reported sync.Map
}

func (h *hasty) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	go func() {
		for {
			select {
			case <-time.After(30 * time.Second):
			case <-ctx.Done():
				return
			}
			for _, pod := range h.all() {
				if !h.mute {
					h.reported.Store(pod.Name, true)
					notify(pod)
				}
			}
		}
	}()
}

func (h *hasty) hide(name string, status *corev1.PodStatus) {
	if _, ok := h.reported.Load(name); ok {
		return
	}
	status.Phase = corev1.PodFailed
	for i := range status.ContainerStatuses {
		status.ContainerStatuses[i].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Waiting for InitContainers"}}
	}
}

func (h *hasty) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := h.provider.GetPod(ctx, namespace, name)
	if pod != nil {
		h.hide(name, &pod.Status)
	}
	return pod, err
}

func (h *hasty) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	status, err := h.provider.GetPodStatus(ctx, namespace, name)
	if status != nil {
		h.hide(name, status)
	}
	return status, err
}

func (h *hasty) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	pods, err := h.provider.GetPods(ctx)
	for _, pod := range pods {
		h.hide(pod.Name, &pod.Status)
	}
	return pods, err
}

// An end whose containers wait counts if nothing else is reported within a minute.
func TestAnEndWhoseContainersWaitMustLast(t *testing.T) {
	for name, c := range map[string]struct {
		mute bool
		want corev1.PodPhase
	}{
		"until the first report": {want: corev1.PodRunning},
		"without a report":       {mute: true, want: corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known}, func(w *world) {
				w.wrap = func(p *provider) statusByMethod { return &hasty{provider: p, mute: c.mute} }
				w.start()
				web := w.pod("web", corev1.RestartPolicyNever)
				pass(5 * time.Second)
				w.phase("at first", "web", corev1.PodPending)
				pass(5 * time.Minute)
				w.phase("after five minutes", "web", c.want)
				w.once("after five minutes", web)
			})
		})
	}
}

// conditional is a provider that reports the condition Ready and no container as ready, as
// Perian-io/perian-virtual-kubelet does at 8d77a36.
type conditional struct{ *provider }

func (c conditional) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	notifying(c).NotifyPods(ctx, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for i := range pod.Status.ContainerStatuses {
			pod.Status.ContainerStatuses[i].Ready = false
		}
		notify(pod)
	})
}

// A pod is ready if its provider says so.
func TestAPodIsReadyByItsCondition(t *testing.T) {
	bubble(t, habits{notFound: known, noStatus: true}, func(w *world) {
		w.wrap = func(p *provider) statusByMethod { return conditional{p} }
		w.start()
		w.pod("web", corev1.RestartPolicyNever)
		pass(10 * time.Second)
		ready := func(when string, want corev1.ConditionStatus) {
			t.Helper()
			for _, c := range w.get("web").Status.Conditions {
				if c.Type == corev1.PodReady && c.Status != want {
					t.Errorf("%s: Ready is %s (%s %s), want %s", when, c.Status, c.Reason, c.Message, want)
				}
			}
		}
		ready("after ten seconds", corev1.ConditionTrue)
		w.phase("after ten seconds", "web", corev1.PodRunning)
		w.cloud.exit("web", 0)
		pass(10 * time.Second)
		ready("after its end", corev1.ConditionFalse)
		w.phase("after its end", "web", corev1.PodSucceeded)
	})
}

// NERSC's GetPods leaves out a pod whose look-up fails, and GetPod fails with an error that says nothing. A
// pod that ran is not lost then: GetPod has another error for a pod that it does not know.
func TestNoPodIsLostWhileItsLookUpFails(t *testing.T) {
	bubble(t, wild["NERSC"].habits, func(w *world) {
		said := w.logs("GetPod: 500 Internal Server Error (if that means that there is no such pod, Config.NotFound must report it)")
		w.start()
		web := w.pod("web", corev1.RestartPolicyNever)
		pass(time.Minute)
		w.cloud.setAway(true)
		pass(50 * time.Second)
		w.cloud.setAway(false)
		pass(10 * time.Second)
		if n, events := said(), w.events("ProviderGetFailed"); n+events != 0 {
			t.Errorf("Config.NotFound was named %d times and in %d events, want that only after a minute", n, events)
		}
		for range 2 {
			pass(2 * time.Minute)
			w.phase("before the outage", "web", corev1.PodRunning)
			w.cloud.setAway(true)
			pass(15 * time.Minute)
			w.phase("in the outage", "web", corev1.PodRunning)
			w.cloud.setAway(false)
		}
		if n := said(); n != 2 {
			t.Errorf("Config.NotFound was named %d times, want once in each outage", n)
		}
		if n := w.events("ProviderGetFailed"); n == 0 {
			t.Error("there is no event ProviderGetFailed")
		}
		w.once("after two outages", web)
		w.cloud.exit("web", 0)
		pass(time.Minute)
		w.phase("after its end", "web", corev1.PodSucceeded)
	})
}

// A pod whose instance is gone ends with its deletion also if GetPod has an error of its own for that: then
// DeletePod tells, or Config.NotFound does.
func TestAPodThatGetPodCannotFindIsDeleted(t *testing.T) {
	t.Run("DeletePod succeeds", func(t *testing.T) {
		bubble(t, habits{silent: true, notFound: known}, func(w *world) {
			w.wrap = func(p *provider) statusByMethod { return &blind{p} }
			w.start()
			web := w.pod("web", corev1.RestartPolicyAlways)
			pass(time.Minute)
			w.cloud.mu.Lock()
			clear(w.cloud.jobs)
			w.cloud.mu.Unlock()
			pass(20 * time.Minute)
			w.phase("nothing says that it is gone", "web", corev1.PodRunning)
			w.once("nothing says that it is gone", web)
			w.delete("web")
			pass(2 * time.Minute)
			if pod := w.get("web"); pod != nil {
				t.Errorf("the deleted pod is there after two minutes: %v", pod.Status)
			}
		})
	})
	t.Run("Config.NotFound", func(t *testing.T) {
		bubble(t, wild["NERSC"].habits, func(w *world) {
			w.change = func(cfg *vkadapter.NodeConfig) {
				cfg.Adapter = func(a *vkadapter.Config) {
					a.NotFound = func(err error) bool { return strings.Contains(err.Error(), "404") }
				}
			}
			w.start()
			w.pod("web", corev1.RestartPolicyNever)
			pass(time.Minute)
			w.cloud.mu.Lock()
			clear(w.cloud.jobs)
			w.cloud.mu.Unlock()
			pass(2 * time.Minute)
			w.phase("after the loss of its job", "web", corev1.PodFailed)
			w.delete("web")
			pass(time.Minute)
			if pod := w.get("web"); pod != nil {
				t.Errorf("the deleted pod is there after a minute: %v", pod.Status)
			}
		})
	})
}

// blind is a provider whose GetPod returns another error each time for a job that is gone, and whose DeletePod
// finds nothing to do then.
type blind struct{ *provider }

func (b *blind) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := b.provider.GetPod(ctx, namespace, name)
	if err != nil {
		err = fmt.Errorf("request %d failed", b.count("GetPod"))
	}
	return pod, err
}

func (b *blind) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := b.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (b *blind) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	_ = b.provider.DeletePod(ctx, pod)
	return nil
}

// immortal is a provider whose DeletePod succeeds and ends nothing, as that of Cisco with its driver FAKE.
type immortal struct{ *provider }

func (i immortal) DeletePod(context.Context, *corev1.Pod) error {
	i.did("DeletePod")
	return nil
}

// A pod that runs on after DeletePod has succeeded is gone from the API in the end, as with
// virtual-kubelet, and an event says that its instance may still run.
func TestDeletePodEndsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		within  time.Duration // 0: never
	}{
		"by default": {within: 30*time.Second + vkadapter.DefaultDeleteTimeout},
		"in an hour": {timeout: time.Hour, within: 30*time.Second + time.Hour},
		"never":      {timeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known, silent: true}, func(w *world) {
				w.wrap = func(p *provider) statusByMethod { return immortal{p} }
				w.change = func(cfg *vkadapter.NodeConfig) {
					cfg.Adapter = func(a *vkadapter.Config) { a.DeleteTimeout = c.timeout }
				}
				w.start()
				w.pod("web", corev1.RestartPolicyNever)
				pass(time.Minute)
				w.delete("web")
				if c.within == 0 {
					pass(3 * time.Hour)
					if w.get("web") == nil {
						t.Error("the pod is gone")
					}
					return
				}
				pass(c.within - time.Second)
				if w.get("web") == nil {
					t.Error("the pod was gone too early")
				}
				pass(7 * time.Minute) // the longest backoff
				if pod := w.get("web"); pod != nil {
					t.Errorf("the pod is still there: %+v", pod.Status)
				}
				if n := w.p.count("DeletePod"); n < 3 {
					t.Errorf("DeletePod was called %d times", n)
				}
				if n := w.events("ProviderDeleteIgnored"); n != 1 {
					t.Errorf("%d events ProviderDeleteIgnored, want 1", n)
				}
			})
		})
	}
}

// stuck is a provider one of whose methods does not return before it is released, whatever its context
// says.
type stuck struct {
	*provider
	method  string
	release chan struct{}
}

func (s stuck) wait(method string) {
	if s.method == method {
		<-s.release
	}
}

func (s stuck) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	s.wait("CreatePod")
	return s.provider.CreatePod(ctx, pod)
}

func (s stuck) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	s.wait("GetPods")
	return s.provider.GetPods(ctx)
}

func (s stuck) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	s.wait("DeletePod")
	return s.provider.DeletePod(ctx, pod)
}

// A call that hangs on keeps Run from its end for 24 s at most. Then an error names the part whose call
// it is, and the lease has expired: another machine need not wait for it.
func TestACallThatHangsOnDoesNotKeepRun(t *testing.T) {
	for _, method := range []string{"CreatePod", "DeletePod", "GetPods"} {
		t.Run(method, func(t *testing.T) {
			bubble(t, habits{notFound: known, silent: true}, func(w *world) {
				release := make(chan struct{})
				w.wrap = func(p *provider) statusByMethod { return stuck{p, method, release} }
				w.start()
				w.pod("web", corev1.RestartPolicyNever)
				pass(time.Minute)
				w.delete("web")
				pass(time.Second)
				begun := time.Now()
				err := w.finish()
				if d := time.Since(begun); d > 24*time.Second {
					t.Errorf("Run returned after %v", d)
				}
				if err == nil || !strings.Contains(err.Error(), "podsync") {
					t.Errorf("Run returned %v, want an error that names podsync", err)
				}
				held := apitest.Get[*coordinationv1.Lease](w.s, "kube-node-lease", nodeName)
				if held == nil || *held.Spec.LeaseDurationSeconds != 1 {
					t.Errorf("the lease has not expired: %+v", held)
				}
				close(release)
			})
		})
	}
}

// registering is a provider whose NotifyPods does not return: it runs the loop that reports, until its
// context is done, and then waits for release, if that is set.
type registering struct {
	*provider
	release chan struct{}
}

func (r registering) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	r.mu.Lock()
	r.notify = notify
	r.mu.Unlock()
	r.loop(ctx)
	if r.release != nil {
		<-r.release
	}
}

// NotifyPods that does not return holds nothing up for longer than ten seconds. What it reports counts. Run
// ends at once if NotifyPods heeds its context, and within its bound if not.
func TestANotifyPodsThatDoesNotReturn(t *testing.T) {
	for name, forGood := range map[string]bool{"it ends with its context": false, "it does not": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known}, func(w *world) {
				var release chan struct{}
				if forGood {
					release = make(chan struct{})
					defer close(release)
				}
				w.wrap = func(p *provider) statusByMethod { return registering{p, release} }
				said := w.logs("NotifyPods has not returned")
				web := w.pod("web", corev1.RestartPolicyNever)
				w.start()
				pass(5 * time.Second)
				w.phase("after 20 s", "web", corev1.PodRunning)
				if n := apitest.Get[*corev1.Node](w.s, "", nodeName); n == nil || !isReady(n) {
					t.Errorf("the node is not ready after 20 s: %v", n)
				}
				next := w.pod("next", corev1.RestartPolicyNever)
				pass(2 * time.Second)
				w.phase("after two seconds", "next", corev1.PodRunning)
				w.cloud.exit("web", 0)
				pass(2 * time.Second)
				w.phase("reported", "web", corev1.PodSucceeded)
				w.delete("next")
				pass(5 * time.Second)
				if pod := w.get("next"); pod != nil {
					t.Errorf("the deleted pod is there: %v", pod.Status)
				}
				pass(10 * time.Minute)
				w.once("after ten minutes", web, next)
				if n := said(); n != 1 {
					t.Errorf("it was logged %d times, want once", n)
				}
				begun := time.Now()
				err := w.finish()
				if took := time.Since(begun); !forGood && (took > time.Second || err != nil) || took > 24*time.Second {
					t.Errorf("Run returned %v after %v", err, took)
				}
				if forGood && (err == nil || !strings.Contains(err.Error(), "podsync")) {
					t.Errorf("Run returned %v, want an error that names podsync", err)
				}
				held := apitest.Get[*coordinationv1.Lease](w.s, "kube-node-lease", nodeName)
				if held == nil || *held.Spec.LeaseDurationSeconds != 1 {
					t.Errorf("the lease has not expired: %+v", held)
				}
			})
		})
	}
}

// registrationPanics is a provider whose NotifyPods panics.
type registrationPanics struct{ *provider }

func (registrationPanics) NotifyPods(context.Context, func(*corev1.Pod)) {
	panic("a fault of the provider")
}

// It reports nothing then, and the statuses of GetPods count.
func TestAPanicOfNotifyPodsEndsNothing(t *testing.T) {
	bubble(t, habits{notFound: known, loopInGetPods: true}, func(w *world) {
		w.wrap = func(p *provider) statusByMethod {
			p.silent = true // it does not report
			return registrationPanics{p}
		}
		said := w.logs("A method of the provider panicked")
		w.start()
		w.pod("web", corev1.RestartPolicyNever)
		pass(time.Minute)
		w.phase("after the panic", "web", corev1.PodRunning)
		if n := said(); n != 1 {
			t.Errorf("the panic was logged %d times, want once", n)
		}
	})
}

// hanging is a provider whose GetPods leaves out the pod "bad". From the time at which GetPod of it is to
// hang on, it does, and so does the first GetPods if that is to hang.
type hanging struct{ *provider }

func (h hanging) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if name == "bad" && h.count("GetPod is to hang") > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.provider.GetPod(ctx, namespace, name)
}

func (h hanging) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	if h.count("GetPods is to hang") == 1 {
		h.did("GetPods is to hang")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pods, err := h.provider.GetPods(ctx)
	for i := range pods {
		if pods[i].Name == "bad" {
			pods[i] = nil
		}
	}
	return pods, err
}

// One call of a list that hangs, of GetPods or about a pod that GetPods leaves out, does not keep the
// Node from being ready for longer than the list may take.
func TestOneCallThatHangsEndsNoList(t *testing.T) {
	for _, what := range []string{"GetPod is to hang", "GetPods is to hang"} {
		t.Run(what, func(t *testing.T) {
			bubble(t, habits{silent: true, notFound: known}, func(w *world) {
				w.wrap = func(p *provider) statusByMethod { return hanging{p} }
				w.start()
				w.pod("good", corev1.RestartPolicyNever)
				w.pod("bad", corev1.RestartPolicyNever)
				pass(2 * time.Minute)
				w.p.did(what)
				pass(12 * time.Minute)
				if n := apitest.Get[*corev1.Node](w.s, "", nodeName); !isReady(n) {
					t.Errorf("the node is not ready: %v", n.Status.Conditions)
				}
				w.cloud.exit("good", 0)
				pass(time.Minute)
				w.phase("afterwards", "good", corev1.PodSucceeded)
				w.phase("afterwards", "bad", corev1.PodRunning)
			})
		})
	}
}

// keeping is a provider that goes on writing into the pod that CreatePod and UpdatePod have got.
type keeping struct{ *provider }

func (k keeping) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	defer k.write(pod)
	return k.provider.CreatePod(ctx, pod)
}

func (k keeping) UpdatePod(ctx context.Context, pod *corev1.Pod) error {
	defer k.write(pod)
	return k.provider.UpdatePod(ctx, pod)
}

func (k keeping) write(pod *corev1.Pod) {
	go func() {
		pod.Annotations = map[string]string{}
		for i := range 100 {
			pod.Annotations["state"] = fmt.Sprint(i)
		}
	}()
}

// The race detector finds out if the adapter reads such a pod afterwards.
func TestAProviderKeepsThePodThatItWasHanded(t *testing.T) {
	_, p := newAdapter(t, habits{silent: true, notFound: known}, vkadapter.Config{})
	a, err := vkadapter.New(keeping{p}, vkadapter.Config{NodeName: nodeName})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		pod := newPod(fmt.Sprint("web", i), types.UID(fmt.Sprint(i)))
		if _, err := a.Start(t.Context(), pod); err != nil {
			t.Error(err)
		}
		if _, err := a.Update(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
}

// panicking is a NodeProvider whose NotifyNodeStatus panics.
type panicking struct{ nodeProvider }

func (*panicking) NotifyNodeStatus(context.Context, func(*corev1.Node)) {
	panic("a fault of the provider")
}

func TestAPanicOfNotifyNodeStatusEndsNothing(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.nodes = &panicking{}
		w.start()
		w.pod("web", corev1.RestartPolicyNever)
		pass(time.Minute)
		w.phase("after the panic", "web", corev1.PodRunning)
	})
}

// pinging is a NodeProvider that reports its Node in Ping, with the time.
type pinging struct {
	nodeProvider
	pings int
}

func (p *pinging) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pings++
	if p.cb != nil {
		node := &corev1.Node{}
		node.Status.Conditions = []corev1.NodeCondition{{Type: "Fan", Status: corev1.ConditionTrue}}
		node.Status.Conditions[0].LastHeartbeatTime.Time = time.Now()
		p.cb(node)
	}
	return nil
}

// A report wakes a round, which calls Ping: one that says the same wakes none.
func TestAReportInEachPing(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		nodes := &pinging{}
		w.nodes = nodes
		w.start()
		pass(time.Minute)
		before := nodes.count()
		pass(time.Minute)
		if n := nodes.count() - before; n < 5 || n > 7 {
			t.Errorf("Ping was called %d times in a minute, want once in ten seconds", n)
		}
	})
}

// logsOfItsOwn has a method whose name virtual-kubelet looks for in a provider, as the provider of NERSC.
type logsOfItsOwn struct{ nodeProvider }

func (*logsOfItsOwn) GetContainerLogs(context.Context, string) error { return nil }

// The NodeProvider is usually the whole provider: what is called only in the other part may be as it likes.
func TestANodeProviderMayHaveOtherMethods(t *testing.T) {
	if _, err := vkadapter.New(&provider{}, vkadapter.Config{NodeName: nodeName, NodeProvider: &logsOfItsOwn{}}); err != nil {
		t.Error(err)
	}
}

func (p *pinging) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pings
}
