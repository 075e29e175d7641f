// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestGroupEndsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		group := newGroup(ctx)
		ends := make(chan string, 3)
		until := func(name string, takes time.Duration) func(context.Context) error {
			return func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(takes)
				ends <- name
				return nil
			}
		}
		group.Last(until("lease", 0))
		group.Go(until("status", time.Second))
		group.Go(until("pods", 2*time.Second))
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		close(ends)
		var ended []string
		for name := range ends {
			ended = append(ended, name)
		}
		if want := []string{"status", "pods", "lease"}; !slices.Equal(ended, want) {
			t.Errorf("ended as %q, want %q", ended, want)
		}
	})
}

func TestGroupEndsWithTheFirst(t *testing.T) {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("not the first")
	}
	first := errors.New("first")
	for name, add := range map[string]func(*group, func(context.Context) error){"Go": (*group).Go, "Last": (*group).Last} {
		for _, want := range []error{first, nil} {
			synctest.Test(t, func(t *testing.T) {
				group := newGroup(t.Context())
				group.Go(wait)
				group.Last(wait)
				add(group, func(context.Context) error { return want })
				if err := group.Wait(); err != want {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
			})
		}
	}
}
