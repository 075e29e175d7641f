// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func TestPodRunsToItsEnd(t *testing.T) {
	for script, want := range map[string]corev1.ContainerStateTerminated{
		"exit 0":                   {ExitCode: 0, Reason: "Completed"},
		"echo no disk >&2; exit 4": {ExitCode: 4, Reason: "Error", Message: "no disk\n"},
		"kill -TERM $$$$":          {ExitCode: 143, Signal: 15, Reason: "Error"},
	} {
		t.Run(script, func(t *testing.T) {
			r := newRig(t)
			c := r.container("c", script)
			c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			ref := r.begin(newPod(corev1.RestartPolicyNever, c))
			s := r.await(ref, "the end", stopped)
			got := exitOf(s.Status.ContainerStatuses[0])
			if got.ExitCode != want.ExitCode || got.Signal != want.Signal || got.Reason != want.Reason || got.Message != want.Message {
				t.Errorf("the container ended with %+v, want %+v", got, want)
			}
			if err := r.Release(t.Context(), ref); err != nil {
				t.Error(err)
			}
			if _, err := r.Inspect(t.Context(), ref); !errors.Is(err, podsync.ErrNotFound) {
				t.Errorf("after Release: %v", err)
			}
			left, err := filepath.Glob(filepath.Join(r.root, "*", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("files left: %v, %v", left, err)
			}
		})
	}
}

func TestRestarts(t *testing.T) {
	r := newRig(t)
	ref := r.begin(newPod(corev1.RestartPolicyAlways, r.container("c", "exit 1")))
	s := r.await(ref, "a third restart", func(s podsync.State) bool { return s.Status.ContainerStatuses[0].RestartCount >= 3 })
	if s.Stopped {
		t.Error("it counts as stopped")
	}
	// Old runs don't pile up.
	runs, err := r.runtime.List(t.Context(), ref.UID)
	if err != nil || len(runs) > 3 {
		t.Errorf("runs %v, %v", runs, err)
	}
}

func TestBackoffShows(t *testing.T) {
	r := newRigWith(t, podruntime.Backoff{Initial: time.Hour})
	ref := r.begin(newPod(corev1.RestartPolicyAlways, r.container("c", "exit 1")))
	held := func(s podsync.State) bool {
		c := s.Status.ContainerStatuses[0]
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
	}
	check := func(s podsync.State) {
		t.Helper()
		c := s.Status.ContainerStatuses[0]
		if last := c.LastTerminationState.Terminated; last == nil || last.ExitCode != 1 || c.RestartCount != 1 || s.Stopped {
			t.Errorf("after one restart at once the container is %+v", c)
		}
	}
	check(r.await(ref, "the second restart to be held back", held))
	r.restart() // which does not cut it short
	check(r.await(ref, "it to be held back still", held))
}

func TestOrder(t *testing.T) {
	r := newRig(t)
	say := func(name, then string) corev1.Container { return r.container(name, "echo "+name+" >> $OUT; "+then) }
	always := corev1.ContainerRestartPolicyAlways
	sidecar := say("sidecar", `trap "echo end-sidecar >> $OUT; exit 0" TERM; while true; do sleep 1000 & wait; done`)
	sidecar.RestartPolicy = &always
	sidecar.StartupProbe = &corev1.Probe{TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "grep -q sidecar $OUT && echo probe >> $OUT"}}}}
	pod := newPod(corev1.RestartPolicyNever, say("app", "echo end-app >> $OUT"))
	pod.Spec.InitContainers = []corev1.Container{say("first", ""), sidecar, say("second", "")}
	s := r.await(r.begin(pod), "the end", stopped)
	want := []string{"first", "sidecar", "probe", "second", "app", "end-app", "end-sidecar"}
	if got := r.output(); !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
	for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
		if e := exitOf(c); e == nil || e.ExitCode != 0 || c.RestartCount != 0 {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
}

func TestFailedInitContainerEndsThePod(t *testing.T) {
	r := newRig(t)
	pod := newPod(corev1.RestartPolicyNever, r.container("app", forever))
	pod.Spec.InitContainers = []corev1.Container{r.container("init", "exit 2")}
	s := r.await(r.begin(pod), "the end", stopped)
	if e := exitOf(s.Status.InitContainerStatuses[0]); e == nil || e.ExitCode != 2 {
		t.Errorf("init container: %+v", s.Status.InitContainerStatuses[0])
	}
	if out := r.output(); len(out) > 0 {
		t.Errorf("the app ran: %v", out)
	}
}

