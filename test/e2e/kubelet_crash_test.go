// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestKubeletIsKilledAgainAndAgain kills the kubelet with SIGKILL while pods
// are created and deleted, and restarts the API server twice. No pod runs
// twice, none is left behind, and no exit code is lost.
func TestKubeletIsKilledAgainAndAgain(t *testing.T) {
	busy(t)
	const kills = 15
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	// No kubelet but the last one runs for long enough to ask about the pods that were deleted by
	// force while none ran. They may be all that it holds when it does, which are too many to
	// believe at once.
	r := newKubeletRig(t, ownCluster(t, harness.Options{Audit: true}), "kubelet-crash", "--mass-hold=5s")
	c := &churn{kubeletRig: r, random: random}
	r.deployment("web", 2)

	for i := range kills {
		for range 3 {
			c.step()
		}
		// Kill at a random moment, after some changes of pods or before.
		_, change := r.pods.list()
		select {
		case <-change:
		case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
		}
		c.kill()
		if i%5 == 2 && i < 10 {
			r.cluster.Kill(t, harness.APIServer)
			r.start() // without an API server
			r.cluster.Restart(t, harness.APIServer)
			r.cluster.WaitReady(t)
			continue
		}
		r.start()
	}

	// The ReplicaSet controller does nothing for five minutes if the API server
	// dies before it answers about a pod.
	r.cluster.Restart(t, harness.ControllerManager)
	c.scale(3)
	r.await("the Deployment's pods to be ready", func(pods []*corev1.Pod) bool { return readyPods(pods, "web") == 3 })
	for i := range c.jobs {
		r.awaitSucceeded(fmt.Sprint("job-", i), jobPods)
	}
	starts := r.starts()
	jobs := 0
	pods, _ := r.pods.list()
	for _, p := range pods {
		if p.Labels["job-name"] == "" || p.DeletionTimestamp != nil { // the controller deletes the one too many if it still runs
			continue
		}
		jobs++
		if e := p.Status.ContainerStatuses[0].State.Terminated; e == nil || e.ExitCode != 0 || starts[string(p.UID)] != 1 {
			t.Errorf("pod %s was started %d times and has %+v", p.Name, starts[string(p.UID)], p.Status.ContainerStatuses[0].State)
		}
	}
	// A pod that the kubelet lost would be replaced, but would not be Succeeded.
	if want := c.jobs * jobPods; jobs < want {
		t.Errorf("%d pods of Jobs, want %d", jobs, want)
	}
	r.cluster.Kubectl(t, "delete", "-n", r.namespace, "--wait=false", "--all", "deployments,jobs")
	r.awaitNone()
	r.onceAndNotLost()
	ended := map[string]bool{}
	for _, line := range r.written() {
		ended[line[1]] = ended[line[1]] || line[0] == "end"
	}
	for uid, p := range r.pods.life {
		if p.Labels["app"] == "web" && starts[uid] == 1 && !ended[uid] && p.Annotations[forcedAnnotation] == "" {
			t.Errorf("pod %s did not end by itself when it was deleted: %+v", p.Name, p.Status.ContainerStatuses)
		}
	}
	r.program.stop()
	r.nothingRefused()
	t.Logf("%d kills, %d pods started, %d of Jobs", kills, len(r.starts()), jobs)
}

// jobPods is the number of pods of each Job.
const jobPods = 3

// churn creates and deletes pods.
type churn struct {
	*kubeletRig
	random *rand.Rand
	jobs   int
	round  int
}

// kill kills the kubelet with SIGKILL, and waits until it has ended.
func (c *churn) kill() {
	c.Helper()
	if err := c.program.cmd.Process.Kill(); err != nil {
		c.Fatal(err)
	}
	_ = c.program.cmd.Wait()
}

func (c *churn) step() {
	c.Helper()
	switch n := c.random.IntN(10); {
	case n < 3:
		c.scale(c.random.IntN(5))
	case n < 5 && c.jobs < 8:
		c.job(fmt.Sprint("job-", c.jobs), jobPods)
		c.jobs++
	case n < 6:
		c.round++
		c.patch("deployments", "web", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"round":"%d"}}}}}`, c.round))
	case n < 9:
		c.deletePod(false)
	default:
		c.deletePod(true)
	}
}

func (c *churn) scale(n int) {
	c.Helper()
	c.patch("deployments", "web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

func (c *churn) patch(resource, name, patch string) {
	c.Helper()
	err := c.client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(c.namespace).Resource(resource).Name(name).
		Body([]byte(patch)).Do(c.Context()).Error()
	if err != nil {
		c.Fatal(err)
	}
}

// deletePod deletes a pod of the Deployment, if there is one.
func (c *churn) deletePod(force bool) {
	c.Helper()
	pods, _ := c.pods.list()
	var names []string
	for _, p := range pods {
		if p.Labels["app"] == "web" && p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	name := names[c.random.IntN(len(names))]
	api := c.client.CoreV1().Pods(c.namespace)
	options := metav1.DeleteOptions{}
	if force {
		options.GracePeriodSeconds = new(int64(0))
		_, err := api.Patch(c.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+forcedAnnotation+`":"yes"}}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			c.Fatal(err)
		}
	}
	if err := api.Delete(c.Context(), name, options); err != nil && !apierrors.IsNotFound(err) {
		c.Fatal(err)
	}
}
