// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
)

const nodeName = "node-1"

var (
	leases = apitest.Match{Resource: "leases"}
	puts   = apitest.Match{Resource: "leases", Verb: "update"}
	posts  = apitest.Match{Resource: "leases", Verb: "create"}
	gets   = apitest.Match{Resource: "leases", Verb: "get"}
)

// fixture is one bubble: an API server with a Node, a controller for that node
// and the calls of its hooks.
type fixture struct {
	*testlog.T
	server     *apitest.Server
	controller *Controller
	step       time.Duration // of the wall clock, under owners.mu

	owners owners
	told   record

	cancel context.CancelFunc
	done   chan error
}

// owners answers for Owner from the Nodes of the server, as an informer's cache
// would.
type owners struct {
	mu     sync.Mutex
	server *apitest.Server
	err    error
	calls  int
}

func (o *owners) get(_ context.Context, name string) (metav1.OwnerReference, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.err != nil {
		return metav1.OwnerReference{}, o.err
	}
	return NodeOwner(o)(context.Background(), name)
}

func (o *owners) Get(name string) (*corev1.Node, error) {
	if node := apitest.Get[*corev1.Node](o.server, "", name); node != nil {
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

func (o *owners) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// record collects the calls of hooks and of the error handler.
type record struct {
	mu        sync.Mutex
	renewed   []Renewed
	failed    []Failed
	recovered []Recovered
	phases    []Phase
	changes   []PhaseChanged
	deleted   []Deleted
	contended []Contended
	takenOver []TakenOver
	overload  []Overloaded
	errs      []error
}

func note[T any](r *record, list *[]T) func(T) {
	return func(v T) {
		r.mu.Lock()
		defer r.mu.Unlock()
		*list = append(*list, v)
	}
}

func (r *record) hooks() Hooks {
	return Hooks{
		Renewed:   note(r, &r.renewed),
		Failed:    note(r, &r.failed),
		Recovered: note(r, &r.recovered),
		PhaseChanged: func(c PhaseChanged) {
			note(r, &r.phases)(c.To)
			note(r, &r.changes)(c)
		},
		Deleted:   note(r, &r.deleted),
		Contended: note(r, &r.contended),
		TakenOver: note(r, &r.takenOver),

		Overloaded: note(r, &r.overload),
	}
}

// bubble runs a test in a bubble with a controller that is not running yet.
// Mutate changes its Config.
func bubble(t *testing.T, mutate func(*fixture, *Config), test func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: testlog.New(t), server: apitest.New(apitest.Options{})}
		f.owners.server = f.server
		f.putNode(nodeName)
		cfg := Config{
			Client:       f.server.Client(apitest.NodeUser(nodeName)).CoordinationV1(),
			NodeName:     nodeName,
			Process:      "host", // the controllers of a test are one process, or say who they are
			Owner:        f.owners.get,
			Hooks:        f.told.hooks(),
			ErrorHandler: func(_ context.Context, err error, _ string) { note(&f.told, &f.told.errs)(err) },
		}
		if mutate != nil {
			mutate(f, &cfg)
		}
		f.controller = f.new(cfg)
		test(f)
		if f.cancel != nil {
			f.stop()
		}
		if f.done != nil {
			f.checkPhases()
		}
	})
}

// checkPhases checks the calls of PhaseChanged, after Run has returned: each
// change begins in the phase in which the one before has ended, and the last is to Stopped. A
// gauge of nodes by phase depends on it.
func (f *fixture) checkPhases() {
	f.Helper()
	last := map[string]Phase{}
	for i, c := range f.told.changes {
		from := last[c.NodeName]
		if from == PhaseStopped {
			from = PhasePending // it was added again
		}
		if c.From != from || c.To == from {
			f.Errorf("change %d of node %s is from %v to %v, after one to %v", i, c.NodeName, c.From, c.To, last[c.NodeName])
		}
		last[c.NodeName] = c.To
	}
	for name, phase := range last {
		if phase != PhaseStopped {
			f.Errorf("the last that the hook was told of node %s is %v", name, phase)
		}
	}
}

