// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

// restoring makes the driver look at its files, and make those that are missing. A new one
// has another ID.
func (h *hardware) restore(_ context.Context, claim Claim, state partition) (partition, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf("restore %s %s", claim.Name, state.ID))
	if h.failing != nil {
		return state, h.failing
	}
	if h.files[claim.UID] == "" {
		state.ID += "+"
		h.files[claim.UID] = state.ID
	}
	return state, nil
}

// TestPrepareRestoresWhatIsMissing: the boot is the same, and the directory of files is not.
func TestPrepareRestoresWhatIsMissing(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	r.hw.did()
	r.cfg.Restore = r.hw.restore
	changes := r.disk.Changes()
	r.mustPrepare(a, "never")
	r.expect("restore a mig-1", "[a-uid] [a-uid]")
	if n := r.disk.Changes() - changes; n != 0 {
		t.Errorf("a state that is the same was written in %d changes of the disk", n)
	}

	clear(r.hw.files)
	r.hw.failing = errors.New("no space")
	if state, err := r.prepare(a, "never"); !errors.Is(err, r.hw.failing) || state != (partition{}) {
		t.Errorf("%+v, %v, want the error of Restore", state, err)
	}
	if got, want := r.list(), "a Prepared mig-1"; got != want {
		t.Errorf("%q after an error, want %q", got, want)
	}
	r.hw.failing = nil
	if state, err := r.prepare(a, "never"); err != nil || state.ID != "mig-1+" {
		t.Errorf("%+v, %v, want the new state", state, err)
	}
	r.hw.did()
	r.open("boot-1") // without Restore
	if state, err := r.prepare(a, "never"); err != nil || state.ID != "mig-1+" {
		t.Errorf("%+v, %v in the next process, want the new state", state, err)
	}
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Prepared mig-1+", nothing)
}

// TestRestoreIsForPreparedClaims: not for one that is half prepared, of another boot or
// another allocation.
func TestRestoreIsForPreparedClaims(t *testing.T) {
	r := newRig(t)
	open := func(boot string) { r.open(boot); r.cfg.Restore = r.hw.restore }
	open("boot-1")
	a := testClaim("a", "gpu-0")
	if err := r.record(t.Context(), r.claimOf(a), journal.Preparing, partition{ID: "mig-0"}); err != nil {
		t.Fatal(err)
	}
	r.mustPrepare(a, "mig-1")
	other := testClaim("a", "gpu-1")
	r.api.put(other)
	r.mustPrepare(other, "mig-2")
	open("boot-2")
	r.mustPrepare(other, "mig-3")
	r.expect("unprepare a Preparing mig-0, prepare a mig-1, unprepare a Prepared mig-1, prepare a mig-2, unprepare a Rebooted mig-2, prepare a mig-3", "[a-uid] [a-uid]")
}

// TestRestoreKeepsFieldsOfANewerVersion: a state that does not change is not written.
func TestRestoreKeepsFieldsOfANewerVersion(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	type newer struct {
		partition
		Field string `json:"field"`
	}
	s, err := open(t.Context(), Config[newer]{Driver: driver, BootID: "boot-1", Shared: func(Device) bool { return false }}, r.disk, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), a, func(context.Context, func(newer) error) (newer, error) {
		return newer{partition{"mig-1", "done"}, "kept"}, nil
	}); err != nil {
		t.Fatal(err)
	}
	r.hw.files[a.UID] = "mig-1"
	r.open("boot-1")
	r.cfg.Restore = r.hw.restore
	r.mustPrepare(a, "never")
	if data, _ := r.disk.Data(journalFile); !strings.Contains(string(data), `"field":"kept"`) {
		t.Errorf("the field is gone:\n%s", data)
	}
}

func TestAPanicOfRestoreIsAnError(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	r.cfg.Restore = func(context.Context, Claim, partition) (partition, error) { panic("boom") }
	if _, err := r.prepare(a, "never"); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("%v, want the panic", err)
	}
	if err := r.unprepare(a); err != nil {
		t.Error(err)
	}
}

