// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// errCut is the error of calls after the death of a process.
var errCut = errors.New("the connection was cut")

// A machine is a memory that outlives the processes of a test, with a journal.
type machine struct {
	*memory
	mu         sync.Mutex
	journal    []string // "start NAME/ATTEMPT" and so on
	starts     map[string][]time.Duration
	begin      time.Time
	violations []string
	boxes      map[types.UID]*podruntime.Sandbox
	made       int
	exec       func(id podruntime.ContainerID, command []string) (int, error) // nil: as a memory
	resized    []string
	limits     map[any]int64 // CPU limits in thousandths, of pods by UID and of containers; 0: none
	deaf       bool          // LogTail hangs
	young      bool          // List does not know the start of a container yet
	created    atomic.Bool   // List has running containers as created
	mute       types.UID     // a pod of which nothing is known; see muteList and muteBoxes
	muteList   bool          // by List
	muteBoxes  bool          // by ListPods
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = append(m.journal, fmt.Sprintf(format, args...))
}

// A link is the connection of one process to a machine.
type link struct {
	*machine
	// before is called before each call; an error is that of the call. after is
	// called after the call has had its effect.
	before, after func(op string) error
	hooks         sync.Mutex // guards before and after
}

func (l *link) setBefore(f func(op string) error) {
	l.hooks.Lock()
	defer l.hooks.Unlock()
	l.before = f
}

func (l *link) setAfter(f func(op string) error) {
	l.hooks.Lock()
	defer l.hooks.Unlock()
	l.after = f
}

func (l *link) call(op string, f func() error) error {
	l.hooks.Lock()
	before, after := l.before, l.after
	l.hooks.Unlock()
	if before != nil {
		if err := before(op); err != nil {
			return err
		}
	}
	err := f()
	if after != nil && err == nil {
		err = after(op)
	}
	return err
}

// unknown returns the error of a list of pod, or of all, if one of them is mute. m.mu must be held.
func (m *machine) unknown(pod types.UID, mute bool) error {
	if mute && (pod == "" || pod == m.mute) {
		return &podruntime.ListError{Pods: map[types.UID]error{m.mute: errors.New("it does not answer")}}
	}
	return nil
}

func (l *link) List(ctx context.Context, pod types.UID) (list []podruntime.Container, err error) {
	err = l.call("List", func() error {
		list, _ = l.memory.List(ctx, pod)
		for i := range list {
			if l.young {
				list[i].StartedAt = time.Time{}
			}
			if l.created.Load() && list[i].State == podruntime.ContainerRunning {
				list[i].State = podruntime.ContainerCreated
			}
		}
		l.machine.mu.Lock()
		defer l.machine.mu.Unlock()
		err := l.unknown(pod, l.muteList)
		if err != nil {
			list = slices.DeleteFunc(list, func(c podruntime.Container) bool { return c.ID.Pod == l.mute })
		}
		return err
	})
	return list, err
}

func (l *link) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	return l.call("Start", func() error {
		for _, m := range spec.Mounts {
			if _, err := os.Stat(m.HostPath); err != nil && m.Volume != "" {
				l.machine.mu.Lock()
				l.violations = append(l.violations, fmt.Sprintf("%v was started without a volume: %v", spec.ID, err))
				l.machine.mu.Unlock()
			}
		}
		list, _ := l.memory.List(ctx, spec.ID.Pod)
		for _, c := range list {
			if c.ID.Name == spec.ID.Name && c.State == podruntime.ContainerRunning && c.ID != spec.ID {
				l.machine.mu.Lock()
				l.violations = append(l.violations, fmt.Sprintf("%v was started while %v ran", spec.ID, c.ID))
				l.machine.mu.Unlock()
			}
		}
		known := slices.ContainsFunc(list, func(c podruntime.Container) bool { return c.ID == spec.ID })
		err := l.memory.Start(ctx, spec)
		if err == nil && !known {
			l.note("start %s/%d", spec.ID.Name, spec.ID.Attempt)
			l.machine.mu.Lock()
			l.starts[spec.ID.Name] = append(l.starts[spec.ID.Name], time.Since(l.begin))
			l.machine.mu.Unlock()
		}
		return err
	})
}

