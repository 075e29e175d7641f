// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
)

func TestMain(m *testing.M) {
	shim.Main()
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// nodeTest is the example with the credentials of node n1.
type nodeTest struct {
	*testing.T
	api     *apitest.Server
	args    []string
	run     func(ctx context.Context, args []string, stdout io.Writer) error
	program *exampletest.Program
}

func newNode(t *testing.T, args ...string) *nodeTest {
	return newNodeWith(t, exampletest.Server(t), run, args...)
}

func newNodeWith(t *testing.T, api *apitest.Server, run func(ctx context.Context, args []string, stdout io.Writer) error, args ...string) *nodeTest {
	root := filepath.Join(t.TempDir(), "kubelet")
	k := &nodeTest{T: t, api: api, run: run, args: append([]string{
		"--kubeconfig", exampletest.Kubeconfig(t, api, apitest.NodeUser("n1")),
		"--node-name", "n1", "--node-credentials", "--root-dir", root, "--port=0",
	}, args...)}
	t.Cleanup(func() {
		left, err := shim.Processes(root)
		if err != nil || len(left) > 0 {
			t.Errorf("processes left behind: %v, %v", left, err)
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	k.start()
	return k
}

func (k *nodeTest) start() { k.program = exampletest.Start(k.T, k.run, k.args...) }

func (k *nodeTest) stop() {
	k.Helper()
	if err := k.program.Stop(); err != nil {
		k.Errorf("the program ended with %v", err)
	}
}

// bind makes a pod that is bound to the node.
func (k *nodeTest) bind(name string, policy corev1.RestartPolicy, script string) {
	k.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName:      "n1",
			RestartPolicy: policy,
			Containers:    []corev1.Container{{Name: "c", Image: "none", Command: []string{"sh", "-c", script}}},
		},
	})
}

// await waits until a pod satisfies the condition; nil is a pod that is gone.
func (k *nodeTest) await(name, what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	k.Helper()
	var pod *corev1.Pod
	exampletest.Eventually(k.T, k.api, name+" "+what, func() bool {
		pod = apitest.Get[*corev1.Pod](k.api, "default", name)
		return condition(pod)
	})
	return pod
}

func phase(want corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == want }
}

func gone(p *corev1.Pod) bool { return p == nil }

func TestPodsRun(t *testing.T) {
	k := newNode(t)
	out := filepath.Join(t.TempDir(), "out")
	k.bind("service", corev1.RestartPolicyAlways, fmt.Sprintf("echo started >> %s; exec sleep 1000", out))
	k.bind("job", corev1.RestartPolicyNever, "echo done")
	k.bind("failure", corev1.RestartPolicyNever, "exit 9")
	k.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "image-only"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	})

	k.await("job", "to succeed", phase(corev1.PodSucceeded))
	failed := k.await("failure", "to fail", phase(corev1.PodFailed))
	if e := failed.Status.ContainerStatuses[0].State.Terminated; e == nil || e.ExitCode != 9 || e.Reason != "Error" {
		t.Errorf("the pod that fails has %+v", failed.Status.ContainerStatuses[0])
	}
	rejected := k.await("image-only", "to be rejected", phase(corev1.PodFailed))
	if rejected.Status.Reason != "Unsupported" || !strings.Contains(rejected.Status.Message, "no command") {
		t.Errorf("the pod without a command has %s: %s", rejected.Status.Reason, rejected.Status.Message)
	}
	before := k.await("service", "to run", phase(corev1.PodRunning))

	// The program ends and comes back; the pod runs on, and nothing is written.
	k.stop()
	writes := len(k.api.Requests(apitest.Match{Resource: "pods/status"}))
	k.start()
	exampletest.Eventually(t, k.api, "the node to be ready again", func() bool {
		node := apitest.Get[*corev1.Node](k.api, "", "n1")
		return node != nil && len(node.Status.Conditions) > 0 && ready(node) == corev1.ConditionTrue
	})
	k.bind("after", corev1.RestartPolicyNever, "true")
	k.await("after", "to succeed", phase(corev1.PodSucceeded))
	for _, r := range k.api.Requests(apitest.Match{Resource: "pods/status"})[writes:] {
		if r.Path != "/api/v1/namespaces/default/pods/after/status" {
			t.Errorf("after a restart the status of another pod than the new one was written: %s %s", r.Path, r.Body)
		}
	}
	after := k.await("service", "to run", phase(corev1.PodRunning))
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 {
		t.Errorf("the pod was %+v and is %+v", b, a)
	}
	if data, err := os.ReadFile(out); err != nil || string(data) != "started\n" {
		t.Errorf("the container wrote %q, %v, want one line", data, err)
	}

	k.delete("service")
	k.await("service", "to be gone", gone)
	k.stop()
	exampletest.NothingRefused(t, k.api)
}

