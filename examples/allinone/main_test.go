// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// rig is an API server, a cloud, and the replicas that manage the node n1.
type rig struct {
	*testing.T
	api   *apitest.Server
	cloud *cloud
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, api: exampletest.Server(t, "../rbac/election.yaml", "../rbac/configcheckpoint.yaml"), cloud: newCloud(0)}
	r.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	r.assign("pods: 20\ndevices: 3\n")
	return r
}

// assign writes the settings into the ConfigMap.
func (r *rig) assign(settings string) {
	r.api.Put(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubewright", Name: "agent"},
		Data:       map[string]string{"allinone.yaml": settings},
	})
}

// replica is the program on its own network.
type replica struct {
	*exampletest.Program
	network *network
}

func (r *rig) start(identity string) *replica {
	n := &network{down: make(chan struct{})}
	cloud := httptest.NewServer(n.to(r.cloud.Handler()))
	r.Cleanup(func() {
		cloud.CloseClientConnections()
		cloud.Close()
	})
	return &replica{network: n, Program: exampletest.Start(r.T, run,
		"--node-name=n1", "--node-credentials", "--identity="+identity, "--lease-duration=3s", "--sync-interval=200ms",
		"--kubeconfig="+exampletest.KubeconfigOf(r.T, n.to(r.api.Handler(apitest.NodeUser("n1")))),
		"--election-kubeconfig="+exampletest.KubeconfigOf(r.T, n.to(r.api.Handler(apitest.ServiceAccountUser("kubewright", "virtual-node")))),
		"--cloud="+cloud.URL, "--config-dir="+filepath.Join(r.TempDir(), identity), "--config-soak=1s",
	)}
}

// says waits until a replica has printed text.
func (r *rig) says(p *replica, text string) {
	r.Helper()
	exampletest.Eventually(r.T, r.api, text, func() bool { return strings.Contains(p.Output(), text) })
}

// pair starts a replica that manages the node and one that stands by.
func (r *rig) pair() (active, standby *replica) {
	r.Helper()
	active = r.start("a")
	r.says(active, "node n1: served")
	standby = r.start("b")
	r.says(standby, `leader: "a_`)
	return active, standby
}

func (r *rig) stop(p *replica) {
	r.Helper()
	if err := p.Stop(); err != nil {
		r.Errorf("the program ended with %v", err)
	}
}

// bind creates a pod that is bound to the node.
func (r *rig) bind(name string, policy corev1.RestartPolicy) types.UID {
	return r.api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: policy, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}).(*corev1.Pod).UID
}

// delete starts a graceful deletion, as kubectl does.
func (r *rig) delete(name string) {
	r.Helper()
	if err := r.api.Client(apitest.User{}).CoreV1().Pods("default").Delete(r.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
}

// await waits until a pod satisfies the condition, which gets nil if the pod
// does not exist.
func (r *rig) await(name, what string, condition func(*corev1.Pod) bool) (pod *corev1.Pod) {
	r.Helper()
	exampletest.Eventually(r.T, r.api, name+" "+what, func() bool {
		pod = apitest.Get[*corev1.Pod](r.api, "default", name)
		return condition(pod)
	})
	return pod
}

func running(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning }
func gone(p *corev1.Pod) bool    { return p == nil }

// awaitReady waits until the node is ready and has the given capacity of pods
// and devices.
func (r *rig) awaitReady(pods int64, devices int) (node *corev1.Node) {
	r.Helper()
	exampletest.Eventually(r.T, r.api, fmt.Sprintf("a ready node for %d pods with %d devices", pods, devices), func() bool {
		node = apitest.Get[*corev1.Node](r.api, "", "n1")
		n := 0
		for _, slice := range apitest.List[*resourcev1.ResourceSlice](r.api, "") {
			n += len(slice.Spec.Devices)
		}
		return node != nil && ready(node).Status == corev1.ConditionTrue && node.Status.Allocatable.Pods().Value() == pods && n == devices
	})
	return node
}

func ready(node *corev1.Node) corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return corev1.NodeCondition{}
	}
	return node.Status.Conditions[i]
}

// held returns the cloud's instances of the node's pods, by name.
func (c *cloud) held() map[string]instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]instance)
	for _, i := range c.nodes["n1"].pods {
		all[i.Name] = *i
	}
	return all
}

// before holds values that must not change at a fail-over.
type before struct {
	node *corev1.Node
	pod  *corev1.Pod
	held instance
}

// observe starts a pod and records the values.
func (r *rig) observe() before {
	r.Helper()
	r.bind("web", corev1.RestartPolicyAlways)
	node := r.awaitReady(20, 3)
	pod := r.await("web", "to run", running)
	return before{node, pod, r.cloud.held()["web"]}
}

