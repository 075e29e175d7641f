// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	testmain.Run(m)
}

// record is the record of these tests.
type record struct {
	Gen      uint64   `json:"gen"`
	Payloads []string `json:"payloads,omitempty"`
	Future   bool     `json:"future,omitempty"`
}

var errFuture = errors.New("of the future")

func parse(text []byte) (slotstore.Info, error) {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return slotstore.Info{}, err
	}
	info := slotstore.Info{Generation: r.Gen}
	for _, name := range r.Payloads {
		d, err := hex.DecodeString(name)
		if err != nil || len(d) != sha256.Size {
			return info, errors.New("not a digest: " + name)
		}
		info.Payloads = append(info.Payloads, slotstore.Digest(d))
	}
	if r.Future {
		info.ReadOnly = errFuture
	}
	return info, nil
}

func config(disk durable.FS) slotstore.Config {
	return slotstore.Config{FS: disk, Parse: parse, Empty: []byte(`{"gen":0}`), MaxPayload: 1 << 20}
}

// put saves payloads and commits a record that refers to them.
func put(s *slotstore.Store, texts ...string) error {
	r := record{Gen: slottest.Generation(s.Record()) + 1}
	for _, text := range texts {
		d := sha256.Sum256([]byte(text))
		if err := s.Save(d, []byte(text)); err != nil {
			return err
		}
		r.Payloads = append(r.Payloads, hex.EncodeToString(d[:]))
	}
	return s.Commit(encode(r))
}

func encode(r record) []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return text
}

// opened returns an open store on disk without damage.
func opened(t *testing.T, disk durable.FS) *slotstore.Store {
	t.Helper()
	s := slotstore.New(config(disk))
	if damage, err := s.Open(); err != nil || damage != nil {
		t.Fatalf("Open: %v, %v", damage, err)
	}
	return s
}

// holds checks that every payload that the record refers to can be read.
func holds(s *slotstore.Store) error {
	info, err := parse(s.Record())
	if err != nil {
		return err
	}
	for _, d := range info.Payloads {
		if _, err := s.Load(d); err != nil {
			return err
		}
	}
	return nil
}
