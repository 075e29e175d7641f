// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
)

const (
	ctlNamespace = "default"
	ctlLease     = "component"
	ctlUser      = "controller"
)

// ctlRig is a server with a Controller, in a bubble.
type ctlRig struct {
	*testlog.T
	server *apitest.Server
	cfg    Config
	stop   func()

	mu     sync.Mutex
	events []string // the calls of hooks and ErrorHandler
	errs   []error
}

// newCtlRig returns a rig with the LeaseCandidate API and the feature gate.
func newCtlRig(t *testing.T, opts apitest.Options) *ctlRig {
	opts.Serve = append(opts.Serve, coordinationv1beta1.SchemeGroupVersion)
	if opts.Gates == nil {
		opts.Gates = map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true}
	}
	r := &ctlRig{T: testlog.New(t), server: apitest.New(opts)}
	clients := r.server.Client(apitest.User{Name: ctlUser})
	r.cfg = Config{
		Client: clients.CoordinationV1(), Candidates: clients.CoordinationV1beta1(),
		ErrorHandler: func(_ context.Context, err error, msg string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.errs = append(r.errs, err)
		},
		Hooks: Hooks{
			Elected:   func(e Elected) { r.note("elected %s", e.Holder) },
			Preferred: func(p Preferred) { r.note("preferred %s", p.PreferredHolder) },
			Silent:    func(s Silent) { r.note("silent %s", s.Candidate) },
			Collected: func(c Collected) { r.note("collected %s", c.Candidate) },
		},
	}
	return r
}

func (r *ctlRig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

// told returns the hook calls since the last call of told.
func (r *ctlRig) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

func (r *ctlRig) errors() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errs)
}

// start runs a new Controller until stop is called or the test ends.
func (r *ctlRig) start() *Controller {
	r.Helper()
	c, err := New(r.cfg)
	if err != nil {
		r.Fatal(err)
	}
	c.check = func(err error) {
		if err != nil {
			r.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run = %v", err)
		}
	}
	stop := r.stop
	r.Cleanup(stop)
	synctest.Wait()
	return c
}

// advance lets time pass, and all that it brings.
func (r *ctlRig) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *ctlRig) lease() *coordinationv1.Lease {
	return apitest.Get[*coordinationv1.Lease](r.server, ctlNamespace, ctlLease)
}

func (r *ctlRig) holder() string {
	lease := r.lease()
	if lease == nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

func (r *ctlRig) preferred() string {
	lease := r.lease()
	if lease == nil {
		return ""
	}
	return ptr.Deref(lease.Spec.PreferredHolder, "")
}

func (r *ctlRig) candidate(name string) *coordinationv1beta1.LeaseCandidate {
	return apitest.Get[*coordinationv1beta1.LeaseCandidate](r.server, ctlNamespace, name)
}

// requests returns the verbs and resources of the requests of the Controller,
// without lists and watches.
func (r *ctlRig) requests() (requests []string) {
	for _, q := range r.server.Requests(apitest.Match{User: ctlUser}) {
		if q.Verb != "list" && q.Verb != "watch" {
			requests = append(requests, q.Verb+" "+q.Resource)
		}
	}
	return requests
}

func (r *ctlRig) want(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("%v: %s = %v, want %v", time.Since(ctlEpoch), what, got, want)
	}
}

// ctlEpoch is when every bubble begins.
var ctlEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// ctlStub is a candidate that behaves as client-go's do, with the clock and the
// faults that a test gives it: it answers a ping that is later than its own last
// renewal, renews its record every five minutes, and renews the Lease every two
// seconds while it holds it, unless a preferred holder is set.
type ctlStub struct {
	rig     *ctlRig
	clients kubernetes.Interface
	name    string
	version string
	emul    string
	strat   coordinationv1.CoordinatedLeaseStrategy
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu       sync.Mutex
	skew     time.Duration // of its clock
	deaf     bool          // doesn't answer pings
	idle     bool          // doesn't renew the Lease
	obedient bool          // hands over at once, as candidates of this package do
	puts     int           // of its record
}

// stub returns a candidate that is not started.
func (r *ctlRig) stub(name, emulation, binary string) *ctlStub {
	return &ctlStub{
		rig: r, clients: r.server.Client(apitest.User{Name: name}), name: name, version: binary, emul: emulation,
		strat: coordinationv1.OldestEmulationVersion,
	}
}

func (s *ctlStub) set(f func(*ctlStub)) *ctlStub {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
	return s
}

func (s *ctlStub) now() *metav1.MicroTime {
	return ptr.To(metav1.NewMicroTime(time.Now().Add(s.skew)))
}

