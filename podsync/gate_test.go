// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// lock is a gate that one of several processes can pass.
type lock struct{ holder atomic.Int32 }

func (l *lock) gate(process int32) podsync.GateFunc {
	return func(_ context.Context, nodeName string) error {
		if nodeName != node {
			return errors.New("asked about node " + nodeName)
		}
		if l.holder.Load() != process {
			return errors.New("another process holds the node")
		}
		return nil
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A process is a controller with a log of its own.
type process struct {
	*podsynctest.Provider
	c    *podsync.Controller
	log  lines
	stop func()
}

// fork starts a second controller for the world's node and backend.
func (w *world) fork(edit func(*podsync.Config)) *process {
	p := &process{Provider: w.backend.Connect()}
	cfg := podsync.Config{Client: w.server.Client(apitest.NodeUser(node)).CoreV1(), Provider: p.Provider, NodeName: node}
	edit(&cfg)
	c, err := podsync.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p.c = c
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&p.log)))
	ctx, cancel := context.WithCancel(klog.NewContext(w.t.Context(), logger))
	done := make(chan struct{})
	unwatch := watchRest(w.t, c)
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}()
	p.stop = func() {
		cancel()
		<-done
		unwatch()
		p.Crash()
	}
	w.t.Cleanup(p.stop)
	settle()
	return p
}

func (w *world) callsOf(op podsync.Op) (n int) {
	for _, c := range w.backend.Calls("") {
		if c.Op == op {
			n++
		}
	}
	return n
}

func TestOfTwoProcessesOnlyTheOneThatHoldsTheNodeActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, podsynctest.Options{})
		l := &lock{}
		l.holder.Store(1)
		first := w.fork(func(cfg *podsync.Config) { cfg.Gate = l.gate(1) })
		second := w.fork(func(cfg *podsync.Config) { cfg.Gate = l.gate(2) })
		a := w.bind(newPod("a"))
		b := w.bind(newPod("b"))
		pass(14 * time.Second)
		if log := second.log.String(); log != "" {
			t.Errorf("a start behind a gate is normal:\n%s", log)
		}
		pass(time.Hour)
		w.expectPhase("a", corev1.PodRunning)
		if n := w.callsOf(podsync.OpStart); n != 2 {
			t.Errorf("%d calls of Start for two pods", n)
		}
		w.expectRequests(2, 0, 0)
		if n := strings.Count(second.log.String(), "gate is closed"); n != 1 {
			t.Errorf("the second process says %d times that it does not act:\n%s", n, second.log.String())
		}
		if strings.Contains(first.log.String(), "gate") {
			t.Errorf("the first process speaks of its gate:\n%s", first.log.String())
		}
		if err := second.c.Evict(podsync.RefOf(a), podsync.Eviction{}); !errors.Is(err, podsync.ErrGateClosed) {
			t.Errorf("Evict: %v", err)
		}
		w.kubectlDelete("b", -1)
		pass(time.Minute)
		w.expectGone("b")
		if n := w.callsOf(podsync.OpStop); n != 1 {
			t.Errorf("%d calls of Stop for one deletion", n)
		}

		// The first one dies: the second one adopts.
		first.stop()
		l.holder.Store(2)
		pass(time.Minute)
		if n := w.callsOf(podsync.OpStart); n != 2 {
			t.Errorf("%d calls of Start after the take-over, want the 2 of before", n)
		}
		w.bind(newPod("c"))
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		w.expectPhase("c", corev1.PodRunning)
		w.expectGone("a")
		if w.backend.Running(a.UID) || w.backend.Running(b.UID) {
			t.Error("a deleted pod runs")
		}
		if n := strings.Count(second.log.String(), "gate is open"); n != 1 {
			t.Errorf("the second process says %d times that it acts:\n%s", n, second.log.String())
		}
	})
}

