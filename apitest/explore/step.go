// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest"
)

// deleteWithin is the longest virtual time that Delete waits for the answer.
const deleteWithin = time.Minute

// Delete returns a function for Step.Do that deletes an object of type T as kubectl delete
// does: the deletion is graceful, finalizers count, and dependents are left to the garbage
// collector. It does not wait until the object is gone. An object that does not exist is no
// error.
func Delete[T runtime.Object](w *World, namespace, name string) func() error {
	return func() error {
		obj := apitest.Get[T](w.Server, namespace, name)
		if any(obj) == any(*new(T)) {
			return nil
		}
		client, err := w.client(obj.GetObjectKind().GroupVersionKind(), namespace)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), deleteWithin)
		defer cancel()
		background := metav1.DeletePropagationBackground
		if err := client.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
}
