// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// The provider in memory keeps the contract, with and without its capabilities.
func TestContract(t *testing.T) {
	for name, tc := range map[string]struct {
		opts podsynctest.Options
		wrap func(*podsynctest.Provider) podsync.Provider
	}{
		"full":   {podsynctest.Options{}, func(p *podsynctest.Provider) podsync.Provider { return p }},
		"slow":   {podsynctest.Options{StartTime: 20 * time.Millisecond, StopTime: 30 * time.Millisecond}, func(p *podsynctest.Provider) podsync.Provider { return p }},
		"simple": {podsynctest.Options{Forgets: true}, func(p *podsynctest.Provider) podsync.Provider { return struct{ podsync.Provider }{p} }},
	} {
		t.Run(name, func(t *testing.T) {
			backends := map[podsync.Provider]*podsynctest.Backend{}
			open := func(t testing.TB, b *podsynctest.Backend) podsync.Provider {
				p := tc.wrap(b.Connect())
				backends[p] = b
				return p
			}
			podsynctest.TestProvider(t, podsynctest.Suite{
				New: func(t testing.TB) podsync.Provider {
					b := podsynctest.NewBackend(tc.opts)
					t.Cleanup(func() {
						for _, v := range b.Violations() {
							t.Error(v)
						}
					})
					return open(t, b)
				},
				Reopen: func(t testing.TB, old podsync.Provider) podsync.Provider { return open(t, backends[old]) },
				Completes: func() *corev1.Pod {
					return &corev1.Pod{Spec: corev1.PodSpec{
						RestartPolicy: corev1.RestartPolicyNever,
						Containers:    []corev1.Container{{Name: "main", Image: podsynctest.CompletesImage}},
					}}
				},
				Break: func(t testing.TB, p podsync.Provider) func() {
					return backends[p].Inject(podsynctest.Fault{Err: errors.New("the backend is down")})
				},
				SecondNode: func(t testing.TB, p podsync.Provider) podsync.Provider { return open(t, backends[p]) },
				Timeout:    10 * time.Second,
			})
		})
	}
}
