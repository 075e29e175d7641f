// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// A node is the example with the credentials of node n1 on a runtime in memory.
type node struct {
	*testing.T
	api     *apitest.Server
	runtime *criserver.Server
	args    []string
	program *exampletest.Program
}

func newNode(t *testing.T, args ...string) *node {
	api, runtime := exampletest.Server(t), criserver.Start(t)
	n := &node{T: t, api: api, runtime: runtime, args: append([]string{
		"--kubeconfig", exampletest.Kubeconfig(t, api, apitest.NodeUser("n1")), "--node-name", "n1", "--node-credentials",
		"--container-runtime-endpoint", runtime.Endpoint(), "--root-dir", filepath.Join(t.TempDir(), "root"), "--port=0",
	}, args...)}
	n.program = exampletest.Start(t, run, n.args...)
	return n
}

func (n *node) put(name string, spec corev1.PodSpec) {
	spec.NodeName = "n1"
	n.api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec})
}

// await waits until a pod satisfies the condition; nil is a pod that is gone.
func (n *node) await(name, what string, condition func(*corev1.Pod) bool) (pod *corev1.Pod) {
	n.Helper()
	exampletest.Eventually(n.T, n.api, name+" "+what, func() bool {
		pod = apitest.Get[*corev1.Pod](n.api, "default", name)
		return condition(pod)
	})
	return pod
}

func main0(command ...string) []corev1.Container {
	return []corev1.Container{{Name: "c", Image: "none:1", Command: command}}
}

func phase(want corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == want }
}

func ready(api *apitest.Server) corev1.ConditionStatus {
	if node := apitest.Get[*corev1.Node](api, "", "n1"); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status
			}
		}
	}
	return ""
}

func TestPodsRunAndOutliveTheKubelet(t *testing.T) {
	n := newNode(t)
	n.put("service", corev1.PodSpec{Containers: main0("forever")})
	n.put("job", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, InitContainers: []corev1.Container{{Name: "i", Image: "none:1", Command: []string{"exit", "0"}}}, Containers: main0("exit", "3")})
	n.put("image", corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "absent:1"}}})

	failed := n.await("job", "to fail", phase(corev1.PodFailed))
	if e := failed.Status.ContainerStatuses[0].State.Terminated; e == nil || e.ExitCode != 3 {
		t.Errorf("%+v", failed.Status.ContainerStatuses)
	}
	before := n.await("service", "to run", phase(corev1.PodRunning))
	if before.Status.PodIP == "" || before.Status.PodIP == "127.0.0.1" || !strings.HasPrefix(before.Status.ContainerStatuses[0].ContainerID, "memory://") {
		t.Errorf("%+v", before.Status)
	}
	if before.Status.HostIP != "127.0.0.1" || len(before.Status.HostIPs) != 1 {
		t.Errorf("the host addresses are %q, %v", before.Status.HostIP, before.Status.HostIPs)
	}
	exampletest.Eventually(t, n.api, "the kubelet's event Started", func() bool {
		return slices.ContainsFunc(apitest.List[*eventsv1.Event](n.api, "default"), func(e *eventsv1.Event) bool {
			return e.Reason == "Started" && e.ReportingController == "kubelet" && e.Regarding.Name == "service"
		})
	})
	n.await("image", "to wait for its image", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Reason, "Image")
	})
	node := apitest.Get[*corev1.Node](n.api, "", "n1")
	if v := node.Status.NodeInfo.ContainerRuntimeVersion; v != "memory://1.0" {
		t.Errorf("the runtime is %q", v)
	}
	if f := node.Status.DeclaredFeatures; !slices.Equal(f, []string{"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"}) {
		t.Errorf("the node declares %v", f)
	}

	if err := n.program.Stop(); err != nil {
		t.Fatal(err)
	}
	n.program = exampletest.Start(t, run, n.args...)
	exampletest.Eventually(t, n.api, "the node to be ready again", func() bool { return ready(n.api) == corev1.ConditionTrue })
	n.put("after", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: main0("exit", "0")})
	n.await("after", "to succeed", phase(corev1.PodSucceeded))
	after := n.await("service", "to run", phase(corev1.PodRunning))
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 {
		t.Errorf("the container was %+v and is %+v", b, a)
	}
	for _, name := range []string{"service", "job", "image", "after"} {
		if err := n.api.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		n.await(name, "to be gone", func(p *corev1.Pod) bool { return p == nil })
	}
	// Logs and exit codes go after the Pod has gone.
	exampletest.Eventually(t, n.api, "nothing to be left in the runtime", func() bool {
		n.runtime.Lock()
		defer n.runtime.Unlock()
		return len(n.runtime.Sandboxes)+len(n.runtime.Containers) == 0
	})
	exampletest.NothingRefused(t, n.api)
}

