// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestContract(t *testing.T) {
	open := func(t testing.TB, cfg Config) podsync.Provider {
		p, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, p) })
		return p
	}
	pod := func(script string, policy corev1.RestartPolicy) func() *corev1.Pod {
		return func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{
				RestartPolicy: policy,
				Containers:    []corev1.Container{{Name: "main", Image: "none", Command: []string{"sh", "-c", script}}},
			}}
		}
	}
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(t testing.TB) podsync.Provider {
			cfg := config(t, apitest.New(apitest.Options{}), t.TempDir())
			delete(cfg.Allocatable, corev1.ResourcePods) // as many as the suite likes
			return open(t, cfg)
		},
		Reopen: func(t testing.TB, old podsync.Provider) podsync.Provider {
			p := old.(*Provider)
			p.Close() // after a death there is no goroutine either
			return open(t, p.cfg)
		},
		Pod:       pod("exec sleep 1000", corev1.RestartPolicyAlways),
		Completes: pod("exit 0", corev1.RestartPolicyNever),
	})
}

// end closes a provider and takes down what it has run.
func end(t testing.TB, p *Provider) {
	if p.ctx.Err() != nil {
		return // another one has its pods
	}
	states, err := p.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, s := range states {
		if _, err := p.Stop(context.Background(), s.Ref, podsync.StopOptions{Grace: time.Nanosecond}); err != nil {
			t.Error(err)
		}
	}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = p.Watch(ctx, func(podsync.State) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	for _, s := range states {
		for pod := p.find(s.UID); pod != nil && !pod.published().Stopped; {
			<-changed
		}
	}
	cancel()
	wg.Wait()
	p.Close()
	if err := p.cfg.Root.Close(); err != nil {
		t.Error(err)
	}
	if left, err := shim.Processes(p.cfg.Root.Path()); err != nil || len(left) > 0 {
		t.Errorf("processes left behind: %v, %v", left, err)
	}
}
