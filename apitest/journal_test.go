// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

func TestJournal(t *testing.T) { bubble(testJournal)(t) }

func testJournal(t *testing.T) {
	s := apitest.New(apitest.Options{})
	node := s.Client(apitest.NodeUser("n"))
	ctx := t.Context()
	if _, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{FieldManager: "me"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if _, err := node.CoreV1().Nodes().Patch(ctx, "n", types.StrategicMergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if _, err := node.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n", LabelSelector: "a=b"}); err != nil {
		t.Fatal(err)
	}
	js := s.Requests(apitest.Match{})
	if len(js) != 4 {
		t.Fatalf("%d requests: %v", len(js), js)
	}
	create, patch, lease, list := js[0], js[1], js[2], js[3]
	if create.Verb != "create" || create.Name != "n" || create.User.Name != "system:node:n" || create.FieldManager != "me" || create.Code != 201 || create.Seq != 1 || !create.Done {
		t.Errorf("create: %+v", create)
	}
	if obj, err := create.Object(); err != nil || obj.(*corev1.Node).Name != "n" {
		t.Errorf("create: %v %v", obj, err)
	}
	if patch.Verb != "patch" || patch.Subresource != "status" || patch.PatchType != types.StrategicMergePatchType || patch.Time.Sub(create.Time) != 1500*time.Millisecond {
		t.Errorf("patch: %+v", patch)
	}
	if m, err := patch.Map(); err != nil || fmt.Sprint(m) != "map[status:map[phase:Running]]" {
		t.Errorf("patch: %v %v", m, err)
	}
	if lease.Group != "coordination.k8s.io" || lease.Version != "v1" || lease.Namespace != "kube-node-lease" || lease.ContentType != "application/vnd.kubernetes.protobuf" {
		t.Errorf("lease: %+v", lease)
	}
	if m, err := lease.Map(); err != nil || m["spec"].(map[string]any)["holderIdentity"] != "n" {
		t.Errorf("lease: %v %v", m, err)
	}
	if list.Verb != "list" || list.FieldSelector != "spec.nodeName=n" || list.LabelSelector != "a=b" || list.Resource != "pods" {
		t.Errorf("list: %+v", list)
	}
	for m, want := range map[*apitest.Match]int{
		{}:                             4,
		{Verb: "create"}:               2,
		{Verb: "create,patch"}:         3,
		{Resource: "nodes"}:            1,
		{Resource: "nodes/*"}:          2,
		{Resource: "nodes/status"}:     1,
		{Group: "core"}:                3,
		{Group: "coordination.k8s.io"}: 1,
		{Name: "n"}:                    3,
		{Namespace: "kube-node-lease"}: 1,
		{User: "system:node:n"}:        4,
		{User: "somebody"}:             0,
		{Func: func(r apitest.Request) bool { return r.Code == 201 }}: 2,
	} {
		if n := len(s.Requests(*m)); n != want {
			t.Errorf("%+v: %d, want %d", *m, n, want)
		}
	}
	s.ResetJournal()
	if list := s.Requests(apitest.Match{}); len(list) != 0 {
		t.Errorf("after a reset: %v", list)
	}
	_, _ = s.Client(apitest.User{}).Discovery().ServerVersion()
	if list := s.Requests(apitest.Match{}); len(list) != 1 || list[0].Seq != 5 {
		t.Errorf("the first request after a reset: %v", list)
	}
}

// TestConfigIsTheClients checks that the usual settings of a rest.Config work.
func TestConfigIsTheClients(t *testing.T) { bubble(testConfigIsTheClients)(t) }

func testConfigIsTheClients(t *testing.T) {
	s := apitest.New(apitest.Options{})
	cfg := s.Config(apitest.User{})
	cfg.ContentType, cfg.UserAgent, cfg.Timeout = "application/json", "mine/1", 3*time.Second
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n, err := cs.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Requests(apitest.Match{})[0]; r.ContentType != "application/json" || r.UserAgent != "mine/1" || n.ManagedFields[0].Manager != "mine" {
		t.Errorf("%+v, %v", r, n.ManagedFields)
	}
	defer s.Inject(apitest.Fault{Hang: true})()
	start := time.Now()
	if _, err := cs.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err == nil || time.Since(start) != 3*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
