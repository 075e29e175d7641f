// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// kubeletRig is examples/kubelet as a separate process, with only its node's
// credentials, and a namespace for its pods.
type kubeletRig struct {
	*testing.T
	cluster   *harness.Cluster
	client    kubernetes.Interface
	node      string
	namespace string
	root      string // the kubelet's directory
	out       string // the file that containers append to
	binary    string
	args      []string
	program   *program
	pods      *podWatch
	spdy      bool // kubectl uses SPDY, and not WebSockets
}

func newKubeletRig(t *testing.T, cluster *harness.Cluster, node string, args ...string) *kubeletRig {
	letNodesRecordEvents(t, cluster)
	r := &kubeletRig{
		T: t, cluster: cluster, client: kubernetes.NewForConfigOrDie(cluster.AdminConfig()),
		node: node, namespace: node, root: filepath.Join(t.TempDir(), "kubelet"), out: filepath.Join(t.TempDir(), "out"),
		binary: buildExample(t, "kubelet"),
	}
	r.args = []string{"--kubeconfig=" + cluster.NodeKubeconfig(t, node), "--node-name=" + node, "--node-credentials", "--root-dir=" + r.root, "--port=0", "--min-free-disk=0",
		// A short interval, so that the remains of a kubelet killed between two
		// steps are found soon.
		"--sync-interval=1s", "--orphan-delay=1s", "-v=2"}
	r.args = append(r.args, args...)
	_, err := r.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// No process may outlive the test, even if it has failed.
		for _, pid := range r.processes() {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	})
	r.pods = watchPods(t, r.client, r.namespace)
	r.start()
	awaitNode(t, r.client, node, "ready", isReady)
	return r
}

func (r *kubeletRig) start() { r.program = startBinary(r.T, r.binary, r.args...) }

