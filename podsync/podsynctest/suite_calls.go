// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// providerChecks hold a provider to the contract of its three methods.
var providerChecks = []check{
	{"StartTwiceIsOneInstance", nil,
		"a Start whose answer is lost is repeated; two instances of one pod would run",
		func(s *subject) {
			pod := s.pod("a")
			s.start(pod)
			s.start(pod) // the pod may still be starting
			before := s.running(pod)
			for _, c := range before {
				if running := c.State.Running; running != nil && !running.StartedAt.IsZero() && running.StartedAt.Nanosecond() == 0 {
					time.Sleep(time.Second) // the times are whole seconds: a second instance must get a different one
					break
				}
			}
			s.start(pod)
			after := s.running(pod)
			states, err := s.provider.List(s.Context())
			if err != nil || len(states) != 1 {
				s.Errorf("List after three calls of Start for one pod: %d states, %v", len(states), err)
			}
			for name, old := range before {
				if c := after[name]; !sameInstance(old, c) {
					s.Errorf("Start of a pod that runs has started container %s again: it was %+v and is %+v", name, old, c)
				}
			}
			s.stop(pod)
		}},
	{"StopOfAnUnknownPodIsStopped", nil,
		"Stop is repeated until it says Stopped; an error for a pod that is not there keeps the pod in the API without limit",
		func(s *subject) {
			st, err := s.provider.Stop(s.Context(), podsync.RefOf(s.pod("unknown")), podsync.StopOptions{Grace: time.Second, Reason: podsync.StopOrphaned})
			if err != nil || !st.Stopped {
				s.Errorf("Stop of a pod that was never started: Stopped %v, %v; want true and no error", st.Stopped, err)
			}
		}},
	{"StopEndsThePod", nil,
		"the pod is deleted from the API when Stopped is reported; an instance that runs on is lost to sight",
		func(s *subject) {
			pod := s.pod("a")
			s.start(pod)
			s.stop(pod)
			if st, ok, err := s.listed(podsync.RefOf(pod)); err != nil || ok && !st.Stopped {
				s.Errorf("List after the end: Stopped %v, %v", st.Stopped, err)
			}
			s.stop(pod) // again
		}},
	{"ListHasEveryPodOnce", nil,
		"a pod that List leaves out is taken to be lost, and is started again or failed; a backend that returns pages must be asked for all of them",
		func(s *subject) {
			n := s.suite.Pods
			for i := range n {
				s.start(s.pod(fmt.Sprint("p", i)))
			}
			states, err := s.provider.List(s.Context())
			if err != nil {
				s.Fatalf("List: %v", err)
			}
			seen := map[podsync.Ref]bool{}
			for _, st := range states {
				if seen[st.Ref] {
					s.Errorf("List has %v twice", st.Ref)
				}
				seen[st.Ref] = true
			}
			if len(seen) != n {
				s.Errorf("List has %d pods, want %d", len(seen), n)
			}
		}},
	{"EmptyListIsNoError", nil,
		"no pod is started before List has succeeded; a node without pods would never get one",
		func(s *subject) {
			if states, err := s.provider.List(s.Context()); err != nil || len(states) != 0 {
				s.Errorf("List of nothing: %v, %v", states, err)
			}
		}},
	{"PodsAreToldApartByUID", func(suite *Suite, _ podsync.Provider) bool { return !suite.Nameless },
		"a StatefulSet reuses names; a late Stop of the old pod would end the new one",
		func(s *subject) {
			first, second := s.pod("a"), s.pod("a")
			s.start(first)
			s.stop(first)
			s.start(second)
			s.stop(first) // it must not meet the second one
			if st := s.mustList(second); st.UID != second.UID || st.Stopped {
				s.Errorf("the second pod of the name: UID %q, Stopped %v", st.UID, st.Stopped)
			}
			s.stop(second)
		}},
	{"StartReturnsWhenCancelled", nil,
		"the pod may be deleted during Start; Stop follows only after Start has returned, and Run waits for it",
		func(s *subject) {
			for _, when := range []string{"before it is called", "during the call"} {
				ctx, cancel := context.WithCancel(s.Context())
				if when == "before it is called" {
					cancel()
				}
				pod := s.pod("a")
				called, done := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(done)
					close(called)
					_, _ = s.provider.Start(ctx, pod.DeepCopy()) // either way: Stop follows
				}()
				<-called
				cancel()
				select {
				case <-done:
				case <-time.After(s.suite.Timeout):
					s.Fatalf("Start does not return within %v although its context ended %s", s.suite.Timeout, when)
				}
				s.stop(pod)
			}
		}},
	{"StatesAreValid", nil,
		"the API server refuses a status with an invalid field; such fields are left out and the status is incomplete",
		func(s *subject) {
			pod := s.pod("a")
			check := func(what string, st podsync.State) {
				s.Helper()
				update := podstatus.Update{Observed: st.Status, Stopped: st.Stopped, Now: time.Now()}
				if _, problems := podstatus.Next(pod, update); len(problems) > 0 {
					s.Errorf("the status of %s can't be stored as it is: %v", what, problems.ToAggregate())
				}
			}
			check("Start", s.start(pod))
			check("List", s.mustList(pod))
			check("Stop", s.stop(pod))
		}},
	{"StatesArePrivate", nil,
		"memory that is shared with the Controller is a data race, and changes the status that is written to the API",
		func(s *subject) {
			pod := s.pod("a")
			handed := pod.DeepCopy()
			var st podsync.State
			s.eventually("Start succeeds", func() (err error) {
				st, err = s.provider.Start(s.Context(), handed)
				return err
			})
			// The caller owns them and may change them.
			handed.Name, handed.Spec.Containers[0].Name = "changed", "changed"
			for i := range st.Status.ContainerStatuses {
				st.Status.ContainerStatuses[i].Name = "changed"
			}
			for _, c := range s.mustList(pod).Status.ContainerStatuses {
				if c.Name == "changed" {
					s.Error("List returns what a caller of Start has changed")
				}
			}
			s.stop(pod)
		}},
	{"ManyAtOnce", nil,
		"calls for different pods run concurrently, and List alongside them",
		func(s *subject) {
			var wg sync.WaitGroup
			errs := make(chan error, 40)
			for i := range 20 {
				pod := s.pod(fmt.Sprint("p", i))
				wg.Go(func() {
					if _, err := s.provider.Start(s.Context(), pod.DeepCopy()); err != nil {
						errs <- fmt.Errorf("Start: %w", err)
					}
					if _, err := s.provider.List(s.Context()); err != nil {
						errs <- fmt.Errorf("List: %w", err)
					}
					if _, err := s.provider.Stop(s.Context(), podsync.RefOf(pod), podsync.StopOptions{Grace: time.Second, Reason: podsync.StopDeleted, Pod: pod}); err != nil {
						errs <- fmt.Errorf("Stop: %w", err)
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				s.Error(err)
			}
			s.eventually("all pods have stopped", func() error {
				states, err := s.provider.List(s.Context())
				for _, st := range states {
					if !st.Stopped {
						err = errors.Join(err, fmt.Errorf("%v has not stopped", st.Ref))
					}
				}
				return err
			})
		}},
}

// running waits until List reports that the pod runs, and returns its containers by name.
func (s *subject) running(pod *corev1.Pod) map[string]corev1.ContainerStatus {
	s.Helper()
	containers := map[string]corev1.ContainerStatus{}
	s.eventually("List has "+pod.Name+" as running", func() error {
		st, ok, err := s.listed(podsync.RefOf(pod))
		if phase := podstatus.Phase(&pod.Spec, &st.Status); err == nil && phase != corev1.PodRunning {
			err = fmt.Errorf("listed %v, phase %s, containers %+v", ok, phase, st.Status.ContainerStatuses)
		}
		clear(containers)
		for _, c := range st.Status.ContainerStatuses {
			containers[c.Name] = c
		}
		return err
	})
	return containers
}

// sameInstance reports whether old and now can be statuses of one instance of a container.
// A provider may report the ID and the start time late or not at all, so sameInstance
// compares only what both statuses have.
func sameInstance(old, now corev1.ContainerStatus) bool {
	if old.ContainerID != "" && now.ContainerID != "" && old.ContainerID != now.ContainerID {
		return false
	}
	was, is := old.State.Running, now.State.Running
	return was == nil || is == nil || was.StartedAt.IsZero() || is.StartedAt.IsZero() || was.StartedAt.Equal(&is.StartedAt)
}

// backendChecks hold a provider to the contract when its backend fails or has other
// users.
var backendChecks = []check{
	{"AFailingBackendIsAnError", func(suite *Suite, _ podsync.Provider) bool { return suite.Break != nil },
		"an empty List says that every pod of the node is gone, and Stopped that nothing runs; an error says that nothing is known, which is true",
		func(s *subject) {
			pod := s.pod("a")
			s.start(pod)
			repair := s.suite.Break(s, s.provider)
			if states, err := s.provider.List(s.Context()); err == nil {
				s.Errorf("List returns %d pods and no error while the backend fails", len(states))
			}
			if st, err := s.provider.Stop(s.Context(), podsync.RefOf(pod), podsync.StopOptions{Grace: time.Second, Reason: podsync.StopDeleted, Pod: pod.DeepCopy()}); err == nil && st.Stopped {
				s.Error("Stop says Stopped while the backend fails")
			} else if errors.Is(err, podsync.ErrNotFound) {
				s.Errorf("Stop says that the pod is not there while the backend fails: %v", err)
			}
			if inspector, ok := s.provider.(podsync.Inspector); ok {
				if _, err := inspector.Inspect(s.Context(), podsync.RefOf(pod)); err == nil || errors.Is(err, podsync.ErrNotFound) {
					s.Errorf("Inspect returns %v while the backend fails", err)
				}
			}
			if _, err := s.provider.Start(s.Context(), s.pod("b")); err == nil {
				s.Error("Start succeeds while the backend fails")
			}
			repair()
			s.mustList(pod)
			s.stop(pod)
		}},
	{"PodsOfAnotherNodeAreToldApart", func(suite *Suite, _ podsync.Provider) bool { return suite.SecondNode != nil },
		"an instance that List returns, and that the node's pods do not have, is an orphan: one node would stop the pods of the other",
		func(s *subject) {
			second := s.suite.SecondNode(s, s.provider)
			here, there := s.pod("a"), s.pod("b")
			there.Spec.NodeName = NodeName2
			s.start(here)
			first := s.provider
			s.provider = second
			s.start(there)
			for _, n := range []struct {
				provider   podsync.Provider
				name       string
				own, other *corev1.Pod
			}{{first, NodeName, here, there}, {second, NodeName2, there, here}} {
				s.provider = n.provider
				s.mustList(n.own)
				if st, ok, err := s.listed(podsync.RefOf(n.other)); err != nil || ok && st.NodeName != n.other.Spec.NodeName {
					s.Errorf("List of node %s has a pod of node %s, with State.NodeName %q, %v", n.name, n.other.Spec.NodeName, st.NodeName, err)
				}
			}
			s.stop(there)
			s.provider = first
			if st := s.mustList(here); st.Stopped {
				s.Error("the end of a pod of the second node has stopped a pod of the first")
			}
			s.stop(here)
		}},
	{"ContainersAreRestartedByPolicy", func(suite *Suite, _ podsync.Provider) bool { return suite.Completes != nil && !suite.NeverRestarts },
		"podsync restarts no container: a pod with the restart policy Always would stay down after its first exit",
		func(s *subject) {
			pod := s.suite.Completes()
			pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
			pod = s.named(pod, "a")
			s.start(pod)
			s.eventually("a container is started again", func() error {
				st, ok, err := s.listed(podsync.RefOf(pod))
				if err != nil {
					return err
				}
				if !ok || st.Stopped {
					s.Fatalf("listed %v, Stopped %v: a pod that restarts its containers has not stopped", ok, st.Stopped)
				}
				for _, cs := range st.Status.ContainerStatuses {
					if cs.RestartCount > 0 {
						return nil
					}
				}
				return fmt.Errorf("no restart is counted in %+v", st.Status.ContainerStatuses)
			})
			s.stop(pod)
		}},
}

// allChecks are the checks of the suite in the order in which they run.
func allChecks() []check {
	return slices.Concat(providerChecks, backendChecks, capabilityChecks, controllerChecks)
}

// capabilityChecks hold a provider to the optional interfaces that it has.
var capabilityChecks = []check{
	{"UpdateIsIdempotent", has[podsync.Updater],
		"an Update whose answer is lost is repeated",
		func(s *subject) {
			pod := s.pod("a")
			s.start(pod)
			pod.Generation++
			pod.Spec.Containers[0].Image += "-next"
			for range 2 {
				s.eventually("Update succeeds", func() error {
					_, err := s.provider.(podsync.Updater).Update(s.Context(), pod.DeepCopy())
					return err
				})
			}
			s.stop(pod)
		}},
	{"InspectKnowsAndKnowsNot", has[podsync.Inspector],
		"ErrNotFound from Inspect means that the pod is lost; a running pod would be started a second time",
		func(s *subject) {
			inspector := s.provider.(podsync.Inspector)
			pod := s.pod("a")
			if _, err := inspector.Inspect(s.Context(), podsync.RefOf(pod)); !errors.Is(err, podsync.ErrNotFound) {
				s.Errorf("Inspect of an unknown pod: %v, want ErrNotFound", err)
			}
			s.start(pod)
			if st, err := inspector.Inspect(s.Context(), podsync.RefOf(pod)); err != nil || st.Stopped {
				s.Errorf("Inspect of a running pod: Stopped %v, %v", st.Stopped, err)
			}
			s.stop(pod)
		}},
	{"ReleaseForgetsAndNothingElseDoes", has[podsync.Releaser],
		"exit codes survive a crash of the process only if List has stopped pods until Release",
		func(s *subject) {
			releaser := s.provider.(podsync.Releaser)
			pod := s.pod("a")
			if err := releaser.Release(s.Context(), podsync.RefOf(pod)); err != nil {
				s.Errorf("Release of an unknown pod: %v", err)
			}
			s.start(pod)
			s.stop(pod)
			if st := s.mustList(pod); !st.Stopped {
				s.Error("a pod that has stopped and was not released is not listed as Stopped")
			}
			for range 2 {
				if err := releaser.Release(s.Context(), podsync.RefOf(pod)); err != nil {
					s.Errorf("Release: %v", err)
				}
			}
			if _, ok, err := s.listed(podsync.RefOf(pod)); ok || err != nil {
				s.Errorf("after Release the pod is listed: %v, %v", ok, err)
			}
		}},
	{"WatchReportsTheEnd", has[podsync.Watcher],
		"with a Watcher List is called every two minutes only; an end that Watch does not report is seen that late",
		func(s *subject) {
			ctx, cancel := context.WithCancel(s.Context())
			ended, returned := make(chan struct{}), make(chan struct{})
			var once sync.Once
			pod := s.pod("a")
			go func() {
				defer close(returned)
				_ = s.provider.(podsync.Watcher).Watch(ctx, func(st podsync.State) {
					if st.Name == pod.Name && st.Stopped {
						once.Do(func() { close(ended) })
					}
				})
			}()
			s.start(pod)
			st, err := s.provider.Stop(s.Context(), podsync.RefOf(pod), podsync.StopOptions{Grace: time.Second, Reason: podsync.StopDeleted, Pod: pod})
			if err != nil {
				s.Errorf("Stop: %v", err)
			}
			if !st.Stopped { // else the answer has said it
				select {
				case <-ended:
				case <-time.After(s.suite.Timeout):
					s.Error("Watch does not report the end")
				}
			}
			cancel()
			select {
			case <-returned:
			case <-time.After(s.suite.Timeout):
				s.Error("Watch does not return when its context is done")
			}
		}},
	{"NextProcessFindsThePods", reopens,
		"the next process knows the pods only through List; those that it does not see are started a second time",
		func(s *subject) {
			running, ended := s.pod("running"), s.pod("ended")
			s.start(running)
			s.start(ended)
			s.stop(ended)
			_, releases := s.provider.(podsync.Releaser)
			s.provider = s.suite.Reopen(s, s.provider)
			if st := s.mustList(running); st.Stopped {
				s.Error("a pod that runs is listed as Stopped by the next process")
			}
			st, ok, err := s.listed(podsync.RefOf(ended))
			if err != nil || ok && !st.Stopped || releases && !ok {
				s.Errorf("a pod that had stopped: listed %v, Stopped %v, %v", ok, st.Stopped, err)
			}
			s.start(running)
			s.stop(running)
		}},
}

func has[T any](_ *Suite, p podsync.Provider) bool {
	_, ok := p.(T)
	return ok
}

func reopens(suite *Suite, _ podsync.Provider) bool { return suite.Reopen != nil }
