// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func TestAManagerRunsInEachTermOfOneProcess(t *testing.T) {
	s := exampletest.Server(t, manifests...)
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	cfg, err := clientcmd.BuildConfigFromFlags("", exampletest.Kubeconfig(t, s, account))
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan uint64), make(chan uint64)
	graceful := time.Second
	candidate, err := election.New(election.Config{
		Client: s.Client(apitest.User{}).CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "kubewright", Name: "example"},
		Self:   election.Peer{Identity: "a"},
		Lead: managerPerTerm(func(term election.Term) (manager.Manager, error) {
			mgr, err := manager.New(cfg, manager.Options{
				Metrics: metricsserver.Options{BindAddress: "0"}, GracefulShutdownTimeout: &graceful,
			})
			if err != nil {
				return nil, err
			}
			return mgr, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				started <- term.Token()
				<-ctx.Done()
				ended <- term.Token()
				return nil
			}))
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- candidate.Run(ctx) }()
	before := uint64(0)
	for range 3 {
		token := <-started
		if token <= before {
			t.Errorf("token %d after %d", token, before)
		}
		before = token
		candidate.Resign()
		if got := <-ended; got != token {
			t.Errorf("term %d ended, want %d", got, token)
		}
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run = %v", err)
		}
	case <-started: // a fourth term had just started
		<-ended
		<-done
	}
}
