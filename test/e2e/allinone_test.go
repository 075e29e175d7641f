// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// pair is two replicas of examples/allinone and their cloud, as processes.
type pair struct {
	*testing.T
	cluster *harness.Cluster
	client  kubernetes.Interface
	node    string
	binary  string
	args    []string
	cloud   string
}

func newPair(t *testing.T, cluster *harness.Cluster, node string) *pair {
	applyManifests(t, cluster, "election.yaml", "configcheckpoint.yaml")
	p := &pair{T: t, cluster: cluster, client: kubernetes.NewForConfigOrDie(cluster.AdminConfig()), node: node, binary: buildExample(t, "allinone")}
	p.cloud = p.printed(startBinary(t, p.binary, "cloud", "--listen=127.0.0.1:0"), `cloud: (\S+)`)
	p.args = []string{"--node-name=" + node, "--node-credentials", "--cloud=" + p.cloud,
		"--kubeconfig=" + cluster.NodeKubeconfig(t, node), "--election-kubeconfig=" + cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node")}
	return p
}

// start starts a replica. A replica that ran before gets the same store again.
func (p *pair) start(identity, stores string) *program {
	return startBinary(p.T, p.binary, append([]string{"--identity=" + identity, "--config-dir=" + filepath.Join(stores, identity)}, p.args...)...)
}

// printed waits until a program has printed a match, and returns the first
// submatch.
func (p *pair) printed(of *program, pattern string) string {
	p.Helper()
	expression := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		of.mu.Lock()
		match := expression.FindStringSubmatch(of.out.String())
		of.mu.Unlock()
		if match != nil {
			return match[1]
		}
		select {
		case <-tick.C:
		case <-timeout:
			p.Fatalf("waited %v for a program to print %s", patience, pattern)
		}
	}
}

// served matches the line that a replica prints when it has become active.
const served = `served with token (\d+)`

// fenced waits until the replica of a later term has shown its token to the
// cloud, which is its first request. From then on the cloud refuses earlier
// tokens.
func (p *pair) fenced(earlier string) {
	p.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		code, _ := p.ask(earlier)
		if code == http.StatusPreconditionFailed {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("a command with the token of an earlier term is answered with %d", code)
		}
	}
}

// ask requests the running pods from the cloud, with the token of a term.
func (p *pair) ask(token string) (status int, ids map[string]string) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.cloud+"/nodes/"+p.node+"/pods", nil)
	if err != nil {
		p.Fatal(err)
	}
	r.Header.Set("Fencing-Token", token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		return answer.StatusCode, nil
	}
	var list []struct{ UID, ID, Started string }
	if err := json.Unmarshal(content, &list); err != nil {
		p.Fatal(err)
	}
	ids = make(map[string]string)
	for _, i := range list {
		ids[i.UID] = i.ID + " since " + i.Started
	}
	return answer.StatusCode, ids
}

func (p *pair) signal(to *program, s os.Signal) {
	p.Helper()
	if err := to.cmd.Process.Signal(s); err != nil {
		p.Fatal(err)
	}
}

// awaitDevices waits until the node has the given number of devices.
func (p *pair) awaitDevices(want int) {
	p.Helper()
	d := p.client.ResourceV1().ResourceSlices()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list, err := d.List(p.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + p.node})
		if err != nil {
			p.Fatal(err)
		}
		n := 0
		for _, slice := range list.Items {
			n += len(slice.Spec.Devices)
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("the node has %d devices, want %d", n, want)
		}
	}
}

