// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

var account = apitest.ServiceAccountUser("kubewright", "virtual-node")

func electionServer(t *testing.T) *apitest.Server {
	s := newServer(t, "rbac/election.yaml", "rbac/election-work.yaml")
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	return s
}

// stand starts a candidate.
func stand(t *testing.T, s *apitest.Server, identity string, args ...string) *program {
	args = append([]string{"--kubeconfig", kubeconfig(t, s, account), "--identity", identity, "--interval", "20ms"}, args...)
	return startProgram(t, args...)
}

// says waits until a candidate has printed text.
func says(t *testing.T, s *apitest.Server, p *program, text string) {
	t.Helper()
	eventually(t, s, text, func() bool { return strings.Contains(p.Output(), text) })
}

// eachNumberOnce checks that the work was done once and in order: every successful write of the ConfigMap has the next
// number.
func eachNumberOnce(t *testing.T, s *apitest.Server) {
	t.Helper()
	count, token := 0, uint64(0)
	for _, r := range s.Requests(apitest.Match{Verb: "create,update", Resource: "configmaps"}) {
		if r.Code/100 != 2 {
			continue
		}
		obj, err := r.Object()
		if err != nil {
			t.Fatal(err)
		}
		data := obj.(*corev1.ConfigMap).Data
		count++
		if data[countKey] != strconv.Itoa(count) {
			t.Errorf("%s follows %d", data[countKey], count-1)
		}
		next, err := strconv.ParseUint(data[tokenKey], 10, 64)
		if err != nil || next < token {
			t.Errorf("token %s follows %d", data[tokenKey], token)
		}
		token = next
	}
	if count == 0 {
		t.Error("nothing was counted")
	}
}

func TestGracefulHandOver(t *testing.T) {
	s := electionServer(t)
	a := stand(t, s, "a")
	says(t, s, a, "counted 3")
	b := stand(t, s, "b")
	says(t, s, b, `leader: "a_`)
	if err := a.Stop(); err != nil {
		t.Errorf("a ended with %v", err)
	}
	says(t, s, b, "leading with token")
	says(t, s, b, "counted")
	if err := b.Stop(); err != nil {
		t.Errorf("b ended with %v", err)
	}
	eachNumberOnce(t, s)
	nothingRefused(t, s)
}

func TestBetterCandidateTakesOver(t *testing.T) {
	s := electionServer(t)
	a := stand(t, s, "a", "--min-tenure", "50ms")
	says(t, s, a, "counted")
	b := stand(t, s, "b", "--priority", "1")
	says(t, s, a, "offered the lease to b_")
	says(t, s, a, "stopped: election: a better candidate takes over")
	says(t, s, b, "leading with token")
	says(t, s, b, "counted")
	says(t, s, a, `leader: "b_`)
	eachNumberOnce(t, s)
	nothingRefused(t, s)
}

// TestLeaseCandidates: if no controller elects, the candidate finally claims the lease.
func TestLeaseCandidates(t *testing.T) {
	s := electionServer(t)
	s.Serve(coordinationv1beta1.SchemeGroupVersion, true)
	a := stand(t, s, "a", "--lease-candidates", "--lease-duration", "2s")
	says(t, s, a, "counted")
	candidates := apitest.List[*coordinationv1beta1.LeaseCandidate](s, "kubewright")
	if len(candidates) != 1 || candidates[0].Spec.LeaseName != "example" || candidates[0].Spec.BinaryVersion != "1.0.0" {
		t.Errorf("LeaseCandidates %v", candidates)
	}
	if err := a.Stop(); err != nil {
		t.Errorf("a ended with %v", err)
	}
	if n := len(apitest.List[*coordinationv1beta1.LeaseCandidate](s, "kubewright")); n != 0 {
		t.Errorf("%d LeaseCandidates are left", n)
	}
	nothingRefused(t, s)
}

// TestFenced: the writes of a later leader are not overwritten.
func TestFenced(t *testing.T) {
	s := electionServer(t)
	s.Put(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubewright", Name: "example"},
		Data:       map[string]string{countKey: "7", tokenKey: "999999999", byKey: "a later leader"},
	})
	a := stand(t, s, "a")
	says(t, s, a, "is fenced off by 999999999")
	if err := a.Stop(); err != nil {
		t.Errorf("a ended with %v", err)
	}
	if n := len(s.Requests(apitest.Match{Verb: "update", Resource: "configmaps"})); n != 0 {
		t.Errorf("%d writes past a later leader", n)
	}
}

// TestTermOver: without a term, no request is sent.
func TestTermOver(t *testing.T) {
	if _, err := (&counter{}).count(t.Context()); err != errNotLeading {
		t.Errorf("%v, want %v", err, errNotLeading)
	}
}

// TestNodeCredentials: the credentials of a node are refused, and the program says why.
func TestNodeCredentials(t *testing.T) {
	s := electionServer(t)
	p := startProgram(t, "--kubeconfig", kubeconfig(t, s, apitest.NodeUser("n1")), "--identity", "n1")
	eventually(t, s, "a refusal", func() bool {
		return len(s.Requests(apitest.Match{Resource: "leases", Func: func(r apitest.Request) bool { return r.Code == http.StatusForbidden }})) > 0
	})
	if err := p.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if out := p.Output(); strings.Contains(out, "leading") {
		t.Errorf("a node leads:\n%s", out)
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"leftover"}, {"--lease", "nothing"}, {"--priority", "2nd"}, {"--interval", "soon"}} {
		if err := startProgram(t, args...).Wait(); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	s := newServer(t)
	err := startProgram(t, "--kubeconfig", kubeconfig(t, s, apitest.User{}), "--lease", "kubewright/Not A Name", "--lease-duration", "1500ms").Wait()
	for _, field := range []string{"Lease", "LeaseDuration"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