func (f *fixture) new(cfg Config) *Controller {
	f.Helper()
	c, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	c.check = func(n *node) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		err := n.lease.Check()
		if err != nil {
			f.Error(err)
		}
		return err
	}
	c.wall = func() time.Time {
		f.owners.mu.Lock()
		defer f.owners.mu.Unlock()
		return time.Now().Add(f.step)
	}
	return c
}

func (f *fixture) putNode(name string) *corev1.Node {
	return f.server.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()},
		}},
	}).(*corev1.Node)
}

func (f *fixture) start() {
	ctx, cancel := context.WithCancel(f.Context())
	f.cancel, f.done = cancel, make(chan error, 1)
	go func() { f.done <- f.controller.Run(ctx) }()
	synctest.Wait()
}

// stop ends Run, which must return at once and without an error.
func (f *fixture) stop() {
	f.Helper()
	begin := time.Now()
	f.cancel()
	err := <-f.done
	f.cancel = nil
	if err != nil {
		f.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(begin); took > 100*time.Millisecond {
		f.Errorf("Run returned %v after its context was done", took)
	}
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fixture) lease() *coordinationv1.Lease {
	return apitest.Get[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
}

func (f *fixture) putLease(holder string, renewed time.Time, mutate func(*coordinationv1.Lease)) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Namespace: corev1.NamespaceNodeLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime:            ptr.To(metav1.NewMicroTime(renewed)),
		},
	}
	if mutate != nil {
		mutate(lease)
	}
	return f.server.Put(lease).(*coordinationv1.Lease)
}

func (f *fixture) editLease(mutate func(*coordinationv1.Lease)) {
	apitest.Edit(f.server, corev1.NamespaceNodeLease, nodeName, mutate)
}

func (f *fixture) status() Status {
	f.Helper()
	status, ok := f.controller.Status(nodeName)
	if !ok {
		f.Fatal("the node is not served")
	}
	return status
}

// wantCalls compares the journal with the expected requests: "GET POST PUT".
func (f *fixture) wantCalls(want string) {
	f.Helper()
	if got := f.calls(); got != want {
		f.Errorf("calls are %q, want %q", got, want)
	}
}

func (f *fixture) calls() string {
	var calls []string
	for _, r := range f.server.Requests(apitest.Match{}) {
		calls = append(calls, verbs[r.Verb])
	}
	return strings.Join(calls, " ")
}

var verbs = map[string]string{"get": "GET", "create": "POST", "update": "PUT", "delete": "DELETE", "list": "LIST", "watch": "WATCH", "patch": "PATCH"}

func (f *fixture) wantPhase(want Phase) {
	f.Helper()
	if got := f.status().Phase; got != want {
		f.Errorf("phase %v, want %v", got, want)
	}
}

// wantGrowing checks that RenewTime grows with every write that was sent.
func (f *fixture) wantGrowing() {
	f.Helper()
	var last time.Time
	for _, r := range f.server.Requests(apitest.Match{Resource: "leases", Verb: "create,update"}) {
		obj, err := r.Object()
		if err != nil {
			f.Fatal(err)
		}
		renewTime := obj.(*coordinationv1.Lease).Spec.RenewTime.Time
		if !renewTime.After(last) {
			f.Errorf("%v: renewTime %v is not later than %v in the write before", r.Time, renewTime, last)
		}
		last = renewTime
	}
}

// The period does not slide by the latency of the calls.
func TestSteadyStateIsOnePUTPerRenewal(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.server.Inject(apitest.Fault{Latency: 300 * time.Millisecond})
		f.start()
		pass(time.Second)
		f.wantCalls("GET POST")
		pass(time.Minute)
		f.server.ResetJournal()
		pass(1000 * 10 * time.Second)
		renewals := f.server.Requests(puts)
		if n := len(f.server.Requests(apitest.Match{})); n != 1000 || len(renewals) != n {
			t.Errorf("%d PUTs of %d requests in 1000 intervals", len(renewals), n)
		}
		for i := 1; i < len(renewals); i++ {
			if period := renewals[i].Time.Sub(renewals[i-1].Time); (period - 10*time.Second).Abs() > time.Millisecond {
				t.Fatalf("period %d is %v", i, period)
			}
		}
		f.wantGrowing()
	})
}

