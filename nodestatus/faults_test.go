// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/nodelifecycle"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// judged runs the node-lifecycle controller of the server; it writes Unknown.
func judged(t *testing.T, s *apitest.Server) *nodelifecycle.Judge {
	judge := nodelifecycle.New(s, nodelifecycle.Options{Write: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		judge.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return judge
}

// outages are ways in which the API server can be away.
var outages = map[string]apitest.Fault{
	"Refused": {Err: apitest.ErrConnRefused},
	"Reset":   {Err: apitest.ErrConnReset},
	"Hang":    {Hang: true},
	"500":     {Status: statuserr.InternalError("broken")},
	"503":     {Status: statuserr.Unavailable(0)},
	"429":     {Status: statuserr.TooManyRequests(2)},
	"Lost":    {LoseResponse: true},
	"Slow":    {Latency: 9 * time.Second},
}

// The status alone keeps a node alive, as it did before there were leases: with
// ReportInterval as short as SyncInterval the node is never Unknown while
// outages stay below 25 s, and after longer ones it recovers on its own.
func TestOutages(t *testing.T) {
	for name, fault := range outages {
		lengths := []time.Duration{25 * time.Second, 5 * time.Minute}
		if testing.Short() {
			lengths = lengths[:1]
		}
		for _, length := range lengths {
			t.Run(fmt.Sprintf("%s/%v", name, length), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testOutage(t, fault, length) })
			})
		}
	}
}

func testOutage(t *testing.T, fault apitest.Fault, length time.Duration) {
	s := apitest.New(apitest.Options{})
	var recovered notes[Recovered]
	var failed notes[Failed]
	w := start(t, s, Config{
		ReportInterval: DefaultSyncInterval,
		ErrorHandler:   func(context.Context, error, string) {},
		Hooks: Hooks{
			Failed:    failed.add,
			Recovered: recovered.add,
		},
	})
	judge := judged(t, s)
	random := rand.New(rand.NewPCG(uint64(length), 7))
	for range 5 {
		w.pass(2*time.Minute + time.Duration(random.Int64N(int64(10*time.Second))))
		recovered.set(nil)
		failed.set(nil)
		remove := s.Inject(fault)
		w.pass(length)
		remove()
		// No hot loop: five quick tries, and then one in 3.5 s at most. (The
		// server sees more: client-go repeats some.)
		if tries, most := len(failed.get()), 6+int(length/(3500*time.Millisecond)); tries > most {
			t.Errorf("%d tries in an outage of %v, want %d at most", tries, length, most)
		}
		end := time.Now()
		// A call that hangs when the outage ends does so for CallTimeout.
		w.pass(callTimeout + 7*time.Second + time.Second)
		ready := w.condition(corev1.NodeReady)
		if ready.Status != corev1.ConditionTrue || ready.LastHeartbeatTime.Time.Before(end.Add(-fault.Latency).Truncate(time.Second)) {
			t.Errorf("Ready is %+v after the outage, which ended at %v", ready, end)
		}
		if told := recovered.get(); len(told) > 1 {
			t.Errorf("told of %d recoveries", len(told))
		}
	}
	bad := judge.Outages(node1)
	switch {
	case length < 30*time.Second && len(bad) > 0:
		t.Errorf("the node was Unknown: %v", bad)
	case length > time.Minute && fault.LoseResponse != true && fault.Latency == 0 && len(bad) != 5:
		t.Errorf("the node was Unknown %d times in 5 long outages: %v", len(bad), bad)
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if c := w.condition(kind); c.Status != corev1.ConditionFalse {
			t.Errorf("%s is left %s", kind, c.Status)
		}
	}
	if len(bad) > 0 {
		if ready := w.condition(corev1.NodeReady); ready.LastTransitionTime.Time.Before(bad[len(bad)-1].From.Truncate(time.Second)) {
			t.Errorf("Ready is dated %v, before the node was Unknown at %v", ready.LastTransitionTime, bad[len(bad)-1].From)
		}
	}
}

