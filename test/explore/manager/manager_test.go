// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

func TestExplore(t *testing.T) {
	cfg := explore.Config{}
	if testing.Short() {
		cfg.Sample = 100
	}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		set := func(n string) func() error {
			return func() error {
				if apitest.Edit(w.Server, "default", "app", func(m *corev1.ConfigMap) { m.Data["secrets"] = n }) == nil {
					w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Data: map[string]string{"secrets": n}})
				}
				return nil
			}
		}
		have := func(n string) func() bool {
			return func() bool {
				m := apitest.Get[*corev1.ConfigMap](w.Server, "default", "app")
				return m != nil && m.Data["have"] == n
			}
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "manager", Run: func(ctx context.Context, p *explore.Process) error {
				return Run(ctx, p.Config)
			}}},
			Steps: []explore.Step{
				{Name: "three secrets", Do: set("3"), Until: have("3")},
				{Name: "one secret", Do: set("1"), Until: have("1")},
			},
		}
	})
}
