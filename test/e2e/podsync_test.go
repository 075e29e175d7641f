// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A podRig is a podsync controller with the credentials of a node, a backend
// that runs pods in memory, and a watched namespace.
type podRig struct {
	*testing.T
	cluster *harness.Cluster
	client  kubernetes.Interface
	name    string // the name of the node, the namespace and the user agent
	backend *podsynctest.Backend
	pods    *podWatch
	config  func(*podsync.Config)

	controller *podsync.Controller // the running controller
	stop       func()              // stops it
}

func newPodRig(t *testing.T, cluster *harness.Cluster, name string, opts podsynctest.Options, config func(*podsync.Config)) *podRig {
	name += "-" + strings.ToLower(rand.Text()[:6]) // the test may run again
	r := &podRig{
		T: t, cluster: cluster, client: kubernetes.NewForConfigOrDie(cluster.AdminConfig()), name: name,
		backend: podsynctest.NewBackend(opts), config: config,
	}
	createReadyNode(t, r.client, name)
	_, err := r.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.pods = watchPods(t, r.client, name)
	r.start()
	t.Cleanup(func() {
		for _, v := range r.backend.Violations() {
			t.Error(v)
		}
	})
	return r
}

// start starts a controller with its own connection.
func (r *podRig) start() {
	r.Helper()
	cfg := podsync.Config{
		Client:   leaseClient(r.T, r.cluster.NodeConfig(r.T, r.name), r.name).CoreV1(),
		Provider: r.backend.Connect(),
		NodeName: r.name,
	}
	if r.config != nil {
		r.config(&cfg)
	}
	c, err := podsync.New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.controller, r.stop = c, func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run = %v", err)
		}
	}
	r.Cleanup(r.stop)
	select {
	case <-c.Ready().Done():
	case <-time.After(patience):
		r.Fatal("podsync is not ready")
	}
}

// create creates a pod that is bound to the node.
func (r *podRig) create(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	r.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: r.name, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}},
		},
	}
	for _, f := range edit {
		f(pod)
	}
	pod, err := r.client.CoreV1().Pods(r.name).Create(r.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return pod
}

func (r *podRig) delete(name string, opts metav1.DeleteOptions) {
	r.Helper()
	if err := r.client.CoreV1().Pods(r.name).Delete(r.Context(), name, opts); err != nil {
		r.Fatal(err)
	}
}

// await waits until the pods of the namespace satisfy the condition.
func (r *podRig) await(what string, condition func(pods map[string]*corev1.Pod) bool) {
	r.Helper()
	timeout := time.After(patience)
	for {
		list, change := r.pods.list()
		pods := map[string]*corev1.Pod{}
		for _, p := range list {
			pods[p.Name] = p
		}
		if condition(pods) {
			return
		}
		select {
		case <-change:
		case <-timeout:
			r.Fatalf("waited %v for %s; there are:\n%s", patience, what, r.cluster.Kubectl(r.T, "get", "pods", "-n", r.name, "-o", "wide"))
		}
	}
}

func (r *podRig) awaitRunning(n int) {
	r.Helper()
	r.await(fmt.Sprintf("%d pods to be ready", n), func(pods map[string]*corev1.Pod) bool {
		ready := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning && isPodReady(p) {
				ready++
			}
		}
		return ready == n
	})
}

func (r *podRig) awaitNone() {
	r.Helper()
	r.await("no pod to be there", func(pods map[string]*corev1.Pod) bool { return len(pods) == 0 })
	r.eventually("the backend to hold nothing", func() bool { return len(r.backend.Held()) == 0 })
}

