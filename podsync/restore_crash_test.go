// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The moments of a pod's life at which a backup is made and at which the process is killed.
const (
	momentUnbound  = iota // the API does not have the pod
	momentStarted         // it runs, and the API does not know yet
	momentRunning         // the API knows that it runs
	momentUpdated         // a second generation is accepted
	momentStopping        // it is deleted, and still ends
	momentStopped         // it has ended, and the API does not know yet
	momentFinal           // its final status is stored, and the DELETE is not sent
	momentGone            // the API has no pod of its name
	momentReplaced        // another pod of its name runs
	moments
)

// The process is killed, and before the next one begins the API server is restored to an earlier
// moment of a pod's life. What lives in the backup lives on or ends by what the provider knows, and
// what the backup does not have ends.
func TestARestoreAfterACrash(t *testing.T) {
	for _, v := range []crashVariant{
		{name: "full", wrap: full, long: true},
		{name: "full, checkpoint", wrap: full, checkpoint: true, long: true},
		{name: "full, offline", wrap: full, checkpoint: true, offline: true},
		{name: "mute, checkpoint", wrap: mute, checkpoint: true, long: true},
		{name: "releasing", wrap: releasing, opts: podsynctest.Options{HidesNode: true}},
		{name: "simple", wrap: simple, opts: podsynctest.Options{Forgets: true}, long: true},
		{name: "simple, checkpoint", wrap: simple, opts: podsynctest.Options{Forgets: true}, checkpoint: true},
		{name: "simple, offline", wrap: simple, opts: podsynctest.Options{Forgets: true}, checkpoint: true, offline: true, long: true},
	} {
		if v.long && testing.Short() {
			continue
		}
		v.opts.StopTime = 20 * time.Second
		for _, v.policy = range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever} {
			// The gate closes at random while the next process begins.
			v.gated = !testing.Short() && v.policy == corev1.RestartPolicyNever
			for v.killed = range moments {
				for v.backup = range v.killed + 1 {
					t.Run(fmt.Sprint(v.name, " ", v.policy, " from ", v.killed, " to ", v.backup), func(t *testing.T) {
						bubble(t, v.opts, v.test)
					})
				}
			}
		}
	}
}

// A crashVariant is one case of TestARestoreAfterACrash.
type crashVariant struct {
	name       string
	opts       podsynctest.Options
	wrap       func(*podsynctest.Provider) podsync.Provider
	checkpoint bool
	offline    bool // the API is away when the next process begins
	long       bool

	policy         corev1.RestartPolicy
	gated          bool
	backup, killed int
}

func (v crashVariant) test(w *world) {
	s := &soaker{t: testlog.New(w.t), world: w}
	s.watchWrites()
	images := &sync.Map{} // by UID
	w.wrap = func(p *podsynctest.Provider) podsync.Provider {
		if p := v.wrap(p); v.updates() {
			return imaged{p.(fullProvider), images}
		}
		return v.wrap(p)
	}
	w.cfg.Relist = 10 * time.Second
	w.cfg.Policy.ExclusiveBackend = v.opts.HidesNode // else an orphan is kept
	var store *records
	if v.checkpoint {
		store = &records{all: map[types.UID][]byte{}}
		w.cfg.Checkpoint = store
	}
	var gate randomGate
	if v.gated {
		gate.use(&w.cfg, w.t.Errorf)
	}
	w.run()

	var restore func()
	var pod, second *corev1.Pod
	heal := func() {}
	refuse := func(verb string) {
		heal = w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: verb}, Err: apitest.ErrConnRefused})
	}
	for moment := range v.killed + 1 {
		switch moment {
		case momentStarted:
			refuse("patch")
			pod = w.bind(newPod("a", restart(v.policy)))
			pass(2 * time.Second)
		case momentRunning:
			heal()
			pass(time.Minute)
		case momentUpdated:
			w.image("2")
			pass(time.Minute)
		case momentStopping:
			w.kubectlDelete("a", 60)
			pass(5 * time.Second)
		case momentStopped:
			refuse("patch")
			pass(time.Minute)
		case momentFinal:
			heal()
			refuse("delete")
			pass(time.Minute)
		case momentGone:
			heal()
			pass(time.Minute)
		case momentReplaced:
			second = w.bind(newPod("a", restart(v.policy)))
			pass(time.Minute)
		}
		if moment == v.backup {
			restore = w.server.Backup()
		}
	}
	starts := w.callsOf(podsync.OpStart)
	w.crash()
	heal()
	restore()
	w.backend.Restored()
	if v.gated {
		r := rand.New(rand.NewPCG(uint64(v.backup), uint64(v.killed)))
		gate.close(time.Duration(r.Int64N(int64(4*time.Second))), time.Duration(r.Int64N(int64(30*time.Second))))
	}
	back := func() {}
	if v.offline {
		back = w.away(apitest.Fault{Err: apitest.ErrConnRefused})
	}
	w.start()
	pass(5 * time.Minute)
	back()
	pass(10 * time.Minute)
	w.isReady()
	v.judge(w, pod, w.callsOf(podsync.OpStart)-starts)
	if now := w.pod("a"); now != nil && !terminal(now) {
		w.image("3") // of the generation that the second one had before the restore
		pass(5 * time.Minute)
		v.judgeLife(w, now.UID)
		if image, _ := images.Load(now.UID); v.updates() && image != "registry.example/app:3" {
			w.t.Errorf("the provider runs %v", image)
		}
	}
	for _, p := range []*corev1.Pod{pod, second} {
		v.judgeRecord(w, store, p)
	}
}

