// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// providerChecks hold a provider to the contract of its three methods.
var providerChecks = []check{
	{"StartTwiceIsOneInstance", nil, func(s *subject) {
		pod := s.pod("a")
		s.start(pod)
		s.start(pod)
		states, err := s.provider.List(s.Context())
		if err != nil || len(states) != 1 {
			s.Errorf("List after two calls of Start for one pod: %d states, %v", len(states), err)
		}
		s.stop(pod)
	}},
	{"StopOfAnUnknownPodIsStopped", nil, func(s *subject) {
		st, err := s.provider.Stop(s.Context(), podsync.RefOf(s.pod("unknown")), podsync.StopOptions{Grace: time.Second, Reason: podsync.StopOrphaned})
		if err != nil || !st.Stopped {
			s.Errorf("Stop of a pod that was never started: Stopped %v, %v; want true and no error", st.Stopped, err)
		}
	}},
	{"StopEndsThePod", nil, func(s *subject) {
		pod := s.pod("a")
		s.start(pod)
		s.stop(pod)
		if st, ok, err := s.listed(podsync.RefOf(pod)); err != nil || ok && !st.Stopped {
			s.Errorf("List after the end: Stopped %v, %v", st.Stopped, err)
		}
		s.stop(pod) // again
	}},
	{"ListHasEveryPodOnce", nil, func(s *subject) {
		const n = 10
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
	{"EmptyListIsNoError", nil, func(s *subject) {
		if states, err := s.provider.List(s.Context()); err != nil || len(states) != 0 {
			s.Errorf("List of nothing: %v, %v", states, err)
		}
	}},
	{"PodsAreToldApartByUID", func(suite *Suite, _ podsync.Provider) bool { return !suite.Nameless }, func(s *subject) {
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
	{"StartReturnsWhenCancelled", nil, func(s *subject) {
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		pod := s.pod("a")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.provider.Start(ctx, pod.DeepCopy()) // either way: Stop follows
		}()
		select {
		case <-done:
		case <-time.After(s.suite.Timeout):
			s.Fatal("Start does not return although its context is done")
		}
		s.stop(pod)
	}},
	{"StatesAreValid", nil, func(s *subject) {
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
	{"StatesArePrivate", nil, func(s *subject) {
		pod := s.pod("a")
		handed := pod.DeepCopy()
		var st podsync.State
		s.eventually("Start succeeds", func() (err error) {
			st, err = s.provider.Start(s.Context(), handed)
			return err
		})
		// Whoever has them may do with them as they like.
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
	{"ManyAtOnce", nil, func(s *subject) {
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

// capabilityChecks hold a provider to the optional interfaces that it has.
var capabilityChecks = []check{
	{"UpdateIsIdempotent", has[podsync.Updater], func(s *subject) {
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
	{"InspectKnowsAndKnowsNot", has[podsync.Inspector], func(s *subject) {
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
	{"ReleaseForgetsAndNothingElseDoes", has[podsync.Releaser], func(s *subject) {
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
	{"WatchReportsTheEnd", has[podsync.Watcher], func(s *subject) {
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
	{"NextProcessFindsThePods", reopens, func(s *subject) {
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
