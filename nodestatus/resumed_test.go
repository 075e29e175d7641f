// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A Node that takes the place of one that was registered, and is deleted before
// it could be adopted, was deleted by another client like any other: OnDeleted
// decides, and under DeletedExit it must not be created.
func TestDeletedWhileAdopted(t *testing.T) {
	for policy, creates := range map[DeletedPolicy]int{DeletedExit: 0, DeletedIdle: 0, DeletedReregister: 1} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDeletedWhileAdopted(t, policy, creates) })
		})
	}
}

func testDeletedWhileAdopted(t *testing.T, policy DeletedPolicy, creates int) {
	s := apitest.New(apitest.Options{})
	var deleted notes[Deleted]
	w := start(t, s, Config{OnDeleted: policy, Hooks: Hooks{Deleted: deleted.add}})
	want := 1 // deletions
	if policy == DeletedIdle {
		apitest.Remove[*corev1.Node](s, "", node1)
		w.c.Resync(node1)
		w.pass(time.Second)
		want++
	}
	w.replaceAndDelete()
	if n := len(s.Requests(posts)); n != creates {
		t.Errorf("%d creates, want %d", n, creates)
	}
	if told := deleted.get(); len(told) != want {
		t.Errorf("the hook was told %+v, want %d deletions", told, want)
	}
	switch policy {
	case DeletedExit:
		select {
		case <-w.done:
		default:
			t.Fatal("Run goes on after the Node was deleted")
		}
		if !errors.Is(w.err, ErrNodeDeleted) {
			t.Errorf("Run = %v, want ErrNodeDeleted", w.err)
		}
	case DeletedIdle:
		if status, _ := w.c.Status(node1); status.Phase != PhaseDeleted {
			t.Errorf("the status is %+v", status)
		}
		s.ResetJournal()
		w.pass(time.Hour)
		w.expect(0, 0, 0)
	case DeletedReregister:
		w.node()
	}
}

// replaceAndDelete replaces the Node while its status can't be written, and
// then deletes its replacement.
func (w *world) replaceAndDelete() {
	apitest.Remove[*corev1.Node](w.server, "", node1)
	w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}})
	restore := w.server.Inject(apitest.Fault{Match: patches, Status: statuserr.Unavailable(0)})
	w.c.Resync(node1)
	w.pass(5 * time.Second)
	if status, _ := w.c.Status(node1); status.Failures == 0 {
		w.Errorf("the status is %+v, want failed writes of the new Node", status)
	}
	w.server.ResetJournal()
	apitest.Remove[*corev1.Node](w.server, "", node1)
	restore()
	w.pass(time.Minute)
}

// A node that is put to rest while its calls fail does not count as failing any
// more: the next outage is reported again.
func TestRestingNodeDoesNotHoldReports(t *testing.T) {
	synctest.Test(t, testRestingNodeDoesNotHoldReports)
}

func testRestingNodeDoesNotHoldReports(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var told notes[error]
	sick := errors.New("sick")
	w := start(t, s, Config{
		Client:       s.Client(apitest.User{}).CoreV1(),
		OnDeleted:    DeletedIdle,
		ErrorHandler: func(_ context.Context, err error, _ string) { told.add(err) },
		HealthChecks: []HealthCheck{func(_ context.Context, name string) error {
			if name != node1 {
				return sick
			}
			return nil
		}},
	})
	if err := w.c.Add("other"); err != nil {
		t.Fatal(err)
	}
	w.pass(20 * time.Second) // it is sick for longer than a start takes
	restore := s.Inject(apitest.Fault{Status: statuserr.Unavailable(0)})
	w.c.Resync("other")
	w.pass(time.Second)
	apitest.Remove[*corev1.Node](s, "", "other")
	restore()
	w.pass(time.Minute)
	if status, _ := w.c.Status("other"); status.Phase != PhaseDeleted || status.Failures != 0 {
		t.Fatalf("the status is %+v, want a deleted node without failures", status)
	}
	if n := len(told.get()); n != 2 {
		t.Fatalf("told %v, want the health check and the outage", told.get())
	}
	s.Inject(apitest.Fault{Status: statuserr.Unavailable(0)})
	w.c.Resync(node1)
	w.pass(time.Minute)
	if n := len(told.get()); n != 3 {
		t.Errorf("told %v, want the second outage too", told.get())
	}
	w.c.Resync("other")
	w.pass(time.Second)
}

