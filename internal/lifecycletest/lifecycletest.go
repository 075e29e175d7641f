// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycletest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
)

// Controller is the common method set of all controllers.
type Controller interface {
	Run(ctx context.Context) error
	Ready() cache.DoneChecker
	Name() string
	Check(*http.Request) error
}

// Subject is a package under test.
type Subject struct {
	// New creates the objects that the controller needs to become ready, and
	// returns controller number i (0 or 1) for the server. It is called inside
	// a bubble.
	New func(t *testing.T, s *apitest.Server, i int) Controller
	// ErrAlreadyRun is the error of a second Run.
	ErrAlreadyRun error
	// ReturnWithin bounds the time that Run takes to return after its context
	// is done while the API does not answer: 0 for a controller without
	// shutdown work, otherwise its shutdown timeout.
	ReturnWithin time.Duration
	// MaxPerHour bounds the requests that one controller sends in an hour in
	// which all of them fail, for each class of error.
	MaxPerHour int
	// ReadyWithin bounds the time from the end of an outage to readiness.
	ReadyWithin time.Duration
	// WorksWithoutAPI is set for controllers that become ready without the API.
	WorksWithoutAPI bool
	// EndsBy maps the outages, such as "404", that end Run by contract once the
	// controller was ready, to the error that Run returns.
	EndsBy map[string]error

	length time.Duration // of outages and of normal operation
}

// Test runs the contract. If short, outages and normal operation take ten minutes instead
// of an hour, which is too little for MaxPerHour.
func Test(t *testing.T, subject Subject, short bool) {
	subject.length = time.Hour
	if short {
		subject.length = 10 * time.Minute
	}
	t.Run("NothingBeforeRun", subject.bubble((*world).nothingBeforeRun))
	t.Run("CancelledBeforeRun", subject.bubble((*world).cancelledBeforeRun))
	t.Run("ReadyAndAlive", subject.bubble((*world).readyAndAlive))
	t.Run("SecondRun", subject.bubble((*world).secondRun))
	t.Run("NothingAfterReturn", subject.bubble((*world).nothingAfterReturn))
	t.Run("TwoSideBySide", subject.bubble((*world).twoSideBySide))
	for _, outage := range outages {
		t.Run("CancelledDuring"+outage.name, subject.bubble(func(w *world) { w.cancelledDuring(outage) }))
		t.Run("CancelledLateDuring"+outage.name, subject.bubble(func(w *world) { w.cancelledAfterReadyDuring(outage) }))
		t.Run("OutageOf"+outage.name, subject.bubble(func(w *world) { w.outageOf(outage) }))
	}
}

// outage is one way in which every request can fail.
type outage struct {
	name  string
	fault apitest.Fault
}

var outages = []outage{
	{"401", apitest.Fault{Status: statuserr.Unauthorized()}},
	{"403", apitest.Fault{Status: statuserr.Forbidden("things", "one", "not yours")}},
	{"404", apitest.Fault{Status: statuserr.New(http.StatusNotFound, metav1.StatusReasonNotFound, "not there")}},
	{"409", apitest.Fault{Status: statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "changed in the meantime")}},
	{"410", apitest.Fault{Status: statuserr.Gone()}},
	{"422", apitest.Fault{Status: statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "is invalid")}},
	{"429", apitest.Fault{Status: statuserr.TooManyRequests(1)}},
	{"500", apitest.Fault{Status: statuserr.InternalError("broken")}},
	{"503", apitest.Fault{Status: statuserr.Unavailable(0)}},
	{"Hang", apitest.Fault{Hang: true}},
	{"Reset", apitest.Fault{Err: apitest.ErrConnReset}},
	{"Refused", apitest.Fault{Err: apitest.ErrConnRefused}},
	{"Malformed", apitest.Fault{Malformed: true}},
}

// world is one bubble: a server and a controller.
type world struct {
	*testlog.T
	Subject
	server     *apitest.Server
	controller Controller
}

func (subject Subject) bubble(test func(*world)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{T: testlog.New(t), Subject: subject, server: apitest.New(apitest.Options{})}
			w.controller = subject.New(t, w.server, 0)
			test(w)
		})
	}
}

// run is a call of Run in progress.
type run struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (w *world) start(c Controller) *run {
	ctx, cancel := context.WithCancel(w.Context())
	r := &run{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.Run(ctx)
	}()
	return r
}

// stop ends the run and checks how it ended.
func (w *world) stop(r *run) {
	w.Helper()
	begin := time.Now()
	r.cancel()
	<-r.done
	if took := time.Since(begin); took > w.ReturnWithin {
		w.Errorf("Run returned %v after its context was done, want %v at most", took, w.ReturnWithin)
	}
	if r.err != nil {
		w.Errorf("Run returned %v after its context was done, want nil", r.err)
	}
	w.silent("after Run returned")
}

// silent lets an hour pass and checks that no request is sent.
func (w *world) silent(when string) {
	w.Helper()
	before := len(w.server.Requests(apitest.Match{}))
	time.Sleep(time.Hour)
	synctest.Wait()
	if after := len(w.server.Requests(apitest.Match{})); after != before {
		w.Errorf("%d requests %s", after-before, when)
	}
}