// processes returns the PIDs of all processes that run for pods of the kubelet.
func (r *kubeletRig) processes() (pids []int) {
	r.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		r.Error(err)
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && bytes.Contains(environ, []byte("KUBEWRIGHT_RUN="+r.root+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// await waits until the pods of the namespace satisfy the condition.
func (r *kubeletRig) await(what string, condition func(pods []*corev1.Pod) bool) {
	r.Helper()
	timeout := time.After(patience)
	for {
		pods, change := r.pods.list()
		if condition(pods) {
			return
		}
		select {
		case <-change:
		case <-timeout:
			r.Fatalf("waited %v for %s; there are:\n%s", patience, what, r.cluster.Kubectl(r.T, "get", "pods", "-n", r.namespace, "-o", "wide"))
		}
	}
}

func (r *kubeletRig) awaitNone() {
	r.Helper()
	r.await("no pod to be there", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	// The kubelet may need a moment after the API server has removed a pod.
	timeout := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := os.ReadDir(filepath.Join(r.root, "pods"))
		if err != nil {
			r.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-timeout:
			r.Fatalf("waited %v for the kubelet to forget %v", patience, left)
		}
	}
	if pids := r.processes(); len(pids) > 0 {
		r.Errorf("processes left behind: %v", pids)
	}
}

// written returns the lines that containers have written, split into fields.
func (r *kubeletRig) written() (lines [][]string) {
	r.Helper()
	data, err := os.ReadFile(r.out)
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// service is the script of a container that writes "start UID", runs until
// SIGTERM, and then writes "end UID".
const service = `trap 'echo end $POD >> $OUT; exit 0' TERM; echo start $POD >> $OUT; while true; do sleep 1000 & wait; done`

// task is the script of a container that ends on its own.
const task = `echo start $POD >> $OUT; sleep 0.3`

// template returns a pod template that runs a script on the node of the rig.
func (r *kubeletRig) template(app string, policy corev1.RestartPolicy, script string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			RestartPolicy:                policy,
			NodeSelector:                 map[string]string{corev1.LabelHostname: r.node},
			Tolerations:                  []corev1.Toleration{{Key: "kubewright.dev/host-processes", Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "c", Image: "none", Command: []string{"sh", "-c", script},
				Env: []corev1.EnvVar{
					{Name: "OUT", Value: r.out},
					{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
				},
			}},
		},
	}
}

func (r *kubeletRig) deployment(name string, replicas int32) *appsv1.Deployment {
	r.Helper()
	d, err := r.client.AppsV1().Deployments(r.namespace).Create(r.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: r.template(name, corev1.RestartPolicyAlways, service),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return d
}

func (r *kubeletRig) job(name string, completions int32) {
	r.Helper()
	_, err := r.client.BatchV1().Jobs(r.namespace).Create(r.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &completions, BackoffLimit: new(int32(0)),
			Template: r.template(name, corev1.RestartPolicyNever, task),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
}

// podWatch follows the pods of a namespace and records the history of each.
type podWatch struct {
	t     *testing.T
	store cache.Store

	mu   sync.Mutex
	life map[string]*corev1.Pod // the last state of each pod, by UID
	next chan struct{}          // closed at the next change
}

func watchPods(t *testing.T, client kubernetes.Interface, namespace string) *podWatch {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	w := &podWatch{t: t, store: informer.GetStore(), life: map[string]*corev1.Pod{}, next: make(chan struct{})}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.see(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { w.see(o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if pod, ok := o.(*corev1.Pod); ok { // not a tombstone
				w.seeDeleted(pod)
			}
			w.changed()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	t.Cleanup(factory.Shutdown)
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the pods can't be watched")
	}
	return w
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

var phases = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}

// see compares a state of a pod with its previous state.
func (w *podWatch) see(pod *corev1.Pod) {
	w.mu.Lock()
	before := w.life[string(pod.UID)]
	w.life[string(pod.UID)] = pod
	w.mu.Unlock()
	if before != nil {
		if slices.Index(phases, pod.Status.Phase) < slices.Index(phases, before.Status.Phase) || terminal(before) && pod.Status.Phase != before.Status.Phase {
			w.t.Errorf("pod %s was %s and is %s", pod.Name, before.Status.Phase, pod.Status.Phase)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount > 0 && pod.Labels["restarts"] != "expected" {
			w.t.Errorf("pod %s: container %s was restarted %d times; its last state was %+v", pod.Name, c.Name, c.RestartCount, c.LastTerminationState.Terminated)
		}
	}
	w.changed()
}

// seeDeleted checks the last state of a deleted pod.
func (w *podWatch) seeDeleted(pod *corev1.Pod) {
	w.mu.Lock()
	before := w.life[string(pod.UID)]
	w.life[string(pod.UID)] = pod
	w.mu.Unlock()
	// The API server removes a pod without a node at once, even if the pod is
	// bound before the removal is stored. No kubelet could act on such a pod,
	// so this check ignores pods without any reported container status.
	unreported := before != nil && len(before.Status.ContainerStatuses) == 0 && len(pod.Status.ContainerStatuses) == 0
	if forced := pod.Annotations[forcedAnnotation] != ""; !forced && !unreported && pod.Spec.NodeName != "" && !terminal(pod) {
		w.t.Errorf("pod %s went from the API in phase %s: deleted %v, containers %+v", pod.Name, pod.Status.Phase, pod.DeletionTimestamp, pod.Status.ContainerStatuses)
	}
}

// forcedAnnotation marks pods that the test deletes without waiting for the
// node.
const forcedAnnotation = "kubewright.dev/forced"

func (w *podWatch) changed() {
	w.mu.Lock()
	close(w.next)
	w.next = make(chan struct{})
	w.mu.Unlock()
}

// list returns the current pods, and a channel that is closed at the next
// change.
func (w *podWatch) list() ([]*corev1.Pod, <-chan struct{}) {
	w.mu.Lock()
	change := w.next
	w.mu.Unlock()
	var pods []*corev1.Pod
	for _, o := range w.store.List() {
		pods = append(pods, o.(*corev1.Pod))
	}
	return pods, change
}

func isPodReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// readyPods returns the number of pods of an app that are ready and not being
// deleted.
func readyPods(pods []*corev1.Pod, app string) (n int) {
	for _, p := range pods {
		if p.Labels["app"] == app && p.DeletionTimestamp == nil && isPodReady(p) {
			n++
		}
	}
	return n
}

// awaitSucceeded waits until all pods of an app have succeeded, and are n or more: the Job
// controller creates one more if the API server dies before it answers a create.
func (r *kubeletRig) awaitSucceeded(app string, n int) {
	r.Helper()
	r.await(fmt.Sprintf("%d pods of %s to succeed", n, app), func(pods []*corev1.Pod) bool {
		succeeded := 0
		for _, p := range pods {
			if p.Labels["app"] != app || p.DeletionTimestamp != nil {
				continue
			}
			if p.Status.Phase != corev1.PodSucceeded {
				return false
			}
			succeeded++
		}
		return succeeded >= n
	})
}

// starts returns the number of starts of each pod, by UID.
func (r *kubeletRig) starts() map[string]int {
	r.Helper()
	n := map[string]int{}
	for _, line := range r.written() {
		if line[0] == "start" {
			n[line[1]]++
		}
	}
	return n
}

// onceAndNotLost checks that no pod was started twice, and that the end of each
// started pod is known.
func (r *kubeletRig) onceAndNotLost() {
	r.Helper()
	starts := r.starts()
	for uid, n := range starts {
		if n > 1 {
			r.Errorf("pod %s was started %d times", uid, n)
		}
	}
	for uid, pod := range r.pods.life {
		for _, c := range pod.Status.ContainerStatuses {
			if e := c.State.Terminated; e != nil && e.Reason == "ContainerStatusUnknown" && starts[uid] > 0 {
				r.Errorf("pod %s: the exit code of container %s was lost", pod.Name, c.Name)
			}
		}
	}
}

// nothingRefused checks that the kubelet sent no request that it may not send,
// except those that come before the authorizer knows, and checks whether a pod is
// gone.
func (r *kubeletRig) nothingRefused() {
	r.Helper()
	for _, e := range refusals(r.T, r.cluster, "system:node:"+r.node, "kubelet") {
		if !refusedEarly(e) && (e.Resource != "pods" || e.Verb != "get") {
			r.Errorf("refused: %+v", e)
		}
	}
}

func TestExampleKubelet(t *testing.T) {
	busy(t)
	r := newKubeletRig(t, shared.Cluster(t), "kubelet-1")
	r.deployment("web", 3)
	r.job("job", 4)
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
			Template: r.template("agent", corev1.RestartPolicyAlways, service),
		},
	}
	if _, err := r.client.AppsV1().DaemonSets(r.namespace).Create(t.Context(), ds, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("the Deployment's pods to be ready", func(pods []*corev1.Pod) bool { return readyPods(pods, "web") == 3 })
	r.await("the DaemonSet's pod to be ready", func(pods []*corev1.Pod) bool { return readyPods(pods, "agent") == 1 })
	r.awaitSucceeded("job", 4)
	r.cluster.Kubectl(t, "wait", "-n", r.namespace, "--for=condition=Complete", "--timeout=60s", "job/job")

	// A rolling update replaces all three pods, and each old pod ends cleanly.
	old := map[string]bool{}
	pods, _ := r.pods.list()
	for _, p := range pods {
		if p.Labels["app"] == "web" {
			old[string(p.UID)] = true
		}
	}
	r.cluster.Kubectl(t, "set", "env", "-n", r.namespace, "deployment/web", "ROUND=2")
	r.cluster.Kubectl(t, "rollout", "status", "-n", r.namespace, "--timeout=90s", "deployment/web")
	r.await("the old pods to go", func(pods []*corev1.Pod) bool {
		return readyPods(pods, "web") == 3 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return old[string(p.UID)] })
	})
	ended := map[string]bool{}
	for _, line := range r.written() {
		ended[line[1]] = ended[line[1]] || line[0] == "end"
	}
	for uid := range old {
		if !ended[uid] {
			t.Errorf("pod %s was not asked to end", uid)
		}
	}

	// With a token, which pods have by default.
	withToken := r.template("token", corev1.RestartPolicyNever, `test -s $CONTAINER_SANDBOX_MOUNT_POINT/var/run/secrets/kubernetes.io/serviceaccount/token`)
	withToken.Spec.AutomountServiceAccountToken = nil
	withToken.Name = "token"
	if _, err := r.client.CoreV1().Pods(r.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: withToken.ObjectMeta, Spec: withToken.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitSucceeded("token", 1)

	r.cluster.Kubectl(t, "delete", "-n", r.namespace, "--wait=false", "deployment/web", "daemonset/agent", "job/job", "pod/token")
	r.awaitNone()
	r.onceAndNotLost()
	r.program.stop()
	awaitNode(t, r.client, r.node, "not ready after the end", func(n *corev1.Node) bool { return !isReady(n) })
	r.nothingRefused()
}
