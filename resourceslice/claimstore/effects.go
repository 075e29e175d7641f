// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

// restoreLimit is the deadline of a call of Config.Restore, and the time that Run waits for
// the lock of a claim. A kubelet gives a call of Prepare up after 45 s.
const restoreLimit = 30 * time.Second

// sweepLimit is the deadline of the function of Sweep. All other calls wait for it.
const sweepLimit = 10 * time.Second

// A Record is what the store knows about a claim that has not ended.
type Record[S any] struct {
	// Claim is the claim, with its devices.
	Claim Claim
	// State is the last state that the driver has passed on. It is the zero value if Phase
	// is Unreadable.
	State S
	// Phase is Preparing, Prepared, Rebooted or Unreadable.
	Phase Phase
	// Undoing is set if Config.Unprepare was called for the claim and has not succeeded, or
	// is being called. Any part of the work may be undone.
	Undoing bool
	// Err is an *UnreadableError if Phase is Unreadable, and nil otherwise.
	Err error
}

// List returns the records of all claims that have not ended, oldest first. All processes
// with the directory have written them, and each phase is included. Damaged lines that name
// no claim are not. The error is about the disk.
//
// A claim may be prepared or end when List has returned. So a list, or a filtered one, is
// no basis for removing what no claim uses; see [Store.Sweep].
func (s *Store[S]) List(ctx context.Context) ([]Record[S], error) {
	entries, err := s.entries(ctx)
	if err != nil {
		return nil, fmt.Errorf("claimstore: %w", err)
	}
	records := make([]Record[S], 0, len(entries))
	for _, e := range entries {
		claim, state, phase, err := s.decode(e)
		if err != nil {
			err = &UnreadableError{Claim: claim.Claim, Err: err}
		}
		records = append(records, Record[S]{Claim: claim.Claim, State: state, Phase: phase, Undoing: e.Undoing, Err: err})
	}
	return records, nil
}

// Sweep calls f to remove what is left of a device, if no claim uses the device or a share
// of it. The ShareID of device is ignored. Until f returns, no process with the directory
// can record that it prepares a claim, so f can't remove what another call is making. That
// is also true for processes with an older version of this package.
//
// Sweep returns the error of f, or without a call of f:
//
//   - a *DeviceHeldError if a record names the device. Its phase does not matter, and a
//     claim with admin access counts too. If the record is of an earlier boot, Run will end
//     it; so a driver calls Sweep when Ready is done.
//   - an error that wraps ErrIncomplete if the store can't know: a record is damaged so
//     that its devices are not certain, or an older version has written it, or the disk is
//     read-only. Lines that name no claim are in the file "damaged" of the directory. Once
//     an administrator has seen that they stand for no running Pod, the file can be removed.
//   - an error about the disk.
//
// Other calls, also those of other processes, wait until f returns. The context of f
// ends after 10 s, and f must return then. It must not call the Store.
func (s *Store[S]) Sweep(ctx context.Context, device Device, f func(context.Context) error) (err error) {
	device.ShareID = ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("claimstore: sweep device %s of pool %s: %w", device.Name, device.Pool, err)
		}
	}()
	if s.locks.open != nil {
		file, err := s.locks.open()
		if err != nil {
			return fmt.Errorf("%w: there is no lock: %w", ErrIncomplete, err)
		}
		_ = file.Close() // it was only opened
	}
	unlock, err := s.locks.lock(ctx, deviceLock(device))
	if err != nil {
		return err
	}
	defer unlock()
	return s.disk.transact(ctx, func(l *journal.Log) error {
		aside, err := s.disk.aside()
		if err != nil {
			return err
		}
		user, used, err := l.User(device.Pool, device.Name, aside)
		switch {
		case err != nil:
			return err
		case used:
			claim, _, _, _ := s.decode(user)
			return &DeviceHeldError{Device: device, Holder: claim.Claim}
		}
		ctx, cancel := context.WithTimeout(ctx, sweepLimit)
		defer cancel()
		return callback.Contain("the function of Sweep", func() error { return f(ctx) })
	})
}

// restore calls Config.Restore for a claim that is prepared, and returns its state. The
// caller has the locks, and the call releases them when it has returned: restore may return
// before that, with a *callback.LateError or the error of ctx.
func (s *Store[S]) restore(ctx context.Context, room *callback.Room[S], c heldClaim, state S, release func()) (S, error) {
	if s.cfg.Restore == nil {
		release()
		return state, nil
	}
	var line callback.Line[S]
	return room.Ask(ctx, string(c.UID), &line, func(ctx context.Context) (none S, err error) {
		defer release()
		now, err := s.cfg.Restore(ctx, c.Claim, state)
		if err != nil {
			return none, err
		}
		before, err := json.Marshal(state)
		if err != nil {
			return none, fmt.Errorf("encode the state: %w", err)
		}
		after, err := json.Marshal(now)
		if err != nil {
			return none, fmt.Errorf("encode the state: %w", err)
		}
		if string(before) == string(after) {
			return state, nil // fields of a newer version stay in the record
		}
		write, cancel := lifecycle.Shutdown(ctx, callTimeout)
		defer cancel()
		if err := s.record(write, c, journal.Prepared, now); err != nil {
			return none, err
		}
		return now, nil
	})
}

// restoreAgain is restore for Run. It does nothing if the record has changed: another call
// has prepared or restored the claim then, or it has ended.
func (s *Store[S]) restoreAgain(ctx context.Context, room *callback.Room[S], c heldClaim, record string) error {
	unlock, err := s.lockForRun(ctx, c)
	if err != nil {
		return err
	}
	entry, exists, _, err := s.look(ctx, c.UID)
	if err != nil || !exists || entry.Ended || entry.ID != record {
		unlock()
		return err
	}
	held, state, phase, _ := s.decode(entry)
	if phase != Prepared {
		unlock()
		return nil
	}
	_, err = s.restore(ctx, room, held, state, unlock)
	return err
}

// lockForRun takes the lock of a claim. It does not wait without limit: a call for one claim
// may hang, and Run has others.
func (s *Store[S]) lockForRun(ctx context.Context, c heldClaim) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	unlock, err = s.locks.lock(ctx, claimLock(c.UID))
	if err != nil {
		return nil, fmt.Errorf("wait for another call for the claim: %w", err)
	}
	return unlock, nil
}
