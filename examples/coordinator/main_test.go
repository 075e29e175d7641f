// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func newServer(t *testing.T) *apitest.Server {
	s := exampletest.Server(t, "../rbac/election-controller.yaml")
	s.Serve(coordinationv1beta1.SchemeGroupVersion, true)
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	return s
}

// startInstance starts an instance of the program.
func startInstance(t *testing.T, s *apitest.Server, identity string, args ...string) *exampletest.Program {
	kubeconfig := exampletest.Kubeconfig(t, s, apitest.ServiceAccountUser("kubewright", "election-controller"))
	return exampletest.Start(t, run, append([]string{"--kubeconfig", kubeconfig, "--identity", identity}, args...)...)
}

// stand starts a candidate, and returns a function that stops it.
func stand(t *testing.T, s *apitest.Server, identity string) (stop func()) {
	client := s.Client(apitest.User{})
	candidate, err := election.New(election.Config{
		Client:   client.CoordinationV1(),
		Lease:    types.NamespacedName{Namespace: "kubewright", Name: "example"},
		Self:     election.Peer{Identity: identity, BinaryVersion: "1.0.0"},
		Registry: election.LeaseCandidates(client.CoordinationV1beta1()),
		Lead: func(ctx context.Context, _ election.Term) error {
			<-ctx.Done()
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- candidate.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("candidate %s ended with %v", identity, err)
		}
		done <- nil // for the next call
	}
	t.Cleanup(stop)
	return stop
}

func holds(t *testing.T, s *apitest.Server, identity string) {
	t.Helper()
	exampletest.Eventually(t, s, identity+" to lead", func() bool {
		for _, l := range apitest.List[*coordinationv1.Lease](s, "kubewright") {
			if l.Spec.HolderIdentity != nil && strings.HasPrefix(*l.Spec.HolderIdentity, identity+"_") {
				return true
			}
		}
		return false
	})
}

func TestElects(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		lease string
	}{
		"beside":   {nil, "kubewright-coordinator"},
		"displace": {[]string{"--displace"}, coordinator.BuiltInLease},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			one := startInstance(t, s, "one", tc.args...)
			exampletest.Eventually(t, s, "the first instance to work", func() bool { return strings.Contains(one.Output(), "one coordinates") })
			if l := apitest.Get[*coordinationv1.Lease](s, metav1.NamespaceSystem, tc.lease); !strings.HasPrefix(*l.Spec.HolderIdentity, "one_") {
				t.Errorf("%s is held by %s", tc.lease, *l.Spec.HolderIdentity)
			}
			two := startInstance(t, s, "two", tc.args...)
			stopA := stand(t, s, "a")
			holds(t, s, "a")
			exampletest.Eventually(t, s, "the first instance to say so", func() bool {
				return strings.Contains(one.Output(), "kubewright/example: elected a_")
			})

			if err := one.Stop(); err != nil {
				t.Errorf("the first instance ended with %v", err)
			}
			exampletest.Eventually(t, s, "the second instance to work", func() bool { return strings.Contains(two.Output(), "two coordinates") })
			stand(t, s, "b")
			stopA()
			holds(t, s, "b")
			if err := two.Stop(); err != nil {
				t.Errorf("the second instance ended with %v", err)
			}
			exampletest.NothingRefused(t, s)
		})
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"leftover"}} {
		if err := exampletest.Start(t, run, args...).Wait(); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	s := exampletest.Server(t)
	err := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, apitest.User{}), "--lease-duration", "1500ms").Wait()
	if err == nil || !strings.Contains(err.Error(), "LeaseDuration") {
		t.Errorf("%v does not name LeaseDuration", err)
	}
}
