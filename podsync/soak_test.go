// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

var (
	soakSeeds = flag.Int("soak.seeds", 50, "how many random worlds TestSoak lives through")
	soakSeed  = flag.Uint64("soak.seed", 0, "the one seed that TestSoak lives through")
	soakSteps = flag.Int("soak.steps", 150, "how many steps TestSoak takes in each world")
)

// TestSoak lets everything happen to pods that can happen, in an order that the
// seed decides, and crashes the process in between. After each step the
// invariants hold; in the end everything converges, and then nothing is
// written any more.
func TestSoak(t *testing.T) {
	if *soakSeed > 0 {
		synctest.Test(t, func(t *testing.T) { soak(t, *soakSeed) })
		return
	}
	seeds := *soakSeeds
	if testing.Short() {
		seeds = min(seeds, 4)
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { soak(t, seed+1) })
		})
	}
}

// A soaker is a world in which things happen.
type soaker struct {
	*world
	t       *testlog.T
	rand    *rand.Rand
	crashes float64 // how likely a crash is after each step
	names   []string
	clean   []func() // removes faults
	restore func()   // brings back the backup of the API server; nil: there is none
	ended   map[types.UID]corev1.PodPhase
	before  map[types.UID]*corev1.Pod
	history podsync.History
	gate    randomGate
	records *records // nil: there is no Checkpoint

	mu       sync.Mutex // requests come from many goroutines
	asked    int        // requests about single pods
	restored time.Time  // when the API server was restored last
}

// A randomGate is closed in the windows that the soak gives it.
type randomGate struct {
	used bool

	mu          sync.Mutex
	from, until time.Time // the next or last window
	at          time.Time // the last instant at which it was asked
	asked       int       // how often at that instant
}

// close closes the gate for d, after a delay in which calls may be in flight.
func (g *randomGate) close(delay, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.from = time.Now().Add(delay)
	g.until = g.from.Add(d)
}

// open opens the gate for good.
func (g *randomGate) open() { g.close(0, 0) }

// maxAsked is the number of questions to the gate at one instant above which the controller
// must be spinning.
const maxAsked = 2000

// use makes the gate that of a controller. errorf reports a controller that spins.
func (g *randomGate) use(cfg *podsync.Config, errorf func(format string, args ...any)) {
	g.used = true
	cfg.Gate = func(context.Context, string) error {
		now := time.Now()
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.at.Equal(now) {
			g.at, g.asked = now, 0
		}
		if g.asked++; g.asked > maxAsked {
			errorf("the gate was asked %d times in one instant", g.asked)
			g.from, g.until = time.Time{}, time.Time{} // or the bubble's time would stand still
			return nil
		}
		if !now.Before(g.from) && now.Before(g.until) {
			return errors.New("another process holds the node")
		}
		return nil
	}
}

