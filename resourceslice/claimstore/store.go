// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

// A Store records the claims of one driver on one node. Its methods may be called
// by any goroutine, and by several processes with one directory.
type Store[S any] struct {
	cfg   Config[S]
	disk  *disk
	locks *locks

	restores callback.Room[S] // calls of Config.Restore by Run

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	wake     chan struct{} // has a token if Run must begin a pass now
}

// Open opens the store in a directory, and creates the directory if it is missing.
// A store holds no file open and needs no Close.
//
// Open returns an error that lists every invalid field, and errors about the
// directory: it can't be read, another user may write it, it belongs to another
// driver (ErrDriver) or a newer version (ErrVersion). Damaged records are no error
// of Open; see Unreadable. Open waits while another process writes, which takes
// milliseconds.
func Open[S any](ctx context.Context, cfg Config[S]) (*Store[S], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return open(ctx, cfg, durable.Dir(cfg.Dir, journalFile, lockFile), opener(filepath.Join(cfg.Dir, lockFile)))
}

// open opens the store on a disk. If openLocks is nil, no other process may use it.
func open[S any](ctx context.Context, cfg Config[S], fs durable.FS, openLocks func() (*os.File, error)) (*Store[S], error) {
	s := &Store[S]{
		cfg:      cfg,
		disk:     newDisk(cfg.Driver, fs),
		locks:    &locks{open: openLocks, busy: map[string]chan struct{}{}},
		restores: callback.Room[S]{Name: "Config.Restore", Limit: restoreLimit},
		ready:    lifecycle.NewReady(cfg.Name),
		// A pass may wait for a call of Config.Unprepare.
		progress: lifecycle.NewProgress(cfg.Name, 2*cfg.Interval+10*time.Minute),
		wake:     make(chan struct{}, 1),
	}
	if err := s.disk.transact(ctx, func(*journal.Log) error { return nil }); err != nil {
		return nil, fmt.Errorf("claimstore: open %s: %w", cfg.Dir, err)
	}
	return s, nil
}