// TestExampleAllInOne kills the active replica, freezes the next one and
// resumes it, and ends the last one gracefully. Throughout, a pod of a
// Deployment keeps running and the Node stays Ready.
func TestExampleAllInOne(t *testing.T) {
	quiet(t)
	const node = "allinone"
	cluster := shared.Cluster(t)
	alone(t, &exampleLease)
	letNodesRecordEvents(t, cluster)
	p := newPair(t, cluster, node)
	ctx := t.Context()
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settings, err := p.client.CoreV1().ConfigMaps("kubewright").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Data: map[string]string{"allinone.yaml": "devices: 3"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.client.CoreV1().ConfigMaps("kubewright").Delete(ctx, "agent", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	pods := watchPods(t, p.client, node) // reports a container that was restarted
	stores := t.TempDir()
	a := p.start("a", stores)
	first := p.printed(a, served)
	p.awaitDevices(3)
	b := p.start("b", stores)
	p.printed(b, `leader: "(a)_`)
	before := awaitNode(t, p.client, node, "ready", isReady)

	running := func(n int) (all []*corev1.Pod) {
		t.Helper()
		timeout := time.After(patience)
		for {
			list, change := pods.list()
			all = all[:0]
			for _, pod := range list {
				if pod.Status.Phase == corev1.PodRunning {
					all = append(all, pod)
				}
			}
			if len(list) == n && len(all) == n {
				return all
			}
			select {
			case <-change:
			case <-timeout:
				t.Fatalf("waited %v for %d pods to run:\n%s", patience, n, cluster.Kubectl(t, "get", "pods", "-n", node, "-o", "wide"))
			}
		}
	}
	labels := map[string]string{"app": "web"}
	_, err = p.client.AppsV1().Deployments(node).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelHostname: node},
				Tolerations:  []corev1.Toleration{{Key: "kubewright.dev/virtual", Operator: corev1.TolerationOpExists}},
				Containers:   []corev1.Container{{Name: "c", Image: "none"}},
			},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	web := running(1)[0]
	_, held := p.ask(first)

	// unchanged checks the properties that a later term must preserve.
	unchanged := func(earlier, later string) {
		t.Helper()
		p.fenced(earlier)
		if _, now := p.ask(later); now[string(web.UID)] == "" || now[string(web.UID)] != held[string(web.UID)] {
			t.Errorf("the cloud has %v, had %v", now, held)
		}
		after := awaitNode(t, p.client, node, "ready", isReady)
		was, is := condition(before, corev1.NodeReady).LastTransitionTime, condition(after, corev1.NodeReady).LastTransitionTime
		if after.UID != before.UID || !is.Equal(&was) {
			t.Errorf("the Node is %s, ready since %v, and was %s, since %v", after.UID, is, before.UID, was)
		}
		for _, pod := range running(len(held)) {
			if pod.UID == web.UID && (pod.Status.ContainerStatuses[0].ContainerID != web.Status.ContainerStatuses[0].ContainerID || !pod.Status.StartTime.Equal(web.Status.StartTime)) {
				t.Errorf("the pod is %+v, was %+v", pod.Status, web.Status)
			}
		}
	}

	began := time.Now()
	p.signal(a, syscall.SIGKILL)
	_ = a.cmd.Wait()
	second := p.printed(b, served)
	t.Logf("the standby served the node %v after kill -9", time.Since(began).Round(time.Millisecond))
	unchanged(first, second)

	a = p.start("a", stores)
	p.printed(a, `leader: "(b)_`)
	began = time.Now()
	p.signal(b, syscall.SIGSTOP)
	third := p.printed(a, served)
	t.Logf("the standby served the node %v after the active one froze", time.Since(began).Round(time.Millisecond))
	p.fenced(second)
	p.signal(b, syscall.SIGCONT)
	p.printed(b, `left to the others: (.*)`)
	unchanged(second, third)

	// The node is managed: it accepts pods and settings.
	settings.Data["allinone.yaml"] = "devices: 5"
	if _, err := p.client.CoreV1().ConfigMaps("kubewright").Update(ctx, settings, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.awaitDevices(5)
	cluster.Kubectl(t, "scale", "deployment", "web", "-n", node, "--replicas=3")
	running(3)
	a.stop()
	p.printed(b, `(?s)served with.*(served) with`) // b's second term
	p.fenced(third)
	cluster.Kubectl(t, "scale", "deployment", "web", "-n", node, "--replicas=0")
	running(0)
	b.stop()
	if refused := refusals(t, cluster, serviceAccount, "allinone"); len(refused) > 0 {
		t.Errorf("the manifests do not allow %v", refused)
	}
	for _, event := range refusals(t, cluster, "system:node:"+node, "allinone") {
		if !refusedEarly(event) {
			t.Errorf("the node was refused %v", event)
		}
	}
}
