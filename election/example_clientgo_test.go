// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// A program that must not survive the loss of its lease ends Run with the term, and
// returns the cause from main.
func Example_processEndsWithTheTerm() {
	server := apitest.New(apitest.Options{})
	run := func(ctx context.Context, work func(context.Context)) error {
		ctx, end := context.WithCancelCause(ctx)
		defer end(nil)
		candidate, err := election.New(election.Config{
			Client: server.Client(apitest.User{}).CoordinationV1(),
			Lease:  types.NamespacedName{Namespace: "default", Name: "balancer"},
			Self:   election.Peer{Identity: "balancer-1"},
			Lead: func(ctx context.Context, _ election.Term) error {
				work(ctx)
				end(context.Cause(ctx)) // no second term
				return nil
			},
		})
		if err != nil {
			return err
		}
		if err := candidate.Run(ctx); err != nil {
			return err
		}
		return context.Cause(ctx)
	}
	err := run(context.Background(), func(ctx context.Context) {
		fmt.Println("leads")
		apitest.Edit(server, "default", "balancer", func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
		<-ctx.Done()
	})
	fmt.Println(errors.Is(err, election.ErrLost), err)
	// Output:
	// leads
	// true election: lease lost
}

// A health endpoint that is served before the Candidate exists.
func Example_healthEndpoint() {
	var current atomic.Pointer[election.Candidate]
	health := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := current.Load(); c != nil {
			if err := c.Check(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		fmt.Fprint(w, "ok")
	})
	get := func() string {
		w := httptest.NewRecorder()
		health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz/leader-election", nil))
		return w.Body.String()
	}
	fmt.Println("before:", get())

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	candidate, err := election.New(election.Config{
		Client: apitest.New(apitest.Options{}).Client(apitest.User{}).CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "balancer"},
		Self:   election.Peer{Identity: "balancer-1"},
		Lead: func(context.Context, election.Term) error {
			fmt.Println("leading:", get())
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	current.Store(candidate)
	if err := candidate.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before: ok
	// leading: ok
}
