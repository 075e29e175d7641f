// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// agent is the user of the Reporters of the tests.
const agent = "system:node:n1"

var (
	kubeletReady = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "from the kubelet"}
	good         = configcheckpoint.Status{Phase: configcheckpoint.PhaseGood, OK: true, Reason: configcheckpoint.ReasonGood, Message: "runs the first"}
	crashes      = configcheckpoint.Status{Phase: configcheckpoint.PhaseRolledBack, Reason: configcheckpoint.ReasonCrashLoop, Message: "runs the first again"}
)

// reports runs a Reporter for the Node n1, which a kubelet maintains.
func reports(t *testing.T, test func(t *testing.T, s *apitest.Server, r *Reporter)) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(kubeletNode())
		r, err := NewReporter(s.Client(apitest.NodeUser("n1")).CoreV1(), "n1", "AgentConfigOK")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		test(t, s, r)
		stop()
		before := time.Now()
		if err := <-done; err != nil || time.Now().After(before) {
			t.Errorf("Run = %v, %v after its context was done", err, time.Since(before))
		}
	})
}

func kubeletNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{kubeletReady}}}
}

// shows checks the conditions of the Node: the kubelet's, and that of the agent.
func shows(t *testing.T, s *apitest.Server, want configcheckpoint.Status) {
	t.Helper()
	synctest.Wait()
	node := apitest.Get[*corev1.Node](s, "", "n1")
	found := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range node.Status.Conditions {
		found[c.Type] = c
	}
	if c := found["AgentConfigOK"]; len(found) != 2 || found[corev1.NodeReady] != kubeletReady || c.Reason != string(want.Reason) || c.Message != want.Message {
		t.Errorf("the conditions of the Node are %+v, want %s next to the kubelet's", node.Status.Conditions, want.Reason)
	}
}

func TestReporterWritesOneCondition(t *testing.T) {
	reports(t, func(t *testing.T, s *apitest.Server, r *Reporter) {
		time.Sleep(time.Hour)
		if n := len(s.Requests(apitest.Match{User: agent})); n > 0 {
			t.Errorf("%d requests before the first status", n)
		}
		r.StatusChanged(good)
		shows(t, s, good)
		r.StatusChanged(configcheckpoint.Status{}) // only the last one counts
		r.StatusChanged(crashes)
		shows(t, s, crashes)

		version := apitest.Get[*corev1.Node](s, "", "n1").ResourceVersion
		s.ResetJournal()
		time.Sleep(time.Hour)
		if n := len(s.Requests(apitest.Match{User: agent, Verb: "patch", Resource: "nodes/status"})); n < 12 || n > 15 || len(s.Requests(apitest.Match{User: agent})) != n {
			t.Errorf("%d patches in an hour, and %d requests", n, len(s.Requests(apitest.Match{User: agent})))
		}
		if apitest.Get[*corev1.Node](s, "", "n1").ResourceVersion != version {
			t.Error("a patch that repeats the condition changed the Node")
		}
	})
}

func TestReporterOfANodeThatIsCreatedAgain(t *testing.T) {
	reports(t, func(t *testing.T, s *apitest.Server, r *Reporter) {
		r.StatusChanged(good)
		shows(t, s, good)
		apitest.Remove[*corev1.Node](s, "", "n1")
		r.StatusChanged(crashes)
		time.Sleep(time.Hour)
		s.Put(kubeletNode())
		time.Sleep(time.Minute)
		shows(t, s, crashes)

		apitest.Remove[*corev1.Node](s, "", "n1")
		s.Put(kubeletNode())
		time.Sleep(5 * time.Minute)
		shows(t, s, crashes)
	})
}

// An answer that a proxy makes up does not show that the condition was written.
func TestReporterWritesAgainAfterAnEmptyAnswer(t *testing.T) {
	reports(t, func(t *testing.T, s *apitest.Server, r *Reporter) {
		s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Times: 1, Answer: func(apitest.Request) (*http.Response, error) {
			body := io.NopCloser(strings.NewReader(`{"kind":"Node","apiVersion":"v1"}`))
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
		}})
		synctest.Wait() // until Run waits for a status
		r.StatusChanged(good)
		time.Sleep(2 * time.Second)
		shows(t, s, good)
	})
}

func TestReporterInAnOutage(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{
		"503":  {Status: statuserr.Unavailable(0)},
		"403":  {Status: statuserr.Forbidden("nodes", "n1", "no role")},
		"hang": {Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			reports(t, func(t *testing.T, s *apitest.Server, r *Reporter) {
				end := s.Inject(fault)
				for range 6 {
					r.StatusChanged(good)
					time.Sleep(5 * time.Minute)
					r.StatusChanged(crashes)
					time.Sleep(5 * time.Minute)
				}
				if n := len(s.Requests(apitest.Match{User: agent})); n < 40 || n > 140 {
					t.Errorf("%d requests in an hour", n)
				}
				end()
				time.Sleep(callTimeout + time.Minute)
				shows(t, s, crashes)
				s.Inject(fault) // Run returns at once
				r.StatusChanged(good)
				time.Sleep(time.Second)
			})
		})
	}
}

func TestReporterIsRunOnce(t *testing.T) {
	s := apitest.New(apitest.Options{})
	r, err := NewReporter(s.Client(apitest.User{}).CoreV1(), "n1", "AgentConfigOK")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if first, second := r.Run(ctx), r.Run(ctx); first != nil || !errors.Is(second, configcheckpoint.ErrAlreadyRun) {
		t.Errorf("Run = %v, then %v", first, second)
	}
}

func TestNewReporterNamesAllProblems(t *testing.T) {
	_, err := NewReporter(nil, "", "not a type")
	for _, part := range []string{"client", "nodeName", `"not a type"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("NewReporter = %v, without %s", err, part)
		}
	}
	unset := (*corev1client.CoreV1Client)(nil)
	_, err1 := NewReporter(unset, "n1", "AgentConfigOK")
	_, err2 := ConfigMap(unset, "kubewright", "agent", "config.yaml")
	for _, err := range []error{err1, err2} {
		if err == nil || !strings.Contains(err.Error(), "the client is nil") {
			t.Errorf("a nil pointer as the client: %v", err)
		}
	}
	if _, err := NewReporter(nil, "N1", "AgentConfigOK"); err == nil || !strings.Contains(err.Error(), "nodeName") {
		t.Errorf("NewReporter = %v", err)
	}
}
