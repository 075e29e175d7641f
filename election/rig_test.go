// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
)

// theLease is the one that the candidates of tests stand for.
var theLease = types.NamespacedName{Namespace: "default", Name: "agent"}

// rig is an API server with candidates, in a bubble.
type rig struct {
	*testlog.T
	server *apitest.Server
	office *office
	native bool
	quiet  bool          // no log, which takes time
	config func(*Config) // changes what every candidate has
}

// inRig runs a test in a bubble, with an API server that answers in 10 ms.
func inRig(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newRig(t, apitest.Options{})) })
}

func newRig(t *testing.T, opts apitest.Options) *rig {
	opts.Serve = append(opts.Serve, coordinationv1beta1.SchemeGroupVersion)
	r := &rig{T: testlog.New(t), server: apitest.New(opts), office: newOffice(t)}
	r.server.Inject(apitest.Fault{Match: apitest.Match{Func: func(q apitest.Request) bool { return q.Verb != "watch" }}, Latency: 5 * time.Millisecond})
	r.server.LagWatches(apitest.Match{}, 5*time.Millisecond)
	return r
}

// replica is a Candidate with its client and its log of events.
type replica struct {
	*Candidate
	rig  *rig
	user string

	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu    sync.Mutex
	notes []string
	errs  []error
	step  time.Duration // by which the wall clock is wrong
	hang  time.Duration // for which the next hook hangs
}

// setStep makes the wall clock of a candidate wrong.
func (c *replica) setStep(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = d
}

func (c *replica) wrong() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step
}

// hangHook makes the next hook take so long.
func (c *replica) hangHook(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hang = d
}

func (c *replica) hook() {
	c.mu.Lock()
	d := c.hang
	c.hang = 0
	c.mu.Unlock()
	time.Sleep(d)
}

// new returns a candidate that does nothing but lead. Its requests are those of
// a user of its own name.
func (r *rig) new(name string, change ...func(*Config)) *replica {
	r.Helper()
	c := &replica{rig: r, user: name, done: make(chan struct{})}
	clients := r.server.Client(apitest.User{Name: name})
	cfg := Config{
		Client: clients.CoordinationV1(), Lease: theLease, Self: Peer{Identity: name, BinaryVersion: "1.37.0"}, Name: name,
		Lead: r.office.lead(name, 0),
		ErrorHandler: func(_ context.Context, err error, msg string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs = append(c.errs, err)
		},
	}
	cfg.Hooks = Hooks{
		TermStarted:   func(e TermStarted) { c.note("lead %d", e.Transitions); c.hook() },
		TermEnded:     func(e TermEnded) { c.note("ended %v", e.Cause) },
		LeaderChanged: func(e LeaderChanged) { c.note("leader %q", e.To) },
		Offered:       func(e Offered) { c.note("offered %s", e.To) },
		OfferEnded:    func(e OfferEnded) { c.note("accepted %v", e.Accepted) },
		Renewed:       func(Renewed) { c.hook() },
		Failed:        func(Failed) { c.hook() },
	}
	if r.native {
		cfg.Registry = LeaseCandidates(clients.CoordinationV1beta1())
	}
	if r.config != nil {
		change = append([]func(*Config){r.config}, change...)
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if c.Candidate, err = New(cfg); err != nil {
		r.Fatal(err)
	}
	c.clock.step = c.wrong
	c.check = func(err error) {
		if err != nil {
			r.Errorf("%s: %v", name, err)
		}
	}
	return c
}

// start runs a new candidate until it is stopped, or the test ends.
func (r *rig) start(name string, change ...func(*Config)) *replica {
	r.Helper()
	return r.new(name, change...).start()
}

func (c *replica) start() *replica {
	ctx := c.rig.Context()
	if c.rig.quiet {
		ctx = klog.NewContext(ctx, klog.Logger{})
	}
	ctx, cancel := context.WithCancel(ctx)
	c.cancel = cancel
	go func() {
		defer close(c.done)
		c.err = c.Run(ctx)
	}()
	c.rig.Cleanup(func() { c.stop() })
	return c
}

// stop ends Run and waits for it.
func (c *replica) stop() error {
	c.cancel()
	<-c.done
	return c.err
}

// crash makes the process vanish as far as the API is concerned: none of its
// requests arrive any more. Its work is not counted any more either.
func (c *replica) crash() {
	c.rig.office.forget(c.user)
	c.isolate()
}

// isolate cuts a candidate off from the API server and returns how to undo it.
func (c *replica) isolate() (heal func()) {
	return c.rig.isolate(apitest.Match{User: c.user})
}

func (r *rig) isolate(m apitest.Match) (heal func()) {
	answer, resume := r.server.Inject(apitest.Fault{Match: m, Hang: true}), r.server.StallWatches(m)
	return func() {
		answer()
		resume()
	}
}

func (c *replica) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

func (c *replica) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.notes)
}