func (r *podRig) eventually(what string, condition func() bool) {
	r.Helper()
	timeout := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			r.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// requests counts the controller's requests for single pods.
func (r *podRig) requests() map[string]int {
	r.Helper()
	n := map[string]int{}
	for _, e := range r.cluster.AuditEvents(r.T) {
		if e.UserAgent == r.name && e.Verb != "list" && e.Verb != "watch" {
			n[strings.TrimSuffix(fmt.Sprintf("%s %s/%s %d", e.Verb, e.Resource, e.Subresource, e.Code), " 200")]++
		}
	}
	return n
}

// TestPodsyncBudget counts the requests of 20 pods on the real API server with
// a node's credentials: two PATCH and one DELETE per pod, two PATCH for a pod
// that completes, and nothing in the idle state.
func TestPodsyncBudget(t *testing.T) {
	busy(t)
	r := newPodRig(t, shared.Cluster(t), "podsync-budget", podsynctest.Options{StopTime: 100 * time.Millisecond}, nil)
	for i := range 15 {
		r.create(fmt.Sprint("pod", i))
	}
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	var jobs []types.UID
	for i := range 5 {
		jobs = append(jobs, r.create(fmt.Sprint("job", i), never).UID)
	}
	r.awaitRunning(20)
	for _, uid := range jobs {
		r.backend.Exit(uid, 0)
	}
	r.await("the work to be done", func(pods map[string]*corev1.Pod) bool {
		for i := range jobs {
			if pods[fmt.Sprint("job", i)].Status.Phase != corev1.PodSucceeded {
				return false
			}
		}
		return true
	})
	if got := r.requests(); len(got) != 1 || got["patch pods/status"] != 25 {
		t.Errorf("20 pods run and 5 have completed: %v", got)
	}
	time.Sleep(3 * time.Second) // idle
	if err := r.client.CoreV1().Pods(r.name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitNone()
	if got := r.requests(); len(got) != 2 || got["patch pods/status"] != 40 || got["delete pods/"] != 15 {
		t.Errorf("20 lives: %v", got)
	}
}

// TestPodsyncLife checks the state of a kubelet's pods in the API.
func TestPodsyncLife(t *testing.T) {
	busy(t)
	r := newPodRig(t, shared.Cluster(t), "podsync-life", podsynctest.Options{}, nil)
	pods := r.client.CoreV1().Pods(r.name)

	// Generation and observedGeneration.
	r.create("updated")
	for i := range 50 {
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":"registry.example/app:%d"}]}}`, i+2)
		if _, err := pods.Patch(t.Context(), "updated", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.await("all updates to be observed", func(pods map[string]*corev1.Pod) bool {
		p := pods["updated"]
		return p != nil && p.Generation == 51 && p.Status.ObservedGeneration == 51
	})

	// A readiness gate that another component sets.
	r.create("gated", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	})
	r.await("the pod to run and not to be ready", func(pods map[string]*corev1.Pod) bool {
		return pods["gated"] != nil && pods["gated"].Status.Phase == corev1.PodRunning && !isPodReady(pods["gated"])
	})
	for _, status := range []string{"True", "False", "True"} {
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/gate","status":%q}]}}`, status)
		if _, err := pods.Patch(t.Context(), "gated", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		r.await("Ready to follow the gate", func(pods map[string]*corev1.Pod) bool { return isPodReady(pods["gated"]) == (status == "True") })
	}

	// activeDeadlineSeconds, set while the pod runs.
	r.create("late")
	r.awaitRunning(3)
	if _, err := pods.Patch(t.Context(), "late", types.StrategicMergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("the deadline", func(pods map[string]*corev1.Pod) bool {
		return pods["late"].Status.Phase == corev1.PodFailed && pods["late"].Status.Reason == "DeadlineExceeded"
	})

	// Eviction through the API and from the node.
	r.create("evicted")
	r.create("pressed")
	r.awaitRunning(4)
	if err := pods.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: r.name}}); err != nil {
		t.Fatal(err)
	}
	pressed, err := pods.Get(t.Context(), "pressed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.controller.Evict(podsync.RefOf(pressed), podsync.Eviction{Message: "memory"}); err != nil {
		t.Fatal(err)
	}
	r.await("both evictions", func(pods map[string]*corev1.Pod) bool {
		p := pods["pressed"]
		return pods["evicted"] == nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" &&
			slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
			})
	})

	// A terminal pod disappears at once. A finalizer holds another pod, after
	// one DELETE.
	r.delete("pressed", metav1.DeleteOptions{})
	r.create("held", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} })
	r.awaitRunning(3)
	r.delete("held", metav1.DeleteOptions{})
	r.await("the held pod to end", func(pods map[string]*corev1.Pod) bool { return terminal(pods["held"]) })
	if _, err := pods.Patch(t.Context(), "held", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for _, name := range []string{"updated", "gated", "late"} {
		r.delete(name, metav1.DeleteOptions{})
	}
	r.awaitNone()
	// A read follows only a phase write or a deletion that conflicted with another client's
	// write.
	if got := r.requests(); got["get pods/"] > got["patch pods/status 409"]+got["delete pods/ 409"] {
		t.Errorf("requests: %v", got)
	}
}

