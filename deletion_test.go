// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The Node is deleted and the garbage collector deletes its lease. No part of the
// composition has an informer of Nodes, so the lease is the first to find out.
func TestTheLeaseOfADeletedNodeIsNotCreatedOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := apitest.New(apitest.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for ticker := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-ticker.C:
					server.CollectGarbage()
				case <-ctx.Done():
					return
				}
			}
		}()
		h := newHost(testlog.New(t), "host-1", server, podsynctest.NewBackend(podsynctest.Options{}))
		h.run()
		time.Sleep(25 * time.Second)
		if err := h.leases.Holds(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		apitest.Remove[*corev1.Node](server, "", "n1")
		server.ResetJournal()
		time.Sleep(time.Hour)
		synctest.Wait()
		var calls []string
		for _, r := range server.Requests(apitest.Match{}) {
			if r.Resource == "leases" {
				calls = append(calls, r.Verb)
			}
		}
		if len(calls) > 2 || len(calls) == 2 && (calls[0] != "update" || calls[1] != "get") {
			t.Errorf("requests for the lease in an hour: %v, want one update and one get at most", calls)
		}
		if l := apitest.Get[*coordinationv1.Lease](server, corev1.NamespaceNodeLease, "n1"); l != nil {
			t.Errorf("there is a lease of the deleted Node: %v", l)
		}
		h.stop()
		cancel()
		synctest.Wait()
	})
}
