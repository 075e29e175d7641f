// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// finalizer is on a database, so that its claim is deleted before it.
const finalizer = "planted.example.com/claim"

// recreated deletes the claim of a database that is being deleted. If it reads the past, that
// is the database before, and the claim is that of the next one.
func recreated(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, cached)
	if err != nil {
		return err
	}
	if db.DeletionTimestamp == nil {
		return o.createClaim(ctx, 0)
	}
	if o.mended {
		if now, err := o.db(ctx, metav1.GetOptions{}); err != nil || now.UID != db.UID {
			return err
		}
	}
	if err := o.deleteClaim(ctx, 0); err != nil {
		return err
	}
	db.Finalizers = nil
	_, err = o.CoreV1().ConfigMaps("default").Update(ctx, db, metav1.UpdateOptions{})
	return err
}

// scaledAgain deletes the claims that a database does not need. If it reads the past, it
// deletes claims that are needed again.
func scaledAgain(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, cached)
	if err != nil {
		return err
	}
	for i := range 3 {
		if i < number(db, "replicas") {
			if err := o.createClaim(ctx, i); err != nil {
				return err
			}
			continue
		}
		has, err := o.hasClaim(ctx, i)
		if err != nil {
			return err
		}
		if has && o.mended {
			now, err := o.db(ctx, metav1.GetOptions{})
			if err != nil || i < number(now, "replicas") {
				return err
			}
		}
		if has {
			if err := o.deleteClaim(ctx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// budget makes a PodDisruptionBudget again if it differs from the database. If it reads
// the past, the budget returns to what it was.
func budget(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, cached)
	if err != nil {
		return err
	}
	budgets := o.PolicyV1().PodDisruptionBudgets("default")
	if o.mended { // the past is no reason to change anything
		if db, err = o.db(ctx, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	want := intstr.FromInt32(int32(number(db, "unavailable")))
	have, err := budgets.Get(ctx, "db", metav1.GetOptions{})
	if err == nil && *have.Spec.MaxUnavailable == want {
		return nil
	}
	if err == nil {
		have.Spec.MaxUnavailable = &want
		_, err = budgets.Update(ctx, have, metav1.UpdateOptions{})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &want}}, metav1.CreateOptions{})
	return err
}
