// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package versions reads and writes ResourceSlices in each version of the API
// as if it were v1.
package versions

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"
	resourcev1beta2client "k8s.io/client-go/kubernetes/typed/resource/v1beta2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// Names are the versions that All returns, newest first.
var Names = []string{"v1", "v1beta2"}

// A Version sends requests in one version of the API.
type Version struct {
	// Name is one of Names.
	Name string
	// List and Watch are the methods of the typed client.
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Convert turns an object from List or Watch into v1.
	Convert func(any) (*resourcev1.ResourceSlice, error)

	// Get, Write and Delete each send one request. Write creates a slice without
	// a resource version, and updates others. The API server stores nothing if
	// dryRun is set, but answers as if it did. Get and Write return
	// apierr.ErrAnswer if the answer is about another object or none.
	Get    func(ctx context.Context, name string) (*resourcev1.ResourceSlice, error)
	Write  func(ctx context.Context, slice *resourcev1.ResourceSlice, dryRun bool) (*resourcev1.ResourceSlice, error)
	Delete func(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// All returns all versions, newest first. Writes are made as fieldManager.
func All(v1 resourcev1client.ResourceSlicesGetter, v1beta2 resourcev1beta2client.ResourceSlicesGetter, fieldManager string) []Version {
	return []Version{
		newVersion(Names[0], v1.ResourceSlices(), fieldManager, same, same),
		newVersion(Names[1], v1beta2.ResourceSlices(), fieldManager, fromV1beta2, toV1beta2),
	}
}

// slicesClient is the common part of the typed clients.
type slicesClient[T, L any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Get(context.Context, string, metav1.GetOptions) (T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// object is an API object of one version.
type object interface {
	runtime.Object
	metav1.Object
}

func newVersion[T object, L runtime.Object](name string, c slicesClient[T, L], fieldManager string,
	from func(T) *resourcev1.ResourceSlice, to func(*resourcev1.ResourceSlice) T,
) Version {
	answer := func(obj T, err error, name string) (*resourcev1.ResourceSlice, error) {
		if obj, err = apierr.Answer(obj, err, name); err != nil {
			return nil, err
		}
		return from(obj), nil
	}
	return Version{
		Name:  name,
		List:  func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, opts) },
		Watch: c.Watch,
		Convert: func(obj any) (*resourcev1.ResourceSlice, error) {
			s, ok := obj.(T)
			if !ok {
				return nil, fmt.Errorf("resourceslice: got %T, not a ResourceSlice of %s", obj, name)
			}
			return from(s), nil
		},
		Get: func(ctx context.Context, name string) (*resourcev1.ResourceSlice, error) {
			obj, err := c.Get(ctx, name, metav1.GetOptions{})
			return answer(obj, err, name)
		},
		Write: func(ctx context.Context, s *resourcev1.ResourceSlice, dryRun bool) (*resourcev1.ResourceSlice, error) {
			var runs []string
			if dryRun {
				runs = []string{metav1.DryRunAll}
			}
			if s.ResourceVersion == "" {
				obj, err := c.Create(ctx, to(s), metav1.CreateOptions{FieldManager: fieldManager, DryRun: runs})
				return answer(obj, err, s.Name)
			}
			obj, err := c.Update(ctx, to(s), metav1.UpdateOptions{FieldManager: fieldManager, DryRun: runs})
			return answer(obj, err, s.Name)
		},
		Delete: c.Delete,
	}
}

// Gone reports whether a request failed because the API server doesn't serve
// its version. A 404 about a missing slice has its name. The name is empty for a list, a
// watch and a create, which are about no slice.
func Gone(err error, name string) bool {
	return apierrors.IsNotFound(err) && (name == "" || !apierr.IsMissing(err, "resourceslices", name))
}

func same(s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice { return s }

// The versions are different Go types with one wire format. Converting through
// that format keeps fields that a later release adds to both.

func fromV1beta2(s *resourcev1beta2.ResourceSlice) *resourcev1.ResourceSlice {
	to := &resourcev1.ResourceSlice{ObjectMeta: s.ObjectMeta}
	recode(&s.Spec, &to.Spec)
	return to
}

func toV1beta2(s *resourcev1.ResourceSlice) *resourcev1beta2.ResourceSlice {
	to := &resourcev1beta2.ResourceSlice{ObjectMeta: s.ObjectMeta}
	recode(&s.Spec, &to.Spec)
	return to
}

type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal([]byte) error }

// recode copies a message into one of another version. An error would mean that the
// two versions are not compiled from the same fields: see
// TestConversionKeepsEveryField.
func recode(from marshaler, to unmarshaler) {
	wire, _ := from.Marshal()
	_ = to.Unmarshal(wire)
}
