// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A memory is a complete Runtime. Its containers are entries in a map that only
// pretend to run: the command is their behaviour.
//
//	forever          it runs until it is stopped, and then exits with 0
//	stubborn         it runs until it is killed
//	exit CODE [TIME] it exits on its own
type memory struct {
	mu         sync.Mutex
	containers map[podruntime.ContainerID]*entry
	watches    map[*func(types.UID)]bool
}

// An entry is a container of a memory.
type entry struct {
	podruntime.Container
	stubborn bool
	kill     *time.Timer
	killAt   time.Time
	execs    map[*context.CancelFunc]bool
}

func newMemory() *memory {
	return &memory{containers: map[podruntime.ContainerID]*entry{}, watches: map[*func(types.UID)]bool{}}
}

// List implements podruntime.Runtime.
func (m *memory) List(_ context.Context, pod types.UID) (list []podruntime.Container, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.containers {
		if pod == "" || e.ID.Pod == pod {
			list = append(list, e.Container)
		}
	}
	return list, nil
}

// Start implements podruntime.Runtime.
func (m *memory) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.containers[spec.ID]; ok || ctx.Err() != nil {
		return ctx.Err() // it was started before
	}
	command := append(spec.Environment.Command, spec.Environment.Args...)
	if len(command) == 0 {
		return &podruntime.StartError{Reason: "CreateContainerError", Err: errors.New("no command")}
	}
	e := &entry{execs: map[*context.CancelFunc]bool{}, stubborn: command[0] == "stubborn"}
	e.ID, e.State, e.StartedAt = spec.ID, podruntime.ContainerRunning, time.Now()
	e.RuntimeID = "memory://" + spec.ID.String()
	m.containers[spec.ID] = e
	if command[0] == "exit" {
		code, err := strconv.Atoi(command[1])
		if err != nil {
			return err
		}
		var after time.Duration
		if len(command) > 2 {
			if after, err = time.ParseDuration(command[2]); err != nil {
				return err
			}
		}
		time.AfterFunc(after, func() { m.exit(e, int32(code), 0) })
	}
	m.report(spec.ID.Pod)
	return nil
}

// exit ends a container, unless it has ended.
func (m *memory) exit(e *entry, code, signal int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.State != podruntime.ContainerRunning {
		return
	}
	e.State, e.ExitCode, e.Signal, e.FinishedAt = podruntime.ContainerExited, code, signal, time.Now()
	if e.kill != nil {
		e.kill.Stop()
	}
	for cancel := range e.execs {
		(*cancel)()
	}
	m.report(e.ID.Pod)
}

// Stop implements podruntime.Runtime.
func (m *memory) Stop(_ context.Context, id podruntime.ContainerID, opts podruntime.StopOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.containers[id]
	if !ok || e.State != podruntime.ContainerRunning {
		return nil
	}
	if !e.stubborn {
		time.AfterFunc(0, func() { m.exit(e, 0, 0) })
		return nil
	}
	if e.kill != nil {
		if !opts.Deadline.Before(e.killAt) {
			return nil
		}
		e.kill.Stop()
	}
	e.killAt = opts.Deadline
	e.kill = time.AfterFunc(time.Until(opts.Deadline), func() { m.exit(e, 137, 9) })
	return nil
}

// Remove implements podruntime.Runtime.
func (m *memory) Remove(_ context.Context, id podruntime.ContainerID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.containers[id]; ok && e.State == podruntime.ContainerRunning {
		return fmt.Errorf("%v runs", id)
	}
	delete(m.containers, id)
	return nil
}

// Watch implements podruntime.Watcher.
func (m *memory) Watch(ctx context.Context, changed func(types.UID)) error {
	m.mu.Lock()
	m.watches[&changed] = true
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watches, &changed)
	return nil
}

// report calls the watches. m.mu must be held.
func (m *memory) report(pod types.UID) {
	for changed := range m.watches {
		(*changed)(pod)
	}
}

// Exec implements podruntime.Execer. The command "exit CODE" returns the code, and
// "sleep" ends with its context.
func (m *memory) Exec(ctx context.Context, id podruntime.ContainerID, command []string) (result podruntime.ExecResult, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	e, ok := m.containers[id]
	if !ok || e.State != podruntime.ContainerRunning {
		m.mu.Unlock()
		return result, fmt.Errorf("%v does not run", id)
	}
	e.execs[&cancel] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(e.execs, &cancel)
	}()
	if command[0] == "sleep" {
		<-ctx.Done()
		return result, ctx.Err()
	}
	code, err := strconv.Atoi(command[1])
	result.ExitCode = int32(code)
	result.Output = []byte(strings.Join(command, " "))
	return result, err
}

// A Runtime of a page makes a provider for package podsync. Here its pod has an
// init container and a regular one, and the policy Never.
func Example_runtime() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	root, err := os.MkdirTemp("", "podruntime-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	core := apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1() // a cluster's clientset.CoreV1()
	environment, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		fmt.Println(err)
		return
	}
	provider, err := podruntime.New(podruntime.Config{
		Runtime: newMemory(), Root: root, Environment: environment, HostIPs: []string{"192.0.2.1"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := provider.Run(ctx); err != nil {
			fmt.Println(err)
		}
	})

	// The calls that a podsync.Controller makes:
	ended := make(chan podsync.State, 1)
	wg.Go(func() {
		_ = provider.Watch(ctx, func(s podsync.State) {
			if s.Stopped {
				ended <- s
			}
		})
	})
	_, err = provider.Start(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello", UID: "1"},
		Spec: corev1.PodSpec{
			RestartPolicy:  corev1.RestartPolicyNever,
			InitContainers: []corev1.Container{{Name: "prepare", Command: []string{"exit", "0"}}},
			Containers:     []corev1.Container{{Name: "work", Command: []string{"exit", "3"}}},
		},
	})
	if err != nil {
		fmt.Println(err)
	}
	state := <-ended
	for _, c := range append(state.Status.InitContainerStatuses, state.Status.ContainerStatuses...) {
		fmt.Println(c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode)
	}
	cancel()
	wg.Wait()
	// Output:
	// prepare Completed 0
	// work Error 3
}
