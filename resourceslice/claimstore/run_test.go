// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
	"github.com/kubewright/kubewright/internal/lifecycletest"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

// running is a store with a client of an API server in memory, and a Run.
type running struct {
	*Store[partition]
	t      *testing.T
	server *apitest.Server
	user   apitest.User
	disk   *crashfs.FS
	hw     *hardware
	tells  []string
	stop   func() error
}

func newRunning(t *testing.T, s *apitest.Server) *running {
	r := &running{t: t, server: s, disk: crashfs.New(), hw: newHardware()}
	r.open("boot-1")
	return r
}

func (r *running) open(boot string) {
	r.t.Helper()
	cfg := Config[partition]{
		Dir: "store", Driver: driver, BootID: boot, Claims: r.server.Client(r.user).ResourceV1(), Unprepare: r.hw.unprepare,
		ErrorHandler: func(_ context.Context, err error, msg string) { r.tells = append(r.tells, msg+": "+err.Error()) },
	}
	var err error
	if r.Store, err = openOn(cfg, r.disk); err != nil {
		r.t.Fatal(err)
	}
}

// run starts Run.
func (r *running) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	r.stop = func() error { cancel(); return <-done }
	r.t.Cleanup(func() { cancel() })
	synctest.Wait()
}

// create stores a claim, allocated, in the cluster.
func (r *running) create(name, device string) *resourcev1.ResourceClaim {
	claim := testClaim(name, device)
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}
	claim.Status.Allocation.Devices.Results[0].Request = "gpu"
	claim.Status.ReservedFor[0].UID = "pod"
	r.server.Put(claim)
	return apitest.Get[*resourcev1.ResourceClaim](r.server, "ns", name)
}

func (r *running) mustPrepare(claim *resourcev1.ResourceClaim, id string) {
	r.t.Helper()
	if _, err := r.Prepare(r.t.Context(), claim, r.hw.prepare(claim, id)); err != nil {
		r.t.Fatal(err)
	}
	r.hw.did()
}

func (r *running) gets() int { return len(r.server.Requests(apitest.Match{})) }

func bubble(t *testing.T, f func(r *running)) {
	apitest.Bubble(t, apitest.Options{Namespaces: []string{"ns"}}, func(t *testing.T, s *apitest.Server) {
		f(newRunning(t, s))
	})
}

// TestRequests counts the requests of a quiet hour: one for each claim and interval.
func TestRequests(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.mustPrepare(r.create("b", "gpu-1"), "mig-2")
		r.run()
		<-r.Ready().Done()
		r.server.ResetJournal()
		time.Sleep(time.Hour + time.Second)
		if n, want := r.gets(), 2*12; n != want {
			t.Errorf("%d requests in an hour with two claims, want %d", n, want)
		}
		if err := r.Check(nil); err != nil {
			t.Error(err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if got := r.hw.did(); got != "" {
			t.Errorf("%s", got)
		}
	})
}

