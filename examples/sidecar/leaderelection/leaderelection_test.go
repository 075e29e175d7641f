// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package leaderelection

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	upstream "github.com/kubernetes-csi/csi-lib-utils/leaderelection"
	coordinationv1 "k8s.io/api/coordination/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	klog.OsExit = func(int) { runtime.Goexit() } // the process of a replica ends, and not the test
	os.Exit(m.Run())
}

// The signatures of csi-lib-utils, without the names of packages.
func TestTheExportedAPIIsTheSame(t *testing.T) {
	local := regexp.MustCompile(`\bleaderelection\.|\*leaderelection\.leaderElection(, )?`)
	signature := func(v any) string { return local.ReplaceAllString(reflect.TypeOf(v).String(), "") }
	for name, pair := range map[string][2]any{
		"NewLeaderElection":           {upstream.NewLeaderElection, NewLeaderElection},
		"NewLeaderElectionWithLeases": {upstream.NewLeaderElectionWithLeases, NewLeaderElectionWithLeases},
		"RunWithLeaderElection":       {upstream.RunWithLeaderElection, RunWithLeaderElection},
		"Server":                      {(*upstream.Server)(nil), (*Server)(nil)},
	} {
		if theirs, ours := signature(pair[0]), signature(pair[1]); theirs != ours {
			t.Errorf("%s: %s, want %s", name, ours, theirs)
		}
	}
	theirs, ours := reflect.TypeOf(upstream.NewLeaderElection(nil, "", nil)), reflect.TypeOf(NewLeaderElection(nil, "", nil))
	if theirs.NumMethod() == 0 {
		t.Fatal("csi-lib-utils has no methods: the test tests nothing")
	}
	for i := range theirs.NumMethod() {
		want := theirs.Method(i)
		got, ok := ours.MethodByName(want.Name)
		if !ok || local.ReplaceAllString(got.Type.String(), "") != local.ReplaceAllString(want.Type.String(), "") {
			t.Errorf("%s: %v, want %v", want.Name, got.Type, want.Type)
		}
	}
	if DefaultHealthCheckTimeout != upstream.DefaultHealthCheckTimeout || HealthCheckerAddress != upstream.HealthCheckerAddress {
		t.Error("constants differ")
	}
}

// elector is what both implementations have.
type elector interface {
	WithIdentity(string)
	WithNamespace(string)
	WithReleaseOnCancel(bool)
	WithContext(context.Context)
	WithRetryPeriod(time.Duration)
	Run() error
}

// world is a server with replicas, and how long none of them or several led.
type world struct {
	server *apitest.Server

	mu      sync.Mutex
	leaders int
	several int
	second  time.Time // when one began while another led; zero if none did
	since   time.Time // when the last leader stopped
	gap     time.Duration
}

func (w *world) lead(ctx context.Context) {
	w.mu.Lock()
	if w.leaders++; w.leaders > 1 {
		w.second = time.Now()
	}
	if !w.since.IsZero() {
		w.gap = max(w.gap, time.Since(w.since))
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	if !w.second.IsZero() && time.Since(w.second) > 0 { // not in the same instant
		w.several++
	}
	w.second = time.Time{}
	w.leaders--
	w.since = time.Now()
	w.mu.Unlock()
}

// longest returns the longest time without a leader since the last call.
func (w *world) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.gap
	w.gap = 0
	if w.leaders == 0 {
		gap = max(gap, time.Since(w.since))
	}
	return gap
}

// start runs a replica with the default timings of the sidecars.
func (w *world) start(t *testing.T, name string, ours bool, retry time.Duration) (stop func()) {
	clients := kubernetes.NewForConfigOrDie(w.server.Config(apitest.User{Name: name}))
	var l elector = upstream.NewLeaderElection(clients, "driver.example.com", w.lead)
	if ours {
		l = NewLeaderElection(clients, "driver.example.com", w.lead)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l.WithIdentity(name)
	l.WithNamespace("default")
	l.WithReleaseOnCancel(true)
	l.WithRetryPeriod(retry)
	l.WithContext(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(); err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

// Three replicas are replaced one after the other, to this library and back. csi-lib-utils
// polls, so its standbys notice a release after up to 2.2 RetryPeriods.
func TestUpgradeAndTheWayBack(t *testing.T) {
	for retry, wayBack := range map[time.Duration]time.Duration{
		5 * time.Second:        11*time.Second + time.Second,
		400 * time.Millisecond: time.Second,
	} {
		apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
			w := &world{server: s}
			var fleet []func()
			replace := func(ours bool, round string) {
				for i := range fleet {
					fresh := w.start(t, fmt.Sprintf("%s-%d", round, i), ours, retry)
					time.Sleep(20 * time.Second)
					fleet[i]()
					fleet[i] = fresh
					time.Sleep(20 * time.Second)
				}
				synctest.Wait()
			}
			for i := range 3 {
				fleet = append(fleet, w.start(t, fmt.Sprintf("old-%d", i), false, retry))
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			w.longest()
			replace(true, "new")
			upgrade := w.longest()
			replace(true, "newer")
			live := w.longest()
			replace(false, "back")
			back := w.longest()
			t.Logf("RetryPeriod %v: longest gap of the upgrade %v, between replicas of this library %v, of the way back %v", retry, upgrade, live, back)
			// The upgrade may hand over once from one old replica to another, which polls.
			if upgrade > wayBack || live > time.Second || back > wayBack {
				t.Errorf("RetryPeriod %v: gaps of %v, %v and %v", retry, upgrade, live, back)
			}
			for _, stop := range fleet {
				stop()
			}
			if w.several > 0 {
				t.Errorf("two leaders, %d times", w.several)
			}
		})
	}
}

// A health endpoint is served before the Candidate exists, and a lost lease ends the
// process.
func TestALostLeaseEndsTheProcess(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		clients := kubernetes.NewForConfigOrDie(s.Config(apitest.User{Name: "a"}))
		mux := http.NewServeMux()
		exited := make(chan struct{})
		klog.OsExit = func(int) { close(exited); runtime.Goexit() }
		defer func() { klog.OsExit = func(int) { runtime.Goexit() } }()
		ctx, cancel := context.WithCancel(t.Context())
		l := NewLeaderElection(clients, "driver", func(ctx context.Context) { <-ctx.Done() })
		l.WithContext(ctx)
		l.WithNamespace("default")
		l.PrepareHealthCheck(mux, DefaultHealthCheckTimeout)
		healthy := func() int {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, HealthCheckerAddress, nil))
			return w.Code
		}
		if code := healthy(); code != http.StatusOK {
			t.Errorf("before Run: %d", code)
		}
		done := make(chan struct{})
		go func() { defer close(done); l.Run() }()
		time.Sleep(time.Minute)
		if code := healthy(); code != http.StatusOK {
			t.Errorf("while leading: %d", code)
		}
		apitest.Edit(s, "default", "driver", func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 7 })
		time.Sleep(time.Second)
		select {
		case <-exited:
		default:
			t.Error("the process goes on a second after its lease was lost")
		}
		cancel()
		<-done
	})
}
