// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// emptyAnswers is a client whose answers are empty objects, as a proxy makes them up.
type emptyAnswers struct {
	resourcev1client.ResourceSliceInterface
}

func (emptyAnswers) Get(context.Context, string, metav1.GetOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func (emptyAnswers) Create(context.Context, *resourcev1.ResourceSlice, metav1.CreateOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func (emptyAnswers) Update(context.Context, *resourcev1.ResourceSlice, metav1.UpdateOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func TestAnEmptyAnswerIsAnError(t *testing.T) {
	c := &Controller{client: emptyAnswers{}, outlives: t.Context()}
	if got, err := (&job{c: c}).get("s1"); !errors.Is(err, apierr.ErrAnswer) {
		t.Errorf("get: %v, %v, want ErrAnswer", got, err)
	}
	for _, resourceVersion := range []string{"", "7"} {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s1", ResourceVersion: resourceVersion}}
		if got, err := c.put(t.Context(), slice, false); !errors.Is(err, apierr.ErrAnswer) {
			t.Errorf("put at %q: %v, %v, want ErrAnswer", resourceVersion, got, err)
		}
	}
}

func TestNotServed(t *testing.T) {
	status := func(code int32, details *metav1.StatusDetails) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: metav1.StatusReasonNotFound, Details: details}}
	}
	object := &metav1.StatusDetails{Name: "s1", Kind: "resourceslices"}
	proxy := &metav1.StatusDetails{Name: "s1", Kind: "resourceslices", Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}}
	for name, tc := range map[string]struct {
		err  error
		name string // of the slice, empty for a list
		want bool
	}{
		"no error":                  {nil, "", false},
		"another error":             {statuserr.InternalError("x"), "", false},
		"not a status":              {errors.New("not found"), "", false},
		"an object":                 {status(http.StatusNotFound, object), "s1", false},
		"an object, but of a list":  {status(http.StatusNotFound, object), "", true},
		"no object, of a list":      {status(http.StatusNotFound, &metav1.StatusDetails{Kind: "resourceslices"}), "", true},
		"no details":                {status(http.StatusNotFound, nil), "s1", true},
		"no name":                   {status(http.StatusNotFound, &metav1.StatusDetails{Kind: "k"}), "s1", true},
		"no kind":                   {status(http.StatusNotFound, &metav1.StatusDetails{Name: "s1"}), "s1", true},
		"another object":            {status(http.StatusNotFound, &metav1.StatusDetails{Name: "n1", Kind: "nodes"}), "s1", true},
		"the answer of a proxy":     {status(http.StatusNotFound, proxy), "s1", true},
		"wrapped, about an object":  {fmt.Errorf("x: %w", status(http.StatusNotFound, object)), "s1", false},
		"wrapped, about no objects": {fmt.Errorf("x: %w", status(http.StatusNotFound, nil)), "s1", true},
	} {
		if got := notServed(tc.err, tc.name); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
