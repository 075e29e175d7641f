// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// Config configures a Provider.
type Config struct {
	// Root is the folder that the provider keeps everything in. It may be closed
	// after the Provider; the next one finds there what runs.
	Root *Root
	// Environment resolves environment variables and volumes.
	Environment *podenv.Resolver
	// HostIP is the address of the node, and so of all its pods: they have no
	// network of their own.
	HostIP string
	// Allocatable is what all pods together may ask for.
	Allocatable corev1.ResourceList
	// Backoff is how long a container that has ended waits for its next start.
	// Optional.
	Backoff Backoff
	// CPUs returns the CPUs that a container has claimed, nil for all. Optional:
	// without it pods with resource claims are rejected.
	CPUs func(ctx context.Context, pod *corev1.Pod, container *corev1.Container) ([]int, error)
}

// Provider runs pods as processes. Make it with Open.
type Provider struct {
	cfg Config
	ctx context.Context // of the goroutines
	end context.CancelFunc
	wg  sync.WaitGroup

	mu      sync.Mutex
	pods    map[types.UID]*pod
	changed []types.UID // not yet reported by Watch
	wake    chan struct{}
}

var _ interface {
	podsync.Provider
	podsync.Watcher
	podsync.Inspector
	podsync.Releaser
	podsync.Admitter
} = (*Provider)(nil)

// Open returns a Provider with the pods that its folder holds, whose processes
// have run on. Their goroutines have the values of ctx and end with it or with
// Close.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	dirs, err := cfg.Root.list()
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, pods: map[types.UID]*pod{}, wake: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancel(ctx)
	// All of them or none: a pod left out would be taken for lost.
	for _, dir := range dirs {
		pod, err := p.load(dir)
		if err != nil {
			p.end()
			return nil, fmt.Errorf("pod in %s: %w", dir, err)
		}
		p.pods[pod.ref.UID] = pod
	}
	for _, pod := range p.pods {
		p.wg.Go(pod.loop)
	}
	return p, nil
}

// Close lets go of the pods, which run on, and waits for the goroutines.
func (p *Provider) Close() {
	p.end()
	p.wg.Wait()
}

// find returns a pod, or nil.
func (p *Provider) find(uid types.UID) *pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// Start implements podsync.Provider. It returns when the volumes are there and
// the environment is known to be complete; the containers start after that.
func (p *Provider) Start(ctx context.Context, spec *corev1.Pod) (podsync.State, error) {
	if pod := p.find(spec.UID); pod != nil {
		return pod.published(), nil
	}
	dir, err := p.cfg.Root.create(spec, func(dir string) error { return p.prepare(ctx, spec, dir) })
	if err != nil {
		return podsync.State{}, err
	}
	pod, err := p.load(dir)
	if err != nil {
		return podsync.State{}, err
	}
	p.mu.Lock()
	p.pods[spec.UID] = pod
	p.mu.Unlock()
	p.wg.Go(pod.loop)
	return pod.published(), nil
}

// prepare makes what the containers need besides their processes.
func (p *Provider) prepare(ctx context.Context, spec *corev1.Pod, dir string) error {
	resolved := p.cfg.Environment.Pod(spec)
	var errs []error
	for _, c := range containersOf(&spec.Spec) {
		_, err := resolved.Container(ctx, c.Name, p.addresses())
		errs = append(errs, err)
		_, err = p.cpus(ctx, spec, c.Container)
		errs = append(errs, err)
	}
	errs = append(errs, fillVolumes(ctx, resolved, spec, dir))
	err := errors.Join(errs...)
	if err != nil && !podenv.CanWait(err) {
		return podsync.Reject("ContainerConfigError", err.Error())
	}
	if err != nil {
		return err
	}
	for _, c := range containersOf(&spec.Spec) {
		if err := linkVolumes(spec, c.Container, dir); err != nil {
			return err
		}
	}
	return nil
}

// cpus returns the CPUs that a container may run on, nil for all.
func (p *Provider) cpus(ctx context.Context, spec *corev1.Pod, c *corev1.Container) ([]int, error) {
	if p.cfg.CPUs == nil || len(c.Resources.Claims) == 0 {
		return nil, nil
	}
	return p.cfg.CPUs(ctx, spec, c)
}

func (p *Provider) addresses() podenv.Addresses {
	ip := []string{p.cfg.HostIP}
	return podenv.Addresses{PodIPs: ip, HostIPs: ip}
}

// Stop implements podsync.Provider. It returns at once; the end is reported by
// Watch.
func (p *Provider) Stop(_ context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	pod := p.find(ref.UID)
	if pod == nil {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	pod.requestStop(time.Now().Add(opts.Grace))
	return pod.published(), nil
}

// List implements podsync.Provider.
func (p *Provider) List(context.Context) ([]podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var states []podsync.State
	for _, pod := range p.pods {
		states = append(states, pod.published())
	}
	return states, nil
}

// Inspect implements podsync.Inspector.
func (p *Provider) Inspect(_ context.Context, ref podsync.Ref) (podsync.State, error) {
	pod := p.find(ref.UID)
	if pod == nil {
		return podsync.State{}, fmt.Errorf("%v: %w", ref, podsync.ErrNotFound)
	}
	return pod.published(), nil
}

// Release implements podsync.Releaser: logs and exit codes go.
func (p *Provider) Release(_ context.Context, ref podsync.Ref) error {
	pod := p.find(ref.UID)
	if pod == nil {
		return nil
	}
	if !pod.published().Stopped {
		return fmt.Errorf("%v has not stopped", ref)
	}
	pod.end()
	<-pod.done
	if err := p.cfg.Root.remove(ref.UID); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, ref.UID)
	return nil
}

// Watch implements podsync.Watcher.
func (p *Provider) Watch(ctx context.Context, report func(podsync.State)) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.changed = nil
		p.mu.Unlock()
		for _, uid := range changed {
			if pod := p.find(uid); pod != nil {
				report(pod.published())
			}
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// noteChange has Watch report a pod.
func (p *Provider) noteChange(uid types.UID) {
	p.mu.Lock()
	if !slices.Contains(p.changed, uid) {
		p.changed = append(p.changed, uid)
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