// Prepare prepares a claim unless it is prepared already, and returns its state.
//
// The function f does the work. Before its first side effect that must be undone
// it calls begin with a state from which Config.Unprepare can undo everything that
// may follow. When begin returns nil, that state is on the disk; f may call begin
// again with more. The state that f returns is on the disk when Prepare returns.
// A function without such side effects does not call begin, which saves a write.
//
// f may call List, for example to choose CPUs that no other claim has. While it runs, no
// other call prepares a claim with the same device or with a share of it, so two claims
// can't choose the same part of a device. Claims of different devices can choose at the same
// time.
//
// A claim that is prepared for the same allocation costs no call of f and no write, but a
// call of Config.Restore if that is set.
// What an attempt that was cut off, another allocation of the claim, or an earlier
// boot has left is undone by Config.Unprepare before f is called. If the claim is
// prepared for another allocation, the API server must say that it lost that one.
//
// Calls for one claim wait for each other, also across processes, and so do calls
// for one device. Prepare returns a *DeviceHeldError if another claim holds one of
// the devices; Run then looks at once whether that claim still has it. It returns
// ErrNotAllocated, ErrNotInUse, ErrNotUndone, an *UnreadableError, the error of f or of
// Config.Restore, or an error about the disk. A kubelet calls again after each of them.
//
// The states that f passes on are encoded by encoding/json, once.
func (s *Store[S]) Prepare(ctx context.Context, claim *resourcev1.ResourceClaim, f func(ctx context.Context, begin func(S) error) (S, error)) (state S, err error) {
	c := s.claimOf(claim)
	defer func() {
		if err != nil {
			err = fmt.Errorf("claimstore: prepare ResourceClaim %s: %w", c, err)
		}
	}()
	if c.UID == "" || claim.Status.Allocation == nil || !s.allocated(claim) {
		return state, ErrNotAllocated
	}
	names := []string{claimLock(c.UID)}
	for _, d := range c.Devices {
		// The first one is for all shares of the device, and is what Sweep takes.
		names = append(names, deviceLock(Device{Pool: d.Pool, Name: d.Name}), deviceLock(d))
	}
	unlock, err := s.locks.lock(ctx, names...)
	if err != nil {
		return state, err
	}
	defer func() { unlock() }()

	exclusive, err := s.exclusive(c.Devices)
	if err != nil {
		return state, err
	}
	before, exists, busy, err := s.look(ctx, c.UID, exclusive...)
	if err != nil {
		return state, err
	}
	if exists && before.Ended {
		if err := s.checkInUse(ctx, c); err != nil {
			return state, err
		}
	}
	if exists && !before.Ended {
		held, state, phase, err := s.decode(before)
		switch {
		case phase == Unreadable:
			return state, &UnreadableError{Claim: held.Claim, Err: err}
		case phase == Prepared && s.holds(claim, held):
			release := unlock
			unlock = func() {} // the call of Config.Restore has the locks
			return s.restore(ctx, &callback.Room[S]{Name: "Config.Restore", Limit: restoreLimit}, held, state, release)
		case phase == Prepared: // the call may be older than the record
			if err := s.checkInUse(ctx, c); err != nil {
				var none S
				return none, err
			}
		}
		if err := s.undo(ctx, held, state, phase); err != nil {
			return state, fmt.Errorf("%w: %w", ErrNotUndone, err)
		}
	}
	if busy != nil {
		select {
		case s.wake <- struct{}{}:
		default:
		}
		return state, busy
	}

	returned := false // begin has no meaning once f has returned
	var mu sync.Mutex
	begin := func(state S) error {
		mu.Lock()
		defer mu.Unlock()
		if returned {
			return errors.New("claimstore: begin was called after the function had returned")
		}
		return s.record(ctx, c, journal.Preparing, state)
	}
	state, err = callback.Get("the function of Prepare", func() (S, error) { return f(ctx, begin) })
	mu.Lock()
	returned = true
	mu.Unlock()
	if err != nil {
		var none S
		return none, err
	}
	// The work is done: the end of the call's context must not lose the record of it.
	write, cancel := lifecycle.Shutdown(ctx, callTimeout)
	defer cancel()
	return state, s.record(write, c, journal.Prepared, state)
}

// Unprepare calls Config.Unprepare for a claim and records that the claim has
// ended. It returns nil at once for a claim that has ended. The namespace and the
// name are used if there is no record of the claim, with the phase Absent.
//
// It returns the error of Config.Unprepare, or an error about the disk. The phase of
// the claim then is Preparing, because a part of it may be undone, and a kubelet calls
// again. A full disk is no reason for an error.
func (s *Store[S]) Unprepare(ctx context.Context, claim types.NamespacedName, uid types.UID) (err error) {
	c := heldClaim{Claim: Claim{NamespacedName: claim, UID: uid}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("claimstore: unprepare ResourceClaim %s: %w", c, err)
		}
	}()
	if uid == "" {
		return errors.New("the UID is missing")
	}
	unlock, err := s.locks.lock(ctx, claimLock(uid))
	if err != nil {
		return err
	}
	defer unlock()
	return s.end(ctx, c)
}

// end unprepares a claim whose lock the caller has.
func (s *Store[S]) end(ctx context.Context, c heldClaim) error {
	entry, exists, _, err := s.look(ctx, c.UID)
	switch {
	case err != nil:
		return err
	case exists && entry.Ended:
		return nil
	case exists:
		held, state, phase, _ := s.decode(entry)
		return s.undo(ctx, held, state, phase)
	}
	var none S
	if err := s.undo(ctx, c, none, Absent); err != nil {
		return err
	}
	write, cancel := lifecycle.Shutdown(ctx, callTimeout)
	defer cancel()
	err = s.disk.transact(write, func(*journal.Log) error {
		return s.disk.add(journal.Entry{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, Phase: journal.Absent, Boot: s.cfg.BootID, Ended: true})
	})
	if err != nil {
		// The record would only keep an older call of Prepare away.
		klog.FromContext(ctx).V(2).Info("Could not record a claim that is unknown and unprepared", "claim", c, "err", err)
	}
	return nil
}

