// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/examples/composetest"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A machine runs containers in memory. It outlives the processes that use it.
type machine struct {
	mu         sync.Mutex
	containers map[podruntime.ContainerID]*podruntime.Container
	begun      map[podruntime.ContainerID]int // how often a container began to run, over all attempts
	violations []string
}

func newMachine() *machine {
	return &machine{containers: map[podruntime.ContainerID]*podruntime.Container{}, begun: map[podruntime.ContainerID]int{}}
}

func (m *machine) exit(id podruntime.ContainerID, code int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.containers[id]; c != nil && c.State == podruntime.ContainerRunning {
		c.State, c.ExitCode, c.FinishedAt = podruntime.ContainerExited, code, time.Now()
	}
}

// exited is in the names of containers that have ended.
const exited = "/exited"

// names returns pod/container/state of the containers in the states that end with suffix. All
// attempts of a container in one state have one name.
func (m *machine) names(pods func(types.UID) string, suffix string) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.containers {
		if name := thing(pods, id, c); strings.HasSuffix(name, suffix) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func thing(pods func(types.UID) string, id podruntime.ContainerID, c *podruntime.Container) string {
	state := "/running"
	if c.State != podruntime.ContainerRunning {
		state = exited
	}
	return pods(id.Pod) + "/" + id.Name + state
}

// prune removes all attempts of a container that have ended, as an administrator does.
func (m *machine) prune(pods func(types.UID) string, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.containers, func(id podruntime.ContainerID, c *podruntime.Container) bool { return thing(pods, id, c) == name })
}

// removeEmpty removes the empty directories below root.
func removeEmpty(root string) {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // unless it has something
	}
}

// link is the podruntime.Runtime of one process. Its calls are places for crashes.
type link struct {
	*machine
	p     *explore.Process
	names func(types.UID) string
}

// List implements podruntime.Runtime.
func (l *link) List(_ context.Context, pod types.UID) (list []podruntime.Container, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, c := range l.containers {
		if pod == "" || id.Pod == pod {
			list = append(list, *c)
		}
	}
	slices.SortFunc(list, func(a, b podruntime.Container) int { return compare(a.ID, b.ID) })
	return list, nil
}

