// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

type event struct{ Name string }

type hooks struct {
	Added, Removed func(event)
	Counted        func(int)
}

func TestHooksThatPanicAreReported(t *testing.T) {
	var calls, told []string
	handler := func(_ context.Context, err error, msg string) { told = append(told, msg+": "+err.Error()) }
	h := hooks{
		Added: func(e event) { calls = append(calls, e.Name) },
		Counted: func(n int) {
			if n > 1 {
				panic("many")
			}
		},
	}
	ContainHooks(t.Context(), handler, &h)
	if h.Removed != nil {
		t.Error("a hook that was nil is not")
	}
	h.Added(event{"a"})
	h.Counted(1)
	h.Counted(2)
	if strings.Join(calls, " ") != "a" {
		t.Errorf("calls %q", calls)
	}
	if want := "A callback panicked: panic in Hooks.Counted: many"; strings.Join(told, "|") != want {
		t.Errorf("reported %q, want %q", told, want)
	}
}

// A panic is logged with its stack, and an ErrorHandler that panics loses no error.
func TestPanicsAreLogged(t *testing.T) {
	for name, c := range map[string]struct {
		handler Handler
		hook    func(event)
		want    []string
	}{
		"Hook": {
			hook: func(event) { panic("boom") },
			want: []string{`A callback panicked`, `panic in Hooks.Added: boom`, `argument={"Name":"a"}`, `TestPanicsAreLogged`},
		},
		"ErrorHandler": {
			handler: func(context.Context, error, string) { panic("worse") },
			hook:    func(event) { panic("boom") },
			want:    []string{`panic in ErrorHandler: worse`, `panic in Hooks.Added: boom`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true)))
			h := hooks{Added: c.hook}
			ContainHooks(klog.NewContext(t.Context(), logger), c.handler, &h)
			h.Added(event{"a"})
			text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the log lacks %q:\n%s", want, text)
				}
			}
		})
	}
}

func TestAnErrorHandlerThatPanicsLosesNoError(t *testing.T) {
	logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true)))
	Tell(klog.NewContext(t.Context(), logger), func(context.Context, error, string) { panic("worse") }, errors.New("lost"), "Failed to write", "object", "o")
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	for _, want := range []string{"panic in ErrorHandler: worse", "Failed to write", "lost", `object="o"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
}