// judge compares what became of the pod with what the backup and the provider say. starts is the
// number of calls of Start after the restore.
func (v crashVariant) judge(w *world, pod *corev1.Pod, starts int) {
	now := w.pod("a")
	switch {
	case v.backup == momentUnbound, v.backup >= momentStopping && v.backup < momentReplaced:
		if now != nil || starts != 0 {
			w.t.Errorf("the pod is there: %v; %d calls of Start", now != nil, starts)
		}
	case v.backup == momentReplaced:
		w.expectPhase("a", corev1.PodRunning)
		if now.UID == pod.UID || starts != 0 {
			w.t.Errorf("the first pod lives again: %v; %d calls of Start", now.UID == pod.UID, starts)
		}
	case v.killed < momentStopping:
		w.expectPhase("a", corev1.PodRunning)
		if starts != 0 {
			w.t.Errorf("%d calls of Start for a pod that runs", starts)
		}
	case !v.opts.Forgets && v.killed < momentGone:
		// It ended, and the provider has its exit codes.
		w.expectPhase("a", corev1.PodSucceeded)
		if starts != 0 {
			w.t.Errorf("%d calls of Start for a pod that has ended", starts)
		}
	default:
		// The provider has nothing of it any more.
		recorded := v.checkpoint && v.killed < momentFinal
		again, reason := v.policy == corev1.RestartPolicyAlways || v.backup == momentStarted && !recorded && v.killed != momentStopping, podsync.ReasonLost
		if recorded && v.offline {
			again, reason = false, "" // the record says that it ends, and it has ended before the API is back
		}
		if again {
			w.expectPhase("a", corev1.PodRunning)
		} else if now = w.expectPhase("a", corev1.PodFailed); now.Status.Reason != reason {
			w.t.Errorf("it failed with the reason %q, want %q", now.Status.Reason, reason)
		}
		if again != (starts == 1) || starts > 1 {
			w.t.Errorf("%d calls of Start", starts)
		}
	}
	if now != nil {
		v.judgeLife(w, now.UID)
	}
	n := 0
	if now != nil {
		n = 1
	}
	if w.known() != n {
		w.t.Errorf("%d pods are known, %d exist", w.known(), n)
	}
	for _, st := range w.backend.Held() {
		if now == nil || st.UID != now.UID {
			w.t.Errorf("the provider holds %v, which the API does not have", st.Ref)
		}
	}
}

// judgeLife checks that the API and the provider agree about a pod.
func (v crashVariant) judgeLife(w *world, uid types.UID) {
	now := w.pod("a")
	if now == nil || now.UID != uid {
		w.t.Fatal("the pod is gone")
	}
	switch runs := w.backend.Running(uid); {
	case runs == terminal(now):
		w.t.Errorf("it is %s, and runs: %v", now.Status.Phase, runs)
	case runs && !isReady(now):
		w.t.Errorf("it runs and is not ready: %+v", now.Status)
	case runs && v.updates() && now.Status.ObservedGeneration != now.Generation:
		w.t.Errorf("observed generation %d of %d", now.Status.ObservedGeneration, now.Generation)
	}
}

// judgeRecord checks that a pod has a record if it runs, and only then.
func (v crashVariant) judgeRecord(w *world, store *records, pod *corev1.Pod) {
	if store == nil || pod == nil {
		return
	}
	if runs := w.backend.Running(pod.UID); store.has(pod) != runs {
		w.t.Errorf("pod %s runs: %v, and has a record: %v", pod.UID, runs, store.has(pod))
	}
}

// updates reports whether the provider is an Updater.
func (v crashVariant) updates() bool {
	_, ok := v.wrap(nil).(podsync.Updater)
	return ok
}

// image changes the image of the pod "a".
func (w *world) image(tag string) {
	apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:" + tag })
}

// A fullProvider has all capabilities.
type fullProvider interface {
	podsync.Provider
	podsync.Updater
	podsync.Inspector
	podsync.Releaser
	podsync.Watcher
}

// imaged records which image each pod runs with.
type imaged struct {
	fullProvider
	images *sync.Map
}

func (p imaged) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.fullProvider.Start(ctx, pod)
	if err == nil {
		p.images.Store(pod.UID, pod.Spec.Containers[0].Image)
	}
	return st, err
}

func (p imaged) Update(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.fullProvider.Update(ctx, pod)
	if err == nil {
		p.images.Store(pod.UID, pod.Spec.Containers[0].Image)
	}
	return st, err
}