// A process that was frozen while another one took over knows nothing that
// counts: it leaves the pods alone, and begins with a List when it may act again.
func TestAProcessThatWasReplacedLeavesThePodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, podsynctest.Options{})
		l := &lock{}
		l.holder.Store(1)
		first := w.fork(func(cfg *podsync.Config) { cfg.Gate = l.gate(1) })
		keep := w.bind(newPod("keep", restart(corev1.RestartPolicyNever)))
		hung := w.bind(newPod("hung"))
		pass(time.Minute)
		unhang := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Hang: true})
		hanging := w.bind(newPod("hanging"))
		pass(time.Second)

		// The first one loses the node in the middle of a call, and must not do
		// anything after it.
		l.holder.Store(2)
		w.backend.Lose(keep.UID)
		w.kubectlDelete("hung", -1)
		apitest.Edit(w.server, "default", "hanging", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		w.server.ResetJournal()
		stops := w.callsOf(podsync.OpStop)
		pass(time.Minute)
		if n := w.callsOf(podsync.OpStop) - stops; n != 0 {
			t.Errorf("%d calls of Stop without the gate", n)
		}
		w.expectRequests(0, 0, 0)
		if !w.backend.Running(hung.UID) {
			t.Error("a pod of the other process was stopped")
		}
		for ref, info := range first.c.All() {
			if info.Stage != podsync.StageUnsynced {
				t.Errorf("%v is in stage %v, want Unsynced", ref, info.Stage)
			}
			if info.Call != "" {
				t.Errorf("the call %v of %v is still under way", info.Call, ref)
			}
		}
		// The other process has brought it back in the meantime.
		unhang()
		w.backend.Plant(w.pod("keep"))
		l.holder.Store(1)
		pass(time.Minute)
		w.expectPhase("keep", corev1.PodRunning)
		w.expectPhase("hanging", corev1.PodRunning)
		w.expectGone("hung")
		if !w.backend.Running(keep.UID) || !w.backend.Running(hanging.UID) {
			t.Error("a pod does not run")
		}
	})
}

type panickyRecorder struct{}

func (panickyRecorder) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {
	panic("no recorder")
}

func TestAPanicStaysWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, podsynctest.Options{})
		var mu sync.Mutex
		var errs []error
		hooks := 0
		var asked atomic.Int32
		p := w.fork(func(cfg *podsync.Config) {
			cfg.Provider = panickyProvider{cfg.Provider}
			cfg.EventRecorder, cfg.ContainerEvents = panickyRecorder{}, panickyRecorder{}
			cfg.ErrorHandler = func(_ context.Context, err error, _ string) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			cfg.Hooks.StageChanged = func(c podsync.StageChanged) {
				hooks++
				if c.Ref.Name == "hook" {
					panic("hook")
				}
			}
			cfg.Gate = func(context.Context, string) error {
				if asked.Add(1) == 1 {
					panic("gate")
				}
				return nil
			}
		})
		w.bind(newPod("bad"))
		w.bind(newPod("hook"))
		w.bind(newPod("good"))
		pass(time.Minute)
		w.expectPhase("good", corev1.PodRunning)
		w.expectPhase("hook", corev1.PodRunning)
		bad := w.expectPhase("bad", corev1.PodPending)
		if bad.Status.Reason != podsync.ReasonFailedStart || bad.Status.Message != "panic in start: boom" { // as if Start had returned the error
			t.Errorf("reason %q, message %q", bad.Status.Reason, bad.Status.Message)
		}
		found, recorder := false, 0
		mu.Lock()
		defer mu.Unlock()
		for _, err := range errs {
			if err.Error() == "panic in EventRecorder.Eventf: no recorder" {
				recorder++
			}
			var pe *podsync.PanicError
			if errors.As(err, &pe) && pe.Callback == "start" {
				found = true
				if !strings.Contains(err.Error(), "bad") || !strings.Contains(string(pe.Stack), "panickyProvider") {
					t.Errorf("%v\n%s", err, pe.Stack)
				}
			}
		}
		if !found || hooks == 0 || recorder < 3 { // a warning, and Started of two pods
			t.Errorf("errors %v, %d hooks", errs, hooks)
		}
		for ref, info := range p.c.All() {
			if ref.Name == "bad" && info.Failures < 3 {
				t.Errorf("%d failures in a minute", info.Failures)
			}
		}
	})
}

type panickyProvider struct{ podsync.Provider }

func (p panickyProvider) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	if pod.Name == "bad" {
		panic("boom")
	}
	return p.Provider.Start(ctx, pod)
}

