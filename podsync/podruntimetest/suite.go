// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntimetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// DefaultTimeout is the time that a container may take to start or to end in
// TestRuntime.
const DefaultTimeout = 30 * time.Second

// A Suite has the functions with which TestRuntime makes and uses a Runtime.
type Suite struct {
	// Required. New returns a Runtime without containers. It is called for each
	// test. Use t.Cleanup to end the Runtime and its containers.
	New func(t testing.TB) podruntime.Runtime
	// Required. Forever returns a container that runs until it is asked to end,
	// and then ends.
	Forever func() corev1.Container
	// Required. Exits returns a container that soon exits with code.
	Exits func(code int) corev1.Container
	// Reopen returns the Runtime that the next process would have. The old one is no
	// longer used. If it is a [podruntime.ProcessBound] that says so, its containers must
	// have ended, else they must run on. Default: none, and restarts of the process are not tested.
	Reopen func(t testing.TB, old podruntime.Runtime) podruntime.Runtime
	// Stubborn returns a container that ends only if it is killed. Default: none,
	// and kills are not tested.
	Stubborn func() corev1.Container
	// IsStubborn reports whether the last container of Stubborn already ignores the
	// request to end, because a process needs a moment after its start to ignore a
	// signal. Default: it does as soon as it runs.
	IsStubborn func() bool
	// Command returns a command that prints "output" and returns code, for a
	// Runtime with Exec. Default: none, and Exec is not tested.
	Command func(code int) []string
	// Hangs is a command that never ends. Default: none.
	Hangs []string
	// Mute makes it impossible for the Runtime to know the state of a pod that runs, as if a part
	// of the node hung, until the function that it returns is called. Lists must have the other pods then, with a
	// [podruntime.ListError] about this one. Default: none, and that is not tested.
	Mute func(t testing.TB, r podruntime.Runtime, pod types.UID) (unmute func())
	// Dir returns ContainerSpec.Dir. Default: a temporary directory.
	Dir func(r podruntime.Runtime, id podruntime.ContainerID) string
	// Timeout is the time that a container may take to start or to end.
	// Default: DefaultTimeout.
	Timeout time.Duration
}

// TestRuntime holds a Runtime to the contract of podruntime.Runtime and of the
// optional interfaces that it has.
func TestRuntime(t *testing.T, suite Suite) {
	if suite.New == nil || suite.Forever == nil || suite.Exits == nil {
		t.Fatal("podruntimetest: Suite.New, Suite.Forever and Suite.Exits are required")
	}
	if suite.Timeout <= 0 {
		suite.Timeout = DefaultTimeout
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			s := &subject{TB: t, suite: &suite, runtime: suite.New(t), dirs: t.TempDir()}
			if c.needs != nil && !c.needs(s) {
				t.Skip("the Runtime or the Suite does not have it")
			}
			t.Cleanup(s.stopAll)
			c.run(s)
		})
	}
}

// A check is one test of the suite.
type check struct {
	name  string
	needs func(*subject) bool // nil: every Runtime has it
	run   func(*subject)
}

// A subject is a Runtime under test.
type subject struct {
	testing.TB
	suite   *Suite
	runtime podruntime.Runtime
	dirs    string
	pods    int
}

// endsWithProcess reports whether the containers end with the process.
func (s *subject) endsWithProcess() bool {
	bound, ok := s.runtime.(podruntime.ProcessBound)
	return ok && bound.EndsWithProcess()
}

// pod returns a new pod with a container.
func (s *subject) pod(c corev1.Container) *corev1.Pod {
	s.pods++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: fmt.Sprint("p", s.pods),
			UID: types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", s.pods, time.Now().UnixNano()%1e12)),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}},
	}
	if box, ok := s.runtime.(podruntime.Sandboxer); ok {
		if _, err := box.SetUpPod(s.Context(), podruntime.SandboxSpec{Pod: pod.DeepCopy(), Hostname: pod.Name}); err != nil {
			s.Fatalf("SetUpPod: %v", err)
		}
	}
	return pod
}