func soak(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 17))
	opts := podsynctest.Options{
		StartTime: pick(r, 0, 0, 300*time.Millisecond, 20*time.Second),
		StopTime:  pick(r, 0, 0, 2*time.Second, 50*time.Second),
		ExitCode:  pick[int32](r, 0, 143),
	}
	wrap := pick(r, full, full, simple, releasing, mute)
	s := &soaker{t: testlog.New(t), rand: r, crashes: pick(r, 0, 0.05, 0.3, 1), ended: map[types.UID]corev1.PodPhase{}, before: map[types.UID]*corev1.Pod{}, history: podsync.History{}}
	wrapped := wrap(nil)
	if _, ok := wrapped.(podsync.Releaser); !ok {
		opts.Forgets = true
	}
	s.world = newWorld(t, opts)
	s.wrap = wrap
	s.cfg.Policy.Lost = pick(r, podsync.LostByRestartPolicy, podsync.LostFail, podsync.LostRestart)
	s.cfg.PendingAfter = pick(r, 0, -1, time.Minute)
	s.writers = pick(r, 0, 1)
	s.cfg.MaxCalls = pick(r, 0, 2)
	if r.IntN(2) == 0 {
		s.gate.use(&s.cfg, s.t.Errorf)
	}
	if r.IntN(2) == 0 {
		s.records = &records{all: map[types.UID][]byte{}}
		s.cfg.Checkpoint = s.records
	}
	s.server = apitest.New(apitest.Options{})
	s.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s.watchWrites()
	for i := range 6 {
		s.names = append(s.names, fmt.Sprint("p", i))
	}
	s.start()
	for range *soakSteps {
		s.step()
		if s.t.Failed() {
			return
		}
		pass(pick(r, 0, 0, 10*time.Millisecond, time.Second, 7*time.Second, time.Minute, 20*time.Minute))
		s.check()
		if s.rand.Float64() < s.crashes {
			s.t.Notef("crash")
			s.crash()
			pass(pick(r, 0, time.Second, 10*time.Minute))
			if s.rand.IntN(4) == 0 {
				s.backUpOrRestore() // while no process runs
			}
			s.start()
		}
	}
	s.converge()
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// step does one thing to the world.
func (s *soaker) step() {
	name := pick(s.rand, s.names...)
	pod := s.pod(name)
	if pod == nil {
		s.create(name)
		return
	}
	uid := pod.UID
	admin := s.server.Client(apitest.User{}).CoreV1().Pods("default")
	switch n := s.rand.IntN(31); n {
	case 0, 1, 2:
		grace := pick[int64](s.rand, 1, 5, 30, 120)
		s.t.Notef("delete %s within %d s", name, grace)
		_ = admin.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	case 3:
		s.t.Notef("force delete %s", name)
		_ = admin.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if s.rand.IntN(2) == 0 && s.pod(name) == nil {
			s.create(name)
		}
	case 4:
		s.t.Notef("evict %s", name)
		_ = s.c.Evict(podsync.RefOf(pod), podsync.Eviction{Message: "memory"})
	case 5:
		s.t.Notef("gate or label of %s", name)
		apitest.Edit(s.server, "default", name, func(p *corev1.Pod) {
			p.Labels = map[string]string{"l": fmt.Sprint(s.rand.IntN(9))}
			setCondition(p, "example.com/gate", pick(s.rand, corev1.ConditionTrue, corev1.ConditionFalse))
		})
	case 6:
		s.t.Notef("%s is marked not ready", name)
		apitest.Edit(s.server, "default", name, func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
	case 7:
		if !terminal(pod) {
			s.t.Notef("%s is failed by somebody", name)
			apitest.Edit(s.server, "default", name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		}
	case 8, 9:
		if pod.DeletionTimestamp == nil {
			s.t.Notef("update %s", name)
			apitest.Edit(s.server, "default", name, func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = fmt.Sprint("registry.example/app:", s.rand.IntN(9))
			})
		}
	case 10, 11:
		if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
			code := pick[int32](s.rand, 0, 0, 1)
			if pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
				code = 0 // after another one the provider would restart it
			}
			s.t.Notef("exit %s %d: %v", name, code, s.backend.Exit(uid, code))
		}
	case 12:
		s.t.Notef("finish %s: %v", name, s.backend.Finish(uid, pick[int32](s.rand, 0, 1)))
	case 13:
		s.t.Notef("lose %s: %v", name, s.backend.Lose(uid))
	case 14:
		s.backend.Repeat(uid)
	case 15, 16, 17:
		f := podsynctest.Fault{
			Op:  pick(s.rand, podsync.OpStart, podsync.OpStop, podsync.OpUpdate, podsync.OpList, podsync.OpRelease, podsync.OpInspect, podsync.OpWatch, podsynctest.OpReport),
			UID: pick(s.rand, "", "", uid), Times: pick(s.rand, 1, 3, 0),
		}
		switch s.rand.IntN(5) {
		case 0:
			f.Delay = pick(s.rand, 50*time.Millisecond, 20*time.Second)
		case 1:
			f.Hang = f.Op != podsynctest.OpReport
		case 2:
			f.Err = errors.New("the backend is down")
		case 3:
			f.ErrAfter = errors.New("the answer was lost")
		case 4:
			f.Lose, f.Repeat = s.rand.IntN(2) == 0, s.rand.IntN(3)
		}
		s.t.Notef("provider fault %+v", f)
		s.clean = append(s.clean, s.backend.Inject(f))
	case 18, 19, 20:
		f := apitest.Fault{Match: apitest.Match{User: nodeUser}, Times: pick(s.rand, 1, 5, 0), For: pick(s.rand, time.Second, time.Minute, time.Hour)}
		switch s.rand.IntN(7) {
		case 0:
			f.Status = statuserr.Unavailable(0)
		case 1:
			f.Status = statuserr.TooManyRequests(1)
		case 2:
			f.Err = apitest.ErrConnReset
		case 3:
			f.Hang = true
		case 4:
			f.LoseResponse, f.Match.Verb = true, "patch,delete"
		case 5:
			f.Latency = 3 * time.Second
		case 6:
			f.Match.Verb, f.Served = "patch,delete", func(apitest.Request) { time.Sleep(time.Second) } // after its event
		}
		s.t.Notef("API fault %+v", f)
		s.clean = append(s.clean, s.server.Inject(f))
	case 21:
		s.t.Notef("watches drop")
		s.server.Compact()
		s.server.BreakWatches(watches)
	case 22:
		s.t.Notef("watches lag")
		s.clean = append(s.clean, s.server.LagWatches(watches, pick(s.rand, time.Second, 40*time.Second)))
	case 23, 24:
		s.t.Notef("all is well again")
		s.repair()
	case 25, 26:
		delay, d := pick(s.rand, 0, 10*time.Millisecond, time.Second, 10*time.Second), pick(s.rand, time.Second, 5*time.Second, time.Minute, time.Hour)
		if s.gate.used {
			s.t.Notef("the gate closes in %v for %v", delay, d)
			s.gate.close(delay, d)
		}
	case 27:
		s.t.Notef("restart")
		s.stop()
		s.start()
	case 28:
		if s.records != nil {
			written := s.rand.IntN(2) == 0
			s.t.Notef("the disk fails, after it has written: %v", written)
			s.records.setFail(errors.New("input/output error"), written)
			s.clean = append(s.clean, func() { s.records.setFail(nil, false) })
		}
	case 29, 30:
		s.backUpOrRestore()
	}
	synctest.Wait()
}