// A Controller of many nodes asks about the nodes of pods, and about no node without a name
// unless the provider hides the node of an instance: then for as long as there is that.
func TestAFleetsGateIsAskedAboutNodesOnly(t *testing.T) {
	for _, hides := range []bool{false, true} {
		t.Run(fmt.Sprint("hides=", hides), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, podsynctest.Options{HidesNode: hides})
				w.admin, w.wrap = true, releasing // a List is the first that is heard of the instance
				nameless := 0
				gate := func(_ context.Context, name string) error {
					if name == "" {
						nameless++
					}
					return nil
				}
				w.cfg = podsync.Config{Informer: w.informer("", nil), Fleet: true, Relist: 10 * time.Second, Gate: gate}
				w.run()
				w.bind(newPod("a"))
				orphan := newPod("orphan", func(pod *corev1.Pod) { pod.UID = "orphan" })
				w.backend.Plant(orphan)
				pass(5 * time.Minute)
				w.expectPhase("a", corev1.PodRunning)
				if w.backend.Running(orphan.UID) {
					t.Error("the orphan runs on")
				}
				if hides != (nameless > 0) {
					t.Errorf("the gate of no node was asked %d times", nameless)
				}
				nameless = 0
				pass(5 * time.Minute)
				if nameless > 0 {
					t.Errorf("without the orphan it was asked %d times", nameless)
				}
			})
		})
	}
}

// Gates that hang, also after the end of their contexts, delay no other node by more than their
// limit. None is called twice at once, and ErrorHandler hears of them once.
func TestGatesThatHangDelayNoOtherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick, well := 1000, 1000
		if testing.Short() {
			sick, well = 64, 8
		}
		w := newWorld(t, podsynctest.Options{})
		w.admin = true
		var (
			mu       sync.Mutex
			hangs    bool
			underWay = map[string]int{}
			release  = make(chan struct{})
		)
		w.cfg = podsync.Config{Informer: w.informer("", nil), Fleet: true, Relist: 10 * time.Second}
		w.cfg.Gate = func(_ context.Context, name string) error {
			mu.Lock()
			if underWay[name]++; underWay[name] > 1 {
				t.Errorf("the gate of %s is called twice at once", name)
			}
			waits := hangs && strings.HasPrefix(name, "sick")
			mu.Unlock()
			if waits {
				<-release
			}
			mu.Lock()
			defer mu.Unlock()
			underWay[name]--
			return nil
		}
		w.run()
		bind := func(name string, n int) {
			for i := range n {
				w.bind(newPod(fmt.Sprint(name, i), func(pod *corev1.Pod) { pod.Spec.NodeName = pod.Name }))
			}
		}
		bind("sick", sick)
		pass(time.Minute)
		w.expectPhase("sick0", corev1.PodRunning)
		mu.Lock()
		hangs = true
		mu.Unlock()
		pass(time.Minute)
		bind("well", well)
		pass(5 * time.Second)
		for i := range well {
			w.expectPhase(fmt.Sprint("well", i), corev1.PodRunning)
		}
		w.backend.Lose(w.pod("well0").UID)
		pass(time.Minute) // Lists go on, and show that it is lost
		if n := len(w.backend.Calls(podsync.OpStart)); n != sick+well+1 {
			t.Errorf("%d calls of Start, want one of each pod, and one more of the pod that is lost", n)
		}
		if told := w.told(); len(told) != 1 || !strings.Contains(told[0], "gate of node") {
			t.Errorf("errors %q, want one of a gate", told)
		}
		mu.Lock()
		hangs = false
		mu.Unlock()
		close(release)
		w.kubectlDelete("sick0", -1)
		pass(time.Minute)
		w.expectGone("sick0")
	})
}

// The last pod of a node goes while its gate hangs. The call is remembered, so the next pod of the
// node does not make a second one.
func TestAGateThatHangsIsNotForgottenWithTheLastPod(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.admin = true
		var hangs atomic.Bool
		var underWay atomic.Int32
		asked, release := make(chan struct{}, 10), make(chan struct{})
		w.cfg = podsync.Config{Informer: w.informer("", nil), Fleet: true, Relist: 10 * time.Second}
		w.cfg.Gate = func(context.Context, string) error {
			if hangs.Load() {
				if n := underWay.Add(1); n > 1 {
					t.Errorf("%d calls of the gate are under way", n)
				}
				asked <- struct{}{}
				<-release
			}
			return nil
		}
		w.run()
		done := w.bind(newPod("done", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		w.backend.Finish(done.UID, 0)
		pass(time.Minute)
		w.backend.Lose(done.UID) // as an administrator does who tidies up
		pass(time.Minute)
		w.expectPhase("done", corev1.PodSucceeded)
		hangs.Store(true)
		<-asked
		w.kubectlDelete("done", 0)
		if n := w.known(); n != 0 {
			t.Errorf("%d pods are known", n)
		}
		pass(time.Minute) // Lists go on
		w.bind(newPod("next"))
		pass(time.Minute)
		w.expectPhase("next", corev1.PodPending)
		hangs.Store(false)
		close(release)
		pass(time.Minute)
		w.expectPhase("next", corev1.PodRunning)
	})
}