// TestPermissions runs with the permissions of examples/rbac/claimstore.yaml.
func TestPermissions(t *testing.T) {
	manifest, err := os.ReadFile("../../examples/rbac/claimstore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rbac, err := apitest.RBACFrom(manifest)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(r *running) {
		r.server.Authorize(rbac)
		r.user = apitest.ServiceAccountUser("kubewright", "virtual-node")
		r.open("boot-1")
		r.mustPrepare(r.create("stays", "gpu-0"), "mig-1")
		r.mustPrepare(r.create("goes", "gpu-1"), "mig-2")
		r.run()
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", "goes")
		time.Sleep(2*DefaultInterval + time.Second)
		if got, want := r.hw.did(), "unprepare goes Prepared mig-2"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, q := range r.server.Requests(apitest.Match{}) {
			if q.Code == http.StatusForbidden {
				t.Errorf("refused: %v", q)
			}
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestCheckKnowsTheInterval: between two passes Run has nothing to do.
func TestCheckKnowsTheInterval(t *testing.T) {
	bubble(t, func(r *running) {
		cfg := r.cfg
		cfg.Interval = 2 * time.Hour
		var err error
		if r.Store, err = openOn(cfg, r.disk); err != nil {
			t.Fatal(err)
		}
		r.run()
		time.Sleep(cfg.Interval - time.Second)
		if err := r.Check(nil); err != nil {
			t.Error(err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestCheckDuringALongPass: each of many reads ends by its deadline, one after the other.
func TestCheckDuringALongPass(t *testing.T) {
	bubble(t, func(r *running) {
		for i := range 130 {
			claim := testClaim(fmt.Sprint("c", i), fmt.Sprint("gpu-", i))
			r.mustPrepare(claim, "mig")
		}
		r.server.Inject(apitest.Fault{Hang: true})
		r.run()
		time.Sleep(130*callTimeout - time.Second)
		if err := r.Check(nil); err != nil {
			t.Error(err)
		}
		if n := len(r.tells); n != 0 {
			t.Errorf("the pass has ended already: %q", r.tells)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestAClaimThatIsGone leaves the kubelet the time to call Unprepare itself.
func TestAClaimThatIsGone(t *testing.T) {
	bubble(t, func(r *running) {
		a := r.create("a", "gpu-0")
		r.mustPrepare(a, "mig-1")
		b := r.create("b", "gpu-1")
		r.mustPrepare(b, "mig-2")
		r.run()
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", a.Name)
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", b.Name)
		another := testClaim("b", "gpu-1")
		another.UID = "another"
		r.server.Put(another)
		time.Sleep(2*DefaultInterval - time.Second)
		if got := r.hw.did(); got != "" {
			t.Errorf("%s before the second pass without the claims", got)
		}
		time.Sleep(2 * time.Second)
		if got, want := r.hw.did(), "unprepare a Prepared mig-1, unprepare b Prepared mig-2"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestTheIntervalBeginsWithTheAnswer: a claim goes while a long pass waits for another one.
// The next pass comes a second after it, because a call of Prepare needs the device.
func TestTheIntervalBeginsWithTheAnswer(t *testing.T) {
	bubble(t, func(r *running) {
		slow := testClaim("slow", "gpu-1") // does not exist
		if err := r.record(t.Context(), r.claimOf(slow), "Preparing", partition{ID: "mig-0"}); err != nil {
			t.Fatal(err)
		}
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.cfg.Unprepare = func(ctx context.Context, claim Claim, state partition, phase Phase) error {
			if claim.Name == slow.Name {
				time.Sleep(DefaultInterval)
				apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", "a")
			}
			return r.hw.unprepare(ctx, claim, state, phase)
		}
		r.run()
		time.Sleep(DefaultInterval + time.Second)
		b := r.create("b", "gpu-0")
		if _, err := r.Prepare(t.Context(), b, r.hw.prepare(b, "mig-2")); err == nil {
			t.Error("a device belongs to two claims")
		}
		time.Sleep(DefaultInterval - 2*time.Second)
		if got, want := r.hw.did(), "unprepare slow Preparing mig-0"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(DefaultInterval + 2*time.Second)
		if got, want := r.hw.did(), "unprepare a Prepared mig-1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestAClaimThatLosesItsDevices: a kubelet that was set up again does not know the claim.
// The scheduler gives the device to another claim, which must not wait without limit, and
// not get it while the containers of the former one may run.
func TestAClaimThatLosesItsDevices(t *testing.T) {
	for name, lose := range map[string]func(*resourcev1.ResourceClaim){
		"it is deleted":        nil,
		"none is allocated":    func(c *resourcev1.ResourceClaim) { c.Status.Allocation, c.Status.ReservedFor = nil, nil },
		"another is allocated": func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gpu-7" },
		"one of another driver": func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *running) {
				a, keeps := r.create("a", "gpu-0"), r.create("keeps", "gpu-1")
				r.mustPrepare(a, "mig-1")
				r.mustPrepare(keeps, "mig-2")
				keeps.Status.ReservedFor = nil // a claim without a Pod keeps its devices
				r.server.Put(keeps)
				r.run()
				if lose == nil {
					apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", a.Name)
				} else {
					lose(a)
					r.server.Put(a)
				}
				b := r.create("b", "gpu-0")
				began := time.Now()
				for { // as a kubelet does; each call has the claims looked at
					if _, err := r.Prepare(t.Context(), b, r.hw.prepare(b, "mig-3")); err == nil || time.Since(began) > time.Hour {
						break
					}
					time.Sleep(10 * time.Second)
				}
				if took := time.Since(began); took < DefaultInterval || took > DefaultInterval+20*time.Second {
					t.Errorf("the device was free after %v, want about %v", took, DefaultInterval)
				}
				if got, want := r.hw.did(), "unprepare a Prepared mig-1, prepare b mig-3"; got != want {
					t.Errorf("%q, want %q", got, want)
				}
				time.Sleep(time.Hour)
				if got := r.hw.did(); got != "" {
					t.Error(got)
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestAPreparationThatWasCutOff needs no such time: no container has the devices.
func TestAPreparationThatWasCutOff(t *testing.T) {
	bubble(t, func(r *running) {
		cutOff := func(claim *resourcev1.ResourceClaim) {
			if err := r.record(t.Context(), r.claimOf(claim), "Preparing", partition{ID: "of-" + claim.Name}); err != nil {
				t.Fatal(err)
			}
		}
		gone, unused, used := r.create("gone", "gpu-0"), r.create("unused", "gpu-1"), r.create("used", "gpu-2")
		cutOff(gone)
		cutOff(unused)
		cutOff(used)
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", gone.Name)
		apitest.Edit(r.server, "ns", "unused", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil })
		r.run()
		time.Sleep(time.Hour)
		if got, want := r.hw.did(), "unprepare gone Preparing of-gone, unprepare unused Preparing of-unused"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunHandsOverAnotherBootOnce(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.open("boot-2")
		r.server.ResetJournal()
		r.run()
		time.Sleep(time.Hour)
		if got, want := r.hw.did(), "unprepare a Rebooted mig-1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if n := r.gets(); n != 0 {
			t.Errorf("%d requests", n)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnAPIServerThatIsAwayEndsNoClaim(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.mustPrepare(r.create("b", "gpu-1"), "mig-2")
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", "a")
		restore := r.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		r.run()
		time.Sleep(time.Hour)
		if got := r.hw.did(); got != "" {
			t.Errorf("%s", got)
		}
		if n := r.gets(); n > 2*(120+10) {
			t.Errorf("%d requests in an hour without an answer", n)
		}
		if len(r.tells) != 1 || !strings.Contains(r.tells[0], "ns/b (UID ") {
			t.Errorf("reports: %q", r.tells)
		}
		restore()
		time.Sleep(time.Minute)
		<-r.Ready().Done()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestUnprepareIsRepeatedUntilItSucceeds(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.open("boot-2")
		r.hw.failing = errors.New("busy")
		r.run()
		time.Sleep(time.Second) // the first pause is half a second to a second
		synctest.Wait()
		if got, want := r.hw.did(), "unprepare a Rebooted mig-1, unprepare a Rebooted mig-1"; got != want {
			t.Errorf("after a second: %q, want %q", got, want)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(r.hw.did(), "unprepare a Rebooted"); n < 3 || n > 10 {
			t.Errorf("%d calls in a minute", n)
		}
		r.hw.mu.Lock()
		r.hw.failing = nil
		r.hw.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if got, want := r.hw.did(), "unprepare a Rebooted mig-1"; !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if len(r.tells) != 1 {
			t.Errorf("reports: %q", r.tells)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestRunWaitsForACallThatIsUnderWay: the claim is half prepared because its call
// still runs.
func TestRunWaitsForACallThatIsUnderWay(t *testing.T) {
	bubble(t, func(r *running) {
		a := r.create("a", "gpu-0")
		go func() {
			_, err := r.Prepare(t.Context(), a, func(ctx context.Context, begin func(partition) error) (partition, error) {
				defer time.Sleep(time.Minute)
				return r.hw.prepare(a, "mig-1")(ctx, begin)
			})
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		apitest.Edit(r.server, "ns", "a", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil })
		r.run()
		time.Sleep(time.Hour)
		if got, want := r.hw.did(), "prepare a mig-1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		ErrAlreadyRun: ErrAlreadyRun,
		MaxPerHour:    1300, // client-go repeats a GET up to ten times,
		ReadyWithin:   2 * time.Minute,
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			s.Put(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
			claim := apitest.Get[*resourcev1.ResourceClaim](s, "default", "a")
			cfg := Config[partition]{
				Dir: "store", Driver: driver, BootID: "boot", Claims: s.Client(apitest.User{}).ResourceV1(),
				Unprepare: func(context.Context, Claim, partition, Phase) error { return nil },
			}
			c, err := openOn(cfg, crashfs.New())
			if err != nil {
				t.Fatal(err)
			}
			if err := c.record(t.Context(), heldClaim{Claim: Claim{NamespacedName: types.NamespacedName{Namespace: "default", Name: "a"}, UID: claim.UID}}, "Prepared", partition{}); err != nil {
				t.Fatal(err)
			}
			return c
		},
	}, testing.Short())
}

func TestAForbiddenReadEndsNoClaim(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	r.hw.did()
	r.api.fail(apierrors.NewForbidden(resourcev1.Resource("resourceclaims"), "a", errors.New("no")))
	for range 3 {
		if err := r.pass(t.Context(), time.Now, r.seen); !apierrors.IsForbidden(err) {
			t.Errorf("%v, want the error of the API server", err)
		}
	}
	r.api.fail(nil)
	if err := r.pass(t.Context(), time.Now, r.seen); err != nil {
		t.Error(err)
	}
	r.expect("", "[a-uid] [a-uid]")
}

// TestAClaimThatEndsDuringAPass: its record was read, and a call ended it before the pass
// came to it.
func TestAClaimThatEndsDuringAPass(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.hw.did()
	for _, claim := range []*resourcev1.ResourceClaim{a, testClaim("never", "gpu-1")} {
		entry, _, _, err := r.look(t.Context(), claim.UID)
		if err != nil {
			t.Fatal(err)
		}
		for _, phase := range []Phase{Preparing, Prepared, Rebooted, Absent} {
			if err := r.endAs(t.Context(), r.claimOf(claim), entry.ID, phase, r.seen.gone); err != nil {
				t.Error(err)
			}
		}
	}
	r.expect("", nothing)
}

// mustPass makes a pass at now, and lets an interval pass.
func (r *rig) mustPass(now *time.Time) {
	r.t.Helper()
	if err := r.pass(r.t.Context(), at(*now), r.seen); err != nil {
		r.t.Fatal(err)
	}
	*now = now.Add(r.cfg.Interval)
}

// TestAPassForgetsClaims: what it remembers of a claim ends with the claim, or a claim that
// comes back under its UID would be ended at once.
func TestAPassForgetsClaims(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	now := time.Now()
	pass := func() { r.mustPass(&now) }
	r.mustPrepare(a, "mig-1")
	pass()
	if len(r.seen.gone) != 1 {
		t.Errorf("%v is gone", r.seen.gone)
	}
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	pass()
	r.api.put(a)
	r.mustPrepare(a, "mig-2")
	r.api.claims = nil
	pass()
	r.api.put(a) // a Pod uses it again, and the time without one begins again
	pass()
	r.api.claims = nil
	pass()
	r.expect("prepare a mig-1, unprepare a Prepared mig-1, prepare a mig-2", "[a-uid] [a-uid]")
}

// newFreed returns a rig with claim a, which is prepared. free is a after its Pod, without
// an allocation. A first pass has seen that; pass makes the next, an interval later.
func newFreed(t *testing.T) (r *rig, a, free *resourcev1.ResourceClaim, pass func()) {
	t.Helper()
	r = newRig(t)
	a, free = testClaim("a", "gpu-0"), testClaim("a")
	free.Status.Allocation, free.Status.ReservedFor = nil, nil
	now := time.Now()
	pass = func() { t.Helper(); r.mustPass(&now) }
	r.mustPrepare(a, "mig-1")
	r.api.put(free)
	pass()
	return r, a, free, pass
}

// TestTheIntervalBeginsAgainWithAnotherPreparation: between two passes the kubelet
// unprepares a claim and prepares it for another Pod, which goes too. The containers of
// that Pod may still run.
func TestTheIntervalBeginsAgainWithAnotherPreparation(t *testing.T) {
	r, a, free, pass := newFreed(t)
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.api.put(a)
	r.mustPrepare(a, "mig-1") // its state and devices are the same
	r.api.put(free)
	r.hw.did()
	pass()
	r.expect("", "[a-uid] [a-uid]")
	pass()
	r.expect("unprepare a Prepared mig-1", nothing)
}

// TestAClaimThatIsPreparedAgainDuringAPass: the pass has read the record of a, and ends x
// first. In the meantime a is prepared with the device of another allocation.
func TestAClaimThatIsPreparedAgainDuringAPass(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("x", "gpu-1"), "mig-0")
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	now := time.Now()
	if err := r.pass(t.Context(), at(now), r.seen); err != nil {
		t.Fatal(err)
	}
	r.hw.did()
	r.cfg.Unprepare = func(ctx context.Context, claim Claim, state partition, phase Phase) error {
		if claim.Name == "x" {
			again := testClaim("a", "gpu-7")
			r.api.put(again)
			r.mustPrepare(again, "mig-2")
		}
		return r.hw.unprepare(ctx, claim, state, phase)
	}
	for range 3 {
		now = now.Add(r.cfg.Interval)
		if err := r.pass(t.Context(), at(now), r.seen); err != nil {
			t.Fatal(err)
		}
	}
	r.expect("unprepare a Prepared mig-1, prepare a mig-2, unprepare x Prepared mig-0", "[a-uid] [a-uid]")
}

// TestAClaimThatIsUsedAgainDuringAPass: the pass has read that the claim has lost its
// devices. Before it has the lock, the claim gets the same devices again, and a kubelet
// prepares it for the next Pod, which finds it prepared.
func TestAClaimThatIsUsedAgainDuringAPass(t *testing.T) {
	r, a, free, pass := newFreed(t)
	r.hw.did()
	r.api.answered = func() {
		r.api.put(a)
		r.mustPrepare(a, "mig-2")
	}
	pass()
	r.expect("", "[a-uid] [a-uid]")

	// The Pod ends, and the kubelet has the whole interval again.
	r.api.put(free)
	pass()
	r.expect("", "[a-uid] [a-uid]")
	pass()
	r.expect("unprepare a Prepared mig-1", nothing)
}

// TestARecordWithoutAnID is of an older version.
func TestARecordWithoutAnID(t *testing.T) {
	r := newRig(t)
	err := r.Store.disk.transact(t.Context(), func(*journal.Log) error {
		return r.Store.disk.add(journal.Entry{UID: "a-uid", Name: "a", Phase: journal.Prepared, Boot: "boot-1", State: json.RawMessage(`{"id":"mig-1"}`)})
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, want := range []string{"", "unprepare a Prepared mig-1"} {
		if err := r.pass(t.Context(), at(now), r.seen); err != nil {
			t.Fatal(err)
		}
		r.expect(want, nothing)
		now = now.Add(r.cfg.Interval)
	}
}

// TestAClaimThatMovedAndWasUndoneInPart: it is in use, with another device. What is left
// of its first preparation must not keep the device from other claims.
func TestAClaimThatMovedAndWasUndoneInPart(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	r.api.put(testClaim("a", "gpu-7")) // on another node, or the kubelet has forgotten it
	now := time.Now()
	if err := r.pass(t.Context(), at(now), r.seen); err != nil {
		t.Fatal(err)
	}
	now = now.Add(r.cfg.Interval)
	r.hw.did()
	r.hw.failing = errors.New("busy")
	if err := r.pass(t.Context(), at(now), r.seen); !errors.Is(err, r.hw.failing) {
		t.Fatal(err)
	}
	r.expect("unprepare a Prepared mig-1", "[a-uid] [a-uid]")
	r.hw.failing = nil
	if err := r.pass(t.Context(), at(now), r.seen); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Preparing mig-1", nothing)
}

// TestAClaimWithAdminAccessThatIsNoLongerAllocated holds no device, and has a state.
func TestAClaimWithAdminAccessThatIsNoLongerAllocated(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	a.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	r.api.put(a)
	r.mustPrepare(a, "mig-1")
	now := time.Now()
	for range 3 {
		if err := r.pass(t.Context(), at(now), r.seen); err != nil {
			t.Fatal(err)
		}
		now = now.Add(r.cfg.Interval)
	}
	r.expect("prepare a mig-1", "[a-uid] [a-uid]")
	free := testClaim("a")
	free.Status.Allocation = nil
	r.api.put(free)
	for range 2 {
		if err := r.pass(t.Context(), at(now), r.seen); err != nil {
			t.Fatal(err)
		}
		now = now.Add(r.cfg.Interval)
	}
	r.expect("unprepare a Prepared mig-1", nothing)
}