// unchanged checks that node and pod are unchanged, and that a replica manages
// the node.
func (r *rig) unchanged(b before) {
	r.Helper()
	r.bind("next", corev1.RestartPolicyAlways)
	r.await("next", "to run", running)
	r.assign("pods: 30\ndevices: 5\n")
	node := r.awaitReady(30, 5)
	if node.UID != b.node.UID {
		r.Errorf("the Node has UID %s, had %s", node.UID, b.node.UID)
	}
	if was, is := ready(b.node).LastTransitionTime, ready(node).LastTransitionTime; !is.Equal(&was) {
		r.Errorf("the Node is ready since %v, was since %v", is, was)
	}
	pod := r.await("web", "to run", running)
	was, is := b.pod.Status.ContainerStatuses[0], pod.Status.ContainerStatuses[0]
	if pod.UID != b.pod.UID || !pod.Status.StartTime.Equal(b.pod.Status.StartTime) || is.RestartCount != 0 || is.ContainerID != was.ContainerID {
		r.Errorf("the pod was %s, %+v, and is %s, %+v", b.pod.UID, b.pod.Status, pod.UID, pod.Status)
	}
	if held := r.cloud.held()["web"]; held.ID != b.held.ID || held.UID != b.held.UID || !held.Started.Equal(b.held.Started) || !held.Ended.IsZero() {
		r.Errorf("the cloud had %+v, and has %+v", b.held, held)
	}
}

func TestNodeIsServed(t *testing.T) {
	r := newRig(t)
	a := r.start("a")
	r.observe()
	r.bind("job", corev1.RestartPolicyNever)
	r.await("job", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	r.says(a, "settings: Good")
	r.assign("pods: 10\ndevices: 2\n")
	r.awaitReady(10, 2)
	r.assign("devices: many\n")
	r.says(a, "settings: DecodeFailed")
	r.awaitReady(10, 2)
	r.delete("web")
	r.await("web", "to be gone", gone)
	r.delete("job")
	r.await("job", "to be gone", gone)
	exampletest.Eventually(t, r.api, "the cloud to forget them", func() bool { return len(r.cloud.held()) == 0 })
	r.stop(a)
	exampletest.NothingRefused(t, r.api)
}

// TestHandOver: the active replica ends gracefully, and the other one takes
// over.
func TestHandOver(t *testing.T) {
	r := newRig(t)
	a, b := r.pair()
	seen := r.observe()
	r.stop(a)
	r.says(b, "node n1: served")
	r.unchanged(seen)
	// Then in the other direction.
	a = r.start("a")
	r.says(a, `leader: "b_`)
	r.stop(b)
	r.says(a, "node n1: served")
	r.delete("web")
	r.await("web", "to be gone", gone)
	r.stop(a)
	exampletest.NothingRefused(t, r.api)
}

// TestCutOff: the active replica is disconnected while one of its commands is
// in transit, and returns later.
func TestCutOff(t *testing.T) {
	r := newRig(t)
	a, b := r.pair()
	seen := r.observe()
	// A command leaves the active replica, and is held back. The Lease is written
	// with PUT, too.
	late := a.network.hold(http.MethodPut, "/nodes/n1/pods/")
	r.bind("late", corev1.RestartPolicyAlways)
	late.await(t)
	a.network.cut()
	r.says(b, "node n1: served")
	r.await("late", "to run", running)
	r.unchanged(seen)
	r.delete("late")
	r.await("late", "to be gone", gone)
	exampletest.Eventually(t, r.api, "the cloud to forget it", func() bool {
		_, ok := r.cloud.held()["late"]
		return !ok
	})
	// Now it arrives. If it took effect, no replica would ever stop that pod.
	if code := late.release(); code != http.StatusPreconditionFailed {
		t.Errorf("a command of an earlier term was answered with %d", code)
	}
	if i, ok := r.cloud.held()["late"]; ok {
		t.Errorf("the cloud runs %+v", i)
	}
	r.says(a, "left to the others: election: lease not renewed in time")
	a.network.heal()
	r.says(a, `leader: "b_`)
	r.stop(b)
	exampletest.Eventually(t, r.api, "the first replica to serve the node again", func() bool {
		return strings.Count(a.Output(), "node n1: served") == 2
	})
	r.stop(a)
	exampletest.NothingRefused(t, r.api)
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"leftover"}, {"cloud", "leftover"}, {"cloud", "--listen", "nowhere"}, {"--lease-duration", "soon"}} {
		if err := exampletest.Start(t, run, args...).Wait(); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	s := exampletest.Server(t)
	for _, args := range [][]string{{"--lease", "nothing", "Lease"}, {"--config-map", "kubewright", "name"}, {"--node-name", "Not A Name", "NodeName"}} {
		dir := filepath.Join(t.TempDir(), "store")
		err := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, apitest.User{}), "--config-dir", dir, args[0], args[1]).Wait()
		if err == nil || !strings.Contains(err.Error(), args[2]) {
			t.Errorf("%q: %v does not name %s", args[:2], err, args[2])
		}
	}
}
