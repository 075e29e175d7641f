// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
)

// Each broken provider fails the checks named beside it.
func TestSuiteFindsBrokenProviders(t *testing.T) {
	for name, tc := range map[string]struct {
		wrap  func(*Provider) podsync.Provider
		fails []string
	}{
		"sound":                     {func(p *Provider) podsync.Provider { return p }, nil},
		"unknown is an error":       {func(p *Provider) podsync.Provider { return unknownIsError{p} }, []string{"StopOfAnUnknownPodIsStopped"}},
		"lists by name":             {func(p *Provider) podsync.Provider { return byName{p} }, []string{"PodsAreToldApartByUID"}},
		"stops nothing":             {func(p *Provider) podsync.Provider { return stopsNothing{p} }, []string{"LifeOfAPod", "StopEndsThePod"}},
		"lists nothing":             {func(p *Provider) podsync.Provider { return listsNothing{p} }, []string{"ListHasEveryPodOnce", "StartTwiceIsOneInstance"}},
		"starts again":              {func(p *Provider) podsync.Provider { return &startsAgain{Provider: p} }, []string{"StartTwiceIsOneInstance"}},
		"starts again, in seconds":  {func(p *Provider) podsync.Provider { return &startsAgain{Provider: p, seconds: true} }, []string{"StartTwiceIsOneInstance"}},
		"starts again, by ID":       {func(p *Provider) podsync.Provider { return &startsAgain{Provider: p, ids: true} }, []string{"StartTwiceIsOneInstance"}},
		"fails on empty":            {func(p *Provider) podsync.Provider { return failsOnEmpty{p} }, []string{"EmptyListIsNoError"}},
		"has its own names":         {func(p *Provider) podsync.Provider { return ownNames{p} }, []string{"StatesAreValid"}},
		"ignores its context":       {func(p *Provider) podsync.Provider { return deaf{p, make(chan struct{})} }, []string{"StartReturnsWhenCancelled"}},
		"shares its memory":         {func(p *Provider) podsync.Provider { return &sharing{Provider: p} }, []string{"StatesArePrivate"}},
		"forgets before Release":    {func(p *Provider) podsync.Provider { p.backend.opts.Forgets = true; return p }, []string{"ReleaseForgetsAndNothingElseDoes"}},
		"inspects anything":         {func(p *Provider) podsync.Provider { return inspectsAnything{p} }, []string{"InspectKnowsAndKnowsNot"}},
		"fails with an empty list":  {func(p *Provider) podsync.Provider { return emptyOnError{p} }, []string{"AFailingBackendIsAnError"}},
		"fails with not found":      {func(p *Provider) podsync.Provider { return notFoundOnError{p} }, []string{"AFailingBackendIsAnError"}},
		"stops what it can't reach": {func(p *Provider) podsync.Provider { return stoppedOnError{p} }, []string{"AFailingBackendIsAnError"}},
		"hides the node":            {func(p *Provider) podsync.Provider { p.backend.opts.HidesNode = true; return p }, []string{"PodsOfAnotherNodeAreToldApart"}},
		"lists one page":            {func(p *Provider) podsync.Provider { return onePage{p} }, []string{"ListHasEveryPodOnce"}},
		"restarts nothing":          {func(p *Provider) podsync.Provider { p.backend.opts.NeverRestarts = true; return p }, []string{"ContainersAreRestartedByPolicy"}},
		"watch never ends":          {func(p *Provider) podsync.Provider { return endless{p, t.Context().Done()} }, []string{"WatchReportsTheEnd"}},
	} {
		t.Run(name, func(t *testing.T) {
			suite := &Suite{Timeout: 100 * time.Millisecond, Pods: DefaultPods, Completes: func() *corev1.Pod {
				return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: CompletesImage}}}}
			}, Pod: func() *corev1.Pod {
				return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
			}}
			if tc.fails == nil {
				suite.Timeout = 10 * time.Second // for machines that are busy
			}
			failed := map[string]string{}
			for _, c := range allChecks() {
				if tc.fails != nil && !slices.Contains(tc.fails, c.name) {
					continue
				}
				backend := NewBackend(Options{})
				suite.Break = func(testing.TB, podsync.Provider) func() {
					return backend.Inject(Fault{Err: errors.New("the backend is down")})
				}
				suite.SecondNode = func(testing.TB, podsync.Provider) podsync.Provider { return backend.Connect() }
				p := tc.wrap(backend.Connect())
				if c.needs != nil && !c.needs(suite, p) {
					continue
				}
				tb := &failing{TB: t}
				tb.run(func() { c.hold(&subject{TB: tb, suite: suite, provider: p}) })
				if tb.message != "" {
					failed[c.name] = tb.message
					if !strings.Contains(tb.log, "why it matters: "+c.why) {
						t.Errorf("the failure of %s does not say why it matters: %q", c.name, tb.log)
					}
				}
			}
			if got := slices.Sorted(maps.Keys(failed)); !slices.Equal(got, tc.fails) {
				t.Errorf("failed: %q (%v), want %q", got, failed, tc.fails)
			}
		})
	}
}

