// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// Defects that this package has had itself.

// Times that mean never have an end in a time.Duration: their sums
// came out negative. Reports came with each round, setters had no time, and Live
// closed the gate of the lease.
func TestTimesBeyondADuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		const forever time.Duration = math.MaxInt64
		w := start(t, s, Config{
			ReportInterval: forever, GracePeriod: forever, ShutdownTimeout: forever,
			Setters:      []Setter{func(ctx context.Context, _ *corev1.Node) error { return ctx.Err() }},
			HealthChecks: []HealthCheck{func(ctx context.Context, _ string) error { return ctx.Err() }},
			OnShutdown:   ShutdownNotReady,
		})
		w.expect(1, 0, 0)
		w.pass(24 * time.Hour)
		w.expect(0, 0, 0)
		if c := w.condition(corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v", c)
		}
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Error(err)
		}
		if err := w.c.Check(nil); err != nil {
			t.Error(err)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if c := w.condition(corev1.NodeReady); c.Reason != ReasonShutdown {
			t.Errorf("after the shutdown Ready is %+v", c)
		}
	})
}

// A program that triggers each round by itself wants no others.
func TestSyncIntervalBeyondADuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		rounds := 0
		w := start(t, s, Config{SyncInterval: math.MaxInt64, Setters: []Setter{func(context.Context, *corev1.Node) error {
			if rounds++; rounds > 50 {
				time.Sleep(time.Hour) // or the test would not end
			}
			return nil
		}}})
		w.pass(24 * time.Hour)
		w.c.Trigger(node1)
		w.pass(24 * time.Hour)
		if rounds != 2 {
			t.Errorf("%d rounds, want the first and the one that was asked for", rounds)
		}
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Error(err)
		}
	})
}

// Text that is not UTF-8, such as the output of a probe, is stored differently
// than it was sent: it was taken for another client's and sent again.
func TestTextThatIsNotUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		sick := &knob[error]{}
		w := start(t, s, Config{
			HealthChecks: []HealthCheck{func(context.Context, string) error { return sick.get() }},
			Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
				SetCondition(n, corev1.NodeCondition{Type: "Fit", Status: corev1.ConditionTrue, Reason: "R\xff", Message: "\xff\xfe"})
				n.Status.NodeInfo.OSImage = "An OS \xff"
				n.Annotations = map[string]string{"example.com/a": "\xff"}
				return nil
			}},
		})
		w.pass(20 * time.Minute)
		s.ResetJournal()
		w.pass(time.Hour)
		if n := len(s.Requests(patches)); n > 13 {
			t.Errorf("%d patches in an unchanged hour, want 12±1", n)
		}
		sick.set(errors.New("probe said \xff" + strings.Repeat("\xff", 5000)))
		w.pass(20 * time.Minute)
		s.ResetJournal()
		w.pass(time.Hour)
		if n := len(s.Requests(patches)); n > 13 {
			t.Errorf("%d patches in an unchanged hour, want 12±1", n)
		}
		if c := w.condition(corev1.NodeReady); !utf8.ValidString(c.Message) || !strings.HasPrefix(c.Message, "probe said ") {
			t.Errorf("Ready says %q", c.Message)
		}
	})
}

// An answer that can be decoded and has nothing in it was taken for the Node of
// another UID: replaced, said the policy, and Run ended.
func TestEmptyAnswerIsNoOtherNode(t *testing.T) {
	for _, verb := range []string{"create", "patch", "get"} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				answer := apitest.Fault{Name: "empty", Match: apitest.Match{Verb: verb, Resource: "nodes/*"}, Times: 3, Answer: func(apitest.Request) (*http.Response, error) {
					body := strings.NewReader(`{"kind":"Node","apiVersion":"v1"}`)
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}, nil
				}}
				if verb == "create" {
					s.Inject(answer)
				}
				replaced := 0
				w := start(t, s, Config{Hooks: Hooks{Replaced: func(Replaced) { replaced++ }}})
				w.pass(time.Minute)
				if verb != "create" {
					s.Inject(answer)
				}
				w.c.Resync(node1)
				w.pass(10 * time.Minute)
				if n := len(s.Requests(apitest.Match{Verb: verb, Func: func(r apitest.Request) bool { return r.Fault != "" }})); n == 0 {
					t.Error("no empty answer was given")
				}
				if replaced > 0 {
					t.Errorf("replaced %d times", replaced)
				}
				if ref, err := w.c.OwnerReference(t.Context(), node1); err != nil || ref.UID != w.node().UID {
					t.Errorf("the owner is %v, %v", ref.UID, err)
				}
				if err := w.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
			})
		})
	}
}
