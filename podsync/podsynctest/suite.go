// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// DefaultTimeout is the time that a pod may take to start or to stop in TestProvider.
const DefaultTimeout = 30 * time.Second

// DefaultPods is the default of Suite.Pods.
const DefaultPods = 120

// The nodes of the suite's pods: NodeName, except for the pods of the provider that
// Suite.SecondNode returns.
const (
	NodeName  = "podsynctest"
	NodeName2 = "podsynctest-2"
)

// A Suite has the functions with which TestProvider makes and uses a provider.
type Suite struct {
	// Required. New returns a provider without pods, with a new backend. It is called
	// for each test. Use t.Cleanup to end the provider.
	New func(t testing.TB) podsync.Provider
	// Reopen returns the provider that the next process would have. It knows nothing, but
	// finds the pods of the old provider in the backend. The old one is no longer used.
	// Default: none, and restarts of the process are not tested.
	Reopen func(t testing.TB, old podsync.Provider) podsync.Provider
	// Pod returns a pod that runs until it is stopped. The suite sets its metadata and
	// node. Default: a pod with one container, main.
	Pod func() *corev1.Pod
	// Completes returns a pod with the restart policy Never that soon ends on its own,
	// with exit code 0. Default: none, and completion is not tested.
	Completes func() *corev1.Pod
	// Break makes all calls of the provider's backend fail until repair is called, as if
	// its network were down. Default: none, and failures are not tested.
	Break func(t testing.TB, p podsync.Provider) (repair func())
	// SecondNode returns a provider of another node, NodeName2, with the same backend as
	// p. Default: none, and a shared backend is not tested.
	SecondNode func(t testing.TB, p podsync.Provider) podsync.Provider
	// Pods is the number of pods with which the suite tests that List returns all of them.
	// It should be larger than a page of the backend, which often has 100 pods. Default:
	// DefaultPods.
	Pods int
	// NeverRestarts must be true if the provider does not restart containers, even if the
	// restart policy says so. Default: it restarts them, and Completes is also run with
	// the policy Always.
	NeverRestarts bool
	// Nameless must be true if the backend does not store UIDs, so that it can't
	// distinguish two pods with one name. Default: it stores UIDs.
	Nameless bool
	// Timeout is the time that a pod may take to start, to stop or to complete.
	// Default: DefaultTimeout.
	Timeout time.Duration
}

// TestProvider tests whether a provider keeps the contract of podsync.Provider and of the
// optional interfaces that it implements. It first calls the methods, and then runs a
// Controller with the provider and an API server in memory. It needs no network and no
// cluster.
func TestProvider(t *testing.T, suite Suite) {
	if suite.New == nil {
		t.Fatal("podsynctest: Suite.New is required")
	}
	if suite.Timeout <= 0 {
		suite.Timeout = DefaultTimeout
	}
	if suite.Pods <= 0 {
		suite.Pods = DefaultPods
	}
	if suite.Pod == nil {
		suite.Pod = func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/pause:1"}}}}
		}
	}
	for _, c := range allChecks() {
		if c.needs != nil && !c.needs(&suite, suite.New(t)) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			c.hold(&subject{TB: t, suite: &suite, provider: suite.New(t)})
		})
	}
}

// A check is one test of the suite.
type check struct {
	name  string
	needs func(*Suite, podsync.Provider) bool // nil: every provider has it
	why   string                              // the reason why a failure matters
	run   func(*subject)
}

// hold runs the check, and says why it matters if it fails.
func (c *check) hold(s *subject) {
	defer func() {
		if s.Failed() {
			s.Logf("why it matters: %s", c.why)
		}
	}()
	c.run(s)
}

// A subject is a provider under test.
type subject struct {
	testing.TB
	suite    *Suite
	provider podsync.Provider
	pods     int
}

// pod returns a new pod for Start.
func (s *subject) pod(name string) *corev1.Pod { return s.named(s.suite.Pod(), name) }

func (s *subject) named(pod *corev1.Pod, name string) *corev1.Pod {
	s.pods++
	pod = pod.DeepCopy()
	pod.Namespace, pod.Name = metav1.NamespaceDefault, name
	pod.UID = types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", s.pods, time.Now().UnixNano()%1e12))
	pod.Generation, pod.ResourceVersion = 1, "1"
	pod.CreationTimestamp = metav1.Now()
	pod.Spec.NodeName = NodeName
	pod.Status.Phase = corev1.PodPending
	return pod
}

// start calls Start until it succeeds, as a Controller does.
func (s *subject) start(pod *corev1.Pod) podsync.State {
	s.Helper()
	var st podsync.State
	s.eventually("Start of "+pod.Name+" succeeds", func() error {
		var err error
		st, err = s.provider.Start(s.Context(), pod.DeepCopy())
		return err
	})
	return st
}

// stop stops a pod, and waits until it has.
func (s *subject) stop(pod *corev1.Pod) podsync.State {
	s.Helper()
	opts := podsync.StopOptions{Grace: time.Second, Reason: podsync.StopDeleted, Pod: pod.DeepCopy()}
	var st podsync.State
	s.eventually("Stop of "+pod.Name+" succeeds", func() error {
		var err error
		st, err = s.provider.Stop(s.Context(), podsync.RefOf(pod), opts)
		return err
	})
	if st.Stopped {
		return st
	}
	s.eventually(pod.Name+" has stopped", func() error {
		listed, ok, err := s.listed(podsync.RefOf(pod))
		if err == nil && ok && !listed.Stopped {
			err = fmt.Errorf("List has %v and not Stopped", listed.Ref)
		}
		st = listed
		return err
	})
	return st
}

// listed returns the State of a pod in List.
func (s *subject) listed(ref podsync.Ref) (podsync.State, bool, error) {
	states, err := s.provider.List(s.Context())
	if err != nil {
		return podsync.State{}, false, err
	}
	for _, st := range states {
		if st.UID == ref.UID || st.UID == "" && st.Namespace == ref.Namespace && st.Name == ref.Name {
			return st, true, nil
		}
	}
	return podsync.State{}, false, nil
}

// mustList checks what List says of a pod.
func (s *subject) mustList(pod *corev1.Pod) podsync.State {
	s.Helper()
	st, ok, err := s.listed(podsync.RefOf(pod))
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	if !ok {
		s.Fatalf("List does not have %s", pod.Name)
	}
	return st
}

// eventually waits until ok returns nil. A provider may need time that no test
// can know: this asks again until the timeout of the suite.
func (s *subject) eventually(what string, ok func() error) {
	s.Helper()
	deadline := time.Now().Add(s.suite.Timeout)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s: not within %v: %v", what, s.suite.Timeout, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