// spec returns the first container of a pod for Start.
func (s *subject) spec(pod *corev1.Pod, attempt int) podruntime.ContainerSpec {
	s.Helper()
	c := &pod.Spec.Containers[0]
	id := podruntime.ContainerID{Pod: pod.UID, Name: c.Name, Attempt: attempt}
	spec := podruntime.ContainerSpec{
		ID: id, Pod: pod.DeepCopy(), Container: c.DeepCopy(), Hostname: pod.Name,
		Environment: podenv.Environment{
			Vars:    []podenv.Var{{Name: "PODRUNTIMETEST", Value: "1"}},
			Command: slices.Clone(c.Command), Args: slices.Clone(c.Args),
		},
		Dir: filepath.Join(s.dirs, string(pod.UID), c.Name),
	}
	if s.suite.Dir != nil {
		spec.Dir = s.suite.Dir(s.runtime, id)
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		s.Fatal(err)
	}
	if box, ok := s.runtime.(podruntime.Sandboxer); ok {
		list, err := box.ListPods(s.Context(), pod.UID)
		if err != nil || len(list) != 1 {
			s.Fatalf("ListPods: %v, %v", list, err)
		}
		spec.Sandbox = &list[0]
	}
	if puller, ok := s.runtime.(podruntime.Puller); ok {
		if err := puller.Pull(s.Context(), pod.DeepCopy(), c.DeepCopy()); err != nil {
			s.Fatalf("Pull of the image of %v: %v", id, err)
		}
	}
	return spec
}

// start starts a run and returns its ID.
func (s *subject) start(pod *corev1.Pod, attempt int) podruntime.ContainerID {
	s.Helper()
	spec := s.spec(pod, attempt)
	if err := s.runtime.Start(s.Context(), spec); err != nil {
		s.Fatalf("Start of %v: %v", spec.ID, err)
	}
	return spec.ID
}

// stop calls Stop in a goroutine, since it may wait for the end.
func (s *subject) stop(id podruntime.ContainerID, deadline time.Time) {
	s.Helper()
	done := make(chan error, 1)
	go func() {
		done <- s.runtime.Stop(context.WithoutCancel(s.Context()), id, podruntime.StopOptions{Deadline: deadline})
	}()
	s.Cleanup(func() {
		if err := <-done; err != nil {
			s.Errorf("Stop of %v: %v", id, err)
		}
	})
}

// list returns the containers of a pod by attempt.
func (s *subject) list(pod types.UID) map[podruntime.ContainerID]podruntime.Container {
	s.Helper()
	list, err := s.runtime.List(context.WithoutCancel(s.Context()), pod)
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	byID := map[podruntime.ContainerID]podruntime.Container{}
	for _, c := range list {
		if _, ok := byID[c.ID]; ok {
			s.Errorf("List has %v twice", c.ID)
		}
		byID[c.ID] = c
	}
	return byID
}

// await waits until a container has a state.
func (s *subject) await(id podruntime.ContainerID, state podruntime.ContainerState) podruntime.Container {
	s.Helper()
	var c podruntime.Container
	var ok bool
	if !s.within(func() bool { c, ok = s.list(id.Pod)[id]; return ok && c.State == state }) {
		s.Fatalf("%v: listed %v with state %d, want state %d within %v", id, ok, c.State, state, s.suite.Timeout)
	}
	return c
}