// The first pod of a node starts when the node's gate has answered, also while List hangs.
func TestAGateThatOpensWaitsForNoList(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.admin = true
		w.cfg = podsync.Config{Informer: w.informer("", nil), Fleet: true, Relist: 10 * time.Second}
		w.cfg.Gate = func(context.Context, string) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		w.run()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Hang: true})
		pass(15 * time.Second)
		pod := w.bind(newPod("a"))
		pass(500 * time.Millisecond)
		if !w.backend.Running(pod.UID) {
			t.Error("it does not run")
		}
	})
}

func TestOwnsMayPanicAndCallTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, podsynctest.Options{})
		w.admin = true
		informer := w.informer("", nil)
		calls := 0
		w.cfg = podsync.Config{Informer: informer, Relist: 10 * time.Second, Owns: func(pod *corev1.Pod) bool {
			calls++
			if calls == 1 {
				panic("owns")
			}
			for range w.c.All() {
				break
			}
			return pod.Spec.NodeName == node
		}}
		w.bind(newPod("a"))
		w.run2(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if calls != 2 || len(w.dropped) != 1 || w.dropped[0].Reason != podsync.DroppedRefused {
			t.Errorf("%d calls of Owns, dropped %v", calls, w.dropped)
		}
	})
}

// gated gives the controller a gate that is closed while the returned value is true.
func (w *world) gated() *atomic.Bool {
	closed := new(atomic.Bool)
	w.cfg.Gate = func(context.Context, string) error {
		if closed.Load() {
			return errors.New("the node has no lease")
		}
		return nil
	}
	return closed
}

// An API server that was restored from a backup lacks the pods, and for a while the lease: the
// gate closes. That no pod is stopped of which the API has only said nothing must not depend on
// which of the two was seen first.
func TestAGateThatShutsDoesNotConfirmThatPodsAreGone(t *testing.T) {
	const pods = 10
	for name, first := range map[string]string{"the pods are missing first": "pods", "the gate is closed first": "gate"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				closed := w.gated()
				w.cfg.Relist = time.Hour
				w.run()
				for i := range pods {
					w.bind(newPod(fmt.Sprint("p", i)))
				}
				kept := w.bind(newPod("kept"))
				pass(time.Minute)
				var back func()
				if first == "pods" {
					back = w.vanish(pods)
				}
				closed.Store(true)
				w.backend.Edit(kept.UID, func(st *corev1.PodStatus) { st.Message = "new" }) // its write asks the gate
				pass(5 * time.Second)
				if first == "gate" {
					back = w.vanish(pods)
				}
				closed.Store(false)
				pass(time.Minute)
				back()
				pass(time.Minute)
				if n := w.callsOf(podsync.OpStop); n > 0 || w.callsOf(podsync.OpStart) != pods+1 {
					t.Errorf("%d calls of Stop, %d of Start for %d pods", n, w.callsOf(podsync.OpStart), pods+1)
				}
				for i := range pods {
					w.expectPhase(fmt.Sprint("p", i), corev1.PodRunning)
				}
			})
		})
	}
}

// A pod that is gone while the gate is closed is stopped after it has opened, also if only a LIST
// left it out: the API is asked.
func TestAPodThatIsGoneWhileTheGateIsShutIsStoppedLater(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		closed := w.gated()
		w.cfg.Relist = 10 * time.Second
		w.run()
		a := w.bind(newPod("a"))
		for i := range 9 {
			w.bind(newPod(fmt.Sprint("p", i)))
		}
		pass(time.Minute)
		closed.Store(true)
		pass(time.Minute)
		w.missOneEvent(func() { apitest.Remove[*corev1.Pod](w.server, "default", "a") })
		if !w.backend.Running(a.UID) {
			t.Error("it was stopped while the gate was closed")
		}
		closed.Store(false)
		pass(time.Minute)
		if w.backend.Running(a.UID) || w.callsOf(podsync.OpStop) != 1 {
			t.Errorf("it runs on, or others don't: %d calls of Stop", w.callsOf(podsync.OpStop))
		}
	})
}