func TestBodyIsSmall(t *testing.T) {
	// The object that the specification measures: a name of 37 characters and
	// an owner, in protobuf and without managedFields. The annotation with the
	// process is 40 bytes of it and two names more.
	const name = "ip-10-123-45-67.eu-central-1.internal"
	bubble(t, func(f *fixture, cfg *Config) {
		f.putNode(name)
		cfg.NodeName, cfg.Process = name, "vm"
		cfg.Client = f.server.Client(apitest.NodeUser(name)).CoordinationV1()
	}, func(f *fixture) {
		f.start()
		pass(time.Minute)
		for _, r := range f.server.Requests(puts) {
			if len(r.Body) > 360 || !strings.Contains(r.ContentType, "protobuf") {
				t.Errorf("PUT of %d bytes of %s, want 360 bytes of protobuf at most", len(r.Body), r.ContentType)
			}
			obj, err := r.Object()
			if err != nil {
				t.Fatal(err)
			}
			if fields := obj.(*coordinationv1.Lease).ManagedFields; len(fields) != 0 {
				t.Errorf("PUT with managedFields: %v", fields)
			}
		}
	})
}

func TestStartCostsTwoCalls(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(2 * time.Second)
		f.wantCalls("GET POST")
		f.wantPhase(PhaseHeld)
		lease := f.lease()
		if *lease.Spec.HolderIdentity != nodeName || *lease.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease is %+v", lease.Spec)
		}
		node, _ := f.owners.Get(nodeName)
		want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID}}
		if !slices.Equal(lease.OwnerReferences, want) {
			t.Errorf("owners are %+v, want %+v", lease.OwnerReferences, want)
		}
	})
	bubble(t, nil, func(f *fixture) {
		f.putLease(nodeName, time.Now().Add(-time.Minute), func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](7) })
		f.start()
		pass(2 * time.Second)
		f.wantCalls("GET PUT")
		if d := *f.lease().Spec.LeaseDurationSeconds; d != 40 {
			t.Errorf("the duration of the lease found is still %d s", d)
		}
		if len(f.lease().OwnerReferences) != 1 {
			t.Error("the lease found has still no owner")
		}
	})
}

func TestALeaseIsNotWrittenWithoutItsNode(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		f.server.ResetJournal()
		pass(time.Hour)
		f.wantCalls("")
		f.wantPhase(PhaseNoOwner)
		f.told.mu.Lock()
		last := f.told.changes[len(f.told.changes)-1]
		f.told.mu.Unlock()
		if !apierrors.IsNotFound(last.Reason) {
			t.Errorf("the reason of the phase is %v", last.Reason)
		}

		node := f.putNode(nodeName)
		f.controller.Trigger(nodeName)
		synctest.Wait()
		f.wantCalls("GET POST")
		if got := f.lease().OwnerReferences[0].UID; got != node.UID {
			t.Errorf("owner is %s, want the new Node %s", got, node.UID)
		}
	})
}

