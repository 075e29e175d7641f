// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podruntimetest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func resolver(t testing.TB) *podenv.Resolver {
	core := apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1()
	env, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestTheExampleRuntimeKeepsTheContract(t *testing.T) {
	plain := func(m *memory) podruntime.Runtime { return m }
	boxed := func(m *memory) podruntime.Runtime {
		return sandboxed{&link{machine: &machine{memory: m, starts: map[string][]time.Duration{}, limits: map[any]int64{}, boxes: map[types.UID]*podruntime.Sandbox{}, begin: time.Now()}}}
	}
	muteOf := map[string]func(testing.TB, podruntime.Runtime, types.UID) func(){
		"with sandboxes": func(_ testing.TB, r podruntime.Runtime, pod types.UID) func() {
			m := r.(sandboxed).machine
			m.setMute(pod, true, true)
			return func() { m.setMute("", false, false) }
		},
	}
	for name, wrap := range map[string]func(*memory) podruntime.Runtime{"memory": plain, "with sandboxes": boxed} {
		t.Run(name, func(t *testing.T) {
			podruntimetest.TestRuntime(t, podruntimetest.Suite{
				New:      func(testing.TB) podruntime.Runtime { return wrap(newMemory()) },
				Reopen:   func(_ testing.TB, old podruntime.Runtime) podruntime.Runtime { return old },
				Forever:  func() corev1.Container { return command("c", "forever") },
				Stubborn: func() corev1.Container { return command("c", "stubborn") },
				Exits:    func(code int) corev1.Container { return command("c", fmt.Sprint("exit ", code)) },
				Command:  func(code int) []string { return []string{"exit", fmt.Sprint(code)} },
				Hangs:    []string{"sleep"},
				Mute:     muteOf[name],
				Timeout:  5 * time.Second,
			})
		})
	}
}

// A bound is a memory whose containers end with the process.
type bound struct{ *memory }

func (bound) EndsWithProcess() bool { return true }

func TestARuntimeThatEndsWithTheProcessKeepsTheContract(t *testing.T) {
	podruntimetest.TestRuntime(t, podruntimetest.Suite{
		New:     func(testing.TB) podruntime.Runtime { return bound{newMemory()} },
		Reopen:  func(testing.TB, podruntime.Runtime) podruntime.Runtime { return bound{newMemory()} },
		Forever: func() corev1.Container { return command("c", "forever") },
		Exits:   func(code int) corev1.Container { return command("c", fmt.Sprint("exit ", code)) },
		Timeout: 5 * time.Second,
	})
}

// The Provider that a Runtime makes keeps the contract of package podsync.
func TestTheProviderKeepsTheContractOfPodsync(t *testing.T) {
	type process struct {
		runtime *memory
		root    string
		end     func()
	}
	processes := map[podsync.Provider]process{}
	open := func(t testing.TB, m *memory, root string) podsync.Provider {
		p, err := podruntime.New(podruntime.Config{Runtime: m, Root: root, Environment: resolver(t), HostIPs: []string{"192.0.2.1"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		end := func() { cancel(); wg.Wait() }
		t.Cleanup(end)
		processes[p] = process{m, root, end}
		return p
	}
	pod := func(policy corev1.RestartPolicy, text string) func() *corev1.Pod {
		return func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{command("main", text)}}}
		}
	}
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(t testing.TB) podsync.Provider { return open(t, newMemory(), t.TempDir()) },
		Reopen: func(t testing.TB, old podsync.Provider) podsync.Provider {
			processes[old].end()
			return open(t, processes[old].runtime, processes[old].root)
		},
		Pod:       pod(corev1.RestartPolicyAlways, "forever"),
		Completes: pod(corev1.RestartPolicyNever, "exit 0"),
		Timeout:   10 * time.Second,
	})
}
