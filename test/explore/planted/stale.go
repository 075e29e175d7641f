// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
// the past, the budget returns to its former value.
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

// byLabel deletes the claims of a database that is being deleted by a label with its name.
// The mended form has the UID in the label, so it can't be the claim of another.
func byLabel(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, cached)
	if err != nil {
		return err
	}
	owner := db.Name
	if o.mended {
		if db.DeletionTimestamp == nil { // no claim for a database of the past
			if db, err = o.db(ctx, metav1.GetOptions{}); err != nil || db.DeletionTimestamp != nil {
				return err
			}
		}
		owner = string(db.UID)
	}
	claims := o.CoreV1().PersistentVolumeClaims("default")
	if db.DeletionTimestamp == nil {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim(0), Labels: map[string]string{"of": owner}}}
		_, err := claims.Create(ctx, c, metav1.CreateOptions{})
		return exists(err)
	}
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "of=" + owner}); err != nil {
		return err
	}
	db.Finalizers = nil
	_, err = o.CoreV1().ConfigMaps("default").Update(ctx, db, metav1.UpdateOptions{})
	return err
}

// arbiter makes and deletes a claim as the database says. The mended form does not act on
// a database that is older than the one for which the claim was made.
func arbiter(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, cached)
	if err != nil {
		return err
	}
	claims := o.CoreV1().PersistentVolumeClaims("default")
	have, err := claims.Get(ctx, claim(0), metav1.GetOptions{})
	if client404(err) != nil {
		return err
	}
	switch has := err == nil; {
	case db.Data["arbiter"] == "yes" && !has:
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim(0), Annotations: map[string]string{"version": db.ResourceVersion}}}
		_, err = claims.Create(ctx, c, metav1.CreateOptions{})
		return exists(err)
	case db.Data["arbiter"] != "yes" && has:
		if order, err := resourceversion.CompareResourceVersion(db.ResourceVersion, have.Annotations["version"]); o.mended && (err != nil || order < 0) {
			return err
		}
		return o.deleteClaim(ctx, 0)
	}
	return nil
}
