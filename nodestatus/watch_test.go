// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
)

// watching runs the usage of the package comment: no informer, and no client that
// calls EventHandler.
func watching(t *testing.T, s *apitest.Server, cfg Config) *world {
	t.Helper()
	cfg.NodeName = node1
	if cfg.Client == nil {
		cfg.Client, cfg.NodeCredentials = s.Client(apitest.NodeUser(node1)).CoreV1(), true
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	checked(t, c)
	w := &world{T: testlog.New(t), server: s, c: c, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.Context())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.err = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	synctest.Wait()
	return w
}

func TestAForeignUnknownIsUndoneWithoutAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := watching(t, s, Config{})
		for _, after := range []time.Duration{time.Minute, 7 * time.Second, time.Hour} {
			w.pass(after)
			unknown(s)
			w.pass(10 * time.Second)
			if c := w.condition(corev1.NodeReady); c.Status != corev1.ConditionTrue {
				t.Errorf("Ready is %s 10 s after another client has written it, %v after the write before", c.Status, after)
			}
		}
	})
}

// expectAQuietHour lets an hour pass in which the status is reported and the Node is not read.
func (w *world) expectAQuietHour(s *apitest.Server) {
	w.Helper()
	s.ResetJournal()
	w.pass(time.Hour)
	if n := len(s.Requests(gets)); n != 0 {
		w.Errorf("%d reads in an hour", n)
	}
	if n := len(s.Requests(patches)); n > 13 {
		w.Errorf("%d patches in an hour", n)
	}
}

// The watch replaces reads: an hour without changes costs the same as without.
func TestTheWatchOfTheNodeCostsNoReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := watching(t, s, Config{})
		w.pass(10 * time.Minute)
		w.expectAQuietHour(s)
		if n := len(s.Requests(apitest.Match{Verb: "list,watch"})); n > 12 {
			t.Errorf("%d watches in an hour: the API server ends one after 5 to 10 minutes", n)
		}
	})
}

func TestADeletionIsSeenAtOnceWithoutAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := watching(t, s, Config{})
		w.pass(time.Minute)
		apitest.Remove[*corev1.Node](s, "", node1)
		w.pass(time.Second)
		select {
		case <-w.done:
		default:
			t.Fatal("Run goes on")
		}
	})
}

// Some programs may create, read and patch Nodes and not watch them. They run as
// before, and learn of it once.
func TestAForbiddenWatchIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Inject(apitest.Fault{Match: apitest.Match{Resource: "nodes", Verb: "list,watch"}, Status: statuserr.Forbidden("nodes", "", "may not watch")})
		var reports []error
		w := watching(t, s, Config{ErrorHandler: func(_ context.Context, err error, _ string) { reports = append(reports, err) }})
		w.pass(time.Hour)
		if len(reports) != 1 {
			t.Errorf("%d reports: %v", len(reports), reports)
		}
		if n := len(s.Requests(apitest.Match{Verb: "list,watch"})); n > 2*13 {
			t.Errorf("%d attempts in an hour", n)
		}
		if n := len(s.Requests(patches)); n < 11 || n > 13 {
			t.Errorf("%d patches in an hour, want 12", n)
		}
	})
}

// A program with an informer of its own pays for one watch, not for two.
func TestAProgramWithAnInformerHasNoSecondWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{}) // it calls EventHandler
		w.pass(time.Hour)
		if n := len(s.Requests(apitest.Match{Verb: "list,watch"})); n != 0 {
			t.Errorf("%d watches", n)
		}
	})
}

// A watch may show what other clients do to a new Node before the answer to its creation
// arrives. Nothing shows it a second time.
func TestEventsBeforeTheAnswerToTheCreationAreNotLost(t *testing.T) {
	for name, c := range map[string]struct {
		other func(s *apitest.Server)
		seen  func(w *world) bool
	}{
		"Taints": {
			other: func(s *apitest.Server) {
				apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{foreign} })
			},
			seen: func(w *world) bool {
				return slices.Equal(taints(w.node()), []string{"example.com/admin:NoExecute", "example.com/dedicated=gpu:NoSchedule"})
			},
		},
		"Condition": {
			other: func(s *apitest.Server) { unknown(s) },
			seen:  func(w *world) bool { return w.condition(corev1.NodeReady).Status == corev1.ConditionTrue },
		},
		"Deletion": {
			other: func(s *apitest.Server) { apitest.Remove[*corev1.Node](s, "", node1) },
			seen:  func(w *world) bool { return apitest.Get[*corev1.Node](w.server, "", node1) != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "nodes"}, Times: 1, Served: func(apitest.Request) {
					time.Sleep(time.Second) // the watch has begun, and the answer is under way
					c.other(s)
					time.Sleep(time.Second)
				}})
				w := watching(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), KeepTaints: []corev1.Taint{kept}, OnDeleted: DeletedReregister})
				w.pass(3 * DefaultSyncInterval)
				if !c.seen(w) {
					t.Errorf("the Node is %v", apitest.Get[*corev1.Node](s, "", node1))
				}
			})
		})
	}
}