// Owner learns late, by asking, as nodestatus does. Until then the lease is not
// created with the owner that is gone.
func TestAVanishedLeaseIsHeldBackForItsOwner(t *testing.T) {
	vanish := func(f *fixture) {
		f.start()
		pass(5 * time.Second)
		apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		f.server.ResetJournal()
		// The renewal that finds out is due within 10 s.
		for len(f.server.Requests(gets)) == 0 {
			pass(10 * time.Millisecond)
		}
		f.wantCalls("PUT GET")
	}
	bubble(t, nil, func(f *fixture) {
		vanish(f)
		f.controller.Trigger(nodeName) // for another reason: it is no answer
		pass(500 * time.Millisecond)
		f.owners.fail(apierrors.NewNotFound(corev1.Resource("nodes"), nodeName))
		pass(time.Hour)
		f.wantCalls("PUT GET")
		f.wantPhase(PhaseNoOwner)
	})
	bubble(t, nil, func(f *fixture) { // it was replaced
		vanish(f)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		f.putNode(nodeName)
		f.controller.Trigger(nodeName)
		pass(200 * time.Millisecond)
		f.wantCalls("PUT GET POST")
		f.wantPhase(PhaseHeld)
	})
	// The Node is still there: the lease is held back for a second, and for no longer than
	// an interval.
	for interval, wait := range map[time.Duration]time.Duration{10 * time.Second: time.Second, 400 * time.Millisecond: 400 * time.Millisecond} {
		bubble(t, func(_ *fixture, cfg *Config) { cfg.RenewInterval = interval }, func(f *fixture) {
			vanish(f)
			pass(wait - 100*time.Millisecond)
			f.wantCalls("PUT GET")
			pass(150 * time.Millisecond)
			f.wantCalls("PUT GET POST")
			f.wantPhase(PhaseHeld)
		})
	}
}

func TestOwnerChanges(t *testing.T) {
	foreign := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "other", UID: "other-uid"}
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		f.editLease(func(l *coordinationv1.Lease) {
			l.OwnerReferences = append(l.OwnerReferences, foreign)
			l.Labels = map[string]string{"kept": "yes"}
			l.Finalizers = []string{"example.com/kept"}
		})
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		node := f.putNode(nodeName)
		f.server.ResetJournal()
		f.controller.Trigger(nodeName)
		pass(time.Second)
		f.wantCalls("PUT GET PUT") // the edit is a conflict
		lease := f.lease()
		want := []metav1.OwnerReference{foreign, {APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID}}
		if !slices.Equal(lease.OwnerReferences, want) {
			t.Errorf("owners are %+v, want %+v", lease.OwnerReferences, want)
		}
		pass(time.Minute)
		if f.lease().Labels["kept"] != "yes" || !slices.Equal(f.lease().Finalizers, []string{"example.com/kept"}) {
			t.Errorf("what others wrote is lost: %+v", f.lease().ObjectMeta)
		}
		if n := len(f.server.Requests(gets)); n != 1 {
			t.Errorf("%d GETs, want 1", n)
		}
		if s := f.status(); s.Contended {
			t.Error("contended because of a label")
		}
	})
}

func TestAStoredWriteWhoseResponseIsLostIsOurs(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault apitest.Fault
		want  string
	}{
		{"PUT", apitest.Fault{Match: puts, LoseResponse: true, Times: 1}, "PUT PUT GET"},
		{"POST", apitest.Fault{Match: posts, LoseResponse: true, Times: 1}, "GET POST GET"},
		{"PUTHangs", apitest.Fault{Match: puts, HangResponse: true, Times: 1}, "PUT PUT GET PUT"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				if test.fault.Match.Verb == "update" {
					f.start()
					pass(5 * time.Second)
					f.server.ResetJournal()
					f.server.Inject(test.fault)
					pass(20 * time.Second)
				} else {
					f.server.Inject(test.fault)
					f.start()
					pass(time.Second)
				}
				got := f.calls()
				if !strings.HasPrefix(got, test.want) || strings.Count(got, "GET") > strings.Count(test.want, "GET") {
					t.Errorf("calls are %q, want %q", got, test.want)
				}
				f.wantGrowing()
				f.wantPhase(PhaseHeld)
				if lease := f.lease(); lease.Spec.LeaseTransitions != nil {
					t.Errorf("transitions %d: our own write was taken for another's", *lease.Spec.LeaseTransitions)
				}
				if len(f.told.contended) > 0 {
					t.Error("contended by ourselves")
				}
			})
		})
	}
}