func (l *link) Stop(ctx context.Context, id podruntime.ContainerID, opts podruntime.StopOptions) error {
	return l.call("Stop", func() error {
		l.note("stop %s/%d", id.Name, id.Attempt)
		return l.memory.Stop(ctx, id, opts)
	})
}

func (l *link) Remove(ctx context.Context, id podruntime.ContainerID) error {
	return l.call("Remove", func() error { return l.memory.Remove(ctx, id) })
}

func (l *link) Exec(ctx context.Context, id podruntime.ContainerID, command []string) (result podruntime.ExecResult, err error) {
	err = l.call("Exec", func() error {
		if l.exec == nil {
			result, err = l.memory.Exec(ctx, id, command)
			return err
		}
		code, err := l.exec(id, command)
		result.ExitCode = int32(code)
		return err
	})
	return result, err
}

func (l *link) LogTail(ctx context.Context, _ podruntime.ContainerID, _ int64) ([]byte, error) {
	if l.deaf {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []byte("the last line"), nil
}

// A sandboxed is a link that is a Sandboxer, a PodResizer and a Puller.
type sandboxed struct{ *link }

func (s sandboxed) Pull(context.Context, *corev1.Pod, *corev1.Container) error {
	return s.call("Pull", func() error { return nil })
}

func (s sandboxed) SetUpPod(_ context.Context, spec podruntime.SandboxSpec) (box podruntime.Sandbox, err error) {
	err = s.call("SetUpPod", func() error {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		b := s.boxes[spec.Pod.UID]
		if b == nil || !b.Ready {
			s.made++
			b = &podruntime.Sandbox{Pod: spec.Pod.UID, ID: fmt.Sprint("box-", s.made), Ready: true, IPs: []string{fmt.Sprint("10.0.0.", s.made)}}
			s.boxes[spec.Pod.UID] = b
			s.journal = append(s.journal, "set up")
			s.limits[spec.Pod.UID] = cpuLimit(podruntime.PodResources(spec.Pod).Limits)
		}
		box = *b
		return nil
	})
	return box, err
}

func (s sandboxed) TearDownPod(_ context.Context, pod types.UID) error {
	return s.call("TearDownPod", func() error {
		s.lose(pod)
		s.note("tear down")
		return nil
	})
}

func (s sandboxed) RemovePod(_ context.Context, pod types.UID) error {
	return s.call("RemovePod", func() error {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		delete(s.boxes, pod)
		return nil
	})
}

func (s sandboxed) ListPods(_ context.Context, pod types.UID) (list []podruntime.Sandbox, err error) {
	err = s.call("ListPods", func() error {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		for _, b := range s.boxes {
			if (pod == "" || b.Pod == pod) && !(s.muteBoxes && b.Pod == s.mute) {
				list = append(list, *b)
			}
		}
		return s.unknown(pod, s.muteBoxes)
	})
	return list, err
}

func cpuLimit(limits corev1.ResourceList) int64 { return limits.Cpu().MilliValue() }

// limit sets the limit of a pod or a container. As with the kernel, a container has no
// more than its pod.
func (s sandboxed) limit(of any, pod types.UID, limit int64) {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	s.limits[of] = limit
	s.compare(pod)
}

// compare notes containers that have more than their pod. s.machine.mu must be held.
func (s sandboxed) compare(pod types.UID) {
	list, _ := s.memory.List(context.Background(), pod)
	for _, c := range list {
		if whole := s.limits[pod]; c.State == podruntime.ContainerRunning && whole > 0 && (s.limits[c.ID] == 0 || s.limits[c.ID] > whole) {
			s.violations = append(s.violations, fmt.Sprintf("%v has %d of the %d thousandths of a CPU of its pod", c.ID, s.limits[c.ID], whole))
		}
	}
}

func (s sandboxed) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	q := podruntime.ContainerLimit(spec.Pod, spec.Container, corev1.ResourceCPU)
	s.machine.mu.Lock()
	s.limits[spec.ID] = q.MilliValue()
	s.machine.mu.Unlock()
	err := s.link.Start(ctx, spec)
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	s.compare(spec.ID.Pod)
	return err
}

