// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// The calls of the hooks of two candidates in two hand-overs and a loss.
func TestHooksTellTheStory(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = NewestVersion() }
		a := r.start("a")
		r.sleep(time.Minute)
		b := r.start("b", func(cfg *Config) { cfg.Self.BinaryVersion = "1.38.0" })
		r.sleep(time.Minute)
		b.stop()
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 9 })
		r.sleep(time.Second)
		quoted := func(c *replica) string { return `leader "` + c.Identity() + `"` }
		want := []string{
			quoted(a), "lead 0",
			"offered " + b.Identity(), "accepted true", "ended election: a better candidate takes over", quoted(b),
			`leader ""`, quoted(a), "lead 2", "ended election: lease lost", "lead 10",
		}
		if diff := cmp.Diff(want, a.told()); diff != "" {
			t.Errorf("a (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{quoted(a), quoted(b), "lead 1", `leader ""`, "ended context canceled"}, sortedTail(b.told())); diff != "" {
			t.Errorf("b (-want +got):\n%s", diff)
		}
	})
}

// sortedTail puts the end of a term after the release that follows it, which
// come in this order or the other.
func sortedTail(notes []string) []string {
	slices.SortFunc(notes[len(notes)-2:], func(a, b string) int { return strings.Compare(b, a) })
	return notes
}

func TestEvents(t *testing.T) {
	inRig(t, func(r *rig) {
		recorder := events.NewFakeRecorder(10)
		a := r.start("a", func(cfg *Config) { cfg.EventRecorder = recorder })
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 9 })
		r.sleep(20 * time.Second)
		a.stop()
		close(recorder.Events)
		var got []string
		for e := range recorder.Events {
			got = append(got, strings.Join(strings.Fields(e)[:2], " "))
		}
		want := []string{"Normal BecameLeader", "Warning LeadershipLost", "Normal BecameLeader", "Normal StoppedLeading"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A steady leader, and one who stands by, print nothing at V2; an outage prints
// one line for its beginning and one for its end.
func TestLog(t *testing.T) {
	inRig(t, func(r *rig) {
		logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		buffer := logger.GetSink().(ktesting.Underlier).GetBuffer()
		lines := func() (n int) {
			return strings.Count(buffer.String(), "\n")
		}
		run := func(name string) {
			c := r.new(name, func(cfg *Config) { cfg.ErrorHandler = nil })
			ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), logger))
			done := make(chan struct{})
			go func() { defer close(done); c.Run(ctx) }()
			r.Cleanup(func() { cancel(); <-done })
		}
		run("a")
		r.sleep(time.Second)
		run("b")
		r.sleep(time.Minute)
		began := lines()
		r.sleep(time.Hour)
		if n := lines() - began; n != 0 {
			t.Errorf("%d lines in a quiet hour:\n%s", n, buffer.String())
		}
		// Writes only: a watch that ends in these seconds would be an outage of its own.
		heal := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a", Verb: "update"}, Err: apitest.ErrConnRefused})
		r.sleep(5 * time.Second)
		heal()
		r.sleep(time.Minute)
		if n := lines() - began; n != 2 {
			t.Errorf("%d lines about a short outage:\n%s", n, buffer.String())
		}
	})
}

// logged runs a new candidate with a log of that verbosity, and returns its text.
func (r *rig) logged(name string, verbosity int, change ...func(*Config)) func() string {
	logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(verbosity)))
	c := r.new(name, append(change, func(cfg *Config) { cfg.ErrorHandler = nil })...)
	ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), logger))
	go func() { defer close(c.done); c.err = c.Run(ctx) }()
	r.Cleanup(func() { cancel(); <-c.done })
	return logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

func TestTheDefaultLogSaysWhoLeads(t *testing.T) {
	inRig(t, func(r *rig) {
		exclusive := func(cfg *Config) { cfg.ExclusiveIdentity = true }
		a := r.logged("a", 0, exclusive)
		r.sleep(time.Second)
		b := r.logged("b", 0, exclusive)
		r.sleep(time.Minute)
		if got := a(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "Became leader") {
			t.Errorf("the leader has logged:\n%s", got)
		}
		if got := b(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `Another candidate leads`) || !strings.Contains(got, `leader="a"`) {
			t.Errorf("the other has logged:\n%s", got)
		}
	})
}