func TestAPodHasTheHostAddressAndTheEventsOfAKubelet(t *testing.T) {
	k := newNode(t)
	k.bind("service", corev1.RestartPolicyAlways, "exec sleep 1000")
	k.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "image-only"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	})
	// The provider reports addresses of the pods that it runs, and only of those.
	for name, want := range map[string]corev1.PodPhase{"service": corev1.PodRunning, "image-only": corev1.PodFailed} {
		st := k.await(name, "to be "+string(want), phase(want)).Status
		if st.HostIP != "127.0.0.1" || len(st.HostIPs) != 1 {
			t.Errorf("%s has the host address %q, %v", name, st.HostIP, st.HostIPs)
		}
	}
	k.delete("service")
	k.await("service", "to be gone", gone)
	reasons := func() (reasons []string) {
		for _, e := range apitest.List[*eventsv1.Event](k.api, "default") {
			if e.Regarding.Kind == "Pod" && e.Regarding.Name == "service" {
				reasons = append(reasons, e.ReportingController+" "+e.Reason)
			}
		}
		slices.Sort(reasons)
		return reasons
	}
	exampletest.Eventually(t, k.api, "the events of the container", func() bool {
		return slices.Equal(reasons(), []string{"kubelet Killing", "kubelet Started"})
	})
	k.stop()
	exampletest.NothingRefused(t, k.api)
}

// The API binds pods that the scheduler would not bind, as a static scheduler or a
// DaemonSet of an old version may.
func TestPodsThatDoNotFitTheNodeFail(t *testing.T) {
	k := newNode(t)
	bind := func(name string, change func(*corev1.PodSpec)) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sleep", "1000"}}}},
		}
		change(&pod.Spec)
		k.api.Put(pod)
	}
	expect := func(name, reason, message string) {
		t.Helper()
		st := k.await(name, "to fail", phase(corev1.PodFailed)).Status
		if st.Reason != reason || !strings.Contains(st.Message, message) || len(st.ContainerStatuses) > 0 && st.ContainerStatuses[0].ContainerID != "" {
			t.Errorf("%s: %s: %s, containers %+v; want %s: %s", name, st.Reason, st.Message, st.ContainerStatuses, reason, message)
		}
	}
	bind("cpu", func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10k")}
	})
	expect("cpu", "OutOfcpu", "Node didn't have enough resource: cpu, requested: 10000000, used: ")
	bind("elsewhere", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "x"} })
	expect("elsewhere", "NodeAffinity", "Predicate NodeAffinity failed")

	// Labels and taints count from the moment in which the API has them.
	apitest.Edit(k.api, "", "n1", func(n *corev1.Node) {
		n.Labels["zone"] = "x"
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "drain", Effect: corev1.TaintEffectNoExecute})
	})
	bind("here", func(s *corev1.PodSpec) {
		s.NodeSelector = map[string]string{"zone": "x"}
		s.Tolerations = []corev1.Toleration{{Key: "drain", Operator: corev1.TolerationOpExists}}
	})
	k.await("here", "to run", phase(corev1.PodRunning))
	bind("drained", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "x"} })
	expect("drained", "TaintToleration", "node(s) had taints that the pod didn't tolerate")
	k.delete("here")
	k.await("here", "to be gone", gone)
	k.stop()
	exampletest.NothingRefused(t, k.api)
}

func TestAPodAboveTheSizeLimitOfAVolumeIsEvicted(t *testing.T) {
	k := newNode(t)
	limit := resource.MustParse("1Mi")
	k.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "full"},
		Spec: corev1.PodSpec{
			NodeName: "n1",
			Volumes:  []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}},
			Containers: []corev1.Container{{
				Name: "c", Image: "none", Command: []string{"sh", "-c", "head -c 2097152 /dev/zero > $CONTAINER_SANDBOX_MOUNT_POINT/data/file; exec sleep 1000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/data"}},
			}},
		},
	})
	const message = `Usage of EmptyDir volume "v" exceeds the limit "1Mi".`
	st := k.await("full", "to be evicted", phase(corev1.PodFailed)).Status
	if st.Reason != "Evicted" || st.Message != message {
		t.Errorf("it has %s: %s", st.Reason, st.Message)
	}
	for _, c := range st.Conditions {
		if c.Type == corev1.DisruptionTarget {
			t.Errorf("a Job would excuse the pod: %+v", c)
		}
	}
	exampletest.Eventually(t, k.api, "the event", func() bool {
		return slices.ContainsFunc(apitest.List[*eventsv1.Event](k.api, "default"), func(e *eventsv1.Event) bool {
			return e.Reason == "Evicted" && e.Type == corev1.EventTypeWarning && e.Note == message && e.Regarding.Name == "full"
		})
	})
	k.stop()
	exampletest.NothingRefused(t, k.api)
}

// delete begins a graceful deletion, as kubectl does.
func (k *nodeTest) delete(name string) {
	k.Helper()
	err := k.api.Client(apitest.User{}).CoreV1().Pods("default").Delete(k.Context(), name, metav1.DeleteOptions{})
	if err != nil {
		k.Fatal(err)
	}
}

func ready(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func TestMissingConfigMapIsNamed(t *testing.T) {
	k := newNode(t)
	k.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waits"},
		Spec: corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "c", Image: "none", Command: []string{"true"},
			EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}}}},
		}}},
	})
	k.await("waits", "to be pending with a reason", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodPending && strings.Contains(p.Status.Message, "absent")
	})
	k.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "absent"}})
	k.await("waits", "to succeed", phase(corev1.PodSucceeded))
	k.stop()
}
