// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// keystore makes two secrets, and takes the first one as the sign that both exist.
func keystore(ctx context.Context, o *operator) error {
	for _, name := range []string{"ca", "keystore"} {
		has, err := o.hasSecret(ctx, name)
		if err != nil || has && !o.mended {
			return err
		}
		if has {
			continue
		}
		if err := o.createSecret(ctx, name); err != nil {
			return err
		}
		if name == "ca" && !o.mended {
			return o.createSecret(ctx, "keystore")
		}
	}
	return nil
}

// scaleDown deletes the claim of a member only together with the member.
func scaleDown(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for i := range 3 {
		if i < number(db, "replicas") {
			if err := first(o.createClaim(ctx, i), o.createMember(ctx, i)); err != nil {
				return err
			}
			continue
		}
		has, err := o.hasMember(ctx, i)
		if err != nil {
			return err
		}
		if has {
			if err := o.deleteMember(ctx, i); err != nil {
				return err
			}
		}
		if has || o.mended {
			if err := o.deleteClaim(ctx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// resize writes the new size to a StatefulSet and then to the claim, and takes the
// StatefulSet as the sign that both have it.
func resize(ctx context.Context, o *operator) error {
	const key = "size"
	db, err := o.db(ctx, metav1.GetOptions{})
	if err != nil {
		return err
	}
	sets, claims := o.AppsV1().StatefulSets("default"), o.CoreV1().PersistentVolumeClaims("default")
	annotations := map[string]string{key: db.Data["storage"]}
	c, err := claims.Get(ctx, claim(0), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c, err = claims.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim(0), Annotations: annotations}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	set, err := sets.Get(ctx, "db", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		labels := map[string]string{"app": "db"}
		_, err = sets.Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Annotations: annotations}, Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db"}}}},
		}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if differs := set.Annotations[key] != db.Data["storage"]; differs {
		set.Annotations = annotations
		if _, err := sets.Update(ctx, set, metav1.UpdateOptions{}); err != nil {
			return err
		}
	} else if !o.mended {
		return nil
	}
	if c.Annotations[key] == db.Data["storage"] {
		return nil
	}
	c.Annotations = annotations
	_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
	return err
}

// nodeState notes that a member has been added before it adds it.
func nodeState(ctx context.Context, o *operator) error {
	db, err := o.db(ctx, metav1.GetOptions{})
	if err != nil || db.Annotations["added"] == db.Data["replicas"] {
		return err
	}
	add := func() error {
		for i := range number(db, "replicas") {
			if err := o.createMember(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	note := func() error {
		fresh := db.DeepCopy()
		metav1.SetMetaDataAnnotation(&fresh.ObjectMeta, "added", db.Data["replicas"])
		_, err := o.CoreV1().ConfigMaps("default").Update(ctx, fresh, metav1.UpdateOptions{})
		return err
	}
	if o.mended {
		if err := add(); err != nil {
			return err
		}
		return note()
	}
	if err := note(); err != nil {
		return err
	}
	return add()
}

// certificates makes a second secret if it remembers that it has just made the first.
func certificates(ctx context.Context, cfg *rest.Config, mended bool) error {
	renewed := false
	return every(func(ctx context.Context, o *operator) error {
		has, err := o.hasSecret(ctx, "ssl")
		if err != nil {
			return err
		}
		if !has {
			renewed = true
			return o.createSecret(ctx, "ssl")
		}
		if !renewed && !o.mended {
			return nil
		}
		internal, err := o.hasSecret(ctx, "ssl-internal")
		if err != nil || internal {
			return err
		}
		return o.createSecret(ctx, "ssl-internal")
	})(ctx, cfg, mended)
}