func TestAdoption(t *testing.T) {
	r := newRig(t)
	// A process that runs has not written yet: it says so when it has.
	path := filepath.Join(r.root, "wrote")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	wrote, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer wrote.Close()
	script := "echo $KUBEWRIGHT_RUN >> $OUT; echo > " + path + "; exec sleep 1000"
	ref := r.begin(newPod(corev1.RestartPolicyAlways, r.container("a", script), r.container("b", script)))
	before := r.await(ref, "all to run", allRunning)
	if _, err := io.ReadFull(wrote, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.restart()
		list, err := r.List(t.Context())
		if err != nil || len(list) != 1 || !allRunning(list[0]) {
			t.Fatalf("after a restart there is %+v, %v", list, err)
		}
		for i, c := range list[0].Status.ContainerStatuses {
			if was := before.Status.ContainerStatuses[i]; c.ContainerID != was.ContainerID || !c.State.Running.StartedAt.Equal(&was.State.Running.StartedAt) {
				t.Errorf("container %s was %+v and is %+v", c.Name, was, c)
			}
		}
		if _, err := r.Start(t.Context(), newPodLike(before)); err != nil {
			t.Errorf("Start of a pod that runs: %v", err)
		}
	}
	if out := r.output(); len(out) != 2 {
		t.Errorf("containers were started: %v, want each once", out)
	}
}

func newPodLike(s podsync.State) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: s.UID, Namespace: s.Namespace, Name: s.Name}}
}

func TestEndWhileNobodyWatches(t *testing.T) {
	r := newRig(t)
	gate := filepath.Join(r.root, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	ref := r.begin(newPod(corev1.RestartPolicyNever, r.container("c", "read code < "+gate+"; exit $code")))
	r.await(ref, "it to run", allRunning)
	r.close()
	if err := os.WriteFile(gate, []byte("6\n"), 0); err != nil {
		t.Fatal(err)
	}
	r.open()
	s := r.await(ref, "the end", stopped)
	if e := exitOf(s.Status.ContainerStatuses[0]); e.ExitCode != 6 {
		t.Errorf("exit %+v, want code 6", e)
	}
}

func TestStopGoesOnAfterARestart(t *testing.T) {
	r := newRig(t)
	heard := filepath.Join(r.root, "heard")
	if err := syscall.Mkfifo(heard, 0o600); err != nil {
		t.Fatal(err)
	}
	ref := r.begin(newPod(corev1.RestartPolicyAlways, r.container("c", `trap "echo > `+heard+`" TERM; while true; do sleep 1000 & wait; done`)))
	r.await(ref, "it to run", allRunning)
	stop := func(grace time.Duration) {
		if _, err := r.Stop(t.Context(), ref, podsync.StopOptions{Grace: grace}); err != nil {
			t.Fatal(err)
		}
	}
	stop(time.Hour)
	if _, err := os.ReadFile(heard); err != nil { // it was asked
		t.Fatal(err)
	}
	r.restart()
	// Nothing is started, and a shorter grace period is in time.
	stop(time.Millisecond)
	s := r.await(ref, "the end", stopped)
	if e := exitOf(s.Status.ContainerStatuses[0]); e.ExitCode != 137 || s.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("it ended with %+v", s.Status.ContainerStatuses[0])
	}
}

func TestStopIsKeptWhenTheDiskTakesItAgain(t *testing.T) {
	r := newRig(t)
	ref := r.stopWithoutRoom()
	record := r.stopRecord(ref)
	if err := os.Remove(record + ".tmp"); err != nil {
		t.Fatal(err)
	}
	r.eventually("the record", func() bool { _, err := os.Stat(record); return err == nil })
	r.neverAgain(ref)
}

func TestStopIsKeptOnAFullDisk(t *testing.T) {
	r := newRig(t)
	r.neverAgain(r.stopWithoutRoom())
}

// stopWithoutRoom stops a pod whose stop.json can't be written, until its .tmp, which
// is in the way as no room is, is removed.
func (r *rig) stopWithoutRoom() podsync.Ref {
	r.Helper()
	ref := r.begin(newPod(corev1.RestartPolicyAlways, r.container("c", forever)))
	r.await(ref, "it to run", allRunning)
	r.eventually("its first output", func() bool { return len(r.output()) > 0 }) // a signal before it would be the end
	if err := os.Mkdir(r.stopRecord(ref)+".tmp", 0o700); err != nil {
		r.Fatal(err)
	}
	if _, err := r.Stop(r.Context(), ref, podsync.StopOptions{Grace: time.Hour}); err != nil {
		r.Fatal(err)
	}
	r.await(ref, "its end all the same", stopped)
	return ref
}

func (r *rig) stopRecord(ref podsync.Ref) string {
	return filepath.Join(r.root, "pods", string(ref.UID), "stop.json")
}

// neverAgain has another kubelet find a pod that was stopped.
func (r *rig) neverAgain(ref podsync.Ref) {
	r.Helper()
	r.restart()
	if s := r.await(ref, "it to be known", func(podsync.State) bool { return true }); !s.Stopped {
		r.Errorf("the next kubelet takes it for one that is to run: %+v", s.Status)
	}
	if got := r.output(); len(got) != 1 {
		r.Errorf("it was started %d times", len(got))
	}
}

