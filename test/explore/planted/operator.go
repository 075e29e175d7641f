// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package planted has small operators with one bug each, after patterns that Sieve
// (Sun et al., OSDI 2022) found in public operators. Each has a mended form too.
//
// A database is a ConfigMap named db, whose data says how it must be. Its members are
// ConfigMaps named member-0 and so on, with a claim data-0 and so on for each.
package planted

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// operator has the client and helpers of all operators.
type operator struct {
	kubernetes.Interface
	mended bool
}

// every runs reconcile every second. An error is repaired by the next round.
func every(reconcile func(ctx context.Context, o *operator) error) program {
	return func(ctx context.Context, cfg *rest.Config, mended bool) error {
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		o := &operator{client, mended}
		for ctx.Err() == nil {
			_ = reconcile(ctx, o)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return nil
	}
}

type program func(ctx context.Context, cfg *rest.Config, mended bool) error

// cached reads an object as a cache has it: an API server may answer from the past.
var cached = metav1.GetOptions{ResourceVersion: "0"}

func (o *operator) db(ctx context.Context, opts metav1.GetOptions) (*corev1.ConfigMap, error) {
	return o.CoreV1().ConfigMaps("default").Get(ctx, "db", opts)
}

func number(db *corev1.ConfigMap, key string) int {
	n, _ := strconv.Atoi(db.Data[key])
	return n
}

func (o *operator) createSecret(ctx context.Context, name string) error {
	_, err := o.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

func (o *operator) hasSecret(ctx context.Context, name string) (bool, error) {
	_, err := o.CoreV1().Secrets("default").Get(ctx, name, metav1.GetOptions{})
	return err == nil, client404(err)
}

// client404 returns err, or nil if the object does not exist.
func client404(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// exists returns err, or nil if the object exists already.
func exists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func member(i int) string { return fmt.Sprintf("member-%d", i) }
func claim(i int) string  { return fmt.Sprintf("data-%d", i) }

func (o *operator) createMember(ctx context.Context, i int) error {
	_, err := o.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: member(i)}}, metav1.CreateOptions{})
	return exists(err)
}

func (o *operator) hasMember(ctx context.Context, i int) (bool, error) {
	_, err := o.CoreV1().ConfigMaps("default").Get(ctx, member(i), metav1.GetOptions{})
	return err == nil, client404(err)
}

func (o *operator) deleteMember(ctx context.Context, i int) error {
	return client404(o.CoreV1().ConfigMaps("default").Delete(ctx, member(i), metav1.DeleteOptions{}))
}

func (o *operator) createClaim(ctx context.Context, i int) error {
	_, err := o.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim(i)}}, metav1.CreateOptions{})
	return exists(err)
}

func (o *operator) hasClaim(ctx context.Context, i int) (bool, error) {
	_, err := o.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim(i), metav1.GetOptions{})
	return err == nil, client404(err)
}

func (o *operator) deleteClaim(ctx context.Context, i int) error {
	return client404(o.CoreV1().PersistentVolumeClaims("default").Delete(ctx, claim(i), metav1.DeleteOptions{}))
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// watchMaps runs an informer of ConfigMaps until ctx is done. sync is called every second
// with the content of its store.
func (o *operator) watchMaps(ctx context.Context, handler cache.ResourceEventHandlerFuncs, sync func(map[string]*corev1.ConfigMap)) error {
	maps := o.CoreV1().ConfigMaps("default")
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return maps.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, opts)
		},
	}, &corev1.ConfigMap{}, 0, nil)
	if _, err := informer.AddEventHandler(handler); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	for ctx.Err() == nil {
		if informer.HasSynced() {
			all := map[string]*corev1.ConfigMap{}
			for _, obj := range informer.GetStore().List() {
				m := obj.(*corev1.ConfigMap)
				all[m.Name] = m
			}
			sync(all)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	<-ended
	return nil
}