// undo calls Config.Unprepare and then records that the claim has ended. Before that it
// records that the claim is no longer as it was prepared.
func (s *Store[S]) undo(ctx context.Context, c heldClaim, state S, phase Phase) error {
	err := s.disk.transact(ctx, func(*journal.Log) error { return s.disk.mark(string(c.UID), journal.Undoing) })
	if err != nil {
		return err
	}
	err = callback.Contain("Config.Unprepare", func() error { return s.cfg.Unprepare(ctx, c.Claim, state, phase) })
	if err != nil {
		return err
	}
	write, cancel := lifecycle.Shutdown(ctx, callTimeout)
	defer cancel()
	err = s.disk.transact(write, func(*journal.Log) error { return s.disk.mark(string(c.UID), journal.Ended) })
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Unprepared a claim", "claim", c, "phase", phase)
	}
	return err
}

// entries returns the records of the claims that have not ended.
func (s *Store[S]) entries(ctx context.Context) (entries []journal.Entry, err error) {
	err = s.disk.transact(ctx, func(l *journal.Log) error {
		entries = slices.Collect(l.All())
		return nil
	})
	return entries, err
}

func (s *Store[S]) record(ctx context.Context, c heldClaim, phase journal.Phase, state S) error {
	encoded, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	entry := journal.Entry{ID: rand.Text(), UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, Phase: phase, Boot: s.cfg.BootID, Allocation: c.allocation, State: encoded}
	for _, d := range c.Devices {
		entry.Devices = append(entry.Devices, recorded(d))
	}
	for _, d := range c.AdminDevices {
		entry.Admin = append(entry.Admin, recorded(d))
	}
	return s.disk.transact(ctx, func(*journal.Log) error { return s.disk.add(entry) })
}

// recorded returns a device as a record has it.
func recorded(d Device) journal.Device {
	return journal.Device{Pool: d.Pool, Name: d.Name, ShareID: string(d.ShareID)}
}

// devicesOf returns the devices of a record.
func devicesOf(records []journal.Device) (devices []Device) {
	for _, d := range records {
		devices = append(devices, Device{Pool: d.Pool, Name: d.Name, ShareID: types.UID(d.ShareID)})
	}
	return devices
}

// decode returns what the record of a claim means on this boot. The error says why
// the phase is Unreadable.
func (s *Store[S]) decode(e journal.Entry) (c heldClaim, state S, phase Phase, err error) {
	c.NamespacedName, c.UID, c.allocation = types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, types.UID(e.UID), e.Allocation
	c.trusted = e.Trusted
	c.Devices, c.AdminDevices = devicesOf(e.Devices), devicesOf(e.Admin)
	if e.Unreadable {
		return c, state, Unreadable, errors.New("it is damaged, or of a newer version of claimstore")
	}
	if err := json.Unmarshal(e.State, &state); err != nil {
		var none S
		return c, none, Unreadable, err
	}
	switch {
	case e.Boot != s.cfg.BootID:
		phase = Rebooted
	case e.Phase == journal.Prepared && !e.Undoing:
		phase = Prepared
	default:
		phase = Preparing
	}
	return c, state, phase, nil
}

// exclusive returns the devices that only one claim may hold.
func (s *Store[S]) exclusive(devices []Device) ([]Device, error) {
	return callback.Get("Config.Shared", func() ([]Device, error) {
		return slices.DeleteFunc(slices.Clone(devices), s.cfg.Shared), nil
	})
}

// look returns the record of a claim, and a *DeviceHeldError if another claim holds
// one of the devices.
func (s *Store[S]) look(ctx context.Context, uid types.UID, devices ...Device) (entry journal.Entry, exists bool, busy, err error) {
	err = s.disk.transact(ctx, func(l *journal.Log) error {
		entry, exists = l.Get(string(uid))
		for _, d := range devices {
			if holder, held := l.Holder(string(uid), recorded(d)); held {
				other, _, _, _ := s.decode(holder)
				busy = &DeviceHeldError{Device: d, Holder: other.Claim}
				break
			}
		}
		return nil
	})
	return entry, exists, busy, err
}