func (s sandboxed) ResizePod(_ context.Context, pod *corev1.Pod, grow bool) error {
	op := "ResizePod"
	if grow {
		op = "GrowPod"
	}
	return s.call(op, func() error {
		limit := cpuLimit(podruntime.PodResources(pod).Limits)
		s.machine.mu.Lock()
		if had := s.limits[pod.UID]; grow && limit > 0 && (had == 0 || had > limit) {
			limit = had
		}
		s.resized = append(s.resized, fmt.Sprint(op, " ", limit))
		s.machine.mu.Unlock()
		s.limit(pod.UID, pod.UID, limit)
		return nil
	})
}

func (s sandboxed) Resize(_ context.Context, id podruntime.ContainerID, pod *corev1.Pod, c *corev1.Container) error {
	return s.call("Resize", func() error {
		s.machine.mu.Lock()
		whole, _ := podruntime.LimitOf(pod, corev1.ResourceCPU)
		q := podruntime.ContainerLimit(pod, c, corev1.ResourceCPU)
		s.resized = append(s.resized, fmt.Sprintf("%s/%d %s of %s", id.Name, id.Attempt, &q, &whole))
		s.machine.mu.Unlock()
		s.limit(id, id.Pod, q.MilliValue())
		return nil
	})
}

// lose makes a sandbox not ready.
func (m *machine) lose(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[pod]; b != nil {
		b.Ready = false
	}
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	m.report(pod)
}

// A world is a machine and the process that runs pods on it.
type world struct {
	*testlog.T
	*machine
	api     *apitest.Server
	root    string
	boxed   bool                     // the Runtime is a Sandboxer
	env     *podenv.Config           // nil: without Services and tokens
	change  func(*podruntime.Config) // nil: none
	lines   *lines                   // what the process logs at V0; nil: its log is that of the test
	link    *link
	p       *podruntime.Provider
	cancel  context.CancelFunc
	stopped chan struct{}
}

// inWorld runs a test in a bubble, with a process that runs.
func inWorld(t *testing.T, f func(w *world)) { inWorldWith(t, func(*world) {}, f) }

func inWorldWith(t *testing.T, prepare, f func(w *world)) {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { // of pods that were not released
		if err := mounts.UnmountBelow(root); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: testlog.New(t), root: root, api: apitest.New(apitest.Options{})}
		w.machine = &machine{memory: newMemory(), starts: map[string][]time.Duration{}, limits: map[any]int64{}, boxes: map[types.UID]*podruntime.Sandbox{}, begin: time.Now()}
		prepare(w)
		w.boot()
		f(w)
		w.shutdown()
		for _, v := range w.violations {
			w.Error(v)
		}
	})
}

