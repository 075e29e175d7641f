// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// NodeRestriction lets node credentials neither set nor remove such a label, so one that
// an earlier process set with other credentials stays.
func TestANodeThatMovesToNodeCredentialsKeepsItsForbiddenLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		const role = "node-role.kubernetes.io/virtual"
		before := left(managed(fieldManager, "status", `{"f:metadata":{"f:labels":{"f:example.com/old":{},"f:`+role+`":{}}}}`))
		before.Labels[role] = ""
		s.Put(before)
		w := start(t, s, Config{})
		w.pass(time.Hour)
		for _, r := range s.Requests(patches) {
			if r.Code != 200 {
				t.Fatalf("refused: %v", r)
			}
		}
		if _, kept := w.node().Labels[role]; !kept {
			t.Error("the forbidden label is gone")
		}
		if _, kept := w.node().Labels["example.com/old"]; kept {
			t.Error("the label that no setter sets any longer is still there")
		}
	})
}

// gpuSetter sets values of every kind, unless it fails.
func gpuSetter(failing *knob[error]) Setter {
	return func(_ context.Context, n *corev1.Node) error {
		if err := failing.get(); err != nil {
			return err
		}
		n.Labels["example.com/gpu"] = "a100"
		n.Annotations["example.com/gpu-driver"] = "550"
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule})
		n.Spec.ProviderID = "example://gpu"
		n.Status.Capacity["example.com/gpu"] = resource.MustParse("8")
		SetCondition(n, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "GPUBroken", Message: "XID 79"})
		return nil
	}
}

func checkGPUs(t *testing.T, n *corev1.Node) {
	t.Helper()
	gpus := n.Status.Capacity["example.com/gpu"]
	if n.Labels["example.com/gpu"] != "a100" || n.Annotations["example.com/gpu-driver"] != "550" || gpus.Value() != 8 {
		t.Errorf("labels %v, annotations %v, capacity %v", n.Labels, n.Annotations, n.Status.Capacity)
	}
	if ready := status.FindCondition(n.Status.Conditions, corev1.NodeReady); ready.Status != corev1.ConditionFalse || ready.Reason != "GPUBroken" {
		t.Errorf("Ready is %+v, want what the setter said last", ready)
	}
}

func TestANodeThatIsCreatedAgainHasTheLastValuesOfAFailingSetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		failing := &knob[error]{}
		w := start(t, s, Config{Setters: []Setter{gpuSetter(failing)}, OnDeleted: DeletedReregister})
		w.pass(time.Minute)
		failing.set(errors.New("driver is restarting"))
		w.pass(time.Minute)
		old := w.node().UID
		apitest.Remove[*corev1.Node](s, "", node1)
		w.c.Resync(node1)
		w.pass(time.Minute)
		n := w.node()
		if n.UID == old {
			t.Fatal("the Node was not created again")
		}
		checkGPUs(t, n)
		if got := taints(n); !slices.Equal(got, []string{"example.com/gpu:NoSchedule", "example.com/virtual:NoSchedule"}) || n.Spec.ProviderID != "example://gpu" {
			t.Errorf("created with taints %v, provider ID %q", got, n.Spec.ProviderID)
		}
	})
}

// kube-controller-manager sets the node to Unknown during an outage; the setter fails
// from the same moment on.
func TestAnOutageLeavesTheLastValuesOfAFailingSetter(t *testing.T) {
	for _, reason := range []string{"NodeStatusUnknown", "NodeStatusNeverUpdated"} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				failing := &knob[error]{}
				w := start(t, s, Config{Setters: []Setter{gpuSetter(failing)}})
				w.pass(time.Minute)
				failing.set(errors.New("driver is restarting"))
				restore := s.Inject(apitest.Fault{Match: patches, Err: apitest.ErrConnRefused})
				w.pass(time.Minute)
				apitest.Edit(s, "", node1, func(n *corev1.Node) {
					SetCondition(n, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: reason})
				})
				w.c.EventHandler().OnUpdate(nil, w.node())
				w.pass(time.Minute)
				restore()
				w.pass(time.Minute)
				checkGPUs(t, w.node())
			})
		})
	}
}

// A provider ID can be set when the Node is created, and cluster autoscalers match nodes
// by it.
func TestTheFirstBootWaitsForASlowMetadataService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{Template: &corev1.Node{}, Setters: []Setter{Cloud(func(context.Context, string) (CloudInstance, error) {
			time.Sleep(8 * time.Second)
			return CloudInstance{ProviderID: "cloud://1", Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}, nil
		})}})
		w.pass(9 * time.Second)
		if n := w.node(); n.Spec.ProviderID != "cloud://1" {
			t.Errorf("provider ID %q", n.Spec.ProviderID)
		}
		w.expect(1, 1, 0)
	})
}

// A taint is written to the Node itself. With the manager of the creation a later
// process would take the status of an installer's Node for that of an earlier process.
func TestTaintsHaveAFieldManagerOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		installed := left(managed("installer", "", `{"f:metadata":{"f:labels":{"f:example.com/pool":{}}}}`))
		s.Put(installed)
		w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept}})
		w.pass(time.Minute)
		for _, r := range s.Requests(taintPatches) {
			if r.Query == "fieldManager="+fieldManager {
				t.Errorf("taints are written as %v", r)
			}
		}
		if got := taints(w.node()); !slices.Contains(got, "example.com/dedicated=gpu:NoSchedule") {
			t.Errorf("taints are %v", got)
		}
	})
}

func TestALongRetryAfterIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		health := &knob[error]{}
		w := start(t, s, Config{HealthChecks: []HealthCheck{healthCheck(health)}})
		w.pass(time.Minute)
		throttled := apierrors.NewServerTimeout(corev1.Resource("nodes"), "patch", 3600)
		restore := s.Inject(apitest.Fault{Match: patches, Status: throttled})
		health.set(errors.New("down"))
		w.pass(2 * time.Minute)
		restore()
		w.pass(time.Minute)
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionFalse {
			t.Errorf("Ready is %+v a minute after the server answers again", ready)
		}
	})
}

// The scheduler answers "Too many pods" for a node without allocatable pods, although it
// is Ready.
func TestANodeWithoutPodsIsReported(t *testing.T) {
	const what = "Node has no allocatable pods"
	for name, tc := range map[string]struct {
		template *corev1.Node
		want     int
	}{"without": {&corev1.Node{}, 1}, "with": {template(), 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
				c, err := New(Config{Client: s.Client(apitest.User{}).CoreV1(), Fleet: true, Template: tc.template})
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range fleet(3) {
					if err := c.Add(name); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Hour)
				defer cancel()
				if err := c.Run(ctx); err != nil {
					t.Fatal(err)
				}
				text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
				if got := strings.Count(text, what); got != tc.want {
					t.Errorf("said %d times, want %d:\n%s", got, tc.want, text)
				}
			})
		})
	}
}

// The lease of a node needs its registration, so a restart with a slow setter does not
// wait for it.
func TestARestartWithASlowSetterKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		first := start(t, s, Config{})
		first.pass(time.Minute)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		s.ResetJournal()
		w := start(t, s, Config{Setters: []Setter{func(context.Context, *corev1.Node) error { return errors.New("no metadata") }}})
		w.pass(time.Second)
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Errorf("Live = %v", err)
		}
		w.expect(0, 1, 0)
	})
}
