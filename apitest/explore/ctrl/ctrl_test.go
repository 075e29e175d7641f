// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package ctrl_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/apitest/explore/ctrl"
)

// reconciler keeps a Secret for each ConfigMap that is labeled.
type reconciler struct{ client.Client }

func (r *reconciler) SetupWithManager(mgr manager.Manager) error {
	r.Client = mgr.GetClient()
	return builder.ControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var owner corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &owner); err != nil || owner.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if owner.Labels["secret"] == "" {
		return reconcile.Result{}, nil
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r, secret, func() error {
		return controllerutil.SetControllerReference(&owner, secret, r.Scheme())
	})
	return reconcile.Result{}, err
}

func TestExplore(t *testing.T) {
	cfg := explore.Config{}
	if testing.Short() {
		cfg.Sample = 60
	}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		return explore.Scenario{
			Programs: []explore.Program{{Name: "operator", Run: func(ctx context.Context, p *explore.Process) error {
				return ctrl.Run(ctx, p.Config, manager.Options{}, (&reconciler{}).SetupWithManager)
			}}},
			Steps: []explore.Step{{Name: "app", Do: func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app", Labels: map[string]string{"secret": "yes"}}})
				return nil
			}, Until: func() bool { return apitest.Get[*corev1.Secret](w.Server, "default", "app") != nil }}},
		}
	})
}

// A manager whose context ends before its caches are filled returns. An index fills a cache
// before the controllers start.
func TestEndsBeforeItsCachesAreFilled(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Inject(apitest.Fault{Match: apitest.Match{Verb: "list,watch"}, Hang: true})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- ctrl.Run(ctx, s.Config(apitest.User{}), manager.Options{}, func(mgr manager.Manager) error {
				index := func(obj client.Object) []string { return []string{obj.GetName()} }
				if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.ConfigMap{}, "name", index); err != nil {
					return err
				}
				return (&reconciler{}).SetupWithManager(mgr)
			})
		}()
		time.Sleep(time.Second)
		stop()
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Error("it runs on")
		}
		time.Sleep(time.Minute)
	})
}