// checkInUse returns nil if the API server says that a Pod uses the claim with the
// allocation of c.
func (s *Store[S]) checkInUse(ctx context.Context, c heldClaim) error {
	now, err := s.read(ctx, c.Claim)
	if err != nil {
		return err
	}
	if now == nil || !s.inUse(now, c) {
		return ErrNotInUse
	}
	return nil
}

// read returns the claim of the API server, or nil if it does not exist.
func (s *Store[S]) read(ctx context.Context, c Claim) (*resourcev1.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now, err := s.cfg.Claims.ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	now, err = apierr.Answer(now, err, c.Name) // an empty answer of a proxy is none
	switch {
	case apierr.IsMissing(err, "resourceclaims", c.Name), err == nil && now.UID != c.UID:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return now, nil
}

// inUse reports whether a Pod may use the devices of c through the claim.
func (s *Store[S]) inUse(claim *resourcev1.ResourceClaim, c heldClaim) bool {
	return s.holds(claim, c) && len(claim.Status.ReservedFor) > 0
}

// holds reports whether the claim has the allocation of c, as far as the driver is
// concerned. If that has no digest, its devices are compared.
func (s *Store[S]) holds(claim *resourcev1.ResourceClaim, c heldClaim) bool {
	now := s.claimOf(claim)
	return s.allocated(claim) && slices.Equal(now.Devices, c.Devices) && (c.allocation == "" || c.allocation == now.allocation)
}

// allocated reports whether a device of the driver is allocated to the claim.
func (s *Store[S]) allocated(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return r.Driver == s.cfg.Driver })
}

// A heldClaim is a claim and what it was allocated.
type heldClaim struct {
	Claim
	allocation string // its digest, or empty for a record of an older version
	// trusted is set if the name and the devices are those that were recorded. A damaged
	// record may have others.
	trusted bool
}

// claimOf returns a claim with the devices that it holds, sorted.
func (s *Store[S]) claimOf(claim *resourcev1.ResourceClaim) (c heldClaim) {
	c.NamespacedName, c.UID = types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID
	if claim.Status.Allocation == nil {
		return c
	}
	c.allocation = s.digest(&claim.Status.Allocation.Devices)
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != s.cfg.Driver {
			continue
		}
		of := &c.Devices
		if ptr.Deref(r.AdminAccess, false) {
			of = &c.AdminDevices
		}
		*of = append(*of, Device{Pool: r.Pool, Name: r.Device, ShareID: ptr.Deref(r.ShareID, "")})
	}
	slices.SortFunc(c.Devices, compareDevices)
	slices.SortFunc(c.AdminDevices, compareDevices)
	return c
}

// digest returns a digest of what a driver reads of an allocation: which request has which
// device, and the configuration. It does not cover other fields: a newer version of the API
// may add some to an allocation, which is still the same one.
func (s *Store[S]) digest(allocation *resourcev1.DeviceAllocationResult) string {
	h := sha256.New()
	add := func(kind string, fields ...any) {
		line, _ := json.Marshal(append([]any{kind}, fields...)) // only texts, booleans and JSON
		h.Write(append(line, '\n'))
	}
	for _, r := range allocation.Results {
		if r.Driver == s.cfg.Driver {
			add("device", r.Request, r.Pool, r.Device, ptr.Deref(r.ShareID, ""), ptr.Deref(r.AdminAccess, false))
		}
	}
	for _, c := range allocation.Config {
		if c.Opaque != nil && c.Opaque.Driver == s.cfg.Driver {
			add("config", c.Source, strings.Join(c.Requests, " "), canonical(c.Opaque.Parameters.Raw))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// canonical returns JSON in a form that does not depend on who has encoded it, or the text
// if it is none.
func canonical(raw []byte) any {
	var value any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // large integers stay as they are
	if err := d.Decode(&value); err != nil {
		return string(raw)
	}
	return value
}

func compareDevices(a, b Device) int {
	return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(a.Name, b.Name), cmp.Compare(a.ShareID, b.ShareID))
}

func claimLock(uid types.UID) string { return "claim " + string(uid) }

func deviceLock(d Device) string {
	return "device " + d.Pool + "/" + d.Name + "/" + string(d.ShareID)
}
