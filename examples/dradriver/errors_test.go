// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// errorSink collects the errors that are logged.
type errorSink struct {
	mu   sync.Mutex
	errs []error
}

func (s *errorSink) Init(klog.RuntimeInfo)          {}
func (s *errorSink) Enabled(int) bool               { return false }
func (s *errorSink) Info(int, string, ...any)       {}
func (s *errorSink) WithValues(...any) klog.LogSink { return s }
func (s *errorSink) WithName(string) klog.LogSink   { return s }
func (s *errorSink) Error(err error, _ string, _ ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// is returns a function that reports whether an error is of type T.
func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// TestErrorsOfThePublisherDoNotEndTheDriver gives the publisher each kind of error. It
// passes them to HandleError, which ends the driver on any error that does not wrap
// kubeletplugin.ErrRecoverable.
func TestErrorsOfThePublisherDoNotEndTheDriver(t *testing.T) {
	kind, resource := resourcev1.SchemeGroupVersion.WithKind("ResourceSlice").GroupKind(), resourcev1.Resource("resourceslices")
	device := resourcev1.Device{Name: "eth0", Taints: []resourcev1.DeviceTaint{{Key: driverName + "/link", Effect: resourcev1.DeviceTaintEffectNoSchedule}}}
	failing := func(status *apierrors.StatusError, verb string) func(*apitest.Server) {
		return func(s *apitest.Server) {
			s.Inject(apitest.Fault{Match: apitest.Match{Verb: verb, Resource: "resourceslices"}, Status: status})
		}
	}
	for name, tc := range map[string]struct {
		fault func(*apitest.Server)
		want  func(error) bool
	}{
		"refused":    {failing(apierrors.NewInvalid(kind, "x", nil), "create"), is[*resourceslice.InvalidError]},
		"dropped":    {func(s *apitest.Server) { s.SetGate(apitest.DRADeviceTaints, false) }, is[*resourceslice.DroppedFieldsError]},
		"forbidden":  {failing(apierrors.NewForbidden(resource, "x", nil), "create"), is[*resourceslice.ForbiddenError]},
		"not served": {func(s *apitest.Server) { s.Serve(resourcev1.SchemeGroupVersion, false) }, is[*resourceslice.UnavailableError]},
		"failing":    {failing(apierrors.NewInternalError(errors.New("no")), ""), func(err error) bool { return err != nil }},
		"contended": {func(s *apitest.Server) {
			other := s.Client(apitest.User{}).ResourceV1().ResourceSlices()
			go func() {
				for range 20 {
					time.Sleep(time.Minute)
					_ = other.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
				}
			}()
		}, is[*resourceslice.ContendedError]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
				tc.fault(s)
				var ended []error
				d := &driver{pool: nodeName, fail: func(err error) { ended = append(ended, err) }}
				publisher, err := d.publisher(s.Client(apitest.User{}), resourceslice.Hooks{})
				if err != nil {
					t.Fatal(err)
				}
				var sink errorSink
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(&sink)))
				done := make(chan error)
				go func() { done <- publisher.Run(ctx) }()
				if err := publisher.SetAll(driverName, map[string]resourceslice.Pool{nodeName: {Devices: []resourcev1.Device{device}}}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Minute)
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
				found := false
				for _, err := range sink.errs {
					found = found || tc.want(err) && errors.Is(err, kubeletplugin.ErrRecoverable)
				}
				if !found || len(ended) > 0 {
					t.Errorf("HandleError was called with %v, the driver ended with %v", sink.errs, ended)
				}
			})
		})
	}
}

// TestHandleErrorEndsTheDriver: without ErrRecoverable.
func TestHandleErrorEndsTheDriver(t *testing.T) {
	var ended error
	d := &driver{fail: func(err error) { ended = err }}
	want := &resourceslice.ForbiddenError{Verb: "list", Err: errors.New("no")}
	if d.HandleError(klog.NewContext(t.Context(), klog.New(&errorSink{})), want, "msg"); !errors.Is(ended, want) {
		t.Errorf("ended with %v", ended)
	}
}