// boot begins a process.
func (w *world) boot() {
	w.Helper()
	core := w.api.Client(apitest.User{}).CoreV1()
	inputs := podenv.Config{}
	if w.env != nil {
		inputs = *w.env
	}
	inputs.ConfigMaps, inputs.Secrets, inputs.ReadFile = core, core, podruntime.ReadFile(w.root)
	env, err := podenv.New(inputs)
	if err != nil {
		w.Fatal(err)
	}
	w.link = &link{machine: w.machine}
	cfg := podruntime.Config{Runtime: w.link, Root: w.root, Environment: env, HostIPs: []string{"192.0.2.1"}}
	if w.boxed {
		cfg.Runtime = sandboxed{w.link}
	}
	if w.change != nil {
		w.change(&cfg)
	}
	if w.p, err = podruntime.New(cfg); err != nil {
		w.Fatal(err)
	}
	w.p.Check(func(err error) { w.Errorf("broken: %v", err) })
	ctx, cancel := context.WithCancel(w.Context())
	if w.lines != nil {
		ctx = klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w.lines), textlogger.Verbosity(0))))
	}
	w.cancel, w.stopped = cancel, make(chan struct{})
	go func() {
		defer close(w.stopped)
		if err := w.p.Run(ctx); err != nil {
			w.Errorf("Run: %v", err)
		}
	}()
}

// shutdown ends the process. Its containers run on.
func (w *world) shutdown() {
	w.cancel()
	<-w.stopped
}

// kill ends the process with its connection cut: nothing that it does later has an
// effect.
func (w *world) kill() {
	w.cut()
	w.shutdown()
}

func (w *world) cut() { w.link.setBefore(func(string) error { return errCut }) }

// start starts a pod.
func (w *world) start(pod *corev1.Pod) podsync.Ref {
	w.Helper()
	if _, err := w.p.Start(w.Context(), pod); err != nil {
		w.Fatalf("Start: %v", err)
	}
	return podsync.RefOf(pod)
}

// stop asks a pod to end.
func (w *world) stop(ref podsync.Ref, grace time.Duration) {
	w.Helper()
	if _, err := w.p.Stop(w.Context(), ref, podsync.StopOptions{Grace: grace, Reason: podsync.StopDeleted}); err != nil {
		w.Fatalf("Stop: %v", err)
	}
}

// state returns the state of a pod after everything that is due has happened.
func (w *world) state(ref podsync.Ref) podsync.State {
	w.Helper()
	synctest.Wait()
	s, err := w.p.Inspect(w.Context(), ref)
	if err != nil {
		w.Fatalf("Inspect: %v", err)
	}
	return s
}

// container returns the status of a container by its name.
func (w *world) container(ref podsync.Ref, name string) corev1.ContainerStatus {
	w.Helper()
	st := w.state(ref).Status
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses) {
		if c.Name == name {
			return c
		}
	}
	w.Fatalf("no container %s in %+v", name, st)
	return corev1.ContainerStatus{}
}

// expect compares the journal. Entries that are joined with " & " may have come in
// any order.
func (w *world) expect(want ...string) {
	w.Helper()
	synctest.Wait()
	w.machine.mu.Lock()
	defer w.machine.mu.Unlock()
	got := slices.Clone(w.journal)
	var all []string
	for _, entry := range want {
		group := strings.Split(entry, " & ")
		slices.Sort(group)
		if end := len(all) + len(group); end <= len(got) {
			slices.Sort(got[len(all):end])
		}
		all = append(all, group...)
	}
	if !slices.Equal(got, all) {
		w.Errorf("the journal is %q, want %q", w.journal, want)
	}
}

// started returns the times at which a container was started.
func (w *world) started(name string) []time.Duration {
	synctest.Wait()
	w.machine.mu.Lock()
	defer w.machine.mu.Unlock()
	return slices.Clone(w.starts[name])
}

// begun compares the times at which a container was started.
func (w *world) begun(name string, want ...time.Duration) {
	w.Helper()
	if got := w.started(name); !slices.Equal(got, want) {
		w.Errorf("%s was started at %v, want %v", name, got, want)
	}
}

func command(name, text string) corev1.Container {
	return corev1.Container{Name: name, Image: "image", Command: strings.Fields(text)}
}

func sidecarOf(c corev1.Container) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func podOf(policy corev1.RestartPolicy, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-1", Generation: 1},
		Spec:       corev1.PodSpec{RestartPolicy: policy, Containers: containers},
	}
}

func execHook(command ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
}

func execProbe(command ...string) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}}
}
