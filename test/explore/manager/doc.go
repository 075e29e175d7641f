// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package manager has a manager of controller-runtime with one reconciler, as an example of
// an exploration that needs nothing else of this library.
package manager

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Run runs the manager until ctx is done.
func Run(ctx context.Context, cfg *rest.Config) error {
	skip := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		// A bubble has no sockets.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// controller-runtime requires unique controller names per process.
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(&reconciler{mgr.GetClient()}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// reconciler keeps as many Secrets for a ConfigMap as its data says.
type reconciler struct{ client client.Client }

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var owner corev1.ConfigMap
	if err := r.client.Get(ctx, req.NamespacedName, &owner); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	want, err := strconv.Atoi(owner.Data["secrets"])
	if err != nil || owner.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // the user's mistake
	}
	var secrets corev1.SecretList
	if err := r.client.List(ctx, &secrets, client.InNamespace(owner.Namespace), client.MatchingLabels{"of": owner.Name}); err != nil {
		return reconcile.Result{}, err
	}
	for i := range want {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name + "-" + strconv.Itoa(i)}}
		if _, err := controllerutil.CreateOrUpdate(ctx, r.client, secret, func() error {
			metav1.SetMetaDataLabel(&secret.ObjectMeta, "of", owner.Name)
			return controllerutil.SetControllerReference(&owner, secret, r.client.Scheme())
		}); err != nil {
			return reconcile.Result{}, err
		}
	}
	for i := range secrets.Items {
		s := &secrets.Items[i]
		n, err := strconv.Atoi(s.Name[len(owner.Name)+1:])
		if err == nil && n < want {
			continue
		}
		if err := r.client.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	owner.Data["have"] = strconv.Itoa(want)
	return reconcile.Result{}, r.client.Update(ctx, &owner)
}