// heartbeats plays the lease controller: while Live lets it, it renews.
func heartbeats(t *testing.T, s *apitest.Server, c *Controller) {
	client := s.Client(apitest.NodeUser(node1)).CoordinationV1().Leases(corev1.NamespaceNodeLease)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := c.Live(ctx, node1); err == nil {
				renew(ctx, t, client.Get, client.Create, client.Update)
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func renew(ctx context.Context, t *testing.T,
	get func(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error),
	create func(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error),
	update func(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error),
) {
	now := metav1.NowMicro()
	lease, err := get(ctx, node1, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node1}}
		lease.Spec.RenewTime = &now
		_, err = create(ctx, lease, metav1.CreateOptions{})
	} else if err == nil {
		lease.Spec.RenewTime = &now
		_, err = update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil && ctx.Err() == nil {
		t.Errorf("renewing: %v", err)
	}
}

// With a lease behind the gate: a node whose check hangs is NotReady at once
// and Unknown for as long as it stays so; one that is only unhealthy never is.
func TestGate(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *apitest.Server, Config) *world{"Watch": watching, "NoWatch": start} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testGate(t, run) })
		})
	}
}

func testGate(t *testing.T, run func(*testing.T, *apitest.Server, Config) *world) {
	s := apitest.New(apitest.Options{})
	health := &knob[error]{}
	hang := &knob[bool]{}
	w := run(t, s, Config{
		ErrorHandler: func(context.Context, error, string) {},
		HealthChecks: []HealthCheck{func(ctx context.Context, _ string) error {
			if hang.get() {
				<-ctx.Done()
			}
			return health.get()
		}},
	})
	judge := judged(t, s)
	heartbeats(t, s, w.c)
	w.pass(10 * time.Minute)
	health.set(errors.New("the runtime is down"))
	w.pass(DefaultSyncInterval)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionFalse || ready.Message != "the runtime is down" {
		t.Errorf("Ready is %+v", ready)
	}
	w.pass(10 * time.Minute)
	if bad := judge.Outages(node1); len(bad) != 0 {
		t.Errorf("Unknown although it says why it is not Ready: %v", bad)
	}
	health.set(nil)
	w.pass(time.Minute)

	hang.set(true)
	w.pass(DefaultSyncInterval + functionTimeout)
	if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonHealthCheckTimeout {
		t.Errorf("Ready is %+v", ready)
	}
	w.pass(4 * DefaultReportInterval)
	if bad := judge.Outages(node1); len(bad) != 1 || !bad[0].To.IsZero() {
		t.Errorf("outages of a node that hangs: %d, want one that lasts: %v", len(bad), bad)
	}
	hang.set(false)
	end := time.Now().Truncate(time.Second)
	w.pass(4 * DefaultSyncInterval) // the context of the last call ends after 30 s
	// The transition times are right only if the Node was read: it was Unknown.
	for kind, want := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		if c := w.condition(kind); c.Status != want || c.LastTransitionTime.Time.Before(end) {
			t.Errorf("after recovery at %v a condition is %+v", end, c)
		}
	}
}

// The API server refuses: it is asked seldom and that is reported once. The gate
// closes only if that was asked for.
func TestRefusals(t *testing.T) {
	for name, status := range map[string]*apierrors.StatusError{
		"401": statuserr.Unauthorized(),
		"403": statuserr.Forbidden("nodes", node1, "not yours"),
		"422": statuserr.New(422, metav1.StatusReasonInvalid, "is invalid"),
		"404": statuserr.New(404, metav1.StatusReasonNotFound, "the path is not there"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRefusal(t, status) })
		})
	}
}

