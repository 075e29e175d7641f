// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func TestStreakTellsOnceAndOnceMoreForAnotherClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		handler := func(_ context.Context, err error, msg string) { told = append(told, msg+": "+err.Error()) }
		var s Streak
		for range 3 {
			s.Fail(t.Context(), handler, errors.New("refused"), "Renewing failed")
			time.Sleep(time.Second)
		}
		s.Fail(t.Context(), handler, apierrors.NewServiceUnavailable("busy"), "Renewing failed")
		if want := "Renewing failed: refused|Renewing failed: busy"; strings.Join(told, "|") != want {
			t.Errorf("reported %q, want %q", told, want)
		}
		if s.Failures() != 4 {
			t.Errorf("Failures = %d, want 4", s.Failures())
		}
		time.Sleep(time.Second)
		if got := s.OK(t.Context(), "Renewing works again"); got != 4*time.Second {
			t.Errorf("outage %v, want 4s", got)
		}
		if got := s.OK(t.Context(), "Renewing works again"); got != 0 {
			t.Errorf("second OK: outage %v, want 0", got)
		}
		s.Fail(t.Context(), handler, errors.New("refused"), "Renewing failed")
		if len(told) != 3 {
			t.Errorf("a new run of failures was not reported: %q", told)
		}
	})
}

func TestAFailureThatLastsIsLoggedEachHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(3)))
		ctx := klog.NewContext(t.Context(), logger)
		streak, group := 0, 0
		var s Streak
		var g Group
		var members [2]Member
		for range 3*60 + 1 {
			s.Fail(ctx, func(context.Context, error, string) { streak++ }, context.DeadlineExceeded, "A streak")
			for i := range members {
				g.Fail(ctx, func(context.Context, error, string) { group++ }, &members[i], context.DeadlineExceeded, "A group")
			}
			time.Sleep(time.Minute)
		}
		if streak != 1 || group != 1 {
			t.Errorf("the handlers were called %d and %d times", streak, group)
		}
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		for _, msg := range []string{"A streak", "A group"} {
			if n := strings.Count(log, msg); n != 3 {
				t.Errorf("%s: %d lines in three hours after the first:\n%s", msg, n, log)
			}
		}
	})
}

func TestStreakOfTwoClassesInTurn(t *testing.T) {
	told := 0
	handler := func(context.Context, error, string) { told++ }
	var s Streak
	for range 10 { // a slow API server that throttles
		s.Fail(t.Context(), handler, apierrors.NewTooManyRequests("later", 1), "Watching failed")
		s.Fail(t.Context(), handler, context.DeadlineExceeded, "Watching failed")
	}
	if told != 2 {
		t.Errorf("reported %d times, want once for each class", told)
	}
	s.Fail(t.Context(), handler, context.DeadlineExceeded, "Writing failed")
	if told != 3 {
		t.Errorf("another activity was reported %d times in all, want 3", told)
	}
}

func TestStreakLogsWithoutAHandler(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	ctx := klog.NewContext(t.Context(), logger)
	var s Streak
	for range 3 {
		s.Fail(ctx, nil, errors.New("refused"), "Renewing failed", "node", "n1")
	}
	s.OK(ctx, "Renewing works again", "node", "n1")
	got := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if n := strings.Count(got, "Renewing failed"); n != 1 {
		t.Errorf("%d lines for the failure at V2, want 1:\n%s", n, got)
	}
	if n := strings.Count(got, "Renewing works again"); n != 1 {
		t.Errorf("%d lines for the recovery, want 1:\n%s", n, got)
	}
}

func TestAStreakWithPatienceIsReportedOnlyIfItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		ctx := klog.NewContext(t.Context(), logger)
		told := 0
		handler := func(context.Context, error, string) { told++ }
		var s Streak
		fail := func() { s.FailAfter(ctx, 30*time.Second, handler, errors.New("refused"), "Renewing failed") }
		fail()
		time.Sleep(29 * time.Second)
		fail()
		if got := s.OK(ctx, "Renewing works again"); got != 29*time.Second || told != 0 {
			t.Errorf("outage %v, reported %d times: want 29s and no report", got, told)
		}
		if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); log != "" {
			t.Errorf("logged %s", log)
		}
		fail()
		time.Sleep(30 * time.Second)
		fail()
		fail()
		if told != 1 || s.Failures() != 3 {
			t.Errorf("reported %d times after %d failures, want once after 3", told, s.Failures())
		}
		if s.OK(ctx, "Renewing works again"); !strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "failures=3") {
			t.Error("the end of a reported streak is not logged")
		}
	})
}