// TestPodsyncOrphans checks that the instances of a former process are removed,
// and nothing else.
func TestPodsyncOrphans(t *testing.T) {
	busy(t)
	r := newPodRig(t, shared.Cluster(t), "podsync-orphans", podsynctest.Options{}, func(c *podsync.Config) {
		c.Relist, c.Policy.OrphanDelay = 200*time.Millisecond, time.Second
	})
	kept := r.create("kept")
	gone := r.create("gone", func(p *corev1.Pod) { p.Annotations = map[string]string{forcedAnnotation: "yes"} })
	r.awaitRunning(2)
	r.stop()
	r.delete("gone", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	next := r.create("gone") // under the name of an orphan
	orphan := gone.DeepCopy()
	orphan.Name, orphan.UID = "nameless", "00000000-0000-4000-8000-000000000001"
	r.backend.Plant(orphan)
	r.start()
	r.eventually("the orphans to be gone", func() bool { return len(r.backend.Held()) == 2 })
	r.awaitRunning(2)
	if !r.backend.Running(kept.UID) || !r.backend.Running(next.UID) {
		t.Errorf("held: %v", r.backend.Held())
	}
	if starts := r.backend.Calls(podsync.OpStart); len(starts) != 3 {
		t.Errorf("%d calls of Start", len(starts))
	}
	r.delete("kept", metav1.DeleteOptions{})
	r.delete("gone", metav1.DeleteOptions{})
	r.awaitNone()
}

// TestPodsyncPreconditions records the API server's answers to writes for
// another instance or another version, because podsync depends on them.
func TestPodsyncPreconditions(t *testing.T) {
	busy(t)
	r := newPodRig(t, shared.Cluster(t), "podsync-preconditions", podsynctest.Options{}, nil)
	pod := r.create("a")
	r.awaitRunning(1)
	r.stop()
	pods := leaseClient(t, r.cluster.NodeConfig(t, r.name), "other").CoreV1().Pods(r.name)
	patch := func(name, meta string) error {
		_, err := pods.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(`{"metadata":{`+meta+`},"status":{"message":"m"}}`), metav1.PatchOptions{}, "status")
		return err
	}
	err := patch("a", `"uid":"00000000-0000-4000-8000-000000000002"`)
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || !slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }) {
		t.Errorf("PATCH with another UID: %v", err)
	}
	if err := patch("a", fmt.Sprintf(`"uid":%q,"resourceVersion":%q`, pod.UID, pod.ResourceVersion)); !apierrors.IsConflict(err) {
		t.Errorf("PATCH of an older version: %v", err)
	}
	if err := patch("nobody", fmt.Sprintf(`"uid":%q`, pod.UID)); !apierrors.IsNotFound(err) {
		t.Errorf("PATCH of nobody: %v", err)
	}
	if err := patch("a", fmt.Sprintf(`"uid":%q,"labels":{"a":"b"}`, pod.UID)); !apierrors.IsForbidden(err) {
		t.Errorf("PATCH of labels: %v", err)
	}
	other := types.UID("00000000-0000-4000-8000-000000000003")
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("DELETE with another UID: %v", err)
	}
	if _, err := pods.Get(t.Context(), "nobody", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("GET of a pod that does not exist, by a node: %v", err)
	}
	list, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a,spec.nodeName=" + r.name})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("LIST of one pod of the node: %v, %v", list, err)
	}
	r.start()
	r.delete("a", metav1.DeleteOptions{})
	r.awaitNone()
}

// TestPodsyncAPIServerRestarts kills the API server while pods are created and
// deleted. Their changes during the outage are not lost.
func TestPodsyncAPIServerRestarts(t *testing.T) {
	busy(t)
	cluster := ownCluster(t, harness.Options{})
	r := newPodRig(t, cluster, "podsync-restart", podsynctest.Options{StartTime: 300 * time.Millisecond, StopTime: 300 * time.Millisecond}, nil)
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	uids := map[string]types.UID{}
	for i := range 30 {
		name := fmt.Sprint("pod", i)
		uids[name] = r.create(name, never).UID
	}
	r.awaitRunning(30)
	for round := range 2 {
		for i := range 5 {
			r.delete(fmt.Sprint("pod", 10*round+i), metav1.DeleteOptions{})
		}
		cluster.Kill(t, harness.APIServer)
		for i := range 5 {
			r.backend.Exit(uids[fmt.Sprint("pod", 10*round+5+i)], int32(i%2))
		}
		time.Sleep(500 * time.Millisecond) // pods end while the API server is down
		cluster.Restart(t, harness.APIServer)
		cluster.WaitReady(t)
		r.await("the end of those that have ended", func(pods map[string]*corev1.Pod) bool {
			for i := range 10 {
				name := fmt.Sprint("pod", 10*round+i)
				want := corev1.PodSucceeded
				if i%2 == 0 { // i-5 is odd
					want = corev1.PodFailed
				}
				if i < 5 && pods[name] != nil || i >= 5 && (pods[name] == nil || pods[name].Status.Phase != want) {
					return false
				}
			}
			return true
		})
	}
	r.awaitRunning(10)
	if starts := r.backend.Calls(podsync.OpStart); len(starts) != 30 {
		t.Errorf("%d calls of Start for 30 pods", len(starts))
	}
	if err := r.client.CoreV1().Pods(r.name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitNone()
}
