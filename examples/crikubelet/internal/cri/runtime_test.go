// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podruntimetest"
)

// The Runtime keeps the contract of podruntime, with and without events.
func TestContract(t *testing.T) {
	for _, events := range []bool{false, true} {
		t.Run(fmt.Sprint("events=", events), func(t *testing.T) {
			servers := map[podruntime.Runtime]*criserver.Server{}
			podruntimetest.TestRuntime(t, podruntimetest.Suite{
				New: func(t testing.TB) podruntime.Runtime {
					server := criserver.Start(t)
					server.Events = events
					r := newRuntime(t, server)
					servers[r] = server
					return r
				},
				Reopen: func(_ testing.TB, old podruntime.Runtime) podruntime.Runtime {
					old.(*Runtime).Close()
					r := newRuntime(t, servers[old]) // the suite uses it in a Cleanup of its own
					servers[r] = servers[old]
					return r
				},
				Forever:  func() corev1.Container { return container0("forever") },
				Stubborn: func() corev1.Container { return container0("stubborn") },
				Exits:    func(code int) corev1.Container { return container0("exit", fmt.Sprint(code)) },
				Command:  func(code int) []string { return []string{"exit", fmt.Sprint(code)} },
				Hangs:    []string{"sleep"},
				Mute: func(_ testing.TB, r podruntime.Runtime, pod types.UID) func() {
					return mute(r.(*Runtime), servers[r], pod)
				},
				Timeout: 20 * time.Second,
			})
		})
	}
}

// mute makes the statuses of a pod hang, for a Runtime that has not read them before.
func mute(r *Runtime, server *criserver.Server, pod types.UID) (unmute func()) {
	setHangs := func(pod string) {
		server.Lock()
		defer server.Unlock()
		server.Hangs = pod
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.patience = 300 * time.Millisecond
	clear(r.statuses)
	clear(r.boxes)
	setHangs(string(pod))
	return func() { setHangs("") }
}

// set makes the sandbox of a pod and returns the spec of its container.
func set(t testing.TB, r *Runtime, pod *corev1.Pod) podruntime.ContainerSpec {
	t.Helper()
	box, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: pod, Hostname: pod.Name})
	if err != nil {
		t.Fatal(err)
	}
	c := &pod.Spec.Containers[0]
	spec := podruntime.ContainerSpec{ID: podruntime.ContainerID{Pod: pod.UID, Name: c.Name}, Pod: pod, Container: c, Hostname: pod.Name, Sandbox: &box, Dir: t.TempDir()}
	spec.Environment.Command = c.Command
	return spec
}

func TestAContainerThatWasOnlyCreatedIsMadeAgain(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	dir := spec.Dir
	spec.Dir = filepath.Join(dir, "absent") // so that it ends before StartContainer
	if err := r.Start(t.Context(), spec); err == nil {
		t.Fatal("Start returned nil although the container did not start")
	}
	spec.Dir = dir
	spec.Environment.Args = []string{"new"}
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	server.Lock()
	defer server.Unlock()
	if len(server.Containers) != 1 {
		t.Fatalf("%d containers", len(server.Containers))
	}
	for _, c := range server.Containers {
		if c.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING || len(c.Config.Args) != 1 {
			t.Errorf("it is %v with arguments %v", c.Status.State, c.Config.Args)
		}
	}
}

// If the process or the runtime is killed during StartContainer, the runtime may list the container as created although it
// has run. After that neither this process nor the next one starts the run again.
func TestAContainerWhoseStartWasCutOffIsNotStartedAgain(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	server.Fail = func(method string) error {
		if method == "StartContainer" {
			return status.Error(codes.Unavailable, "killed")
		}
		return nil
	}
	if err := r.Start(t.Context(), spec); err == nil || errors.Is(err, podruntime.ErrMayHaveRun) {
		t.Fatalf("Start returned %v", err)
	}
	refuse := func(method string) error {
		if method == "RemoveContainer" {
			return status.Error(codes.Unknown, "container is in starting state, can't be removed")
		}
		return nil
	}
	for _, fail := range []func(string) error{refuse, nil, nil} {
		server.Lock()
		server.Fail = fail
		server.Unlock()
		r = newRuntime(t, server)
		err := r.Start(t.Context(), spec)
		if want := fail == nil; err == nil || errors.Is(err, podruntime.ErrMayHaveRun) != want {
			t.Errorf("Start returned %v", err)
		}
		server.Lock()
		for _, c := range server.Containers {
			if fail == nil || c.Status.State != runtimeapi.ContainerState_CONTAINER_CREATED {
				t.Errorf("there is a container, %v", c.Status.State)
			}
		}
		server.Unlock()
	}
	spec.ID.Attempt++
	if err := r.Start(t.Context(), spec); err != nil {
		t.Errorf("the next run: %v", err)
	}
}