func (w *world) ready(c Controller) bool {
	select {
	case <-c.Ready().Done():
		return true
	default:
		return false
	}
}

// awaitReady waits until the controller is ready, at most for ReadyWithin.
func (w *world) awaitReady(c Controller, since string) {
	w.Helper()
	select {
	case <-c.Ready().Done():
	case <-time.After(w.ReadyWithin):
		w.Errorf("not ready %v after %s", w.ReadyWithin, since)
	}
}

func (w *world) nothingBeforeRun() {
	w.silent("before Run")
	if w.ready(w.controller) {
		w.Error("ready before Run")
	}
	if err := w.controller.Check(nil); err != nil {
		w.Errorf("Check before Run: %v; a process that is starting must not be restarted", err)
	}
	if w.controller.Name() == "" || w.controller.Ready().Name() == "" {
		w.Error("Name is empty")
	}
}

func (w *world) cancelledBeforeRun() {
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	if err := w.controller.Run(ctx); err != nil {
		w.Errorf("Run = %v with a context that is done, want nil", err)
	}
	if n := len(w.server.Requests(apitest.Match{})); n != 0 {
		w.Errorf("%d requests under a context that was done", n)
	}
}

func (w *world) readyAndAlive() {
	r := w.start(w.controller)
	w.awaitReady(w.controller, "the start")
	for range w.length / time.Minute {
		time.Sleep(time.Minute)
		if err := w.controller.Check(nil); err != nil {
			w.Fatalf("Check while all is well: %v", err)
		}
	}
	w.stop(r)
	if err := w.controller.Check(nil); err == nil {
		w.Error("Check is nil after Run has returned")
	}
}

func (w *world) secondRun() {
	r := w.start(w.controller)
	w.awaitReady(w.controller, "the start")
	if err := w.controller.Run(w.Context()); !errors.Is(err, w.ErrAlreadyRun) {
		w.Errorf("Run during Run = %v, want %v", err, w.ErrAlreadyRun)
	}
	w.stop(r)
	if err := w.controller.Run(w.Context()); !errors.Is(err, w.ErrAlreadyRun) {
		w.Errorf("Run after Run = %v, want %v", err, w.ErrAlreadyRun)
	}
}

func (w *world) nothingAfterReturn() {
	r := w.start(w.controller)
	time.Sleep(10 * time.Minute)
	w.stop(r)
}

func (w *world) twoSideBySide() {
	other := w.New(w.T.T, w.server, 1)
	first, second := w.start(w.controller), w.start(other)
	w.awaitReady(w.controller, "the start")
	w.awaitReady(other, "the start")
	first.cancel()
	<-first.done
	if first.err != nil {
		w.Errorf("the first Run returned %v, want nil", first.err)
	}
	time.Sleep(w.length)
	synctest.Wait()
	select {
	case <-second.done:
		w.Errorf("the second Run ended with the first: %v", second.err)
	default:
	}
	if err := other.Check(nil); err != nil {
		w.Errorf("the second controller after the first has stopped: %v", err)
	}
	w.stop(second)
}

func (w *world) cancelledDuring(o outage) {
	w.server.Inject(o.fault)
	r := w.start(w.controller)
	// An odd duration, to meet requests, waits and retries at different points.
	time.Sleep(61*time.Second + 137*time.Millisecond)
	w.stop(r)
}

func (w *world) cancelledAfterReadyDuring(o outage) {
	r := w.start(w.controller)
	w.awaitReady(w.controller, "the start")
	w.server.Inject(o.fault)
	time.Sleep(10*time.Minute + 311*time.Millisecond)
	synctest.Wait()
	if want := w.EndsBy[o.name]; want != nil {
		defer r.cancel()
		select {
		case <-r.done:
		default:
			r.cancel()
			<-r.done
			w.Fatalf("Run goes on during %s, want it to end with %v", o.name, want)
		}
		if !errors.Is(r.err, want) {
			w.Errorf("Run returned %v during %s, want %v", r.err, o.name, want)
		}
		w.silent("after Run returned")
		return
	}
	w.stop(r)
}

func (w *world) outageOf(o outage) {
	restore := w.server.Inject(o.fault)
	r := w.start(w.controller)
	for range w.length / time.Minute {
		time.Sleep(time.Minute)
		if err := w.controller.Check(nil); err != nil {
			w.Fatalf("Check during an outage of the API: %v; to restart the process would not help", err)
		}
	}
	select {
	case <-r.done:
		w.Fatalf("Run ended during the outage: %v", r.err)
	default:
	}
	if n := len(w.server.Requests(apitest.Match{})); n > w.MaxPerHour {
		w.Errorf("%d requests in an hour of %s, want %d at most; the last: %v", n, o.name, w.MaxPerHour, w.lastRequests())
	}
	if !w.WorksWithoutAPI && w.ready(w.controller) {
		w.Errorf("ready although every request failed with %s", o.name)
	}
	restore()
	w.awaitReady(w.controller, "the end of the outage")
	w.stop(r)
}

func (w *world) lastRequests() []apitest.Request {
	all := w.server.Requests(apitest.Match{})
	return slices.Clone(all[max(0, len(all)-5):])
}
