// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsim is a provider for package podsync that runs nothing: it pretends to run
// pods, tens of thousands of them in one process. Annotations of a pod make it fail, crash
// again and again, hang or be rejected. It is for tests of schedulers and controllers at
// scale.
package podsim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// The annotations of a pod. A duration is one of package time, such as 1m30s, or Never. A
// pod with another value is rejected with the reason InvalidSimulation. They count when the
// pod is started.
const (
	// StartAfter is the time until the containers run, as with a slow pull of an image.
	// Never: they never run. Default: 0.
	StartAfter = "sim.kubewright.dev/start-after"
	// RunFor is the time after which the containers end, each time that they run. They
	// are restarted as restartPolicy says: after 10 s, 20 s and so on, at most 5 min.
	// Default: Config.RunFor for a pod that must not always be restarted, and Never for one
	// that must.
	RunFor = "sim.kubewright.dev/run-for"
	// ExitCode is the exit code with which they end after RunFor. Default: 0.
	ExitCode = "sim.kubewright.dev/exit-code"
	// StopAfter is the time that the containers need to end when they are asked to. One
	// that is longer than the grace period ends with it, with exit code 137. Never: nothing
	// ends them, as if the machine hung. Default: 0.
	StopAfter = "sim.kubewright.dev/stop-after"
	// Reject is REASON or REASON: MESSAGE. The pod is rejected with it. Default: it is not.
	Reject = "sim.kubewright.dev/reject"
)

// Never is the duration that does not end.
const Never = "Never"

// never is Never as a duration.
const never time.Duration = 1 << 62

// DefaultRunFor is the default of Config.RunFor.
const DefaultRunFor = time.Minute

// Config configures a Provider.
type Config struct {
	// RunFor is the time after which pods end whose restartPolicy is not Always, and that
	// do not have the annotation [RunFor]. Default: DefaultRunFor.
	RunFor time.Duration
}

// A Provider pretends to run pods. Make it with [New]. It forgets them when the process
// ends. All methods may be called by any number of goroutines.
type Provider struct {
	runFor time.Duration

	mu   sync.Mutex
	pods map[types.UID]*simulated
}

// podsync finds these interfaces by type assertion, so a changed signature must not compile.
var (
	_ podsync.Provider = (*Provider)(nil)
	_ podsync.Watcher  = (*Provider)(nil)
	_ podsync.Releaser = (*Provider)(nil)
)

// New returns a Provider without pods. It returns an error if RunFor is negative.
func New(cfg Config) (*Provider, error) {
	switch {
	case cfg.RunFor < 0:
		return nil, fmt.Errorf("podsim: invalid config: RunFor: Invalid value: %v: must not be negative", cfg.RunFor)
	case cfg.RunFor == 0:
		cfg.RunFor = DefaultRunFor
	}
	return &Provider{runFor: cfg.RunFor, pods: make(map[types.UID]*simulated)}, nil
}

// Start implements podsync.Provider.
func (p *Provider) Start(_ context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.pods[pod.UID]
	if !ok { // else it is called again
		var err error
		if s, err = p.simulate(pod); err != nil {
			return podsync.State{}, err
		}
		p.pods[pod.UID] = s
	}
	s.advance(time.Now())
	return s.state(), nil
}

// simulate returns a pod that begins now, or a rejection.
func (p *Provider) simulate(pod *corev1.Pod) (*simulated, error) {
	if reason, message, _ := strings.Cut(pod.Annotations[Reject], ":"); reason != "" {
		return nil, podsync.Reject(reason, strings.TrimSpace(message))
	}
	s := &simulated{Ref: podsync.RefOf(pod), nodeName: pod.Spec.NodeName, policy: pod.Spec.RestartPolicy}
	runFor := never
	if s.policy != corev1.RestartPolicyAlways && s.policy != "" {
		runFor = p.runFor
	}
	startAfter, err1 := duration(pod, StartAfter, 0)
	runFor, err2 := duration(pod, RunFor, runFor)
	stopAfter, err3 := duration(pod, StopAfter, 0)
	code, err4 := exitCode(pod)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, podsync.Reject("InvalidSimulation", err.Error())
	}
	s.runFor, s.stopAfter, s.exitCode = runFor, stopAfter, code
	s.due, s.phase = time.Now().Add(startAfter), waiting
	if startAfter == never {
		s.due = time.Time{}
	}
	for _, c := range pod.Spec.InitContainers {
		s.containers = append(s.containers, container{name: c.Name, image: c.Image, init: true, runs: c.RestartPolicy != nil})
	}
	for _, c := range pod.Spec.Containers {
		s.containers = append(s.containers, container{name: c.Name, image: c.Image, runs: true})
	}
	return s, nil
}

// duration returns the duration of an annotation.
func duration(pod *corev1.Pod, key string, otherwise time.Duration) (time.Duration, error) {
	switch value := pod.Annotations[key]; value {
	case "":
		return otherwise, nil
	case Never:
		return never, nil
	default:
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("annotation %s: %q is no duration of zero or more, and not %s", key, value, Never)
		}
		return d, nil
	}
}

// exitCode returns the exit code that the annotation asks for.
func exitCode(pod *corev1.Pod) (int32, error) {
	value := pod.Annotations[ExitCode]
	if value == "" {
		return 0, nil
	}
	code, err := strconv.ParseUint(value, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %q is no number from 0 to 255", ExitCode, value)
	}
	return int32(code), nil
}

// Stop implements podsync.Provider.
func (p *Provider) Stop(_ context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.pods[ref.UID]
	if !ok {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	now := time.Now()
	s.advance(now)
	s.stop(now, opts.Grace)
	s.advance(now)
	return s.state(), nil
}

// Release implements podsync.Releaser.
func (p *Provider) Release(_ context.Context, ref podsync.Ref) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, ref.UID)
	return nil
}

// List implements podsync.Provider.
func (p *Provider) List(context.Context) ([]podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]podsync.State, 0, len(p.pods))
	now := time.Now()
	for _, s := range p.pods {
		s.advance(now)
		states = append(states, s.state())
	}
	return states, nil
}

// tick is the time between two looks at all pods.
const tick = time.Second

// Watch implements podsync.Watcher. Each change is at most a second late.
func (p *Provider) Watch(ctx context.Context, report func(podsync.State)) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for _, state := range p.changed() {
				report(state)
			}
		}
	}
}

// changed returns the pods that have changed since they were last looked at.
func (p *Provider) changed() (states []podsync.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, s := range p.pods {
		if s.advance(now) {
			states = append(states, s.state())
		}
	}
	return states
}

// Running returns the number of pods whose containers run.
func (p *Provider) Running() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.pods {
		if s.phase == running {
			n++
		}
	}
	return n
}