// The disk usage of a container is the layer of its newest run and its logs.
func TestDiskUsage(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod(func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"exit", "0"} }))
	for range 2 {
		if err := r.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		spec.ID.Attempt++
	}
	const layer, log = 2 << 20, 1 << 20 // of the second run
	usage := func() int64 {
		t.Helper()
		got, err := r.DiskUsage(t.Context(), spec.ID.Pod)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		return got["main"]
	}
	before := usage()
	if before < layer || before > layer+1<<16 {
		t.Errorf("%d bytes before there is a log", before)
	}
	path := filepath.Join(r.logDir(spec.ID.Pod), "main", "0.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, log), 0o600)); err != nil {
		t.Fatal(err)
	}
	if grown := usage() - before; grown < log || grown > log+1<<16 {
		t.Errorf("a log of %d bytes takes %d", log, grown)
	}
	if got, err := r.DiskUsage(t.Context(), "another"); err != nil || len(got) > 0 {
		t.Errorf("of another pod: %v, %v", got, err)
	}
}

func TestContainersOfOthersAreLeftAlone(t *testing.T) {
	server := criserver.Start(t)
	mine := newRuntime(t, server)
	other := newRuntime(t, server)
	other.cfg.Node = "n2"
	spec := set(t, other, pod())
	if err := other.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if list, err := mine.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := errors.Join(mine.Stop(t.Context(), spec.ID, podruntime.StopOptions{}), mine.Remove(t.Context(), spec.ID),
		mine.TearDownPod(t.Context(), spec.ID.Pod), mine.RemovePod(t.Context(), spec.ID.Pod)); err != nil {
		t.Error(err)
	}
	if list, err := other.List(t.Context(), ""); err != nil || len(list) != 1 || list[0].State != podruntime.ContainerRunning {
		t.Errorf("the container of the other kubelet: %v, %v", list, err)
	}
}

