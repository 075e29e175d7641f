// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The suite holds the provider to the contract of podsync.
func TestProvider(t *testing.T) {
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(testing.TB) podsync.Provider { return newProvider("192.0.2.1") },
	})
}

// An hour without the API server costs the node nothing but the hour: in virtual time.
func TestOutage(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newProvider("192.0.2.1")
		n, err := newNode(s.Config(apitest.NodeUser("n1")), options{name: "n1", ip: "192.0.2.1", nodeCredentials: true}, p)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- n.run(ctx) }()
		s.Put(web())
		time.Sleep(30 * time.Second)
		if ready(s) != corev1.ConditionTrue || phase(s) != corev1.PodRunning {
			t.Fatalf("after 30 s: Ready=%s, pod %s", ready(s), phase(s))
		}
		over := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		time.Sleep(time.Hour)
		if n.leases.Holds(ctx, "n1") == nil {
			t.Error("the node holds a lease that it could not renew for an hour")
		}
		over()
		time.Sleep(time.Minute)
		if ready(s) != corev1.ConditionTrue || phase(s) != corev1.PodRunning || len(p.pods) != 1 {
			t.Errorf("a minute after the outage: Ready=%s, pod %s, %d instances", ready(s), phase(s), len(p.pods))
		}
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if ready(s) != corev1.ConditionFalse {
			t.Errorf("after its end the node is Ready=%s", ready(s))
		}
	})
}

// Of two processes with one node name, the second waits until the first has ended.
func TestTwoProcesses(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		start := func(process, ip string) (*provider, func() error) {
			ctx, cancel := context.WithCancel(t.Context())
			cfg := s.Config(apitest.NodeUser("n1"))
			cfg.UserAgent = process
			p := newProvider(ip)
			n, err := newNode(cfg, options{name: "n1", ip: ip, nodeCredentials: true, process: process}, p)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- n.run(ctx) }()
			return p, func() error { cancel(); return <-ended }
		}
		_, stopFirst := start("first", "192.0.2.1")
		time.Sleep(30 * time.Second)
		p, stopSecond := start("second", "192.0.2.2")
		s.Put(web())
		time.Sleep(time.Minute)
		writes := s.Requests(apitest.Match{Verb: "update,patch", Resource: "nodes/*", Func: func(r apitest.Request) bool {
			return strings.Contains(r.UserAgent, "second")
		}})
		if len(p.pods) != 0 || len(writes) != 0 {
			t.Errorf("while the first process runs, the second has %d pods and wrote %v", len(p.pods), writes)
		}
		if err := stopFirst(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if ready(s) != corev1.ConditionTrue || phase(s) != corev1.PodRunning || len(p.pods) != 1 {
			t.Errorf("a minute after the end of the first process: Ready=%s, pod %s, %d instances", ready(s), phase(s), len(p.pods))
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
	})
}
