// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
)

// A provider ID can be set when the Node is created, and cluster autoscalers match nodes
// by it.
func TestTheFirstBootWaitsForASlowMetadataService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{Template: &corev1.Node{}, Setters: []Setter{Cloud(func(context.Context, string) (CloudInstance, error) {
			time.Sleep(8 * time.Second)
			return CloudInstance{ProviderID: "cloud://1", Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}, nil
		})}})
		w.pass(9 * time.Second)
		if n := w.node(); n.Spec.ProviderID != "cloud://1" {
			t.Errorf("provider ID %q", n.Spec.ProviderID)
		}
		w.expect(1, 1, 0)
	})
}

// The scheduler answers "Too many pods" for a node without allocatable pods, although it
// is Ready.
func TestANodeWithoutPodsIsReported(t *testing.T) {
	const what = "Node has no allocatable pods"
	for name, tc := range map[string]struct {
		template *corev1.Node
		want     int
	}{"without": {&corev1.Node{}, 1}, "with": {template(), 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
				c, err := New(Config{Client: s.Client(apitest.User{}).CoreV1(), Fleet: true, Template: tc.template})
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range fleet(3) {
					if err := c.Add(name); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Hour)
				defer cancel()
				if err := c.Run(ctx); err != nil {
					t.Fatal(err)
				}
				text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
				if got := strings.Count(text, what); got != tc.want {
					t.Errorf("said %d times, want %d:\n%s", got, tc.want, text)
				}
			})
		})
	}
}