func TestStatusesAreReadOncePerState(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := r.List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Stop(t.Context(), spec.ID, podruntime.StopOptions{Deadline: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		list, err := r.List(t.Context(), "")
		if err != nil || len(list) != 1 || list[0].State != podruntime.ContainerExited || list[0].RuntimeID[:9] != "memory://" {
			t.Fatalf("%+v, %v", list, err)
		}
	}
	server.Lock()
	defer server.Unlock()
	if n := server.Calls["ContainerStatus"]; n != 2 {
		t.Errorf("%d ContainerStatus calls, want 2: one while it ran and one after", n)
	}
	if n := server.Calls["PodSandboxStatus"]; n != 1 {
		t.Errorf("%d PodSandboxStatus calls, want 1", n)
	}
}

func TestALostTaskIsStoppedAndThenKnown(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	server.Lock()
	for _, c := range server.Containers {
		c.Status.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
	server.Unlock()
	if list, err := r.List(t.Context(), ""); err != nil || len(list) != 1 || list[0].State != podruntime.ContainerExited {
		t.Errorf("%+v, %v", list, err)
	}
	server.Lock()
	defer server.Unlock()
	for _, c := range server.Containers {
		if len(c.Stops) != 1 || c.Stops[0] != 0 {
			t.Errorf("it was stopped with timeouts %v, want one stop at once", c.Stops)
		}
	}
}

// The shim of one container hangs. The others are listed, and it may run.
func TestALostTaskThatCantBeEndedConcernsItsPodOnly(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	other := pod()
	other.UID, other.Name = "other", "other"
	for _, p := range []*corev1.Pod{pod(), other} {
		if err := r.Start(t.Context(), set(t, r, p)); err != nil {
			t.Fatal(err)
		}
	}
	lost := pod().UID
	setState := func(state runtimeapi.ContainerState) {
		server.Lock()
		defer server.Unlock()
		for _, c := range server.Containers {
			if c.Config.Labels[labelUID] == string(lost) {
				c.Status.State = state
			}
		}
	}
	setState(runtimeapi.ContainerState_CONTAINER_UNKNOWN)
	stops := 0
	server.Fail = func(method string) error {
		if method == "StopContainer" {
			stops++
			return errors.New("the shim does not answer")
		}
		return nil
	}
	for range 2 {
		list, err := r.List(t.Context(), "")
		if err != nil || len(list) != 2 || list[0].State != podruntime.ContainerRunning || list[1].State != podruntime.ContainerRunning {
			t.Errorf("%+v, %v", list, err)
		}
	}
	if stops != 2 {
		t.Errorf("it was ended %d times, want a try for each list", stops)
	}
	server.Lock()
	server.Fail = nil
	server.Unlock()
	if list, err := r.List(t.Context(), lost); err != nil || len(list) != 1 || list[0].State != podruntime.ContainerExited {
		t.Errorf("when the shim answers: %+v, %v", list, err)
	}
}

func TestEachCallHasADeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		request any
		want    time.Duration // 0: that of the caller
	}{
		"list":    {&runtimeapi.ListContainersRequest{}, 2 * time.Minute},
		"start":   {&runtimeapi.StartContainerRequest{}, 2 * time.Minute},
		"sandbox": {&runtimeapi.RunPodSandboxRequest{}, 4 * time.Minute},
		"stop":    {&runtimeapi.StopContainerRequest{Timeout: 30}, 2*time.Minute + 30*time.Second},
		"command": {&runtimeapi.ExecSyncRequest{}, 0},
		"pull":    {&runtimeapi.PullImageRequest{}, 0}, // see Config.PullTimeout
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			_ = bounded(t.Context(), "", tc.request, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				deadline, ok := ctx.Deadline()
				if ok != (tc.want > 0) || ok && deadline.Sub(begin) != tc.want {
					t.Errorf("%s: %v, want %v", name, deadline.Sub(begin), tc.want)
				}
				return nil
			})
		})
	}
}

// CRI-O ends the stream of events at once if they are switched off.
func TestARuntimeWithoutEventsIsPolled(t *testing.T) {
	for _, end := range []bool{false, true} {
		server := criserver.Start(t)
		server.EndEvents = end
		r := newRuntime(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan types.UID, 10)
		done := make(chan error, 1)
		go func() { done <- r.Watch(ctx, func(uid types.UID) { changed <- uid }) }()
		if err := r.Start(t.Context(), set(t, r, pod())); err != nil {
			t.Fatal(err)
		}
		select {
		case uid := <-changed:
			if uid != pod().UID {
				t.Errorf("%s has changed", uid)
			}
		case err := <-done:
			t.Errorf("Watch has ended: %v", err)
		}
		cancel()
		<-done
	}
}

