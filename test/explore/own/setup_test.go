// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"flag"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

var pairs = flag.Duration("pairs", 0, "real time for plans with two faults, for each test")

// config explores everything, or a sample of 120 plans.
func config(short bool) explore.Config {
	c := explore.Config{Budget: *pairs}
	if short {
		c.Sample = 120
	}
	return c
}

// put returns a step that creates objects.
func put(w *explore.World, objects ...runtime.Object) func() error {
	return func() error {
		for _, obj := range objects {
			w.Server.Put(obj)
		}
		return nil
	}
}

// all reports whether every condition is true.
func all(conditions ...func() bool) func() bool {
	return func() bool {
		for _, ok := range conditions {
			if !ok() {
				return false
			}
		}
		return true
	}
}

// deletePod returns a step that deletes a pod as a user does.
func deletePod(w *explore.World, name string) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := w.Server.Client(apitest.User{}).CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
}