// The gate closes while the API is being asked whether the pod of an instance exists. The
// answer plans a Stop, which must wait for the gate and not ask it again and again.
func TestAGateThatClosesDuringAQuestionIsNotAskedWithoutPause(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		closed, asked := new(atomic.Bool), new(atomic.Int32)
		w.cfg.Gate = func(context.Context, string) error {
			if asked.Add(1) > 500 {
				return nil // or the time of the bubble would stand still
			}
			if closed.Load() {
				return errors.New("the node has no lease")
			}
			return nil
		}
		w.cfg.Policy.ExclusiveBackend = true
		other := w.bind(newPod("other"))
		orphan := newPod("orphan")
		orphan.UID = "orphan"
		w.backend.Plant(orphan)
		arrived := make(chan struct{}, 1)
		slow := gets
		slow.Func = func(apitest.Request) bool {
			arrived <- struct{}{}
			return true
		}
		w.server.Inject(apitest.Fault{Match: slow, Latency: 5 * time.Second, Times: 1})
		w.cfg.Relist = 10 * time.Second
		w.run()
		<-arrived // the GET is in flight
		closed.Store(true)
		w.backend.Edit(other.UID, func(st *corev1.PodStatus) { st.Message = "new" }) // its write asks the gate
		asked.Store(0)
		pass(time.Minute)
		if n := asked.Load(); n > 100 {
			t.Errorf("the closed gate was asked %d times in a minute", n)
		}
		if !w.backend.Running("orphan") {
			t.Error("it was stopped without the gate")
		}
		closed.Store(false)
		asked.Store(-1000)
		pass(5 * time.Minute)
		if w.backend.Running("orphan") {
			t.Error("it still runs when the gate is open")
		}
	})
}

// A provider that keeps nothing of a stopped pod has told its exit codes to this process only.
// They must not be lost because the gate closes before the API has them.
func TestExitCodesOutliveAGateThatCloses(t *testing.T) {
	for name, stopTime := range map[string]time.Duration{"after Stop": 0, "during Stop": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
				w.wrap = simple
				w.cfg.Relist = 10 * time.Second
				closed := w.gated()
				w.run()
				pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
				w.bind(newPod("b"))
				pass(time.Minute)
				down := w.server.Inject(apitest.Fault{Match: patches, Err: apitest.ErrConnRefused})
				if stopTime > 0 {
					w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Delay: stopTime, Times: 1})
				}
				w.backend.Exit(pod.UID, 0)
				pass(11 * time.Second)
				closed.Store(true)
				apitest.Edit(w.server, "default", "b", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
				pass(time.Minute)
				down()
				closed.Store(false)
				pass(10 * time.Minute)
				w.expectPhase("a", corev1.PodSucceeded)
				if n := w.callsOf(podsync.OpStart); n != 2 {
					t.Errorf("%d calls of Start for two pods", n)
				}
			})
		})
	}
}

// The API has the exit codes, and the process dies before the phase is written. The next one
// must not take the pod for lost.
func TestStoredExitCodesDecideBeforeAPodCountsAsLost(t *testing.T) {
	for _, lost := range []podsync.LostPolicy{podsync.LostByRestartPolicy, podsync.LostFail, podsync.LostRestart} {
		for code, phase := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
			t.Run(fmt.Sprint(lost, " ", code), func(t *testing.T) {
				bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
					w.wrap = simple
					w.cfg.Policy.Lost = lost
					w.bind(newPod("a", restart(corev1.RestartPolicyNever), func(p *corev1.Pod) {
						p.Status.Phase = corev1.PodRunning
						p.Status.ContainerStatuses = []corev1.ContainerStatus{{
							Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
						}}
					}))
					w.run()
					pass(time.Minute)
					pod := w.expectPhase("a", phase)
					if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != code || pod.Status.Reason != "" {
						t.Errorf("ended with %+v, reason %q", pod.Status.ContainerStatuses[0].State, pod.Status.Reason)
					}
					w.expectCalls()
				})
			})
		}
	}
}

// slowStart is a provider whose first Start takes its time, whatever becomes of its context.
type slowStart struct {
	podsync.Provider
	slow *atomic.Bool
}

func (p slowStart) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	if p.slow.CompareAndSwap(true, false) {
		time.Sleep(time.Minute)
		ctx = context.WithoutCancel(ctx)
	}
	return p.Provider.Start(ctx, pod)
}