func TestHooksAndProbes(t *testing.T) {
	exec := func(script string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}}}
	}
	t.Run("hooks", func(t *testing.T) {
		r := newRig(t)
		c := r.container("c", "exec sleep 1000")
		c.Lifecycle = &corev1.Lifecycle{PostStart: exec("echo post >> $OUT"), PreStop: exec("echo pre >> $OUT")}
		ref := r.begin(newPod(corev1.RestartPolicyAlways, c))
		r.await(ref, "it to run", allRunning)
		r.restart() // the next kubelet runs the rest of the hooks
		if _, err := r.Stop(t.Context(), ref, podsync.StopOptions{Grace: time.Hour}); err != nil {
			t.Fatal(err)
		}
		r.await(ref, "the end", stopped)
		if out := r.output(); !slices.Equal(out, []string{"post", "pre"}) {
			t.Errorf("hooks %q", out)
		}
	})
	t.Run("a postStart hook that fails", func(t *testing.T) {
		r := newRig(t)
		c := r.container("c", "exec sleep 1000")
		c.Lifecycle = &corev1.Lifecycle{PostStart: exec("exit 1")}
		ref := r.begin(newPod(corev1.RestartPolicyAlways, c))
		r.await(ref, "a restart", func(s podsync.State) bool { return s.Status.ContainerStatuses[0].RestartCount >= 1 })
	})
	t.Run("liveness", func(t *testing.T) {
		r := newRig(t)
		c := r.container("c", `echo $KUBEWRIGHT_RUN > $OUT; exec sleep 1000`)
		c.LivenessProbe = &corev1.Probe{FailureThreshold: 1, TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
			Command: []string{"sh", "-c", `case $(cat $OUT) in */0) exit 1;; esac`},
		}}}
		ref := r.begin(newPod(corev1.RestartPolicyAlways, c))
		s := r.await(ref, "one restart", func(s podsync.State) bool { return s.Status.ContainerStatuses[0].RestartCount == 1 && allRunning(s) })
		if last := s.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 143 {
			t.Errorf("last state %+v", last)
		}
	})
	t.Run("readiness by TCP", func(t *testing.T) {
		r := newRig(t)
		listener := listen(t)
		c := r.container("c", "exec sleep 1000")
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(listener)}}}
		ref := r.begin(newPod(corev1.RestartPolicyAlways, c))
		r.await(ref, "it to be ready", allRunning)
		// A new kubelet does not take it for unready before the first probe.
		r.restart()
		if list, err := r.List(t.Context()); err != nil || !allRunning(list[0]) {
			t.Errorf("after a restart: %+v, %v", list, err)
		}
	})
}

func TestEnvironmentAndVolumes(t *testing.T) {
	r := newRig(t)
	c := r.container("c", `cat $CONTAINER_SANDBOX_MOUNT_POINT/etc/app/key >> $OUT; echo $FROM $POD_IP >> $OUT; pwd >> $OUT; echo result > $CONTAINER_SANDBOX_MOUNT_POINT/dev/termination-log`)
	c.TerminationMessagePath = "/dev/termination-log"
	c.WorkingDir = "/scratch"
	c.Env = append(c.Env,
		corev1.EnvVar{Name: "FROM", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "key"}}},
		corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
	)
	c.VolumeMounts = []corev1.VolumeMount{{Name: "settings", MountPath: "/etc/app"}, {Name: "empty", MountPath: "/scratch", SubPath: ""}}
	pod := newPod(corev1.RestartPolicyNever, c)
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	_, err := r.Start(t.Context(), pod)
	if err == nil || !strings.Contains(err.Error(), "settings") || !strings.Contains(err.Error(), "key") {
		t.Fatalf("without the ConfigMap: %v", err)
	}
	if reject := new(podsync.RejectError); errors.As(err, &reject) {
		t.Fatalf("it was rejected for good: %v", err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) > 0 {
		t.Fatalf("a pod that could not start is held: %v, %v", list, err)
	}
	r.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"key": "value\n"}})
	s := r.await(r.begin(pod), "the end", stopped)
	out := r.output()
	if len(out) != 4 || out[0] != "value" || out[1] != "value" || out[2] != "127.0.0.1" || !strings.HasPrefix(out[3], r.root) {
		t.Errorf("the container saw %q", out)
	}
	if m := exitOf(s.Status.ContainerStatuses[0]).Message; m != "result\n" {
		t.Errorf("termination message %q", m)
	}
}

// What a command of kubectl exec leaves behind is no descendant of the shim, and ends with
// the container anyway: the rig finds no process.
func TestWhatExecLeavesBehindEndsWithTheContainer(t *testing.T) {
	r := newRig(t)
	run := r.running("exec sleep 1000")
	var out strings.Builder
	if err := run.Exec(t.Context(), []string{"sh", "-c", "sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"}, IO{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("a process that is left behind", func() bool {
		left, err := shim.Processes(r.root)
		return err == nil && slices.Contains(left, pid)
	})
}

func TestOneKubeletAtATime(t *testing.T) {
	r := newRig(t)
	if root, err := Lock(r.root); err == nil {
		t.Error("a second kubelet uses the folder", root.Close())
	}
}