// start runs the candidate until stop.
func (s *ctlStub) start() *ctlStub {
	ctx, cancel := context.WithCancel(s.rig.Context())
	s.cancel = cancel
	s.rig.Cleanup(s.stop)
	s.done.Go(func() { s.answer(ctx) })
	s.done.Go(func() { s.renew(ctx) })
	synctest.Wait()
	return s
}

// stop ends it as a crash does: nothing is given back.
func (s *ctlStub) stop() {
	s.cancel()
	s.done.Wait()
}

func (s *ctlStub) record() *coordinationv1beta1.LeaseCandidate {
	return &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Namespace: ctlNamespace, Name: s.name},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: ctlLease, BinaryVersion: s.version, EmulationVersion: s.emul, Strategy: s.strat, RenewTime: s.now(),
		},
	}
}

// answer keeps the LeaseCandidate.
func (s *ctlStub) answer(ctx context.Context) {
	client := s.clients.CoordinationV1beta1().LeaseCandidates(ctlNamespace)
	s.mu.Lock()
	record := s.record()
	s.mu.Unlock()
	record, err := client.Create(ctx, record, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		record, err = client.Get(ctx, s.name, metav1.GetOptions{})
		record = s.put(ctx, record)
	}
	if err != nil || record == nil {
		return
	}
	refresh := time.NewTicker(5 * time.Minute)
	defer refresh.Stop()
	for ctx.Err() == nil {
		record = s.follow(ctx, record, refresh.C)
	}
}

// follow is answer for one watch.
func (s *ctlStub) follow(ctx context.Context, record *coordinationv1beta1.LeaseCandidate, refresh <-chan time.Time) *coordinationv1beta1.LeaseCandidate {
	watch, err := s.clients.CoordinationV1beta1().LeaseCandidates(ctlNamespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + s.name, ResourceVersion: record.ResourceVersion})
	if err != nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return record
	}
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return record
		case <-refresh:
			record = s.put(ctx, record)
		case event, ok := <-watch.ResultChan():
			seen, isRecord := event.Object.(*coordinationv1beta1.LeaseCandidate)
			if !ok || !isRecord {
				return record
			}
			record = seen
			s.mu.Lock()
			deaf := s.deaf
			s.mu.Unlock()
			if ping := seen.Spec.PingTime; !deaf && ping != nil && ping.After(seen.Spec.RenewTime.Time) {
				time.Sleep(5 * time.Millisecond)
				record = s.put(ctx, seen)
			}
		}
	}
}

func (s *ctlStub) put(ctx context.Context, record *coordinationv1beta1.LeaseCandidate) *coordinationv1beta1.LeaseCandidate {
	record = record.DeepCopy()
	s.mu.Lock()
	record.Spec.RenewTime = s.now()
	s.puts++
	s.mu.Unlock()
	stored, err := s.clients.CoordinationV1beta1().LeaseCandidates(ctlNamespace).Update(ctx, record, metav1.UpdateOptions{})
	if err != nil {
		return record
	}
	return stored
}

// renew leads while it may.
func (s *ctlStub) renew(ctx context.Context) {
	client := s.clients.CoordinationV1().Leases(ctlNamespace)
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		lease := s.rig.lease() // without a request: most stubs only wait
		s.mu.Lock()
		idle, obedient := s.idle, s.obedient
		s.mu.Unlock()
		if lease == nil || idle || ptr.Deref(lease.Spec.HolderIdentity, "") != s.name {
			continue
		}
		preferred := ptr.Deref(lease.Spec.PreferredHolder, "")
		switch {
		case preferred != "" && !obedient:
			continue
		case preferred != "":
			lease.Spec.HolderIdentity, lease.Spec.PreferredHolder = &preferred, nil
			lease.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1)
		}
		s.mu.Lock()
		lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = s.now(), ptr.To[int32](15)
		s.mu.Unlock()
		_, _ = client.Update(ctx, lease, metav1.UpdateOptions{}) // a conflict is met by the next one
	}
}

// leads is what a holder of the Lease looks like that renewed it so long ago, by
// a clock that is right.
func (r *ctlRig) leads(holder string, ago time.Duration) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(time.Now().Add(-ago))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ctlNamespace, Name: ctlLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &renewed},
	}
}

// legacy renews the Lease as an elector does that knows nothing of candidates:
// the spec is created each time.
func (r *ctlRig) legacy(holder string) (stop func()) {
	if r.lease() == nil {
		r.server.Put(r.leads(holder, 0))
	}
	ctx, cancel := context.WithCancel(r.Context())
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(2 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { l.Spec = r.leads(holder, 0).Spec })
			}
		}
	})
	stop = func() { cancel(); done.Wait() }
	r.Cleanup(stop)
	return stop
}

// ctlBubble runs a test of a rig in a bubble.
func ctlBubble(test func(*ctlRig)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(newCtlRig(t, apitest.Options{})) })
	}
}