func TestNamespaceMissing(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		apitest.Remove[*corev1.Namespace](f.server, "", corev1.NamespaceNodeLease)
		f.start()
		pass(5 * time.Minute)
		if n := len(f.server.Requests(leases)); n > 2*12*5 {
			t.Errorf("%d calls in 5 minutes", n)
		}
		if len(f.told.errs) != 1 || !errors.Is(f.told.errs[0], ErrNoNamespace) {
			t.Errorf("reported %v, want ErrNoNamespace once", f.told.errs)
		}
		f.server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
		pass(7 * time.Second)
		f.wantPhase(PhaseHeld)
	})
}

func TestReadyAndCheck(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		c := f.controller
		if c.Name() != "lease" || c.Check(nil) != nil || f.status().Phase != PhasePending {
			t.Errorf("before Run: name %q, check %v, status %+v", c.Name(), c.Check(nil), f.status())
		}
		f.start()
		select {
		case <-c.Ready().Done():
		default:
			t.Fatal("not ready after the first renewal")
		}
		s := f.status()
		if s.Phase != PhaseHeld || !s.LastRenewal.Equal(time.Now()) || s.Expires.Sub(s.LastRenewal) != 40*time.Second {
			t.Errorf("after the first renewal: %+v", s)
		}
		f.stop()
		if f.status().Phase != PhaseStopped || c.Check(nil) == nil {
			t.Errorf("after Run: %+v, check %v", f.status(), c.Check(nil))
		}
		if err := c.Add("other"); !errors.Is(err, ErrStopped) {
			t.Errorf("Add after Run = %v", err)
		}
	})
}

// A hook must not block. While one does, Check says that the process must be restarted.
func TestCheckNoticesALoopThatHangs(t *testing.T) {
	var began atomic.Int64 // renewals
	block := func(f *fixture, cfg *Config) {
		cfg.Workers = 1
		cfg.Hooks.Renewed = func(Renewed) {
			if began.Add(1) == 2 {
				time.Sleep(time.Hour)
			}
		}
	}
	bubble(t, block, func(f *fixture) {
		f.start()
		pass(time.Minute)
		if err := f.controller.Check(nil); err != nil {
			t.Errorf("it is content: %v", err)
		}
		pass(4 * time.Minute)
		if f.controller.Check(nil) == nil {
			t.Errorf("Check is content after %d renewals in five minutes", began.Load())
		}
		pass(time.Hour)
		if err := f.controller.Check(nil); err != nil {
			t.Errorf("after the hook has returned: %v", err)
		}
	})
}

// Owner errors other than NotFound must not end the renewal of a lease that has
// an owner, and must not make one that has none.
func TestOwnerFails(t *testing.T) {
	broken := errors.New("cache is not synced")
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		f.owners.fail(broken)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		if n := len(f.server.Requests(puts)); n != 60 || len(f.server.Requests(leases)) != n {
			t.Errorf("%d PUTs of %d requests in 60 intervals", n, len(f.server.Requests(leases)))
		}
		if len(f.told.errs) != 1 || !errors.Is(f.told.errs[0], broken) {
			t.Errorf("reported %v, want the error once", f.told.errs)
		}
	})
	bubble(t, func(f *fixture, _ *Config) { f.owners.err = broken }, func(f *fixture) {
		f.start()
		pass(10 * time.Minute)
		if f.lease() != nil || len(f.server.Requests(posts)) > 0 {
			t.Error("a lease was created without an owner")
		}
		f.owners.fail(nil)
		pass(7 * time.Second)
		f.wantPhase(PhaseHeld)
	})
}

func TestNoOwner(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Owner = NoOwner }, func(f *fixture) {
		f.start()
		pass(time.Minute)
		if l := f.lease(); l == nil || len(l.OwnerReferences) != 0 {
			t.Errorf("lease is %+v", l)
		}
		f.editLease(func(l *coordinationv1.Lease) {
			l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: types.UID("somebody's")}}
		})
		pass(time.Minute)
		if l := f.lease(); len(l.OwnerReferences) != 1 {
			t.Errorf("an owner that somebody else has set is lost: %+v", l)
		}
	})
}