// A new sandbox takes the place of one that has ended, whose containers keep their exit
// codes.
func TestALostSandboxIsReplaced(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if again := set(t, r, pod()); again.Sandbox.ID != spec.Sandbox.ID {
		t.Errorf("a sandbox that is ready was replaced: %s by %s", spec.Sandbox.ID, again.Sandbox.ID)
	}
	if err := r.TearDownPod(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	boxes, err := r.ListPods(t.Context(), "uid")
	if err != nil || len(boxes) != 1 || boxes[0].Ready || len(boxes[0].IPs) != 1 {
		t.Fatalf("after TearDownPod: %+v, %v", boxes, err)
	}
	again := set(t, r, pod())
	boxes, err = r.ListPods(t.Context(), "")
	if err != nil || len(boxes) != 1 || !boxes[0].Ready || boxes[0].ID == spec.Sandbox.ID || boxes[0].ID != again.Sandbox.ID {
		t.Errorf("the sandbox was %s, is %s and is listed as %+v, %v", spec.Sandbox.ID, again.Sandbox.ID, boxes, err)
	}
	if list, err := r.List(t.Context(), "uid"); err != nil || len(list) != 1 || list[0].ExitCode != 137 {
		t.Errorf("the container of the old sandbox: %+v, %v", list, err)
	}
	if err := r.RemovePod(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	if boxes, err = r.ListPods(t.Context(), ""); err != nil || len(boxes) != 0 {
		t.Errorf("after RemovePod: %+v, %v", boxes, err)
	}
}

// A sandbox that has ended goes when the next one is made, and not only with the pod, unless
// it has a container: that has an exit code.
func TestAnOldSandboxGoesWithItsContainers(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	reboot := func() {
		server.Lock()
		defer server.Unlock()
		for _, b := range server.Sandboxes {
			b.Status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
	}
	for range 20 {
		reboot()
		set(t, r, pod())
	}
	if server.Sandboxes[spec.Sandbox.ID] == nil || len(server.Sandboxes) != 2 {
		t.Errorf("%d sandboxes: want the current one and %s, which has a container", len(server.Sandboxes), spec.Sandbox.ID)
	}
	if n := server.Calls["StopPodSandbox"]; n != 2*20-1 {
		t.Errorf("%d StopPodSandbox calls, want at most two for each reboot", n)
	}
	if err := r.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	reboot()
	// One that can't be removed holds up nothing.
	server.Fail = func(method string) error {
		if method == "RemovePodSandbox" {
			return errors.New("device or resource busy")
		}
		return nil
	}
	set(t, r, pod())
	server.Fail = nil
	reboot()
	if last := set(t, r, pod()); len(server.Sandboxes) != 1 || server.Sandboxes[last.Sandbox.ID] == nil {
		t.Errorf("%d sandboxes, want the current one", len(server.Sandboxes))
	}
}

// hangingSandboxes is a runtime that never removes a sandbox.
type hangingSandboxes struct {
	runtimeapi.RuntimeServiceClient
}

func (hangingSandboxes) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (hangingSandboxes) RemovePodSandbox(ctx context.Context, _ *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.RemovePodSandboxResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The next sandbox waits for the removal of old ones, but not for a runtime that hangs.
func TestOldSandboxesThatCantBeRemovedDelayTheNextOneByAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begin := &Runtime{client: hangingSandboxes{}}, time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout) // of bounded
		defer cancel()
		if err := r.removeEmpty(ctx, "uid", []*runtimeapi.PodSandbox{{Id: "a"}, {Id: "b"}}); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d != removeTimeout {
			t.Errorf("two of them delayed it by %v, want %v", d, removeTimeout)
		}
	})
}

// A containerd that is killed while it creates a sandbox may list it as ready
// afterwards, without a process. Its containers never ran.
func TestAContainerOfASandboxWithoutAProcessIsAsIfItWasNeverStarted(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	server.Lock()
	server.Sandboxes[spec.Sandbox.ID].Lost = true
	server.Unlock()
	if err := r.Start(t.Context(), spec); err == nil {
		t.Fatal("Start succeeded")
	}
	if list, err := r.List(t.Context(), "uid"); err != nil || len(list) != 0 {
		t.Errorf("a container that never ran is listed as %+v, %v", list, err)
	}
	boxes, err := r.ListPods(t.Context(), "uid")
	if err != nil || len(boxes) != 1 || boxes[0].Ready {
		t.Fatalf("the sandbox is listed as %+v, %v", boxes, err)
	}
	again := set(t, r, pod())
	again.Dir = spec.Dir
	if err := r.Start(t.Context(), again); err != nil {
		t.Errorf("Start in the new sandbox: %v", err)
	}
}

// An error of Start in a sandbox that lives is that of the container.
func TestAStartThatFailsInAGoodSandboxCounts(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod(func(p *corev1.Pod) { p.Spec.Containers[0] = container0("missing") }))
	var failed *podruntime.StartError
	if err := r.Start(t.Context(), spec); !errors.As(err, &failed) || failed.Reason != "RunContainerError" {
		t.Errorf("Start: %v", err)
	}
	if list, err := r.List(t.Context(), "uid"); err != nil || len(list) != 1 || list[0].State != podruntime.ContainerExited || list[0].ExitCode != 128 {
		t.Errorf("the container is listed as %+v, %v", list, err)
	}
}