// A failing keeps the failures of a check to itself.
type failing struct {
	testing.TB
	mu       sync.Mutex
	message  string
	log      string
	cleanups []func()
}

func (f *failing) run(check func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, c := range slices.Backward(f.cleanups) {
				c()
			}
		}()
		check()
	}()
	<-done
}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.message += fmt.Sprintf(format, args...) + "; "
}
func (f *failing) Failed() bool                      { return f.message != "" }
func (f *failing) Logf(format string, args ...any)   { f.log += fmt.Sprintf(format, args...) }
func (f *failing) Error(args ...any)                 { f.Errorf("%s", fmt.Sprint(args...)) }
func (f *failing) Fatal(args ...any)                 { f.Error(args...); runtime.Goexit() }
func (f *failing) Fatalf(format string, args ...any) { f.Errorf(format, args...); runtime.Goexit() }
func (f *failing) Cleanup(c func())                  { f.cleanups = append(f.cleanups, c) }

type unknownIsError struct{ *Provider }

func (p unknownIsError) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	if _, err := p.Inspect(ctx, ref); err != nil {
		return podsync.State{}, err
	}
	return p.Provider.Stop(ctx, ref, opts)
}

type byName struct{ *Provider }

func (p byName) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	for _, st := range p.backend.Held() {
		if st.Name == ref.Name && !st.Stopped {
			ref = st.Ref
		}
	}
	return p.Provider.Stop(ctx, ref, opts)
}

type stopsNothing struct{ podsync.Provider }

func (stopsNothing) Stop(_ context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	return podsync.State{Ref: ref, Stopped: opts.Pod == nil}, nil
}

type listsNothing struct{ podsync.Provider }

func (listsNothing) List(context.Context) ([]podsync.State, error) { return nil, nil }

// startsAgain replaces the instance that runs, and lists it with the time of its start,
// with whole seconds of it, or with an ID only.
type startsAgain struct {
	*Provider
	seconds, ids bool
	starts       int
}

func (p *startsAgain) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.starts++
	p.backend.mu.Lock()
	delete(p.backend.pods, pod.UID)
	p.backend.mu.Unlock()
	return p.Provider.Start(ctx, pod)
}

func (p *startsAgain) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	for i := range states {
		c := &states[i].Status.ContainerStatuses[0]
		switch {
		case p.seconds:
			c.State.Running.StartedAt = c.State.Running.StartedAt.Rfc3339Copy()
		case p.ids:
			c.ContainerID, c.State.Running.StartedAt = fmt.Sprint("test://", p.starts), metav1.Time{}
		}
	}
	return states, err
}

type failsOnEmpty struct{ podsync.Provider }

func (p failsOnEmpty) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	if err == nil && len(states) == 0 {
		err = errors.New("nothing there")
	}
	return states, err
}

// emptyOnError takes an error for an empty list.
type emptyOnError struct{ podsync.Provider }

func (p emptyOnError) List(ctx context.Context) ([]podsync.State, error) {
	states, _ := p.Provider.List(ctx)
	return states, nil
}

// notFoundOnError takes an error for a pod that is not there.
type notFoundOnError struct{ *Provider }

func (p notFoundOnError) Inspect(ctx context.Context, ref podsync.Ref) (podsync.State, error) {
	st, err := p.Provider.Inspect(ctx, ref)
	if err != nil {
		err = podsync.ErrNotFound
	}
	return st, err
}

// stoppedOnError takes an error for the end of a pod.
type stoppedOnError struct{ podsync.Provider }

func (p stoppedOnError) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	st, err := p.Provider.Stop(ctx, ref, opts)
	if err != nil {
		st = podsync.State{Ref: ref, Stopped: true}
	}
	return st, nil
}

// onePage lists the first hundred pods.
type onePage struct{ podsync.Provider }

func (p onePage) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	return states[:min(len(states), 100)], err
}

type ownNames struct{ podsync.Provider }

func (p ownNames) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	for i := range states {
		states[i].Status.ContainerStatuses[0].Name += "-1"
	}
	return states, err
}

type deaf struct {
	podsync.Provider
	never chan struct{}
}

func (p deaf) Start(context.Context, *corev1.Pod) (podsync.State, error) {
	<-p.never
	return podsync.State{}, nil
}

// sharing returns the same memory again and again.
type sharing struct {
	podsync.Provider
	states []podsync.State
}

func (p *sharing) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.Provider.Start(ctx, pod)
	p.states = []podsync.State{st}
	return st, err
}

func (p *sharing) List(context.Context) ([]podsync.State, error) { return p.states, nil }

type inspectsAnything struct{ *Provider }

func (inspectsAnything) Inspect(_ context.Context, ref podsync.Ref) (podsync.State, error) {
	return podsync.State{Ref: ref}, nil
}

type endless struct {
	*Provider
	never <-chan struct{}
}

func (p endless) Watch(context.Context, func(podsync.State)) error {
	<-p.never
	return nil
}
