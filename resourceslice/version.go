// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// version is one version of the API, as if it were v1.
type version struct {
	name    string
	example runtime.Object // the type that the watch delivers
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	get     func(context.Context, string) (*resourcev1.ResourceSlice, error)
	create  func(context.Context, *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error)
	update  func(context.Context, *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error)
	delete  func(context.Context, string, metav1.DeleteOptions) error
	// convert turns what the watch delivered into v1.
	convert func(runtime.Object) (*resourcev1.ResourceSlice, error)
}

// versionNames are the versions that versions returns, newest first.
var versionNames = []string{"v1", "v1beta2", "v1beta1"}

// versions returns all that this package can speak, newest first.
func versions(c Client, fieldManager string) []version {
	return []version{
		newVersion(versionNames[0], c.ResourceV1().ResourceSlices(), fieldManager, same, same),
		newVersion(versionNames[1], c.ResourceV1beta2().ResourceSlices(), fieldManager, fromV1beta2, toV1beta2),
		newVersion(versionNames[2], c.ResourceV1beta1().ResourceSlices(), fieldManager, fromV1beta1, toV1beta1),
	}
}

// slicesClient is what the typed clients of all versions have in common.
type slicesClient[T, L any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Get(context.Context, string, metav1.GetOptions) (T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func newVersion[T, L runtime.Object](name string, c slicesClient[T, L], fieldManager string,
	from func(T) (*resourcev1.ResourceSlice, error), to func(*resourcev1.ResourceSlice) (T, error)) version {
	answer := func(obj T, err error) (*resourcev1.ResourceSlice, error) {
		if err != nil {
			return nil, err
		}
		return from(obj)
	}
	var example T
	return version{
		name:    name,
		example: example,
		list:    func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, opts) },
		watch:   c.Watch,
		get: func(ctx context.Context, name string) (*resourcev1.ResourceSlice, error) {
			return answer(c.Get(ctx, name, metav1.GetOptions{}))
		},
		create: func(ctx context.Context, s *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error) {
			obj, err := to(s)
			if err != nil {
				return nil, err
			}
			return answer(c.Create(ctx, obj, metav1.CreateOptions{FieldManager: fieldManager}))
		},
		update: func(ctx context.Context, s *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error) {
			obj, err := to(s)
			if err != nil {
				return nil, err
			}
			return answer(c.Update(ctx, obj, metav1.UpdateOptions{FieldManager: fieldManager}))
		},
		delete: c.Delete,
		convert: func(obj runtime.Object) (*resourcev1.ResourceSlice, error) {
			s, ok := obj.(T)
			if !ok {
				return nil, fmt.Errorf("resourceslice: got %T, not a ResourceSlice of %s", obj, name)
			}
			return from(s)
		},
	}
}