// A Start that is under way while the gate closes and opens again has its effect later. Until
// then no other pod of its name may start.
func TestASlowStartKeepsItsNameOverAClosedGate(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		slow := new(atomic.Bool)
		slow.Store(true)
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return slowStart{p, slow} }
		w.cfg.Relist = 5 * time.Second
		closed := w.gated()
		w.run()
		first := w.bind(newPod("a"))
		pass(2 * time.Second)
		closed.Store(true)
		w.bind(newPod("b")) // its Start asks the gate
		pass(3 * time.Second)
		closed.Store(false)
		pass(15 * time.Second)
		w.kubectlDelete("a", 0)
		second := w.bind(newPod("a"))
		pass(20 * time.Second)
		if w.backend.Running(second.UID) {
			t.Error("the second pod of the name runs, and the Start of the first one is under way")
		}
		pass(5 * time.Minute)
		if w.backend.Running(first.UID) || !w.backend.Running(second.UID) {
			t.Errorf("the first one runs: %v, the second one: %v", w.backend.Running(first.UID), w.backend.Running(second.UID))
		}
	})
}

// The API server was restored from a backup that lacks the pods, so too many orphans are held back. Then the
// gate closes, and the API server gets the pods back. What it has said before the gate closed stops none of
// them when the gate opens, although the informer does not show them yet.
func TestWhatWasSaidBeforeTheGateClosedStopsNoOrphan(t *testing.T) {
	const pods = 8
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs()
		closed := w.gated()
		w.cfg.Relist = 10 * time.Second
		var orphans []*corev1.Pod
		for i := range pods {
			orphans = append(orphans, newPod(fmt.Sprint("p", i), func(p *corev1.Pod) { p.Namespace, p.UID = "default", types.UID(fmt.Sprint("uid-", i)) }))
			w.backend.Plant(orphans[i])
		}
		other := w.bind(newPod("other"))
		w.run()
		pass(2 * time.Minute)
		if len(w.masses) == 0 {
			t.Fatal("no orphan is held back")
		}
		closed.Store(true)
		w.backend.Edit(other.UID, func(st *corev1.PodStatus) { st.Message = "new" }) // its write asks the gate
		pass(20 * time.Minute)
		if strings.Contains(log.String(), "Stopping an orphan") {
			t.Error("it says that it stops orphans while the gate is closed")
		}
		blind := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch"}, Err: apitest.ErrConnRefused})
		w.server.BreakWatches(watches)
		for _, pod := range orphans {
			w.server.Put(pod)
		}
		closed.Store(false)
		pass(time.Minute)
		blind()
		pass(time.Minute)
		if n := w.callsOf(podsync.OpStop); n > 0 {
			t.Errorf("%d calls of Stop", n)
		}
		for _, pod := range orphans {
			w.expectPhase(pod.Name, corev1.PodRunning)
		}
	})
}

// A hesitant backend knows names only, and its first Stop gets no answer for a while.
type hesitant struct {
	byName
	slow *atomic.Bool
}

func (b hesitant) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	if b.slow.CompareAndSwap(true, false) {
		time.Sleep(10 * time.Second)
		return podsync.State{}, errors.New("no answer")
	}
	return b.byName.Stop(ctx, ref, opts)
}

// The gate closes while the instance of an earlier pod, which has no UID, is being stopped. Another process
// stops it, and starts the pod of the name. That instance is not the earlier one, and the API's answer
// about the pod does not say that it is gone.
func TestAnInstanceWithoutUIDIsAnotherOneAfterTheGate(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.backend.Plant(newPod("a", func(p *corev1.Pod) { p.Namespace, p.UID = "default", "old" }))
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		l, slow := &lock{}, new(atomic.Bool)
		slow.Store(true)
		l.holder.Store(1)
		process := func(number int32) {
			w.fork(func(cfg *podsync.Config) {
				cfg.Gate, cfg.Relist = l.gate(number), 5*time.Second
				cfg.Provider = hesitant{byName{cfg.Provider.(*podsynctest.Provider), w}, slow}
			})
		}
		process(1)
		pass(3 * time.Second)
		if slow.Load() {
			t.Fatal("the earlier instance is not being stopped")
		}
		l.holder.Store(2)
		process(2)
		pass(time.Minute)
		if w.backend.Running("old") || !w.backend.Running(pod.UID) {
			t.Fatal("the other process does not run the pod")
		}
		l.holder.Store(1)
		pass(10 * time.Minute)
		if starts := w.callsOf(podsync.OpStart); starts != 1 || !w.backend.Running(pod.UID) {
			t.Errorf("%d calls of Start, runs: %v", starts, w.backend.Running(pod.UID))
		}
		w.expectPhase("a", corev1.PodRunning)
	})
}
