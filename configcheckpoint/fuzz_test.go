// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// someSlots returns slots of every kind, for the fuzzer to start from.
func someSlots(f *testing.F) [][]byte {
	var slots [][]byte
	for _, r := range []rollout.Record{
		rollout.Empty(),
		onTrial(record("A", "", ""), false),
		onTrial(record("B", "A", "Z"), true),
		rejected(record("A", "A", "Z"), "B", "C"),
		{Schema: 9, MinReader: 9, LKG: record("", "A", "").LKG},
	} {
		slot, err := slotOf(r)
		if err != nil {
			f.Fatal(err)
		}
		slots = append(slots, slot)
	}
	return append(slots, nil, make([]byte, slotSize), slots[1][:4096], append(slices.Clone(slots[2]), 'x'), []byte(strings.Repeat("x", slotSize+1)), frame([]byte("{}")), frame([]byte("null")), frame([]byte(`{"schema":1,"minReader":1,"gen":-1}`)))
}

// onTrial puts the assigned configuration of r on trial.
func onTrial(r rollout.Record, open bool) rollout.Record {
	r.Trial = &rollout.Trial{Digest: r.Assigned.Digest, Build: "1", Open: open, BootID: "boot"}
	return r
}

// rejected adds rejections by build 1.
func rejected(r rollout.Record, texts ...string) rollout.Record {
	for _, text := range texts {
		r.Rejected = append(r.Rejected, rollout.Rejection{Digest: ref(text).core().Digest, Build: "1", Reason: "Unhealthy", Message: text})
	}
	return r
}

// FuzzDecodeSlot: any bytes, and any JSON in a valid frame, make a record that
// can be written again or an error.
func FuzzDecodeSlot(f *testing.F) {
	for _, slot := range someSlots(f) {
		f.Add(slot, false)
		if _, text, ok := bytes.Cut(slot, []byte("\n")); ok {
			f.Add(bytes.TrimSpace(text), true)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, framed bool) {
		if framed {
			data = frame(data)
		}
		r, err := decodeSlot(data)
		if err != nil || r.MinReader > rollout.Schema {
			return
		}
		if err := r.Check(); err != nil {
			t.Errorf("a record that is not valid: %v", err)
		}
		again, err := slotOf(r)
		if err != nil {
			return // larger than this code writes
		}
		if back, err := decodeSlot(again); err != nil || !sameRecord(back, r) {
			t.Errorf("%+v came back as %+v, %v", r, back, err)
		}
	})
}

// FuzzBoot puts any bytes on the disk: with a Default no boot fails, nothing
// runs that the disk does not vouch for, and the node takes a new
// configuration.
func FuzzBoot(f *testing.F) {
	for _, a := range someSlots(f) {
		for _, b := range someSlots(f) {
			f.Add(a, b, []byte("A"), false)
		}
		f.Add(bytes.TrimSpace(a), []byte{}, []byte("A"), true)
	}
	f.Fuzz(func(t *testing.T, a, b, payload []byte, framed bool) {
		if framed {
			a, b = frame(a), frame(b)
		}
		disk := slottest.New()
		disk.Put(".", nil)
		disk.Put(slotstore.PayloadDir, nil)
		disk.Put(slotstore.SlotA, append([]byte{}, a...))
		disk.Put(slotstore.SlotB, append([]byte{}, b...))
		disk.Put(slotstore.PayloadPath(ref("A").Digest), append([]byte{}, payload...))
		m := newMachine(disk)
		for range 2 {
			if err := m.boot(); err != nil {
				t.Fatalf("boot: %v", err)
			}
			if m.active.Config != "default" && m.active.Config != "A" {
				t.Errorf("runs %q", m.active.Config)
			}
		}
		st := m.c.Status()
		if st.Reason == "" || st.Message == "" {
			t.Errorf("%+v", st)
		}
		err := m.deliver("next")
		if m.c.store.ReadOnly() != nil {
			if err == nil {
				t.Error("the store of a newer program was written")
			}
			return
		}
		// A record at the end of all generations is not one we could have
		// written; it must not panic, and that is all.
		if gen := stored(m.c.store).Gen; gen == 0 || gen > 1<<62 {
			return
		}
		if _, rejected := m.c.core.Rejection(ref("next").core().Digest); rejected {
			return
		}
		if err := m.boot(); err != nil || m.active.Config != "next" {
			t.Errorf("after a delivery: runs %q, %v; %v", m.active.Config, err, m.c.Status())
		}
	})
}

// FuzzFileSource puts any payload in the file.
func FuzzFileSource(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("a: b"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			source, err := File(path, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for p, err := range source.Payloads(ctx) {
				if empty := len(data) == 0; empty != (err != nil) || !empty && !bytes.Equal(p.Data, data) {
					t.Errorf("yielded %q, %v, want %q", p.Data, err, data)
				}
				break
			}
		})
	})
}

// FuzzDeliver hands any payload with any name to the controller.
func FuzzDeliver(f *testing.F) {
	f.Add([]byte("A"), "ConfigMap kube-system/agent[config.yaml]", "uid/1")
	f.Add([]byte("bad"), strings.Repeat("\xff\"", 500), strings.Repeat("<", 500))
	f.Add([]byte(nil), "", "\n")
	f.Fuzz(func(t *testing.T, data []byte, name, version string) {
		m := newMachine(slottest.New())
		if err := m.boot(); err != nil {
			t.Fatal(err)
		}
		m.l.payload = &Payload{Data: data, Unassign: data == nil, Name: name, Version: version}
		m.l.deliver(t.Context())
		if m.c.state.store != nil {
			t.Errorf("%v", m.c.state.store)
		}
		if err := m.boot(); err != nil {
			t.Fatal(err)
		}
		if want := string(data); data != nil && m.active.Config != want && !bytes.HasPrefix(data, []byte("bad")) && len(data) <= MaxPayloadSize {
			t.Errorf("runs %q, want %q", m.active.Config, want)
		}
	})
}
