// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// crowd is a Group with a record of its reports.
type crowd struct {
	Group
	mu   sync.Mutex
	errs []string
}

func (c *crowd) handler(_ context.Context, err error, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err.Error())
}

func TestGroupTellsOncePerClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(3)))
		ctx := klog.NewContext(t.Context(), logger)
		c := &crowd{}
		members := make([]Member, 100)
		failAll := func(err error) {
			for i := range members {
				c.Fail(ctx, c.handler, &members[i], err, "Failed")
			}
		}
		failAll(context.DeadlineExceeded)
		failAll(context.DeadlineExceeded)
		failAll(errors.New("other"))
		failAll(context.DeadlineExceeded) // not reported again, because no member has recovered
		if want := []string{"context deadline exceeded", "other"}; !slices.Equal(c.errs, want) {
			t.Errorf("reported %q, want %q", c.errs, want)
		}
		time.Sleep(time.Minute)
		for i := range members[1:] {
			c.OK(ctx, &members[i+1], "Recovered")
		}
		lines := func() int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "Recovered")
		}
		if n := lines(); n != 0 {
			t.Errorf("%d lines say that it is over while one member fails", n)
		}
		c.OK(ctx, &members[0], "Recovered")
		c.OK(ctx, &members[0], "Recovered")
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := lines(); n != 1 || !strings.Contains(text, `failures=400 members=100 outage="1m0s"`) {
			t.Errorf("%d lines say that it is over, want one with the sum: %s", n, text)
		}
		failAll(context.DeadlineExceeded)
		if len(c.errs) != 3 {
			t.Errorf("reported %q: the second outage is a new one", c.errs)
		}
	})
}

func TestGroupMemberLeaves(t *testing.T) {
	c := &crowd{}
	var stays, leaves Member
	for _, m := range []*Member{&stays, &leaves} {
		c.Fail(t.Context(), c.handler, m, errors.New("broken"), "Failed")
	}
	c.Leave(&stays)
	c.Fail(t.Context(), c.handler, &stays, errors.New("broken"), "Failed")
	if len(c.errs) != 1 {
		t.Errorf("reported %q, although another member still fails alike", c.errs)
	}
	c.Leave(&stays)
	c.Leave(&leaves)
	c.Leave(&leaves)
	c.Fail(t.Context(), c.handler, &stays, errors.New("broken"), "Failed")
	if len(c.errs) != 2 {
		t.Errorf("reported %q, want it again after all have left", c.errs)
	}
}

// The zero Group is safe for concurrent use, and its handler may call it.
func TestGroupConcurrently(t *testing.T) {
	var c crowd
	var spare Member
	handler := func(ctx context.Context, err error, msg string) {
		c.Fail(ctx, c.handler, &spare, err, msg)
	}
	members := make([]Member, 50)
	var all sync.WaitGroup
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	for i := range members {
		all.Go(func() {
			for range 100 {
				c.Fail(ctx, handler, &members[i], errors.New("broken"), "Failed")
				c.OK(ctx, &members[i], "Recovered")
			}
		})
	}
	all.Wait()
	c.Leave(&spare)
	if c.now != 0 || c.class != [len(c.class)]int{} {
		t.Errorf("%d members fail, by class %v, want none", c.now, c.class)
	}
}
