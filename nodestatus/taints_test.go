// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

var (
	kept    = corev1.Taint{Key: "example.com/dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
	foreign = corev1.Taint{Key: "example.com/admin", Effect: corev1.TaintEffectNoExecute}

	taintPatches = apitest.Match{Verb: "patch", Resource: "nodes"}
)

func taints(n *corev1.Node) []string {
	var list []string
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeNotReady {
			list = append(list, t.ToString())
		}
	}
	slices.Sort(list)
	return list
}

func TestTaintsThatMustBeThereAreAddedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept}})
		both := []string{"example.com/dedicated=gpu:NoSchedule", "example.com/virtual:NoSchedule"}
		if got := taints(w.node()); !slices.Equal(got, both) {
			t.Fatalf("created with %v, want %v", got, both)
		}
		w.expect(1, 0, 0)
		watch(t, w.c, s.Client(apitest.User{}))
		s.ResetJournal()
		w.pass(time.Hour)
		if n := len(s.Requests(taintPatches)); n != 0 {
			t.Errorf("%d patches of taints that are there", n)
		}
		// Another client removes all taints, and adds one.
		apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{foreign} })
		w.pass(DefaultSyncInterval)
		want := []string{"example.com/admin:NoExecute", "example.com/dedicated=gpu:NoSchedule"}
		if got := taints(w.node()); !slices.Equal(got, want) {
			t.Errorf("taints are %v, want %v: that of the Template is for the creation", got, want)
		}
		// Another value is another taint in the same place.
		apitest.Edit(s, "", node1, func(n *corev1.Node) {
			for i := range n.Spec.Taints {
				n.Spec.Taints[i].Value = "x"
			}
		})
		w.pass(2 * DefaultSyncInterval)
		want[0] = "example.com/admin=x:NoExecute"
		if got := taints(w.node()); !slices.Equal(got, want) {
			t.Errorf("taints are %v, want %v", got, want)
		}
		if n := len(s.Requests(taintPatches)); n != 2 {
			t.Errorf("%d patches of taints, want 2", n)
		}
	})
}

// A taint is written to the Node itself. With the manager of the creation a later process
// would take the status of an installer's Node for that of an earlier process.
func TestAnAdoptedNodeGetsTheTaintsThatMustBeThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		n := template()
		n.Name, n.Spec.Taints = node1, []corev1.Taint{foreign}
		s.Put(n)
		w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept}})
		w.pass(DefaultSyncInterval)
		want := []string{"example.com/admin:NoExecute", "example.com/dedicated=gpu:NoSchedule"}
		if got := taints(w.node()); !slices.Equal(got, want) {
			t.Errorf("taints are %v, want %v", got, want)
		}
		for _, r := range s.Requests(taintPatches) {
			if r.Query == "fieldManager="+fieldManager {
				t.Errorf("taints are written as %v", r)
			}
		}
	})
}

// The status does not suffer from a missing permission, which is reported once.
func TestRefusedTaintsDoNotHoldUpTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		var errs []error
		pods := &knob[int64]{value: 10}
		w := start(t, s, Config{
			Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept}, Setters: []Setter{podsSetter(pods)},
			ErrorHandler: func(_ context.Context, err error, _ string) { errs = append(errs, err) },
		})
		watch(t, w.c, s.Client(apitest.User{}))
		s.Inject(apitest.Fault{Match: taintPatches, Status: statuserr.Forbidden("nodes", node1, "may not patch")})
		apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Taints = nil })
		w.pass(time.Second)
		pods.set(20)
		w.c.Trigger(node1)
		w.pass(time.Second)
		if q := w.node().Status.Capacity[corev1.ResourcePods]; q.Value() != 20 {
			t.Errorf("capacity is %v: the status waits for the taints", q.Value())
		}
		s.ResetJournal()
		w.pass(time.Hour)
		if len(errs) != 1 {
			t.Errorf("%d reports: %v", len(errs), errs)
		}
		if n := len(s.Requests(taintPatches)); n < 10 || n > 13 {
			t.Errorf("%d attempts in an hour, want 12", n)
		}
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Error(err)
		}
	})
}

// Controllers of the cluster write a Node as well, most of all just after its creation.
// A conflict with one of them is no failure: a read and another patch follow.
func TestAConflictOverTaintsIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{
			Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept},
			ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
		})
		watch(t, w.c, s.Client(apitest.User{}))
		s.ResetJournal()
		s.Inject(apitest.Fault{Match: taintPatches, Times: 1, Latency: time.Second})
		apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{foreign} })
		w.pass(500 * time.Millisecond) // the patch is under way
		apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Annotations = map[string]string{"example.com/other": "x"} })
		w.pass(2 * DefaultSyncInterval)
		want := []string{"example.com/admin:NoExecute", "example.com/dedicated=gpu:NoSchedule"}
		if got := taints(w.node()); !slices.Equal(got, want) {
			t.Errorf("taints are %v, want %v", got, want)
		}
		var codes []int
		for _, r := range s.Requests(taintPatches) {
			codes = append(codes, r.Code)
		}
		if !slices.Equal(codes, []int{409, 200}) {
			t.Errorf("patches of taints: %v, want a conflict and a success", codes)
		}
	})
}