func testRefusal(t *testing.T, status *apierrors.StatusError) {
	s := apitest.New(apitest.Options{})
	health := &knob[error]{}
	var told notes[string]
	var rounds notes[time.Time]
	var failures notes[Failed]
	w := start(t, s, Config{
		HealthChecks: []HealthCheck{func(context.Context, string) error { rounds.add(time.Now()); return health.get() }},
		ErrorHandler: func(_ context.Context, _ error, msg string) {
			if msg == "Failed to write node" {
				told.add(msg)
			}
		},
		Hooks: Hooks{Failed: failures.add},
	})
	w.pass(time.Minute)
	remove := s.Inject(apitest.Fault{Match: patches, Status: status})
	health.set(errors.New("down"))
	w.c.Trigger(node1)
	w.pass(time.Second)
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v after the first refusal", err)
	}
	w.pass(DefaultGracePeriod + 10*time.Second)
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v while the status is refused", err)
	}
	if status, _ := w.c.Status(node1); status.LastError == nil || status.Failures == 0 {
		t.Errorf("the status is %+v", status)
	}
	s.ResetJournal()
	rounds.set(nil)
	w.pass(time.Hour)
	if n := len(s.Requests(patches)); n < 100 || n > 300 {
		t.Errorf("%d tries in an hour of refusals", n)
	}
	if n := len(rounds.get()); n < 350 {
		t.Errorf("%d rounds in an hour of refusals: the node is not watched over", n)
	}
	if err := w.c.Check(nil); err != nil {
		t.Errorf("Check = %v: to restart the process would not help", err)
	}
	if n := len(told.get()); n != 1 {
		t.Errorf("the error handler was told %d times", n)
	}
	if !slices.ContainsFunc(failures.get(), func(f Failed) bool { return f.Verb == "patch" && f.Class != "" && f.Err != nil }) {
		t.Errorf("the hook was told %+v", failures.get())
	}
	remove()
	w.pass(31 * time.Second)
	if ready := w.condition(corev1.NodeReady); ready.Message != "down" {
		t.Errorf("Ready is %+v", ready)
	}
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v after it was accepted", err)
	}
}

// Credentials of another node: the report names both.
func TestIdentity(t *testing.T) { synctest.Test(t, testIdentity) }

func testIdentity(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var notes notes[error]
	w := start(t, s, Config{
		Client: s.Client(apitest.NodeUser("n2")).CoreV1(), NodeCredentials: true,
		ErrorHandler: func(_ context.Context, err error, _ string) { notes.add(err) },
	})
	var identity *IdentityError
	if reported := errors.Join(notes.get()...); !errors.As(reported, &identity) || identity.Identity != "system:node:n2" || identity.NodeName != node1 || !apierrors.IsForbidden(identity) {
		t.Errorf("reported %v", reported)
	}
	s.ResetJournal()
	w.pass(time.Hour)
	if n := len(s.Requests(apitest.Match{})); n > 500 {
		t.Errorf("%d requests in an hour", n)
	}
	select {
	case <-w.c.Ready().Done():
		t.Error("ready")
	default:
	}
}

// Without the right to create Nodes an existing one is kept.
func TestCreateForbidden(t *testing.T) { synctest.Test(t, testCreateForbidden) }

func testCreateForbidden(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Inject(apitest.Fault{Match: posts, Status: statuserr.Forbidden("nodes", node1, "may not create")})
	w := start(t, s, Config{ErrorHandler: func(context.Context, error, string) {}})
	w.pass(20 * time.Second)
	if status, _ := w.c.Status(node1); status.Phase != PhaseRegistering || !apierrors.IsForbidden(status.LastError) {
		t.Errorf("the status is %+v", status)
	}
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}})
	w.pass(31 * time.Second)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %+v", ready)
	}
}

// A process that did not run for a while reads before it writes.
func TestSleep(t *testing.T) { synctest.Test(t, testSleep) }

func testSleep(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{})
	w.pass(time.Hour)
	s.ResetJournal()
	unknown(s)
	at := time.Now().Truncate(time.Second)
	// The process is stopped: the wall clock goes on, and rounds do not come.
	w.c.sleeps.mu.Lock()
	w.c.sleeps.last = w.c.sleeps.last.Add(-time.Hour)
	w.c.sleeps.mu.Unlock()
	w.pass(DefaultSyncInterval)
	w.expect(0, 1, 1)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue || ready.LastTransitionTime.Time.Before(at) {
		t.Errorf("Ready is %+v, Unknown since %v", ready, at)
	}
}
