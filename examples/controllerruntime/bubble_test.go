// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// cordoner marks nodes unschedulable that have not been Ready for five minutes.
type cordoner struct{ client client.Client }

const patience = 5 * time.Minute

// Reconcile implements reconcile.Reconciler.
func (c *cordoner) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var node corev1.Node
	if err := c.client.Get(ctx, req.NamespacedName, &node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady || condition.Status == corev1.ConditionTrue || node.Spec.Unschedulable {
			continue
		}
		if left := patience - time.Since(condition.LastTransitionTime.Time); left > 0 {
			return reconcile.Result{RequeueAfter: left}, nil
		}
		before := node.DeepCopy()
		node.Spec.Unschedulable = true
		return reconcile.Result{}, c.client.Patch(ctx, &node, client.MergeFrom(before))
	}
	return reconcile.Result{}, nil
}

// TestReconcilerInABubble runs a reconciler under a manager in virtual time: five
// minutes take milliseconds, and every goroutine of the manager must end.
func TestReconcilerInABubble(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		skip := true
		mgr, err := ctrl.NewManager(s.Config(apitest.User{}), ctrl.Options{
			// A bubble has no sockets.
			Metrics:                metricsserver.Options{BindAddress: "0"},
			HealthProbeBindAddress: "0",
			// controller-runtime requires unique controller names per process.
			Controller: config.Controller{SkipNameValidation: &skip},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.Node{}).Complete(&cordoner{mgr.GetClient()}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()

		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()},
		}}})
		cordoned := func() bool {
			synctest.Wait()
			return apitest.Get[*corev1.Node](s, "", "n1").Spec.Unschedulable
		}
		// The API server is down when the time comes.
		time.Sleep(patience - 10*time.Second)
		outage := s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Status: apierrors.NewInternalError(errors.New("down"))})
		time.Sleep(20 * time.Second)
		if cordoned() {
			t.Error("cordoned while every write fails")
		}
		outage()
		time.Sleep(time.Minute)
		if !cordoned() {
			t.Error("not cordoned a minute after the outage")
		}
		if n := len(s.Requests(apitest.Match{Verb: "patch"})); n < 2 || n > 20 {
			t.Errorf("%d writes", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
}

// The API server does not answer any more when a pod has ended. The term of this replica
// ends, and its work must have returned when another replica may lead.
func TestTheWorkReturnsWithinDrain(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
		mgr, err := ctrl.NewManager(s.Config(apitest.User{}), ctrl.Options{
			Metrics:                metricsserver.Options{BindAddress: "0"},
			HealthProbeBindAddress: "0",
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served, err := newSite(ctx, mgr, "n1", podsynctest.NewBackend(podsynctest.Options{}).Connect())
		if err != nil {
			t.Fatal(err)
		}
		candidate, err := served.newCandidate("example", "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := mgr.Add(always(candidate.Run)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		s.Put(pod("web"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if !running(s, "web")() || !candidate.IsLeader() {
			t.Fatalf("the pod runs: %v, the replica leads: %v", running(s, "web")(), candidate.IsLeader())
		}
		heal := s.Inject(apitest.Fault{Hang: true})
		now, grace := metav1.Now(), int64(1)
		apitest.Edit(s, "default", "web", func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace })
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if err := candidate.Check(nil); err != nil {
				t.Error(err)
				break
			}
		}
		if candidate.IsLeader() {
			t.Error("the term goes on without a renewal")
		}
		heal()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
}