// A Node whose registration was stored, but answered only after Run was asked to
// end, gets its farewell too, even if the first read fails that looks for it.
func TestFarewellToANodeThatWasBeingCreated(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownLeave, ShutdownNotReady, ShutdownUnregister} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				s.Inject(apitest.Fault{Match: posts, HangResponse: true})
				w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), OnShutdown: policy})
				w.pass(time.Second)
				s.Inject(apitest.Fault{Match: gets, Times: 1, Status: statuserr.InternalError("starting")})
				if err := w.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
				node := apitest.Get[*corev1.Node](s, "", node1)
				switch policy {
				case ShutdownLeave:
					w.expect(1, 0, 0)
				case ShutdownNotReady:
					if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionFalse || ready.Reason != ReasonShutdown {
						t.Errorf("Ready is %+v", ready)
					}
				case ShutdownUnregister:
					if node != nil {
						t.Error("the Node was left behind")
					}
				}
			})
		})
	}
}

// The lease controller ends last, and may still ask for the owner of a lease.
func TestAnUnregisteredNodeOwnsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		policy ShutdownPolicy
		faster bool // another client deletes the Node
		owns   bool
	}{
		"Unregister":                  {policy: ShutdownUnregister},
		"Unregister, a faster client": {policy: ShutdownUnregister, faster: true},
		"NotReady, a faster client":   {policy: ShutdownNotReady, faster: true},
		"NotReady":                    {policy: ShutdownNotReady, owns: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), OnShutdown: tc.policy})
				w.pass(time.Minute)
				if tc.faster {
					apitest.Remove[*corev1.Node](s, "", node1)
				}
				if err := w.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
				if ref, err := w.c.OwnerReference(t.Context(), node1); (err == nil) != tc.owns || err != nil && !apierrors.IsNotFound(err) {
					t.Errorf("OwnerReference = %v, %v", ref, err)
				}
				if err := w.c.Live(t.Context(), node1); (err == nil) != tc.owns {
					t.Errorf("Live = %v", err)
				}
			})
		})
	}
}

// An API server that was restored from a backup shows the Node with older values and
// an older resourceVersion. They were taken for a late answer: the old values stayed in
// the Node, and each write conflicted until the versions were used up.
func TestARestoredAPIServerIsSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		run    func(*testing.T, *apitest.Server, Config) *world
		resync bool
		within time.Duration
	}{
		"no events": {start, false, 8 * time.Minute}, // one and a half report intervals
		"a watch":   {watching, false, time.Minute},
		"a read":    {start, true, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testARestoredAPIServerIsSeen(t, tc.run, tc.resync, tc.within) })
		})
	}
}

func testARestoredAPIServerIsSeen(t *testing.T, run func(*testing.T, *apitest.Server, Config) *world, resync bool, within time.Duration) {
	s := apitest.New(apitest.Options{})
	pods := &knob[int64]{value: 110}
	w := run(t, s, Config{Template: template(), Setters: []Setter{podsSetter(pods)}})
	capacity := func() int64 { return w.node().Status.Capacity.Pods().Value() }
	w.pass(10 * time.Minute)
	restore := s.Backup()
	pods.set(200)
	w.pass(time.Hour)
	if got := capacity(); got != 200 {
		t.Fatalf("the Node has %d pods", got)
	}
	restore()
	if got := capacity(); got != 110 {
		t.Fatalf("the backup has %d pods", got)
	}
	s.ResetJournal()
	if resync {
		w.c.Resync(node1)
		w.pass(time.Second)
		w.expect(0, 1, 1)
	}
	w.pass(within)
	if n := len(s.Requests(gets)); n > 1 {
		t.Errorf("%d reads after the restore", n)
	}
	if got := capacity(); got != 200 {
		t.Errorf("the Node has %d pods after the restore, want 200", got)
	}
	w.expectAQuietHour(s)
}

// The backup has the Node that was there before ours. With a watch that is noticed, although
// its version is lower, so nothing has a Node for its owner that is gone.
func TestAnotherNodeOfABackupIsSeen(t *testing.T) { synctest.Test(t, testAnotherNodeOfABackupIsSeen) }
func testAnotherNodeOfABackupIsSeen(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := watching(t, s, Config{OnDeleted: DeletedReregister})
	w.pass(time.Minute)
	former := w.node().UID
	restore := s.Backup()
	apitest.Remove[*corev1.Node](s, "", node1)
	w.pass(time.Minute)
	if w.node().UID == former {
		t.Fatal("the Node was not created again")
	}
	restore()
	w.pass(time.Minute)
	if ref, err := w.c.OwnerReference(t.Context(), node1); err != nil || ref.UID != former {
		t.Errorf("OwnerReference = %v, %v, want %s", ref, err, former)
	}
	w.expectAQuietHour(s)
}