// TestRunRestoresOnce: at the start, after the work for claims that end, and no claim that
// has lost its devices.
func TestRunRestoresOnce(t *testing.T) {
	bubble(t, func(r *running) {
		cutOff := r.create("cut", "gpu-3")
		if err := r.record(t.Context(), r.claimOf(cutOff), journal.Preparing, partition{ID: "mig-3"}); err != nil {
			t.Fatal(err)
		}
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		r.mustPrepare(r.create("gone", "gpu-1"), "mig-2")
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", "gone")
		apitest.Edit(r.server, "ns", "cut", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil })
		clear(r.hw.files)
		r.cfg.Restore = r.hw.restore
		r.run()
		<-r.Ready().Done()
		if got, want := r.hw.did(), "unprepare cut Preparing mig-3, restore a mig-1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		r.mustPrepare(r.create("later", "gpu-4"), "mig-5")
		time.Sleep(time.Hour)
		if got, want := r.hw.did(), "unprepare gone Prepared mig-2, restore later mig-5"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestARestoreThatFailsIsTriedAgain: Ready stays open until it succeeds, and the error is
// reported once. An API server that does not answer has not said that the claim is gone.
func TestARestoreThatFailsIsTriedAgain(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		clear(r.hw.files)
		r.hw.failing = errors.New("no space")
		r.cfg.Restore = r.hw.restore
		r.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-r.Ready().Done():
			t.Error("Ready is done")
		default:
		}
		if len(r.tells) != 1 || !strings.Contains(r.tells[0], "restore ResourceClaim ns/a") || !strings.Contains(r.tells[0], "no space") {
			t.Errorf("reports: %q", r.tells)
		}
		r.hw.mu.Lock()
		r.hw.failing = nil
		r.hw.mu.Unlock()
		apiAway := r.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		time.Sleep(2 * time.Minute)
		if got := r.hw.left(); !strings.HasSuffix(got, "[a-uid]") {
			t.Errorf("%s, want that the file is there", got)
		}
		apiAway()
		time.Sleep(time.Minute)
		<-r.Ready().Done()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestARestoreThatHangs holds up neither Run nor other claims. Unprepare of its claim comes
// when it has returned, and not before.
func TestARestoreThatHangs(t *testing.T) {
	bubble(t, func(r *running) {
		var wait sync.WaitGroup
		for i := range 20 { // one after the other they would take 10 minutes
			r.mustPrepare(r.create(fmt.Sprint("hangs", i), fmt.Sprint("gpu-", i)), "mig")
		}
		r.mustPrepare(r.create("a", "gpu-a"), "mig-1")
		gone := r.create("gone", "gpu-gone")
		r.mustPrepare(gone, "mig-2")
		apitest.Remove[*resourcev1.ResourceClaim](r.server, "ns", "gone")
		release := make(chan struct{})
		r.cfg.Restore = func(ctx context.Context, claim Claim, state partition) (partition, error) {
			if strings.HasPrefix(claim.Name, "hangs") {
				<-release // ignores its context
				return state, nil
			}
			return r.hw.restore(ctx, claim, state)
		}
		r.run()
		time.Sleep(time.Second)
		if got, want := r.hw.did(), "restore a mig-1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
		defer cancel()
		hangs := apitest.Get[*resourcev1.ResourceClaim](r.server, "ns", "hangs0")
		name := types.NamespacedName{Namespace: "ns", Name: "hangs0"}
		if err := r.Unprepare(ctx, name, hangs.UID); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Unprepare during the call: %v, want DeadlineExceeded", err)
		}
		if _, err := r.Prepare(ctx, hangs, r.hw.prepare(hangs, "never")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Prepare during the call: %v, want DeadlineExceeded", err)
		}
		time.Sleep(3 * DefaultInterval)
		if got, want := r.hw.did(), "unprepare gone Prepared mig-2"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		wait.Go(func() {
			if err := r.Unprepare(r.t.Context(), name, hangs.UID); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(release)
		wait.Wait()
		if got, want := r.hw.did(), "unprepare hangs0 Prepared mig"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		<-r.Ready().Done()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestRunReturnsAfterRestore: a call that was left has ended when Run returns.
func TestRunReturnsAfterRestore(t *testing.T) {
	bubble(t, func(r *running) {
		r.mustPrepare(r.create("a", "gpu-0"), "mig-1")
		returned := false
		r.cfg.Restore = func(_ context.Context, _ Claim, state partition) (partition, error) {
			time.Sleep(2 * restoreLimit)
			returned = true
			return state, nil
		}
		r.run()
		time.Sleep(time.Second)
		if err := r.stop(); err != nil || !returned {
			t.Errorf("%v; Restore has returned: %v", err, returned)
		}
	})
}

// sweep returns what Sweep says of a device: "swept", or why not.
func (r *rig) sweep(device string) string {
	swept := false
	err := r.Sweep(r.t.Context(), Device{Pool: "n1", Name: device, ShareID: "ignored"}, func(context.Context) error {
		swept = true
		return nil
	})
	held, ok := errors.AsType[*DeviceHeldError](err)
	switch {
	case swept && err == nil:
		return "swept"
	case !swept && ok:
		return "used by " + held.Holder.Name
	case !swept && errors.Is(err, ErrIncomplete):
		return "unknown"
	}
	return fmt.Sprintf("swept is %v, %v", swept, err)
}

func (r *rig) expectSweeps(want map[string]string) {
	r.t.Helper()
	for device, want := range want {
		if got := r.sweep(device); got != want {
			r.t.Errorf("%s: %s, want %s", device, got, want)
		}
	}
}

// TestSweep calls its function only for a device that no record names, in whatever phase.
func TestSweep(t *testing.T) {
	r := newRig(t)
	share, admin := testClaim("share", "gpu-1"), testClaim("admin", "gpu-2")
	share.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("s1"))
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	r.mustPrepare(testClaim("boot", "gpu-7"), "mig-7")
	r.open("boot-2")
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	r.mustPrepare(share, "mig-2")
	r.mustPrepare(admin, "mig-3")
	r.mustPrepare(testClaim("ended", "gpu-3"), "mig-4")
	if err := r.unprepare(testClaim("ended", "gpu-3")); err != nil {
		t.Fatal(err)
	}
	r.mustPrepare(testClaim("busy", "gpu-4"), "mig-5")
	r.hw.failing = errors.New("busy")
	if err := r.unprepare(testClaim("busy", "gpu-4")); err == nil {
		t.Fatal("Unprepare succeeded")
	}
	if err := r.record(t.Context(), r.claimOf(testClaim("begun", "gpu-5")), journal.Preparing, partition{ID: "mig-6"}); err != nil {
		t.Fatal(err)
	}
	r.expectSweeps(map[string]string{
		"gpu-0": "used by a", "gpu-1": "used by share", "gpu-2": "used by admin", "gpu-3": "swept", "gpu-4": "used by busy",
		"gpu-5": "used by begun", "gpu-6": "swept", "gpu-7": "used by boot",
	})
	if got := r.list(); !strings.Contains(got, "admin Prepared mig-3") {
		t.Error(got)
	}
	no := errors.New("the device is stuck")
	if err := r.Sweep(t.Context(), Device{Pool: "n1", Name: "gpu-6"}, func(context.Context) error { return no }); !errors.Is(err, no) {
		t.Errorf("%v, want the error of the function", err)
	}
	if err := r.Sweep(t.Context(), Device{Pool: "n1", Name: "gpu-6"}, func(context.Context) error { panic("boom") }); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("%v, want the panic", err)
	}
	r.expectSweeps(map[string]string{"gpu-6": "swept"})
}

// TestSweepAfterDamage: what can't be read counts as used, also when the file was replaced.
func TestSweepAfterDamage(t *testing.T) {
	for name, tc := range map[string]struct {
		text, by string
		last     bool // the damaged record is the last one
		want     map[string]string
		after    string // of gpu-9 when the file was replaced and a was unprepared
	}{
		"a state":             {`"id":"of-a"`, `"id":"ox-a"`, false, map[string]string{"gpu-a": "used by a", "gpu-9": "swept"}, "swept"},
		"a state, last":       {`"id":"of-a"`, `"id":"ox-a"`, true, map[string]string{"gpu-a": "used by a", "gpu-9": "swept"}, "swept"},
		"a device":            {`"name":"gpu-a"`, `"name":"gpu-8"`, false, map[string]string{"gpu-a": "unknown", "gpu-8": "used by a", "gpu-9": "unknown"}, "swept"},
		"a UID":               {`"uid":"a-uid"`, `"uid":"x-uid"`, false, map[string]string{"gpu-a": "used by a", "gpu-9": "unknown"}, "unknown"},
		"the structure":       {`"uid":"a-uid"`, `?uid?:?a-uid?`, false, map[string]string{"gpu-a": "unknown", "gpu-9": "unknown"}, "unknown"},
		"the structure, last": {`"uid":"a-uid"`, `?uid?:?a-uid?`, true, map[string]string{"gpu-a": "unknown", "gpu-9": "unknown"}, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			plain := func(context.Context, func(partition) error) (partition, error) { return partition{ID: "of-a"}, nil }
			if _, err := r.Prepare(t.Context(), testClaim("a", "gpu-a"), plain); err != nil {
				t.Fatal(err)
			}
			if !tc.last {
				r.mustPrepare(testClaim("b", "gpu-b"), "of-b")
			}
			r.spoil(tc.text, tc.by)
			r.expectSweeps(tc.want)
			r.mustPrepare(testClaim("c", "gpu-c"), "of-c")
			r.open("boot-1")
			r.expectSweeps(tc.want)
			if err := r.unprepare(testClaim("a", "gpu-a")); err != nil {
				t.Fatal(err)
			}
			r.Store.disk.replace = true
			r.mustPrepare(testClaim("d", "gpu-d"), "of-d")
			r.open("boot-1")
			r.expectSweeps(map[string]string{"gpu-9": tc.after, "gpu-c": "used by c"})
			// An administrator has looked at the file, and removed it.
			r.disk.Put(damagedFile, nil)
			want := "swept"
			if name == "a UID" {
				want = "unknown" // the claim has another name: an error names it
			}
			r.expectSweeps(map[string]string{"gpu-9": want})
		})
	}
}

// TestSweepAfterTheRecordsWereLost: a file that is empty or has zeros had the records of Pods
// that run. It is reported, and nothing is swept until an administrator has looked.
func TestSweepAfterTheRecordsWereLost(t *testing.T) {
	for _, spoilt := range []string{"", strings.Repeat("\x00", 500)} {
		r := newRig(t)
		r.mustPrepare(testClaim("a", "gpu-a"), "of-a")
		r.disk.Put(journalFile, []byte(spoilt))
		r.open("boot-1")
		r.expectSweeps(map[string]string{"gpu-a": "unknown"})
		if err := r.pass(t.Context(), time.Now, r.seen); err != nil || len(r.tells) != 1 {
			t.Errorf("%v, reports: %q", err, r.tells)
		}
		r.mustPrepare(testClaim("b", "gpu-b"), "of-b")
		r.open("boot-1")
		r.expectSweeps(map[string]string{"gpu-a": "unknown", "gpu-b": "used by b"})
		r.disk.Put(damagedFile, nil) // as an administrator does who has looked
		r.expectSweeps(map[string]string{"gpu-a": "swept"})
	}
}

// TestSweepOfRecordsOfOtherVersions: an older one has not recorded devices with admin access,
// and a newer one may have recorded devices elsewhere.
func TestSweepOfRecordsOfOtherVersions(t *testing.T) {
	for name, change := range map[string]func(*journal.Entry) []byte{
		"older": func(e *journal.Entry) []byte { return line(t, e, 1, "") },
		"newer": func(e *journal.Entry) []byte { return line(t, e, 2, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.mustPrepare(testClaim("b", "gpu-b"), "mig-1")
			data, _ := r.disk.Data(journalFile)
			e := journal.Entry{UID: "a-uid", Namespace: "ns", Name: "a", Boot: "boot-1", Phase: journal.Prepared, State: json.RawMessage(`{}`), Devices: []journal.Device{{Pool: "n1", Name: "gpu-a"}}}
			r.disk.Put(journalFile, append(bytes.Clone(data), change(&e)...))
			r.open("boot-1")
			r.expectSweeps(map[string]string{"gpu-a": "used by a", "gpu-9": "unknown"})
			if err := r.unprepare(testClaim("a", "gpu-a")); err != nil {
				t.Fatal(err)
			}
			r.expectSweeps(map[string]string{"gpu-a": "swept", "gpu-9": "swept"})
		})
	}
}

// line returns the line of a record with this version and identity.
func line(t *testing.T, e *journal.Entry, version int, identity string) []byte {
	t.Helper()
	e.V, e.Identity = version, identity
	object, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return journal.Seal(object)
}

// TestADamagedNameEndsNoClaim: the API server has no claim of that name, and the Pod of the
// claim runs.
func TestADamagedNameEndsNoClaim(t *testing.T) {
	for text, ends := range map[string]bool{
		`"name":"a","phase"`: false, // the name is another one
		`"id":"mig-1"`:       true,  // the name is certain
	} {
		r := newRig(t)
		a := testClaim("a", "gpu-0")
		r.mustPrepare(a, "mig-1")
		r.mustPrepare(testClaim("b", "gpu-1"), "mig-2")
		if !ends {
			r.api.put(a)
		}
		r.api.put(testClaim("b", "gpu-1"))
		r.spoil(text, strings.NewReplacer(`"a"`, `"q"`, "mig-1", "mix-1").Replace(text))
		r.hw.did()
		now := time.Now()
		for range 3 {
			r.mustPass(&now)
		}
		want := ""
		if ends {
			want = "unprepare a Unreadable"
		}
		if got := r.hw.did(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if err := r.unprepare(a); err != nil { // the kubelet knows the claim by its UID
			t.Fatal(err)
		}
		if left := r.hw.left(); left != "[b-uid] [b-uid]" {
			t.Errorf("%s: %s is left", text, left)
		}
	}
}

func TestSweepOnAReadOnlyDisk(t *testing.T) {
	r := newRig(t)
	r.locks.open = func() (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: lockFile, Err: syscall.EROFS} }
	r.expectSweeps(map[string]string{"gpu-0": "unknown"})
}

// TestSweepExcludesPrepare: of the device and of its shares, by this process and by others.
// An older version takes no lock of the device for a share, but must record its claim.
func TestSweepExcludesPrepare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	newStore := func(version string) *Store[partition] {
		cfg := nodeConfig(t.TempDir())
		cfg.Dir = dir
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if version == "older" {
			// As if its locks had other names.
			s.locks.open = opener(filepath.Join(t.TempDir(), "lock"))
		}
		return s
	}
	sweeper := newStore("")
	device := Device{Pool: "n1", Name: "gpu-0"}
	for i, version := range []string{"", "older", "same process"} {
		for j, share := range []types.UID{"", "s1"} {
			other := sweeper
			if version != "same process" {
				other = newStore(version)
			}
			claim := testClaim(fmt.Sprintf("c%d%d", i, j), device.Name)
			if share != "" {
				claim.Status.Allocation.Devices.Results[0].ShareID = &share
			}
			begun := false
			prepare := func(ctx context.Context) error {
				_, err := other.Prepare(ctx, claim, func(_ context.Context, begin func(partition) error) (partition, error) {
					err := begin(partition{ID: device.Name})
					begun = err == nil
					return partition{ID: device.Name}, err
				})
				return err
			}
			err := sweeper.Sweep(t.Context(), device, func(context.Context) error {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if err := prepare(ctx); !errors.Is(err, context.DeadlineExceeded) || begun {
					t.Errorf("%s %q: Prepare during Sweep: %v, and begin returned nil: %v", version, share, err, begun)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s %q: %v", version, share, err)
			}
			if err := prepare(t.Context()); err != nil {
				t.Errorf("%s %q: %v", version, share, err)
			}
			called := false
			err = sweeper.Sweep(t.Context(), device, func(context.Context) error { called = true; return nil })
			if held, ok := errors.AsType[*DeviceHeldError](err); !ok || called || held.Holder.UID != claim.UID {
				t.Errorf("%s %q: %v, want that the claim has it", version, share, err)
			}
			other.cfg.Unprepare = func(context.Context, Claim, partition, Phase) error { return nil }
			if err := other.Unprepare(t.Context(), types.NamespacedName{Namespace: "ns", Name: claim.Name}, claim.UID); err != nil {
				t.Error(err)
			}
		}
	}
}
