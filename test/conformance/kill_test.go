// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/internal/smalldisk"
	"github.com/kubewright/kubewright/test/conformance/rig"
)

// patience bounds every wait of these tests.
const patience = 3 * time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !comesTrue(condition) {
		t.Fatalf("waited %v for %s", patience, what)
	}
}

// comesTrue reports whether a condition holds in time.
func comesTrue(condition func() bool) bool {
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// needsContainers returns a suite and a client, or skips the test.
func needsContainers(t *testing.T) (*suite, kubernetes.Interface) {
	t.Helper()
	s := newSuiteWith(t, needsRuntime(t))
	return s, s.client(t)
}

// client returns a client, as soon as pods can be created.
func (s *suite) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return client
}

// TestKilledAgainAndAgain kills the kubelet and containerd with SIGKILL while pods come
// and go, in every other round with a full disk. No container runs twice, no exit code is lost, and the runtime has nothing of
// the pods afterwards, nor has the kernel. Two things are containerd's own, and the test only counts them. If
// containerd 1.6 is killed while it starts a shim, it forgets the shim, which no kubelet
// can end then. And it loses the exit code of a container if it is killed while that starts or ends, or if the kubelet
// is killed during StartContainer: containerd then kills the container. Such a container may have run, so it does not
// run again in a pod that is never restarted.
//
// An administrator tidies up in each round, while the kubelet runs and while it does not. See tidy.
//
// It is run by make chaos-containers only, because it takes minutes.
func TestKilledAgainAndAgain(t *testing.T) {
	if os.Getenv("KUBEWRIGHT_CHAOS") != "1" {
		t.Skip(`run "make chaos-containers"`)
	}
	s, client := needsContainers(t)
	s.explain(t, client)
	const kills, seed = 12, 7
	random := rand.New(rand.NewPCG(seed, seed))
	pods := client.CoreV1().Pods("default")
	out := t.TempDir()
	if err := os.Chmod(out, 0o777); err != nil {
		t.Fatal(err)
	}
	disk := s.mountDisk(t)
	n, removed := 0, 0
	for i := range kills {
		if i == kills/2 { // some have nothing to do any longer: the administrator removes them
			eventually(t, "some pods to end", func() bool { return len(s.done(t, client)) > 3 })
		}
		full := i%4 == 1 || i%4 == 2
		if full {
			if err := disk.FillSpace(); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			n++
			if _, err := pods.Create(t.Context(), workPod(n, out), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		if i%3 != 2 {
			s.kubelet.Kill()
		}
		if i%3 != 0 {
			s.runtime.Kill()
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			s.runtime.Start(t)
		}
		if full {
			time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
			if err := disk.Free(); err != nil {
				t.Fatal(err)
			}
		}
		removed += s.tidy(t, client)
		if i%3 != 2 {
			s.kubelet.Start(t)
		}
	}
	if removed == 0 {
		t.Error("the administrator has removed nothing")
	}
	var list *corev1.PodList
	ended := func() bool {
		var err error
		if list, err = pods.List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if !hasEnded(&p) {
				return false
			}
		}
		return true
	}
	if !comesTrue(ended) {
		s.killShimsThatHang(t, list.Items)
		eventually(t, "all pods to end", ended)
	}
	written, err := os.ReadFile(filepath.Join(out, "log"))
	if err != nil {
		t.Fatal(err)
	}
	unknown := 0
	for _, p := range list.Items {
		starts, ends := strings.Count(string(written), "start "+string(p.UID)), strings.Count(string(written), "end "+string(p.UID))
		want := exitCode(&p)
		e := p.Status.ContainerStatuses[0].State.Terminated
		if starts <= 1 && ends <= starts && e != nil && s.exitIsUnknown(t, p.UID, e) {
			t.Logf("%s started %d times, ended %d times: %d %s %s", p.Name, starts, ends, e.ExitCode, e.Reason, e.Message)
			unknown++
			continue
		}
		if starts != 1 || ends != 1 || e == nil || e.ExitCode != want {
			t.Errorf("%s started %d times, ended %d times, and has %+v, want exit code %d", p.Name, starts, ends, p.Status.ContainerStatuses[0].State, want)
		}
	}
	if unknown > kills {
		t.Errorf("%d exit codes were lost", unknown)
	}
	if len(list.Items) != n {
		t.Errorf("%d pods of %d", len(list.Items), n)
	}
	s.nothingIsLeft(t, client)
	t.Logf("%d kills, %d pods, %d containers and sandboxes removed, of containerd: %d unknown exit codes and %d forgotten shims", kills, n, removed, unknown, len(s.runtime.Shims()))
}

// tidy removes what an administrator may: the exited containers and the sandboxes of pods that have ended
// with their exit code, and the empty directories of the kubelet. Images stay, because the cluster has no
// registry. It returns the number of containers and sandboxes.
func (s *suite) tidy(t *testing.T, client kubernetes.Interface) (removed int) {
	t.Helper()
	cri := s.runtime.Client(t)
	for _, p := range s.done(t, client) {
		of := map[string]string{"io.kubernetes.pod.uid": string(p.UID)}
		containers, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: of, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED},
		}})
		if err != nil {
			t.Fatal(err)
		}
		boxes, err := cri.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			LabelSelector: of, State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
		}})
		if err != nil {
			t.Fatal(err)
		}
		// A containerd that was killed may refuse. The kubelet has to remove it then.
		for _, c := range containers.Containers {
			if _, err := cri.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.Id}); err == nil {
				removed++
			}
		}
		for _, b := range boxes.Items {
			if _, err := cri.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: b.Id}); err == nil {
				removed++
			}
		}
	}
	root := filepath.Join(s.kubelet.Dir, "root")
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root {
			dirs = append(dirs, path)
		}
		return nil // the kubelet may have removed it
	})
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // unless it has something
	}
	return removed
}

// done returns the pods that have ended with their exit code.
func (s *suite) done(t *testing.T, client kubernetes.Interface) []corev1.Pod {
	t.Helper()
	list, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		if !hasEnded(&p) {
			return true
		}
		e := p.Status.ContainerStatuses[0].State.Terminated
		return e == nil || e.ExitCode != exitCode(&p)
	})
}

// exitCode returns the code that the container of a workPod exits with.
func exitCode(p *corev1.Pod) int32 { return int32(p.Annotations["code"][0] - '0') }

// mountDisk restarts the kubelet on a disk of its own.
func (s *suite) mountDisk(t *testing.T) *smalldisk.Disk {
	t.Helper()
	s.kubelet.Stop()
	dir := filepath.Join(s.kubelet.Dir, "root")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	disk, err := smalldisk.Mount(dir, smalldisk.Capacity{MiB: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kubelet.Stop()
		if err := disk.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if !disk.Mounted() {
		t.Fatal("this process may not mount a file system")
	}
	s.kubelet.Start(t)
	return disk
}

// exitIsUnknown reports whether containerd does not know how the container of a pod ended: it says so, its start was cut
// off, or it has no such container, and the kubelet says so.
func (s *suite) exitIsUnknown(t *testing.T, pod types.UID, end *corev1.ContainerStateTerminated) bool {
	t.Helper()
	cri := s.runtime.Client(t)
	list, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(pod)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Containers) == 0 {
		return end.Reason == "ContainerStatusUnknown"
	}
	if len(list.Containers) != 1 {
		t.Errorf("pod %s has %d containers, want 1", pod, len(list.Containers))
		return false
	}
	answer, err := cri.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id})
	if err != nil {
		t.Fatal(err)
	}
	st := answer.Status
	return end.ExitCode == st.ExitCode && (st.ExitCode == 255 && st.Reason == "Unknown" || st.StartedAt == 0)
}

func hasEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// killShimsThatHang kills the shims that hang of pods that have not ended. A kubelet can only try again.
func (s *suite) killShimsThatHang(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	cri := s.runtime.Client(t)
	for _, p := range pods {
		if hasEnded(&p) {
			continue
		}
		killed, err := s.runtime.KillHangingShims(t.Context(), cri, p.UID)
		if err != nil {
			t.Fatal(err)
		}
		if len(killed) > 0 {
			t.Logf("%s: containerd can't stop a container, so its shims %v were killed", p.Name, killed)
		}
	}
}

// workPod returns a pod that writes when it starts and ends, and exits with a code.
func workPod(n int, out string) *corev1.Pod {
	code := n % 5
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("work-", n), Annotations: map[string]string{"code": fmt.Sprint(code)}},
		Spec: corev1.PodSpec{
			NodeName: "worker", RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "work", Image: rig.BusyboxImage,
				Command:      []string{"sh", "-c", fmt.Sprintf("echo start $UID_OF_POD >> /out/log; sleep %d; echo end $UID_OF_POD >> /out/log; exit %d", n%3, code)},
				Env:          []corev1.EnvVar{{Name: "UID_OF_POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "out", MountPath: "/out"}},
			}},
			Volumes: []corev1.Volume{{Name: "out", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: out}}}},
		},
	}
}

// explain prints the pods that have not ended and the ends of the logs of a failed test.
func (s *suite) explain(t *testing.T, client kubernetes.Interface) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		list, err := client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Log(err)
			return
		}
		for _, p := range list.Items {
			if !hasEnded(&p) {
				t.Logf("%s %s: %+v", p.Name, p.UID, p.Status)
			}
		}
		for _, path := range []string{s.kubelet.Log(), s.runtime.Log()} {
			text, err := os.ReadFile(path)
			t.Logf("end of %s: %v\n%s", path, err, text[max(0, len(text)-20_000):])
		}
	})
}

// nothingIsLeft deletes all pods and checks that the runtime has nothing of them, and that
// their cgroups are gone, with the processes that the runtime may have forgotten.
func (s *suite) nothingIsLeft(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods := client.CoreV1().Pods("default")
	if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all pods to be gone", func() bool {
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	cri := s.runtime.Client(t)
	left := ""
	defer func() {
		if t.Failed() {
			t.Logf("left: %s", left)
		}
	}()
	eventually(t, "the runtime to be empty", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		containers, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return false
		}
		boxes, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		left = fmt.Sprintf("containers %v, sandboxes %v, %v", containers.Containers, boxes.GetItems(), err)
		return err == nil && len(containers.Containers)+len(boxes.Items) == 0
	})
	eventually(t, "all cgroups of pods to be gone", func() bool {
		dirs := slices.DeleteFunc(cgroups.Kernel.Dirs(s.runtime.CgroupParent()), func(dir string) bool {
			return filepath.Base(dir) == filepath.Base(s.runtime.CgroupParent())
		})
		left = fmt.Sprint(dirs)
		return len(dirs) == 0
	})
}

// TestAKilledShimIsNoticed kills the shim of a pod, which takes its containers with it:
// the pod runs again in a new sandbox.
func TestAKilledShimIsNoticed(t *testing.T) {
	s, client := needsContainers(t)
	pods := client.CoreV1().Pods("default")
	pod := workPod(1, "/tmp")
	pod.Spec.RestartPolicy, pod.Spec.Containers[0].Command = corev1.RestartPolicyAlways, []string{"sleep", "100000"}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	restarts := func(atLeast int32) func() bool {
		return func() bool {
			p, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
			return err == nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil && p.Status.ContainerStatuses[0].RestartCount >= atLeast
		}
	}
	for kill := range int32(2) {
		eventually(t, "the pod to run", restarts(kill))
		for _, pid := range s.runtime.Shims() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the container to run again", restarts(kill+1))
	}
	s.nothingIsLeft(t, client)
	eventually(t, "all shims to end", func() bool { return len(s.runtime.Shims()) == 0 })
}
