// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

var manifests = []string{"../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml", "../rbac/events.yaml", "../rbac/election.yaml"}

// account is the ServiceAccount in the manifests.
var account = apitest.ServiceAccountUser("kubewright", "virtual-node")

// freeAddress returns an unused loopback address, because a manager does not
// report the port it was given.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// status returns the code and the body of a page, or 0 if no server answers.
func status(t *testing.T, address, page string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + address + page)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func running(s *apitest.Server, name string) func() bool {
	return func() bool { return apitest.Get[*corev1.Pod](s, "default", name).Status.Phase == corev1.PodRunning }
}

func TestNodeInAManager(t *testing.T) {
	s := exampletest.Server(t, manifests...)
	probes := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	kubeconfig := exampletest.Kubeconfig(t, s, account)
	go func() {
		ended <- run(ctx, []string{"--kubeconfig", kubeconfig, "--node-name", "n1",
			"--metrics-bind-address", "0", "--health-probe-bind-address", probes}, io.Discard)
	}()

	exampletest.Eventually(t, s, "/readyz", func() bool { code, _ := status(t, probes, "/readyz"); return code == http.StatusOK })
	s.Put(pod("web"))
	exampletest.Eventually(t, s, "the pod to run", running(s, "web"))
	if _, body := status(t, probes, "/healthz?verbose"); !strings.Contains(body, "lease ok") || !strings.Contains(body, "nodestatus ok") || !strings.Contains(body, "podsync ok") {
		t.Errorf("/healthz does not have the three checks:\n%s", body)
	}
	if n := len(s.Requests(apitest.Match{Verb: "watch", Resource: "pods"})); n != 1 {
		t.Errorf("%d watches of pods, want one for the manager and podsync together", n)
	}
	for _, r := range s.Requests(apitest.Match{Verb: "list,watch", Resource: "pods"}) {
		if r.FieldSelector != "spec.nodeName=n1" {
			t.Errorf("pods of other nodes are asked for: %v", r)
		}
	}

	// The shutdown: the API server delays a final status. The lease must be
	// renewed during that time.
	arrived, release := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch", Resource: "pods/status", Func: func(apitest.Request) bool {
		arrive()
		<-release
		return false
	}}})
	web := apitest.Get[*corev1.Pod](s, "default", "web")
	client := s.Client(apitest.User{})
	if err := client.CoreV1().Pods("default").Delete(ctx, "web", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(web.UID))}); err != nil {
		t.Fatal(err)
	}
	<-arrived
	stop()
	for _, part := range []string{"lease", "nodestatus"} { // podsync ends first
		if code, body := status(t, probes, "/healthz/"+part); code != http.StatusOK {
			t.Errorf("%s has ended before the last status was written: %s", part, body)
		}
	}
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the manager ended with %v", err)
	}
	if n := len(s.Requests(apitest.Match{Verb: "delete", Resource: "pods", Func: func(r apitest.Request) bool { return r.Code == http.StatusOK }})); n != 2 {
		t.Errorf("%d deletions of the pod, want the test's and the one of podsync, which comes after the last status", n)
	}
	exampletest.NothingRefused(t, s)
}

func TestReplicas(t *testing.T) {
	s := exampletest.Server(t, manifests...)
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	start := func(identity string) (*exampletest.Program, string) {
		probes := freeAddress(t)
		return exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, account), "--node-name", "n1",
			"--elect", "example", "--identity", identity, "--metrics-bind-address", "0", "--health-probe-bind-address", probes), probes
	}
	holder := func() string {
		if l := apitest.Get[*coordinationv1.Lease](s, "kubewright", "example"); l != nil && l.Spec.HolderIdentity != nil {
			return *l.Spec.HolderIdentity
		}
		return ""
	}
	beats := apitest.Match{Verb: "create,update", Resource: "leases", Namespace: corev1.NamespaceNodeLease}

	a, _ := start("a")
	exampletest.Eventually(t, s, "a to serve the node", func() bool { return len(s.Requests(beats)) > 0 })
	b, probes := start("b")
	exampletest.Eventually(t, s, "b to be ready to stand by", func() bool { code, _ := status(t, probes, "/readyz"); return code == http.StatusOK })
	if !strings.HasPrefix(holder(), "a_") {
		t.Fatalf("%q leads, want a", holder())
	}
	uid := apitest.Get[*corev1.Node](s, "", "n1").UID
	if err := a.Stop(); err != nil {
		t.Errorf("a ended with %v", err)
	}
	// a did its last work for the node before it released the lease.
	given := 0
	for _, r := range s.Requests(apitest.Match{Verb: "update", Resource: "leases", Namespace: "kubewright"}) {
		obj, err := r.Object()
		if err != nil {
			t.Fatal(err)
		}
		if *obj.(*coordinationv1.Lease).Spec.HolderIdentity == "" {
			given = r.Seq
		}
	}
	served := s.Requests(beats)
	if last := served[len(served)-1].Seq; given == 0 || last > given {
		t.Errorf("the lease was given away by request #%d, the last one for the node was #%d", given, last)
	}
	exampletest.Eventually(t, s, "b to lead", func() bool { return strings.HasPrefix(holder(), "b_") })
	exampletest.Eventually(t, s, "b to serve the node", func() bool {
		now := s.Requests(beats)
		return now[len(now)-1].Seq > given
	})
	s.Put(pod("web"))
	exampletest.Eventually(t, s, "a pod to run", running(s, "web"))
	if got := apitest.Get[*corev1.Node](s, "", "n1").UID; got != uid {
		t.Error("the Node was registered again instead of adopted")
	}
	if err := b.Stop(); err != nil {
		t.Errorf("b ended with %v", err)
	}
	exampletest.NothingRefused(t, s)
}
