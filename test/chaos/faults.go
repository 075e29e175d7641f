// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/kubewright/kubewright/internal/smalldisk"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// An injector injects the faults of a schedule.
type injector struct {
	host    *host
	cluster *harness.Cluster
	kubelet *supervisor
	proxy   *proxy
	disk    *smalldisk.Disk
	clock   *clock
	record  *recorder
	log     func(format string, args ...any)

	mu    sync.Mutex
	count map[kind]int
}

// run injects the faults of a lane one after another. Each fault is over before
// the next one begins and before run returns. run skips the remaining faults
// when ctx is done.
func (in *injector) run(ctx context.Context, began time.Time, faults []fault) error {
	for _, f := range faults {
		sleep(ctx, time.Until(began.Add(f.At)))
		if ctx.Err() != nil {
			return nil
		}
		in.announce(f)
		if err := in.inject(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f.Kind, err)
		}
		in.record.note("", "over: %s", f.Kind)
	}
	return nil
}

func (in *injector) announce(f fault) {
	text := string(f.Kind)
	if f.For > 0 {
		text += fmt.Sprintf(", for %v", f.For)
	}
	if f.Kind == clockStep {
		text += fmt.Sprintf(" to %v off", f.By.Round(time.Second))
	}
	in.mu.Lock()
	in.count[f.Kind]++
	in.mu.Unlock()
	in.record.note("", "fault: %s", text)
	in.log("%s", text)
}

// inject injects one fault, and returns when it is over. It repairs the damage
// also when ctx is done.
func (in *injector) inject(ctx context.Context, f fault) error {
	t := in.host
	hold := func() { sleep(ctx, f.For) }
	always := context.WithoutCancel(ctx)
	switch f.Kind {
	case connDrop:
		in.proxy.drop()
		return nil
	case clockStep:
		in.clock.step(f.By)
		return nil
	case diskFull, diskInodes:
		fill := in.disk.FillSpace
		if f.Kind == diskInodes {
			fill = in.disk.FillInodes
		}
		full, cancel := context.WithTimeout(ctx, f.For)
		defer cancel()
		return in.disk.KeepFull(full, fill)
	}
	// From here on the kubelet cannot be heard.
	defer in.record.outage(time.Now())
	switch f.Kind {
	case apiKill, apiTerminate, etcdKill:
		component := harness.APIServer
		if f.Kind == etcdKill {
			component = harness.Etcd
		}
		return t.try(func() {
			if f.Kind == apiTerminate {
				in.cluster.Terminate(t, component)
			} else {
				in.cluster.Kill(t, component)
			}
			hold()
			in.cluster.Restart(t, component)
			in.cluster.WaitReady(t)
		})
	case apiPause, etcdPause:
		component := harness.APIServer
		if f.Kind == etcdPause {
			component = harness.Etcd
		}
		return t.try(func() {
			in.cluster.Pause(t, component)
			hold()
			in.cluster.Resume(t, component)
			in.cluster.WaitReady(t)
		})
	case connHang:
		in.proxy.hold()
		hold()
		in.proxy.letGo()
	case connStale:
		in.proxy.deaden()
		hold()
	case connRefuse:
		in.proxy.setRefuse(true)
		in.proxy.drop()
		hold()
		in.proxy.setRefuse(false)
	case kubeletPause:
		in.kubelet.signal(syscall.SIGSTOP)
		hold()
		in.kubelet.signal(syscall.SIGCONT)
	case kubeletKill, kubeletTerminate:
		signal := syscall.SIGKILL
		if f.Kind == kubeletTerminate {
			signal = syscall.SIGTERM
		}
		end, cancel := context.WithTimeout(always, orderlyEnd)
		defer cancel()
		if err := in.kubelet.end(end, signal); err != nil {
			return fmt.Errorf("the kubelet did not end within %v: %w", orderlyEnd, err)
		}
		hold()
		return in.kubelet.start(always)
	default:
		return errors.New("no such fault")
	}
	return nil
}

// orderlyEnd is the time within which the kubelet ends on SIGTERM, even without
// an answer from the API: its controllers have at most 5 s each for their
// shutdown work, and calls may be in progress.
const orderlyEnd = 45 * time.Second