func TestTheRuntimeClassChoosesTheHandler(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Handler: "kata"})
	class := func(name string) *corev1.Pod {
		return pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = &name })
	}
	if _, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: class("none")}); err == nil {
		t.Error("a pod with a runtime class that does not exist has a sandbox")
	}
	if _, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: class("fast")}); err != nil {
		t.Fatal(err)
	}
	handlers := func() {
		t.Helper()
		for _, b := range server.Sandboxes {
			if b.Handler != "kata" {
				t.Errorf("the handler is %q", b.Handler)
			}
		}
	}
	handlers()
	// The next sandbox does not need the API server, where the class may even be gone.
	if err := r.TearDownPod(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	r.cfg.RuntimeClasses = clients().NodeV1()
	if _, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: class("fast")}); err != nil {
		t.Fatal(err)
	}
	handlers()
}

// The runtime is killed and started again: calls fail in the meantime, and then the
// containers are there.
func TestTheRuntimeComesBack(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	watch := make(chan error, 1)
	go func() { watch <- r.Watch(t.Context(), func(types.UID) {}) }()
	server.Stop()
	if err := <-watch; err == nil {
		t.Error("Watch returned nil although the runtime is away")
	}
	if _, err := r.List(t.Context(), ""); err == nil {
		t.Error("List returned nil although the runtime is away")
	}
	server.Serve(t)
	for {
		list, err := r.List(t.Context(), "")
		if err == nil {
			if len(list) != 1 || list[0].State != podruntime.ContainerRunning {
				t.Errorf("%+v", list)
			}
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		sleep(t.Context(), 10*time.Millisecond)
	}
}

func TestExecWaitsForTheTimeoutOfTheRuntime(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if _, err := r.Exec(t.Context(), spec.ID, []string{"exit", "0"}); err == nil {
		t.Error("a command ran in a container that does not run")
	}
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Exec(ctx, spec.ID, []string{"sleep"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
}

// A hook that never ends does not keep the kubelet from ending.
func TestExecEndsIfItsContextIsCancelled(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	server.Fail = func(method string) error {
		if method == "ExecSync" {
			close(begun)
		}
		return nil
	}
	go func() {
		<-begun
		cancel()
	}()
	if _, err := r.Exec(ctx, spec.ID, []string{"sleep"}); err == nil {
		t.Error("no error")
	}
}

// The output of probes is limited, so that it does not fill the memory of the node.
func TestExecReadsNoMoreThanItsLimit(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if result, err := r.Exec(t.Context(), spec.ID, []string{"print", "1000000"}); err != nil || len(result.Output) != 1e6 {
		t.Errorf("%d bytes, %v", len(result.Output), err)
	}
	if _, err := r.Exec(t.Context(), spec.ID, []string{"print", "8000000"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("eight megabytes: %v", err)
	}
}

// The annotations of a tenant's pods must not make the list of sandboxes too long to be read.
func TestPodsWithManyAnnotationsAreListed(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	const pods = 110
	for i := range pods {
		set(t, r, pod(func(p *corev1.Pod) {
			p.UID = types.UID(fmt.Sprint("uid-", i))
			p.Annotations = map[string]string{"long": strings.Repeat("x", 200<<10), "short": "y", "medium": strings.Repeat("z", 30<<10)}
		}))
	}
	list, err := r.ListPods(t.Context(), "")
	if err != nil || len(list) != pods {
		t.Fatalf("%d pods, %v", len(list), err)
	}
	for id, b := range server.Sandboxes {
		if a := b.Config.Annotations; len(a) != 2 || a["short"] != "y" || len(a["medium"]) != 30<<10 {
			t.Errorf("%s has %d annotations", id, len(a))
		}
	}
}

func TestResizeKeepsTheContainer(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	spec.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: quantity("250m")}
	if err := r.Resize(t.Context(), spec.ID, spec.Pod, spec.Container); err != nil {
		t.Fatal(err)
	}
	for _, c := range server.Containers {
		if q := c.Config.Linux.Resources.CpuQuota; q != 25_000 {
			t.Errorf("the quota is %d", q)
		}
	}
}