// A failure of the watch is logged once, its end once, and the next one again. Reads and
// writes that succeed in the meantime are not its end.
func TestEachOutageOfTheWatchIsLogged(t *testing.T) {
	for _, native := range []bool{false, true} {
		inRig(t, func(r *rig) {
			r.native = native
			r.start("a")
			r.sleep(time.Minute)
			refuse := func() func() {
				heal := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "watch"}, Status: statuserr.Forbidden("leases", "agent", "no")})
				r.server.BreakWatches(apitest.Match{User: "b"})
				return heal
			}
			heal := refuse()
			log := r.logged("b", 0)
			kinds := 1
			if native {
				kinds = 2
			}
			expect := func(when string, failures, ends int) {
				t.Helper()
				text := log()
				if f, e := strings.Count(text, "failed"), strings.Count(text, "again"); f != failures*kinds || e != ends*kinds {
					t.Errorf("native %v, %s: %d failures and %d ends in the log:\n%s", native, when, f, e, text)
				}
			}
			r.sleep(20 * time.Minute) // after an hour it is logged again
			expect("the watch is forbidden", 1, 0)
			flaky := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "get", Resource: "leases"}, Times: 2, Status: statuserr.Unavailable(0)})
			r.sleep(20 * time.Minute)
			flaky()
			text := log()
			if strings.Contains(text, "watch of the lease works again") || !strings.Contains(text, "Reads of the lease succeed again") {
				t.Errorf("native %v, after reads have failed for a while:\n%s", native, text)
			}
			before := [2]int{strings.Count(text, "failed"), strings.Count(text, "again")}
			heal()
			r.sleep(20 * time.Minute)
			refuse()
			r.sleep(20 * time.Minute)
			text = log()
			if f, e := strings.Count(text, "failed")-before[0], strings.Count(text, "again")-before[1]; f != kinds || e != kinds {
				t.Errorf("native %v: %d failures and %d ends after the watch was allowed and refused again:\n%s", native, f, e, text)
			}
		})
	}
}

// A leader crashes, and the watch shows the claim of the next one before its answer. What
// the hook and the log say is the time since the last renewal.
func TestVacantIsTheTimeOfTheFailOver(t *testing.T) {
	inRig(t, func(r *rig) {
		var renewed time.Time
		a := r.start("a", func(cfg *Config) { cfg.Hooks.Renewed = func(Renewed) { renewed = time.Now() } })
		r.sleep(time.Second)
		var vacant, late time.Duration
		log := r.logged("b", 0, func(cfg *Config) {
			cfg.Client = r.lateAnswers("b")
			cfg.Hooks.LeaderChanged = func(e LeaderChanged) { late = time.Since(renewed) }
			cfg.Hooks.TermStarted = func(e TermStarted) {
				vacant = e.Vacant
				if shown := time.Since(renewed); shown <= late {
					t.Errorf("the term has begun after %v, but the watch has shown the claim after %v", shown, late)
				}
			}
		})
		r.sleep(30 * time.Second)
		a.crash()
		r.sleep(30 * time.Second)
		if least := DefaultLeaseDuration; vacant < least || vacant > least+2*time.Second {
			t.Errorf("Vacant is %v", vacant)
		}
		if want := fmt.Sprintf("vacant=%q", vacant.String()); !strings.Contains(log(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log())
		}
	})
}

// TestRenewedIsAboutRenewals: not about reads, the claim, the hand-over, and renewals that fail.
func TestRenewedIsAboutRenewals(t *testing.T) {
	inRig(t, func(r *rig) {
		var told []time.Duration
		a := r.start("a", func(cfg *Config) { cfg.Hooks.Renewed = func(e Renewed) { told = append(told, e.Latency) } })
		r.sleep(time.Second)
		r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, Times: 2, Status: statuserr.InternalError("etcd")})
		r.sleep(30 * time.Second)
		if err := a.stop(); err != nil { // a hand-over
			t.Error(err)
		}
		renewals := len(r.server.Requests(apitest.Match{Verb: "update"})) - 3
		if len(told) != renewals || renewals < 8 {
			t.Errorf("Renewed was called %d times, want once for each of %d renewals", len(told), renewals)
		}
		for _, latency := range told {
			if latency != 5*time.Millisecond {
				t.Errorf("a renewal took %v", latency)
			}
		}
	})
}

// A candidate accepts an offer before the leader has got the answer to it.
func TestElapsedIsTheTimeOfTheOffer(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = NewestVersion() }
		var ended []OfferEnded
		r.start("a", func(cfg *Config) {
			cfg.Client = r.lateAnswers("a")
			cfg.Hooks.OfferEnded = func(e OfferEnded) { ended = append(ended, e) }
		})
		r.sleep(time.Second)
		r.start("b", func(cfg *Config) { cfg.Self.BinaryVersion = "1.38.0" })
		r.sleep(time.Minute)
		if len(ended) != 1 || !ended[0].Accepted || ended[0].Elapsed < time.Second || ended[0].Elapsed > 2*time.Second {
			t.Errorf("%+v", ended)
		}
	})
}

// lateAnswers returns a client of a user that gets the answer to each write a second after
// the watch has delivered its effect.
func (r *rig) lateAnswers(user string) coordinationv1client.LeasesGetter {
	cfg := r.server.Config(apitest.User{Name: user})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(q)
			if q.Method == http.MethodPut {
				time.Sleep(time.Second)
			}
			return answer, err
		})
	})
	return coordinationv1client.NewForConfigOrDie(cfg)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }
