// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
)

// controllerChecks run a provider under a Controller.
var controllerChecks = []check{
	{"LifeOfAPod", nil,
		"this is what every pod goes through",
		func(s *subject) {
			n := s.newNode()
			n.run()
			pod := n.bind(s.suite.Pod(), "a")
			n.awaitPhase("a", corev1.PodRunning)
			n.remove("a")
			n.awaitGone(pod)
			n.stop()
		}},
	{"Completion", func(suite *Suite, _ podsync.Provider) bool { return suite.Completes != nil },
		"a Job waits for Succeeded, which needs the exit code of every container",
		func(s *subject) {
			n := s.newNode()
			n.run()
			pod := n.bind(s.suite.Completes(), "job")
			n.awaitPhase("job", corev1.PodSucceeded)
			n.remove("job")
			n.awaitGone(pod)
			n.stop()
		}},
	{"NamesAreUsedAgain", nil,
		"a StatefulSet creates its next pod under the name of the last one",
		func(s *subject) {
			n := s.newNode()
			n.run()
			for range 3 {
				pod := n.bind(s.suite.Pod(), "a")
				n.awaitPhase("a", corev1.PodRunning)
				n.remove("a")
				n.awaitGone(pod)
			}
			n.stop()
		}},
	{"Churn", nil,
		"pods are often deleted while they start",
		func(s *subject) {
			n := s.newNode()
			n.run()
			var pods []*corev1.Pod
			for i := range 20 {
				name := fmt.Sprint("p", i)
				pods = append(pods, n.bind(s.suite.Pod(), name))
				if i%3 == 0 {
					n.remove(name) // whatever has become of it by now
				}
			}
			for i := range pods {
				if i%3 != 0 {
					name := fmt.Sprint("p", i)
					n.awaitPhase(name, corev1.PodRunning)
					n.remove(name)
				}
			}
			for _, pod := range pods {
				n.awaitGone(pod)
			}
			n.stop()
		}},
	{"NextProcessAdopts", reopens,
		"a restart of the process must not restart the pods",
		func(s *subject) {
			n := s.newNode()
			n.run()
			kept, deleted := n.bind(s.suite.Pod(), "kept"), n.bind(s.suite.Pod(), "deleted")
			n.awaitPhase("kept", corev1.PodRunning)
			n.awaitPhase("deleted", corev1.PodRunning)
			before := n.get("kept").Status
			n.stop()
			n.remove("deleted")
			s.provider = s.suite.Reopen(s, s.provider)
			n.run()
			n.awaitGone(deleted)
			for i, c := range n.get("kept").Status.ContainerStatuses {
				if old := before.ContainerStatuses[i]; c.RestartCount != old.RestartCount || c.ContainerID != old.ContainerID {
					s.Errorf("container %s was restarted: %+v after %+v", c.Name, c, old)
				}
			}
			n.remove("kept")
			n.awaitGone(kept)
			n.stop()
		}},
}

// A node is an API server in memory and a Controller.
type node struct {
	*subject
	server *apitest.Server
	cancel context.CancelFunc
	done   chan error
}

func (s *subject) newNode() *node {
	n := &node{subject: s, server: apitest.New(apitest.Options{})}
	n.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}})
	s.Cleanup(n.stop)
	return n
}

func (n *node) run() {
	n.Helper()
	controller, err := podsync.New(podsync.Config{
		Client:   n.server.Client(apitest.NodeUser(NodeName)).CoreV1(),
		Provider: n.provider,
		NodeName: NodeName,
		Relist:   200 * time.Millisecond,
	})
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.done = cancel, make(chan error, 1)
	go func() { n.done <- controller.Run(ctx) }()
	select {
	case <-controller.Ready().Done():
	case <-time.After(n.suite.Timeout):
		n.Fatal("the Controller is not ready: List does not succeed")
	}
}

func (n *node) stop() {
	if n.cancel == nil {
		return
	}
	n.cancel()
	n.cancel = nil
	select {
	case err := <-n.done:
		if err != nil {
			n.Errorf("Run: %v", err)
		}
	case <-time.After(n.suite.Timeout):
		n.Error("Run does not return: a call of the provider goes on although its context is done")
	}
}

func (n *node) bind(pod *corev1.Pod, name string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: pod.Labels, Annotations: pod.Annotations}
	pod.Spec.NodeName = NodeName
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return n.server.Put(pod).(*corev1.Pod)
}

func (n *node) get(name string) *corev1.Pod {
	return apitest.Get[*corev1.Pod](n.server, metav1.NamespaceDefault, name)
}

func (n *node) remove(name string) {
	n.Helper()
	if err := n.server.Client(apitest.User{}).CoreV1().Pods(metav1.NamespaceDefault).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		n.Errorf("deleting %s: %v", name, err)
	}
}

func (n *node) awaitPhase(name string, phase corev1.PodPhase) {
	n.Helper()
	n.eventually(fmt.Sprintf("%s is %s", name, phase), func() error {
		pod := n.get(name)
		if pod == nil {
			return errors.New("it is gone")
		}
		if pod.Status.Phase != phase {
			return fmt.Errorf("it is %s (%s: %s)", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		}
		return nil
	})
}

// awaitGone waits until neither the API nor the provider has the pod.
func (n *node) awaitGone(pod *corev1.Pod) {
	n.Helper()
	n.eventually(pod.Name+" is gone", func() error {
		if now := n.get(pod.Name); now != nil && now.UID == pod.UID {
			return fmt.Errorf("the API has it, in phase %s", now.Status.Phase)
		}
		st, ok, err := n.listed(podsync.RefOf(pod))
		if ok {
			return fmt.Errorf("the provider has it, Stopped %v", st.Stopped)
		}
		return err
	})
}