// The machine is restarted while the API server is away: the pods run again, and when the API
// server is back it finds each of them once.
func TestOfflineThePodsRunAgain(t *testing.T) {
	n := newNode(t, "--offline")
	n.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"k": "text"}})
	n.api.Put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Handler: "kata"})
	c := main0("forever")
	c[0].Env = []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "k"}}}}
	n.put("service", corev1.PodSpec{Containers: c, RuntimeClassName: new("fast")})
	n.await("service", "to run", phase(corev1.PodRunning))
	if err := n.program.Stop(); err != nil {
		t.Fatal(err)
	}
	n.runtime.Lock()
	for _, box := range n.runtime.Sandboxes {
		box.Status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	for _, c := range n.runtime.Containers {
		c.Status.State, c.Status.ExitCode = runtimeapi.ContainerState_CONTAINER_EXITED, 255
	}
	n.runtime.Unlock()
	back := n.api.Inject(apitest.Fault{Err: errors.New("no route to host")})
	n.program = exampletest.Start(t, run, n.args...)
	running := func() (n0 int) {
		n.runtime.Lock()
		defer n.runtime.Unlock()
		for _, c := range n.runtime.Containers {
			if c.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				n0++
			}
		}
		return n0
	}
	exampletest.Eventually(t, n.api, "the pod to run without the API server", func() bool { return running() == 1 })
	back()
	n.await("service", "to be found by the API server", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return p.Status.Phase == corev1.PodRunning && s.State.Running != nil && s.RestartCount == 1
	})
	if got := running(); got != 1 {
		t.Errorf("%d containers run", got)
	}
	n.runtime.Lock()
	for _, box := range n.runtime.Sandboxes {
		if box.Handler != "kata" {
			t.Errorf("a sandbox has the handler %q", box.Handler)
		}
	}
	n.runtime.Unlock()
	if err := n.api.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), "service", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.await("service", "to be gone", func(p *corev1.Pod) bool { return p == nil })
}

// A second process waits until the first has ended. SIGTERM ends the wait.
func TestASecondKubeletThatWaitsCanBeStopped(t *testing.T) {
	n := newNode(t)
	exampletest.Eventually(t, n.api, "the node to be ready", func() bool { return ready(n.api) == corev1.ConditionTrue })
	second := exampletest.Start(t, run, n.args...)
	exampletest.Eventually(t, n.api, "the second process to wait", func() bool {
		return strings.Contains(second.Output(), "waiting for its end")
	})
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

// SIGTERM ends the kubelet while a hook of a pod runs, which may never end.
func TestAHookThatNeverEndsDoesNotKeepTheKubelet(t *testing.T) {
	n := newNode(t)
	c := main0("forever")
	c[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep"}}}}
	n.put("hook", corev1.PodSpec{Containers: c})
	exampletest.Eventually(t, n.api, "the hook to run", func() bool {
		n.runtime.Lock()
		defer n.runtime.Unlock()
		return n.runtime.Calls["ExecSync"] == 1
	})
	if err := n.program.Stop(); err != nil {
		t.Error(err)
	}
}

func TestPodsThatDoNotFitTheNodeFail(t *testing.T) {
	n := newNode(t, "--max-pods=2")
	n.put("elsewhere", corev1.PodSpec{NodeSelector: map[string]string{"zone": "x"}, Containers: main0("forever")})
	n.put("memory", corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Pi")},
	}}}})
	n.put("users", corev1.PodSpec{HostUsers: new(false), Containers: main0("forever")})
	for name, want := range map[string]string{"elsewhere": "NodeAffinity", "memory": "OutOfmemory", "users": "Unsupported"} {
		if st := n.await(name, "to fail", phase(corev1.PodFailed)).Status; st.Reason != want {
			t.Errorf("%s: %s: %s, want %s", name, st.Reason, st.Message, want)
		}
	}
	apitest.Edit(n.api, "", "n1", func(node *corev1.Node) {
		node.Labels["zone"] = "x"
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "drain", Effect: corev1.TaintEffectNoExecute})
	})
	n.put("drained", corev1.PodSpec{NodeSelector: map[string]string{"zone": "x"}, Containers: main0("forever")})
	if st := n.await("drained", "to fail", phase(corev1.PodFailed)).Status; st.Reason != "TaintToleration" {
		t.Errorf("%s: %s", st.Reason, st.Message)
	}
	for _, name := range []string{"first", "second"} {
		n.put(name, corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, NodeSelector: map[string]string{"zone": "x"}, Containers: main0("forever")})
		n.await(name, "to run", phase(corev1.PodRunning))
	}
	n.put("third", corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: main0("forever")})
	if st := n.await("third", "to fail", phase(corev1.PodFailed)).Status; st.Reason != "OutOfpods" {
		t.Errorf("%s: %s", st.Reason, st.Message)
	}
	n.runtime.Lock()
	defer n.runtime.Unlock()
	if len(n.runtime.Sandboxes) != 2 {
		t.Errorf("%d sandboxes, though two pods were admitted", len(n.runtime.Sandboxes))
	}
}

