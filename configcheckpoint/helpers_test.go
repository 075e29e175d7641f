// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	testmain.Run(m)
}

// healthy is a Trial.Health that is content.
func healthy(context.Context) error { return nil }

const errReadOnly = syscall.EROFS

// slotSize is the length of a slot file.
const slotSize = 8192

// storeOn returns the store on a disk of a test.
func storeOn(disk durable.FS) *slotstore.Store {
	s, err := newStore(disk)
	if err != nil {
		panic(err)
	}
	return s
}

// stored returns the record that a store holds.
func stored(s *slotstore.Store) rollout.Record {
	if s.Record() == nil {
		return rollout.Empty()
	}
	r, err := rollout.Parse(s.Record())
	if err != nil {
		panic(err)
	}
	return r
}

// slotOf returns the content of a slot file that holds r.
func slotOf(r rollout.Record) ([]byte, error) {
	text, err := r.Encode()
	if err != nil {
		return nil, err
	}
	return slotstore.EncodeSlot(text)
}

// decodeSlot returns the record in the content of a slot file.
func decodeSlot(data []byte) (rollout.Record, error) {
	text, err := slotstore.DecodeSlot(data)
	if err != nil {
		return rollout.Record{}, err
	}
	return rollout.Parse(text)
}

// frame returns the content of a slot file with any text; the text may be too
// long.
func frame(text []byte) []byte {
	if slot, err := slotstore.EncodeSlot(text); err == nil {
		return slot
	}
	return fmt.Appendf(nil, "cc1 %d %x\n%s\n", len(text), sha256.Sum256(text), text)
}
