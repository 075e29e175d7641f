// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"errors"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
)

// TestVersions checks what servers of different minor versions do differently;
// the real ones were seen to.
func TestVersions(t *testing.T) {
	for _, test := range []struct {
		version      string
		causes       int  // of a patch with another UID
		named        bool // the reason of a refusal names its authorizer
		poolSelector bool
		taints       bool // are kept
	}{
		{version: "v1.34.4", causes: 2},
		{version: "v1.36.3", causes: 2, taints: true},
		{version: "v1.37.2", causes: 1, named: true, poolSelector: true, taints: true},
	} {
		t.Run(test.version, bubble(func(t *testing.T) {
			s := apitest.New(apitest.Options{Version: test.version})
			ctx, cs := t.Context(), s.Client(apitest.User{})
			s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}})
			_, err := cs.CoordinationV1().Leases("default").Patch(ctx, "l", types.MergePatchType, []byte(`{"metadata":{"uid":"other"}}`), metav1.PatchOptions{})
			var status apierrors.APIStatus
			if !errors.As(err, &status) || len(status.Status().Details.Causes) != test.causes || !apierrors.IsInvalid(err) {
				t.Errorf("a patch with another UID: %v", err)
			}
			_, err = s.Client(apitest.NodeUser("n")).CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{})
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), ": node: ") != test.named {
				t.Errorf("a refusal: %v", err)
			}
			slices := cs.ResourceV1().ResourceSlices()
			if _, err := slices.List(ctx, metav1.ListOptions{FieldSelector: "spec.pool.name=p"}); apierrors.IsBadRequest(err) == test.poolSelector {
				t.Errorf("a selector of the pool: %v", err)
			}
			got, err := slices.Create(ctx, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
				Driver: "d.example.com", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, NodeName: new("n"),
				Devices: []resourcev1.Device{{Name: "d", Taints: []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoSchedule}}}},
			}}, metav1.CreateOptions{})
			if err != nil || (len(got.Spec.Devices[0].Taints) > 0) != test.taints {
				t.Errorf("a taint: %v %v", got, err)
			}
			if v, err := cs.Discovery().ServerVersion(); err != nil || v.GitVersion != test.version {
				t.Errorf("version %v %v", v, err)
			}
		}))
	}
}