func compare(a, b podruntime.ContainerID) int {
	switch x, y := a.String(), b.String(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

func (l *link) call(op string, id podruntime.ContainerID, f func()) error {
	return l.p.Call(fmt.Sprintf("%s %s/%s/%d", op, l.names(id.Pod), id.Name, id.Attempt), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		f()
	})
}

// Start implements podruntime.Runtime. The command "exit CODE TIME" ends on its own.
func (l *link) Start(_ context.Context, spec podruntime.ContainerSpec) (err error) {
	gone := l.call("start", spec.ID, func() {
		if _, ok := l.containers[spec.ID]; ok {
			return
		}
		for id, c := range l.containers {
			if id.Pod == spec.ID.Pod && id.Name == spec.ID.Name && c.State == podruntime.ContainerRunning {
				l.violations = append(l.violations, fmt.Sprintf("%v was started while %v ran", spec.ID, id))
			}
		}
		if len(spec.Environment.Command) == 0 {
			err = &podruntime.StartError{Reason: "CreateContainerError", Err: errors.New("no command")}
			return
		}
		l.begun[podruntime.ContainerID{Pod: spec.ID.Pod, Name: spec.ID.Name}]++
		l.containers[spec.ID] = &podruntime.Container{ID: spec.ID, State: podruntime.ContainerRunning, StartedAt: time.Now()}
		if command := spec.Environment.Command; command[0] == "exit" {
			code, _ := strconv.Atoi(command[1])
			after, _ := time.ParseDuration(command[2])
			time.AfterFunc(after, func() { l.exit(spec.ID, int32(code)) })
		}
	})
	return errors.Join(gone, err)
}

// Stop implements podruntime.Runtime.
func (l *link) Stop(_ context.Context, id podruntime.ContainerID, _ podruntime.StopOptions) error {
	return l.call("stop", id, func() {
		time.AfterFunc(2*time.Second, func() { l.exit(id, 0) })
	})
}

// Remove implements podruntime.Runtime.
func (l *link) Remove(_ context.Context, id podruntime.ContainerID) (err error) {
	gone := l.call("remove", id, func() {
		if c := l.containers[id]; c != nil && c.State == podruntime.ContainerRunning {
			err = fmt.Errorf("%v runs", id)
			return
		}
		delete(l.containers, id)
	})
	return errors.Join(gone, err)
}

// TestPodRuntime explores the composition with podruntime over a runtime in memory. The
// root directory is copied at a crash. At rest, an administrator removes containers that have
// ended, and in the end those of job are left; or all empty directories, of which none is compared.
// Sandboxes and a tmpfs do not exist here.
func TestPodRuntime(t *testing.T) {
	cfg := config(testing.Short())
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool {
		// A second host has no containers of the first, and a backup brings pods back.
		return f.Name == "takeover" || f.Name == "restore"
	})
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		m := newMachine()
		get := func(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.Server, "default", name) }
		phase := func(name string, phase corev1.PodPhase) func() bool {
			return func() bool { p := get(name); return p != nil && p.Status.Phase == phase }
		}
		var mu sync.Mutex
		known, root := map[types.UID]string{}, ""
		names := func(uid types.UID) string {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range apitest.List[*corev1.Pod](w.Server, "default") {
				known[p.UID] = p.Name
			}
			return known[uid]
		}
		web, job, restarts := pod("web"), pod("job"), pod("restarts")
		web.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i:1", Command: []string{"exit", "0", "1s"}}}
		web.Spec.Containers[0].Command = []string{"forever"}
		web.Spec.Containers = append(web.Spec.Containers, corev1.Container{Name: "second", Image: "i:1", Command: []string{"forever"}})
		web.Spec.RestartPolicy = corev1.RestartPolicyAlways
		job.Spec.Containers[0].Command = []string{"exit", "3", "5s"}
		restarts.Spec.Containers[0].Command = []string{"exit", "1", "5s"}
		restarts.Spec.RestartPolicy = corev1.RestartPolicyAlways
		return explore.Scenario{
			Programs: []explore.Program{{Name: "node", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
				dir, err := p.Dir()
				if err != nil {
					return err
				}
				mu.Lock()
				root = filepath.Join(dir, "root")
				mu.Unlock()
				core := kubernetes.NewForConfigOrDie(p.Config).CoreV1()
				env, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
				if err != nil {
					return err
				}
				provider, err := podruntime.New(podruntime.Config{Runtime: &link{m, p, names}, Root: filepath.Join(dir, "root"), Environment: env, HostIPs: []string{"192.0.2.1"}})
				if err != nil {
					return err
				}
				ctx, stop := context.WithCancel(ctx)
				var work sync.WaitGroup
				var err1, err2 error
				work.Go(func() { err1 = composetest.Run(ctx, p.Config, "n1", provider); stop() })
				work.Go(func() { err2 = provider.Run(ctx); stop() })
				work.Wait()
				return errors.Join(err1, err2)
			}}},
			Steps: []explore.Step{
				{Name: "create pods", Do: put(w, web, job, restarts), Until: all(phase("web", corev1.PodRunning), phase("job", corev1.PodFailed), func() bool {
					p := get("restarts")
					return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 2
				})},
				{Name: "delete web", Do: deletePod(w, "web"), Until: func() bool { return get("web") == nil }},
				{Name: "delete restarts", Do: deletePod(w, "restarts"), Until: func() bool { return get("restarts") == nil }},
			},
			Always: []explore.Invariant{{Name: "one instance of each container", Holds: func() error {
				m.mu.Lock()
				defer m.mu.Unlock()
				if len(m.violations) > 0 {
					return fmt.Errorf("%v", m.violations)
				}
				for id, n := range m.begun {
					if once := names(id.Pod) + "/" + id.Name; n > 1 && (once == "job/app" || once == "web/init") {
						return fmt.Errorf("%s has begun %d times, and must run once", once, n)
					}
				}
				return nil
			}}},
			Outside: []explore.Outside{{
				Name: "machine", List: func() []string { return m.names(names, "") }, Delete: func(thing string) { m.prune(names, thing) },
				Rest: func() []string { return m.names(names, exited) },
			}, {
				Name: "disk", List: func() []string { return nil }, Rest: func() []string { return []string{"empty"} }, Delete: func(string) {
					mu.Lock()
					defer mu.Unlock()
					removeEmpty(root)
				},
			}},
		}
	})
}