// A sandbox that ends takes its containers with it; the pod has a new one.
func TestALostSandboxIsReplaced(t *testing.T) {
	n := newNode(t)
	n.put("service", corev1.PodSpec{Containers: main0("forever")})
	before := n.await("service", "to run", phase(corev1.PodRunning))
	n.runtime.Lock()
	var ids []string
	for id := range n.runtime.Sandboxes {
		ids = append(ids, id)
	}
	n.runtime.Unlock()
	if len(ids) != 1 {
		t.Fatalf("sandboxes %v", ids)
	}
	if _, err := n.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: ids[0]}); err != nil {
		t.Fatal(err)
	}
	n.await("service", "to run in a new sandbox", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.State.Running != nil && s.RestartCount == 1 && p.Status.PodIP != before.Status.PodIP
	})
}

// The Node is not ready while the runtime is away, and ready again after that.
func TestTheNodeFollowsItsRuntime(t *testing.T) {
	n := newNode(t)
	exampletest.Eventually(t, n.api, "the node to be ready", func() bool { return ready(n.api) == corev1.ConditionTrue })
	n.runtime.Stop()
	exampletest.Eventually(t, n.api, "the node to be not ready", func() bool { return ready(n.api) == corev1.ConditionFalse })
	n.runtime.Serve(t)
	exampletest.Eventually(t, n.api, "the node to be ready again", func() bool { return ready(n.api) == corev1.ConditionTrue })
}

// The server of the node answers with the log, in the format of the runtime, and
// refuses clients without a certificate.
func TestTheServerOfTheNodeNeedsCredentials(t *testing.T) {
	n := newNode(t)
	exampletest.Eventually(t, n.api, "the port", func() bool {
		node := apitest.Get[*corev1.Node](n.api, "", "n1")
		return node != nil && node.Status.DaemonEndpoints.KubeletEndpoint.Port > 0
	})
	port := apitest.Get[*corev1.Node](n.api, "", "n1").Status.DaemonEndpoints.KubeletEndpoint.Port
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.InsecureSkipVerify = true
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("https://127.0.0.1:" + strconv.Itoa(int(port)) + "/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if _, _ = io.Copy(io.Discard, answer.Body); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("status %d", answer.StatusCode)
	}
}

func TestFlagsAreValidated(t *testing.T) {
	for _, args := range [][]string{{"--node-ip=x"}, {"--image-gc-high=10", "--image-gc-low=20"}, {"--max-pods=0"}, {"--image-pull-timeout=0s"}, {"--log-max-files=1"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	o, err := parse([]string{"--image-gc-high=0", "--cluster-dns=10.0.0.10,10.0.0.11"})
	if err != nil || len(o.clusterDNS) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}
