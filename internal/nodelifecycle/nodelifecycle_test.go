// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// fakeNode is a node whose signs of life a test gives by hand.
type fakeNode struct {
	t     *testing.T
	s     *apitest.Server
	start time.Time
	l     *Judge
}

func (n *fakeNode) heartbeat(at time.Time) {
	apitest.Edit(n.s, "", "n", func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(at)}}
	})
}

func (n *fakeNode) renew(at time.Time) {
	n.s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "kube-node-lease"}, Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(at))}})
}

// outages are in seconds since the start.
func (n *fakeNode) outages() string {
	out := ""
	for _, o := range n.l.Outages("n") {
		to := "now"
		if !o.To.IsZero() {
			to = fmt.Sprint(o.To.Sub(n.start).Round(time.Second).Seconds())
		}
		out += fmt.Sprint(o.From.Sub(n.start).Round(time.Second).Seconds(), "-", to, " ")
	}
	return out
}

// A tick is every 5 s, the grace period is 50 s.
func TestANodeWithoutSignsOfLifeIsUnknown(t *testing.T) {
	for _, test := range []struct {
		name string
		life func(n *fakeNode)
		want string
	}{
		{"renewed", func(n *fakeNode) {
			n.heartbeat(time.Now())
			for range 30 {
				n.renew(time.Now())
				time.Sleep(10 * time.Second)
			}
		}, ""},
		{"status alone", func(n *fakeNode) {
			for range 10 {
				n.heartbeat(time.Now())
				time.Sleep(40 * time.Second)
			}
		}, ""},
		{"silent", func(n *fakeNode) { n.heartbeat(time.Now()); n.renew(time.Now()); time.Sleep(3 * time.Minute) }, "55-now "},
		{"never a status, nor a lease", func(*fakeNode) { time.Sleep(3 * time.Minute) }, "60-now "},
		{"never a status, but a lease", func(n *fakeNode) {
			for range 30 {
				n.renew(time.Now())
				time.Sleep(10 * time.Second)
			}
		}, ""},
		{"clock steps back", func(n *fakeNode) {
			n.heartbeat(time.Now())
			n.renew(time.Now().Add(time.Hour))
			time.Sleep(10 * time.Second)
			for range 12 { // earlier than the first: no sign of life
				n.renew(time.Now())
				time.Sleep(10 * time.Second)
			}
		}, "55-now "},
		{"a step back healed by a status", func(n *fakeNode) {
			n.heartbeat(time.Now())
			n.renew(time.Now().Add(time.Hour))
			time.Sleep(71 * time.Second)
			n.heartbeat(time.Now()) // another time; the saved lease is forgotten
			for range 12 {
				n.renew(time.Now())
				time.Sleep(10 * time.Second)
			}
		}, "55-75 "},
		{"a clock that creeps", func(n *fakeNode) {
			n.heartbeat(time.Now())
			at := time.Now()
			for range 20 {
				at = at.Add(time.Microsecond)
				n.renew(at)
				time.Sleep(10 * time.Second)
			}
		}, ""},
		{"the same renewal again and again", func(n *fakeNode) {
			n.heartbeat(time.Now())
			at := time.Now()
			for range 10 {
				n.renew(at)
				time.Sleep(10 * time.Second)
			}
		}, "55-now "},
		{"deleted", func(n *fakeNode) {
			n.heartbeat(time.Now())
			time.Sleep(71 * time.Second)
			apitest.Remove[*corev1.Node](n.s, "", "n")
			time.Sleep(time.Minute)
		}, "55-75 "},
		{"another incarnation", func(n *fakeNode) {
			n.heartbeat(time.Now())
			time.Sleep(48 * time.Second)
			apitest.Remove[*corev1.Node](n.s, "", "n")
			n.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			n.heartbeat(n.start)
			time.Sleep(50 * time.Second)
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
				s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
				n := &fakeNode{t, s, time.Now(), New(s, Options{})}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					// After the first signs of life at the same moment.
					time.Sleep(time.Nanosecond)
					n.l.Run(ctx)
				}()
				test.life(n)
				synctest.Wait()
				if got := n.outages(); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
				if all := n.l.AllOutages(); (len(all) > 0) != (test.want != "") {
					t.Errorf("all: %v", all)
				}
			})
		})
	}
}

func TestWriteSetsTheConditionsOfDeadNodes(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, testWrite)
}

func testWrite(t *testing.T, s *apitest.Server) {
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: "Foreign", Status: corev1.ConditionTrue},
	}}})
	l := New(s, Options{GracePeriod: 8 * time.Second, MonitorPeriod: time.Second, Write: true})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go l.Run(ctx)
	time.Sleep(20 * time.Second)
	synctest.Wait()
	got := ""
	n := apitest.Get[*corev1.Node](s, "", "n")
	for _, c := range n.Status.Conditions {
		got += fmt.Sprint(c.Type, "=", c.Status, " ", c.Reason, ", ")
	}
	if want := "Ready=Unknown NodeStatusUnknown, MemoryPressure=Unknown NodeStatusUnknown, Foreign=True , DiskPressure=Unknown NodeStatusNeverUpdated, PIDPressure=Unknown NodeStatusNeverUpdated, "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	time.Sleep(20 * time.Second)
	if again := apitest.Get[*corev1.Node](s, "", "n"); again.ResourceVersion != n.ResourceVersion {
		t.Error("it writes again and again")
	}
}