func (c *replica) errors() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.errs)
}

func (c *replica) leads() bool { return c.rig.office.current() == c.user }

// sleep lets time pass and everything settle.
func (r *rig) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// lease returns the stored Lease, nil if it does not exist.
func (r *rig) lease() *coordinationv1.Lease {
	return apitest.Get[*coordinationv1.Lease](r.server, theLease.Namespace, theLease.Name)
}

// edit changes the stored Lease like another client.
func (r *rig) edit(change func(*coordinationv1.Lease)) {
	apitest.Edit(r.server, theLease.Namespace, theLease.Name, change)
}

// put stores a Lease that a holder has just renewed.
func (r *rig) put(holder string) {
	now := metav1.NewMicroTime(time.Now())
	seconds, transitions := int32(15), int32(0)
	r.server.Put(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: theLease.Namespace, Name: theLease.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now, AcquireTime: &now, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions},
	})
}

// expectLeader fails the test unless c leads.
func (r *rig) expectLeader(c *replica) {
	r.Helper()
	synctest.Wait()
	if got := r.office.current(); got != c.user {
		r.Fatalf("%s leads, want %s; %s has told %q", got, c.user, c.user, c.told())
	}
}

// awaitLeader returns the leader as soon as there is one, and how long it took.
func (r *rig) awaitLeader(limit time.Duration) (string, time.Duration) {
	r.Helper()
	began := time.Now()
	for {
		if who := r.office.current(); who != "" {
			return who, time.Since(began)
		}
		if time.Since(began) > limit {
			r.Fatalf("nobody leads after %v", limit)
		}
		time.Sleep(time.Millisecond)
	}
}

// The annotations of a Lease, as candidates write them.
const (
	recordPrefix   = "candidate.election.kubewright.dev/"
	termAnnotation = "election.kubewright.dev/term"
	maxRecords     = 16
	recordInterval = 10 * time.Minute
	recordTTL      = 31 * time.Minute
)

// record is that of a candidate on the Lease.
type record struct {
	Peer
	Strategy string `json:"strategy,omitempty"`
	Ack      string `json:"ack,omitempty"`
	Beat     int    `json:"beat,omitempty"`
}

// records returns the records among annotations by identity.
func records(annotations map[string]string) map[string]record {
	found := make(map[string]record)
	for key, value := range annotations {
		var r record
		if strings.HasPrefix(key, recordPrefix) && json.Unmarshal([]byte(value), &r) == nil {
			found[r.Identity] = r
		}
	}
	return found
}

// keyOf returns the key of the record of an identity.
func keyOf(l *coordinationv1.Lease, identity string) string {
	for key, value := range l.Annotations {
		if _, there := records(map[string]string{key: value})[identity]; there {
			return key
		}
	}
	return ""
}

// marked makes a Lease look as if its holder had claimed it.
func marked(l *coordinationv1.Lease) {
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	l.Annotations[termAnnotation] = fmt.Sprintf("%d %s", *l.Spec.LeaseTransitions, *l.Spec.HolderIdentity)
}