// within waits until the condition holds. It reports whether it does within
// Suite.Timeout.
func (s *subject) within(condition func() bool) bool {
	for deadline := time.Now().Add(s.suite.Timeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// startStubborn starts a container that can only be killed.
func (s *subject) startStubborn() podruntime.ContainerID {
	s.Helper()
	id := s.start(s.pod(s.suite.Stubborn()), 0)
	s.await(id, podruntime.ContainerRunning)
	if s.suite.IsStubborn != nil && !s.within(s.suite.IsStubborn) {
		s.Fatalf("%v is not stubborn after %v", id, s.suite.Timeout)
	}
	return id
}

// stopAll ends everything that a test has started.
func (s *subject) stopAll() {
	pods := map[types.UID]bool{}
	for id, c := range s.list("") {
		pods[id.Pod] = true
		if c.State == podruntime.ContainerRunning {
			s.stop(id, time.Now())
			s.await(id, podruntime.ContainerExited)
		}
		if err := s.runtime.Remove(context.WithoutCancel(s.Context()), id); err != nil {
			s.Errorf("Remove of %v: %v", id, err)
		}
	}
	if box, ok := s.runtime.(podruntime.Sandboxer); ok {
		ctx := context.WithoutCancel(s.Context())
		list, err := box.ListPods(ctx, "")
		if err != nil {
			s.Error(err)
		}
		for _, b := range list {
			if err := box.TearDownPod(ctx, b.Pod); err != nil {
				s.Errorf("TearDownPod: %v", err)
			}
			if err := box.RemovePod(ctx, b.Pod); err != nil {
				s.Errorf("RemovePod: %v", err)
			}
		}
	}
}

var checks = []check{
	{"ListOfNothingIsEmpty", nil, func(s *subject) {
		if list := s.list(""); len(list) != 0 {
			s.Errorf("List: %v", list)
		}
		if list := s.list("unknown"); len(list) != 0 {
			s.Errorf("List of an unknown pod: %v", list)
		}
	}},
	{"AStartedContainerIsListedAsRunning", nil, func(s *subject) {
		before := time.Now().Add(-time.Second)
		id := s.start(s.pod(s.suite.Forever()), 0)
		c := s.await(id, podruntime.ContainerRunning)
		if c.StartedAt.Before(before) || c.StartedAt.After(time.Now().Add(time.Second)) {
			s.Errorf("it started at %v, want about %v", c.StartedAt, time.Now())
		}
	}},
	{"StartTwiceIsOneContainer", nil, func(s *subject) {
		pod := s.pod(s.suite.Forever())
		id := s.start(pod, 0)
		first := s.await(id, podruntime.ContainerRunning)
		s.start(pod, 0)
		second := s.await(id, podruntime.ContainerRunning)
		if n := len(s.list(pod.UID)); n != 1 || first.RuntimeID != second.RuntimeID || !first.StartedAt.Equal(second.StartedAt) {
			s.Errorf("%d containers; it was %+v and is %+v", n, first, second)
		}
	}},
	{"AnExitIsListedUntilRemove", nil, func(s *subject) {
		for _, code := range []int{0, 3} {
			pod := s.pod(s.suite.Exits(code))
			id := s.start(pod, 0)
			c := s.await(id, podruntime.ContainerExited)
			if int(c.ExitCode) != code || c.StartedAt.IsZero() || c.FinishedAt.Before(c.StartedAt) {
				s.Errorf("it ended as %+v, want exit code %d", c, code)
			}
			s.start(pod, 0) // it has run already
			if again := s.await(id, podruntime.ContainerExited); again.FinishedAt != c.FinishedAt {
				s.Errorf("it ran again: %+v, then %+v", c, again)
			}
			for range 2 {
				if err := s.runtime.Remove(s.Context(), id); err != nil {
					s.Errorf("Remove: %v", err)
				}
			}
			if list := s.list(pod.UID); len(list) > 0 {
				s.Errorf("after Remove: %v", list)
			}
		}
	}},
	{"RunsOfAContainerAreDifferent", nil, func(s *subject) {
		pod := s.pod(s.suite.Exits(4))
		first := s.start(pod, 0)
		s.await(first, podruntime.ContainerExited)
		pod.Spec.Containers[0] = s.suite.Forever()
		second := s.start(pod, 1)
		s.await(second, podruntime.ContainerRunning)
		if c := s.await(first, podruntime.ContainerExited); c.ExitCode != 4 {
			s.Errorf("the first run has exit code %d", c.ExitCode)
		}
		if err := s.runtime.Remove(s.Context(), first); err != nil {
			s.Error(err)
		}
		s.await(second, podruntime.ContainerRunning)
	}},
	{"ListSelectsThePod", nil, func(s *subject) {
		a, b := s.pod(s.suite.Forever()), s.pod(s.suite.Forever())
		s.await(s.start(a, 0), podruntime.ContainerRunning)
		s.await(s.start(b, 0), podruntime.ContainerRunning)
		if one, all := len(s.list(a.UID)), len(s.list("")); one != 1 || all != 2 {
			s.Errorf("List of one pod has %d, of all %d, want 1 and 2", one, all)
		}
	}},
	{"StopEndsAContainer", nil, func(s *subject) {
		id := s.start(s.pod(s.suite.Forever()), 0)
		s.await(id, podruntime.ContainerRunning)
		begin := time.Now()
		s.stop(id, begin.Add(time.Hour))
		c := s.await(id, podruntime.ContainerExited)
		if took := time.Since(begin); took > s.suite.Timeout {
			s.Errorf("it took %v", took)
		}
		s.stop(id, time.Now()) // again
		if again := s.await(id, podruntime.ContainerExited); again.ExitCode != c.ExitCode {
			s.Errorf("the exit code was %d and is %d", c.ExitCode, again.ExitCode)
		}
	}},
	{"StopOfAnUnknownContainerIsNoError", nil, func(s *subject) {
		s.stop(podruntime.ContainerID{Pod: "unknown", Name: "main"}, time.Now())
	}},
	{"TheDeadlineKills", func(s *subject) bool { return s.suite.Stubborn != nil }, func(s *subject) {
		id := s.startStubborn()
		s.stop(id, time.Now().Add(100*time.Millisecond))
		if c := s.await(id, podruntime.ContainerExited); c.ExitCode != 137 {
			s.Errorf("exit code %d, want 137", c.ExitCode)
		}
	}},
	{"AnEarlierDeadlineCounts", func(s *subject) bool { return s.suite.Stubborn != nil }, func(s *subject) {
		id := s.startStubborn()
		s.stop(id, time.Now().Add(time.Hour))
		s.stop(id, time.Now().Add(100*time.Millisecond))
		if c := s.await(id, podruntime.ContainerExited); c.ExitCode != 137 {
			s.Errorf("exit code %d, want 137", c.ExitCode)
		}
	}},
	{"ACancelledStartReturns", nil, func(s *subject) {
		pod := s.pod(s.suite.Forever())
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		done := make(chan struct{})
		spec := s.spec(pod, 0)
		go func() {
			defer close(done)
			_ = s.runtime.Start(ctx, spec) // either way: List tells the outcome
		}()
		select {
		case <-done:
		case <-time.After(s.suite.Timeout):
			s.Fatal("Start does not return although its context is done")
		}
		s.await(s.start(pod, 0), podruntime.ContainerRunning) // it can be repeated
	}},
	{"AMutePodConcernsItselfOnly", func(s *subject) bool { return s.suite.Mute != nil }, func(s *subject) {
		mute, other := s.pod(s.suite.Forever()), s.pod(s.suite.Forever())
		muteID, otherID := s.start(mute, 0), s.start(other, 0)
		s.await(muteID, podruntime.ContainerRunning)
		s.await(otherID, podruntime.ContainerRunning)
		unmute := s.suite.Mute(s, s.runtime, mute.UID)
		runs, err := s.runtime.List(s.Context(), "")
		errs := []error{err}
		if !slices.ContainsFunc(runs, func(c podruntime.Container) bool { return c.ID == otherID }) {
			s.Errorf("List does not have %v: %v, %v", otherID, runs, err)
		}
		if box, ok := s.runtime.(podruntime.Sandboxer); ok {
			boxes, err := box.ListPods(s.Context(), "")
			if !slices.ContainsFunc(boxes, func(b podruntime.Sandbox) bool { return b.Pod == other.UID }) {
				s.Errorf("ListPods does not have pod %s: %v, %v", other.UID, boxes, err)
			}
			errs = append(errs, err)
		}
		// A Runtime that keeps what it has read may know the pod in one of the lists.
		some := (*podruntime.ListError)(nil)
		if !errors.As(errors.Join(errs...), &some) || len(some.Pods) != 1 || some.Pods[mute.UID] == nil {
			s.Errorf("the errors of the lists are %v, want a ListError about pod %s", errs, mute.UID)
		}
		unmute()
		s.await(muteID, podruntime.ContainerRunning)
	}},
	{"ManyAtOnce", nil, func(s *subject) {
		var wg sync.WaitGroup
		var specs []podruntime.ContainerSpec
		for range 10 {
			specs = append(specs, s.spec(s.pod(s.suite.Exits(5)), 0))
		}
		for _, spec := range specs {
			wg.Go(func() {
				if err := s.runtime.Start(s.Context(), spec); err != nil {
					s.Errorf("Start: %v", err)
				}
				if _, err := s.runtime.List(s.Context(), ""); err != nil {
					s.Errorf("List: %v", err)
				}
			})
		}
		wg.Wait()
		for _, spec := range specs {
			if c := s.await(spec.ID, podruntime.ContainerExited); c.ExitCode != 5 {
				s.Errorf("%v has exit code %d", spec.ID, c.ExitCode)
			}
		}
	}},
	{"ContainersEndWithTheProcess", func(s *subject) bool { return s.suite.Reopen != nil && s.endsWithProcess() }, func(s *subject) {
		over := s.start(s.pod(s.suite.Exits(6)), 0)
		s.await(over, podruntime.ContainerExited)
		pod := s.pod(s.suite.Forever())
		id := s.start(pod, 0)
		s.await(id, podruntime.ContainerRunning)
		s.runtime = s.suite.Reopen(s, s.runtime)
		if list := s.list(""); len(list) > 0 {
			s.Errorf("the next process lists %v", list)
		}
		s.stop(id, time.Now())
		if err := s.runtime.Remove(s.Context(), id); err != nil {
			s.Errorf("Remove of a container that has ended with its process: %v", err)
		}
		if _, ok := s.runtime.(podruntime.Sandboxer); ok {
			pod = s.pod(s.suite.Forever()) // the sandbox has ended, too
		}
		next := s.start(pod, 1)
		s.await(next, podruntime.ContainerRunning)
		if list := s.list(""); len(list) != 1 {
			s.Errorf("after the next run has begun, List has %v", list)
		}
		s.stop(next, time.Now().Add(time.Hour))
		s.await(next, podruntime.ContainerExited)
	}},
	{"TheNextProcessFindsContainers", func(s *subject) bool { return s.suite.Reopen != nil && !s.endsWithProcess() }, func(s *subject) {
		over := s.start(s.pod(s.suite.Exits(6)), 0)
		s.await(over, podruntime.ContainerExited)
		id := s.start(s.pod(s.suite.Forever()), 0)
		before := s.await(id, podruntime.ContainerRunning)
		s.runtime = s.suite.Reopen(s, s.runtime)
		if after := s.await(id, podruntime.ContainerRunning); after.RuntimeID != before.RuntimeID || !after.StartedAt.Equal(before.StartedAt) {
			s.Errorf("it was %+v and is %+v", before, after)
		}
		if c := s.await(over, podruntime.ContainerExited); c.ExitCode != 6 {
			s.Errorf("exit code %d, want 6", c.ExitCode)
		}
		s.stop(id, time.Now().Add(time.Hour))
		s.await(id, podruntime.ContainerExited)
	}},
	{"WatchReportsChanges", func(s *subject) bool { _, ok := s.runtime.(podruntime.Watcher); return ok }, func(s *subject) {
		ctx, cancel := context.WithCancel(s.Context())
		var wg sync.WaitGroup
		changed := make(chan types.UID, 1000)
		wg.Go(func() {
			if err := s.runtime.(podruntime.Watcher).Watch(ctx, func(uid types.UID) { changed <- uid }); err != nil && ctx.Err() == nil {
				s.Errorf("Watch: %v", err)
			}
		})
		defer wg.Wait()
		defer cancel()
		// The Watch may begin after the first of these.
		var id podruntime.ContainerID
		end := time.Now().Add(s.suite.Timeout)
		for reported := false; !reported; {
			id = s.start(s.pod(s.suite.Forever()), 0)
			select {
			case <-changed:
				reported = true
			case <-time.After(100 * time.Millisecond):
				if time.Now().After(end) {
					s.Fatal("Watch does not report that a container has started")
				}
			}
		}
		s.await(id, podruntime.ContainerRunning)
		s.stop(id, time.Now().Add(time.Hour))
		timeout := time.After(s.suite.Timeout)
		for s.list(id.Pod)[id].State != podruntime.ContainerExited {
			select {
			case <-changed:
			case <-timeout:
				s.Fatal("Watch does not report that a container has exited")
			}
		}
	}},
	{"ExecReturnsTheExitCode", func(s *subject) bool { _, ok := s.runtime.(podruntime.Execer); return ok && s.suite.Command != nil }, func(s *subject) {
		id := s.start(s.pod(s.suite.Forever()), 0)
		s.await(id, podruntime.ContainerRunning)
		for _, code := range []int{0, 7} {
			result, err := s.runtime.(podruntime.Execer).Exec(s.Context(), id, s.suite.Command(code))
			if err != nil || int(result.ExitCode) != code || len(result.Output) == 0 {
				s.Errorf("Exec: %+v, %v, want exit code %d and an output", result, err, code)
			}
		}
	}},
	{"ExecEndsWithItsContext", func(s *subject) bool { _, ok := s.runtime.(podruntime.Execer); return ok && s.suite.Hangs != nil }, func(s *subject) {
		id := s.start(s.pod(s.suite.Forever()), 0)
		s.await(id, podruntime.ContainerRunning)
		ctx, cancel := context.WithTimeout(s.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.runtime.(podruntime.Execer).Exec(ctx, id, s.suite.Hangs); err == nil {
			s.Error("Exec returned no error although its context was done")
		}
	}},
	{"SetUpPodTwiceIsOneSandbox", func(s *subject) bool { _, ok := s.runtime.(podruntime.Sandboxer); return ok }, func(s *subject) {
		box := s.runtime.(podruntime.Sandboxer)
		pod := s.pod(s.suite.Forever())
		first, err := box.SetUpPod(s.Context(), podruntime.SandboxSpec{Pod: pod, Hostname: pod.Name})
		if err != nil {
			s.Fatal(err)
		}
		second, err := box.SetUpPod(s.Context(), podruntime.SandboxSpec{Pod: pod, Hostname: pod.Name})
		if err != nil || first.ID != second.ID || !second.Ready {
			s.Errorf("SetUpPod: %+v, then %+v, %v", first, second, err)
		}
		for range 2 {
			if err := box.TearDownPod(s.Context(), pod.UID); err != nil {
				s.Errorf("TearDownPod: %v", err)
			}
		}
		if list, err := box.ListPods(s.Context(), pod.UID); err != nil || len(list) > 0 && list[0].Ready {
			s.Errorf("ListPods after TearDownPod: %+v, %v", list, err)
		}
		for range 2 {
			if err := box.RemovePod(s.Context(), pod.UID); err != nil {
				s.Errorf("RemovePod: %v", err)
			}
		}
		if list, err := box.ListPods(s.Context(), pod.UID); err != nil || len(list) > 0 {
			s.Errorf("ListPods after RemovePod: %+v, %v", list, err)
		}
		if err := box.TearDownPod(s.Context(), s.pod(s.suite.Forever()).UID); err != nil {
			s.Errorf("TearDownPod of a pod that never had a sandbox: %v", err)
		}
	}},
	{"AResizeKeepsTheContainer", func(s *subject) bool { _, ok := s.runtime.(podruntime.Resizer); return ok }, func(s *subject) {
		pod := s.pod(s.suite.Forever())
		id := s.start(pod, 0)
		before := s.await(id, podruntime.ContainerRunning)
		whole, _ := s.runtime.(podruntime.PodResizer)
		for _, cpu := range []string{"500m", "1", "1", "200m"} { // Resize may be repeated
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			if whole != nil {
				if err := whole.ResizePod(s.Context(), pod.DeepCopy(), true); err != nil {
					s.Errorf("ResizePod to grow: %v", err)
				}
			}
			if err := s.runtime.(podruntime.Resizer).Resize(s.Context(), id, pod.DeepCopy(), pod.Spec.Containers[0].DeepCopy()); err != nil {
				s.Errorf("Resize: %v", err)
			}
			if whole != nil {
				if err := whole.ResizePod(s.Context(), pod.DeepCopy(), false); err != nil {
					s.Errorf("ResizePod to shrink: %v", err)
				}
			}
		}
		if after := s.await(id, podruntime.ContainerRunning); after.RuntimeID != before.RuntimeID || !after.StartedAt.Equal(before.StartedAt) {
			s.Errorf("it was %+v and is %+v", before, after)
		}
	}},
}