// backUpOrRestore makes a backup of the API server, or restores the last one.
func (s *soaker) backUpOrRestore() {
	if s.restore == nil {
		s.t.Notef("a backup")
		s.restore = s.server.Backup()
		return
	}
	s.t.Notef("the API server is restored")
	s.mu.Lock()
	s.restored = time.Now()
	clear(s.history) // the next look may be later than restoreLag
	s.mu.Unlock()
	s.restore()
	s.restore = nil
	s.backend.Restored()
	clear(s.ended) // what ended since the backup has not
	clear(s.before)
}

func (s *soaker) create(name string) {
	pod := newPod(name, restart(pick(s.rand, corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure)))
	if s.rand.IntN(5) == 0 {
		pod.Spec.ActiveDeadlineSeconds = new(int64(pick(s.rand, 5, 300)))
	}
	if s.rand.IntN(5) == 0 {
		pod.Finalizers = []string{"example.com/hold"}
	}
	if s.rand.IntN(4) == 0 {
		pod.Spec.InitContainers = []corev1.Container{
			{Name: "init", Image: "registry.example/init:1"},
			{Name: "sidecar", Image: "registry.example/sidecar:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
		}
	}
	if s.rand.IntN(4) == 0 {
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	created := s.server.Put(pod).(*corev1.Pod)
	s.t.Notef("create %s %s %s", name, created.UID, pod.Spec.RestartPolicy)
	synctest.Wait()
}

func (s *soaker) repair() {
	for _, f := range s.clean {
		f()
	}
	s.clean = nil
}

// check checks the invariants that can be seen from outside.
func (s *soaker) check() {
	s.server.ResetJournal() // which the soak does not read
	for _, pod := range apitest.List[*corev1.Pod](s.server, "default") {
		if phase, ok := s.ended[pod.UID]; ok && phase != pod.Status.Phase {
			s.t.Errorf("%s was %s and is %s", pod.Name, phase, pod.Status.Phase)
		}
		if terminal(pod) {
			s.ended[pod.UID] = pod.Status.Phase
		}
		s.goesBack(s.before[pod.UID], pod)
		s.before[pod.UID] = pod
		if pod.Status.Phase == corev1.PodSucceeded {
			for _, c := range pod.Status.ContainerStatuses {
				if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
					s.t.Errorf("%s succeeded with %+v", pod.Name, c.State)
				}
			}
		}
		if pod.Status.ObservedGeneration > pod.Generation {
			s.t.Errorf("%s has observed %d of %d", pod.Name, pod.Status.ObservedGeneration, pod.Generation)
		}
	}
	for _, v := range s.backend.Violations() {
		s.t.Error(v)
	}
	if time.Since(s.restored) < restoreLag {
		clear(s.history) // a pod that was forgotten may be back
	}
	for _, v := range s.c.BrokenInvariants(s.history) {
		s.t.Error("broken invariant: " + v)
	}
}

// converge ends all faults and checks that the desired state is reached.
func (s *soaker) converge() {
	s.t.Notef("the end")
	s.repair()
	s.gate.open()
	for _, name := range s.names {
		if pod := s.pod(name); pod != nil && s.rand.IntN(3) == 0 {
			_ = s.server.Client(apitest.User{}).CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{})
		}
		apitest.Edit(s.server, "default", name, func(p *corev1.Pod) { setCondition(p, "example.com/gate", corev1.ConditionTrue) })
	}
	pass(2 * time.Hour)
	for _, pod := range apitest.List[*corev1.Pod](s.server, "default") {
		if len(pod.Finalizers) > 0 && pod.DeletionTimestamp != nil {
			// As the API server does when the last finalizer goes.
			apitest.Remove[*corev1.Pod](s.server, "default", pod.Name)
		}
	}
	pass(time.Hour)
	s.check()
	before := s.asked
	held := map[types.UID]bool{}
	for _, st := range s.backend.Held() {
		held[st.UID] = !st.Stopped
	}
	_, updates := s.wrap(nil).(podsync.Updater) // otherwise the backend's word counts
	pods := apitest.List[*corev1.Pod](s.server, "default")
	for _, pod := range pods {
		running := held[pod.UID]
		switch {
		case pod.DeletionTimestamp != nil:
			s.t.Errorf("%s is still being deleted, in phase %s, running: %v, stage %s", pod.Name, pod.Status.Phase, running, s.stage(pod.UID))
		case terminal(pod) && running:
			s.t.Errorf("%s is %s and runs, stage %s", pod.Name, pod.Status.Phase, s.stage(pod.UID))
		case !terminal(pod) && !running:
			s.t.Errorf("%s is %s and does not run, stage %s", pod.Name, pod.Status.Phase, s.stage(pod.UID))
		case !terminal(pod) && !isReady(pod):
			s.t.Errorf("%s runs and is not ready: %+v", pod.Name, pod.Status)
		case !terminal(pod) && updates && pod.Status.ObservedGeneration != pod.Generation:
			s.t.Errorf("%s has observed %d of %d", pod.Name, pod.Status.ObservedGeneration, pod.Generation)
		}
		delete(held, pod.UID)
	}
	for uid := range held {
		s.t.Errorf("the backend still holds %s, stage %s", uid, s.stage(uid))
	}
	if s.records != nil {
		recorded, _ := s.records.Load(context.Background())
		for _, pod := range pods {
			if recorded[pod.UID] == nil != terminal(pod) {
				s.t.Errorf("%s is %s, and has a record: %v", pod.Name, pod.Status.Phase, terminal(pod))
			}
			delete(recorded, pod.UID)
		}
		for uid := range recorded {
			s.t.Errorf("%s is gone, and has a record", uid)
		}
	}
	if n := s.known(); n != len(pods) {
		s.t.Errorf("%d pods known, %d exist", n, len(pods))
	}
	pass(time.Minute)
	if n := s.asked - before; n > 0 {
		s.t.Errorf("%d requests in the last minute", n)
	}
}
