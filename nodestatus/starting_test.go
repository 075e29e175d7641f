// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// A program that starts is not ready for a moment. The condition says so, and the error
// handler hears of it only if it lasts.
func TestAHealthCheckThatFailsAtTheStartIsReportedIfItLasts(t *testing.T) {
	for name, tc := range map[string]struct {
		check  HealthCheck
		setter Setter
		well   time.Duration // when the check succeeds
		want   []time.Duration
	}{
		"well after a moment": {well: 12 * time.Second},
		"well too late":       {well: time.Minute, want: []time.Duration{20 * time.Second}},
		"a panic":             {check: func(context.Context, string) error { panic("out of cheese") }, want: []time.Duration{0}},
		"a setter":            {setter: func(context.Context, *corev1.Node) error { return errors.New("no disk") }, want: []time.Duration{0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			begin := time.Now()
			var told notes[time.Duration]
			cfg := Config{
				HealthChecks: []HealthCheck{func(context.Context, string) error {
					if time.Since(begin) < tc.well {
						return errors.New("the pods are not known yet")
					}
					return nil
				}},
				ErrorHandler: func(context.Context, error, string) { told.add(time.Since(begin).Truncate(time.Second)) },
			}
			if tc.check != nil {
				cfg.HealthChecks = append(cfg.HealthChecks, tc.check)
			}
			if tc.setter != nil {
				cfg.Setters = []Setter{tc.setter}
			}
			w := start(t, s, cfg)
			// Triggers make more rounds than the interval.
			for range 45 {
				w.c.Trigger(node1)
				w.pass(time.Second)
			}
			got := told.get()
			if len(got) != len(tc.want) || len(got) > 0 && (got[0] > tc.want[0] || got[0] < tc.want[0]-5*time.Second) {
				t.Errorf("%s: reported after %v, want %v", name, got, tc.want)
			}
			if tc.well == 12*time.Second && w.condition(corev1.NodeReady).Status != corev1.ConditionTrue {
				t.Errorf("%s: the node is not ready", name)
			}
		})
	}
}
