// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable"
)

// errTooNew is wrapped by the reason for which this code must not write a store.
var errTooNew = errors.New("the store was written by a newer program")

// newStore returns the store of records in a directory.
func newStore(fs durable.FS) (*slotstore.Store, error) {
	empty, err := rollout.Empty().Encode()
	if err != nil {
		return nil, err
	}
	return slotstore.New(slotstore.Config{FS: fs, Parse: describe, Empty: empty, MaxPayload: MaxPayloadSize}), nil
}

// describe returns the facts about a record that the store needs.
func describe(text []byte) (slotstore.Info, error) {
	r, err := rollout.Parse(text)
	if err != nil {
		return slotstore.Info{}, err
	}
	info := slotstore.Info{Generation: r.Gen}
	for _, ref := range r.Refs() {
		info.Payloads = append(info.Payloads, ref.Digest)
	}
	if r.MinReader > rollout.Schema {
		info.ReadOnly = fmt.Errorf("%w: schema %d needs a reader of %d; this is %d", errTooNew, r.Schema, r.MinReader, rollout.Schema)
	}
	return info, nil
}

// storeReason returns the reason for an error of the store.
func storeReason(err error) Reason {
	switch {
	case errors.Is(err, errTooNew):
		return ReasonStoreTooNew
	case errors.Is(err, slotstore.ErrPayload):
		return ReasonCheckpointCorrupt
	case errors.Is(err, slotstore.ErrSlots):
		return ReasonStoreCorrupt
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ReasonStoreFull
	case errors.Is(err, syscall.EROFS):
		return ReasonStoreReadOnly
	}
	return ReasonStoreFailed
}

// transient reports whether e is a fault of the store that may pass.
func (e *ReasonError) transient() bool { return e != nil && rollout.Reason(e.Reason).Transient() }
