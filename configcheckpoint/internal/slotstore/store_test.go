// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// syncs records the directories that are flushed, and lets one of them fail.
type syncs struct {
	*slottest.Disk
	flushed []string
	fail    string
}

func (s *syncs) SyncDir(name string) error {
	if name == s.fail {
		return syscall.EIO
	}
	s.flushed = append(s.flushed, name)
	return s.Disk.SyncDir(name)
}

// TestParentIsFlushedUntilTheFirstCommitOnly: its entry is durable then, and a
// commit must not depend on a directory that is not ours.
func TestParentIsFlushedUntilTheFirstCommitOnly(t *testing.T) {
	disk := &syncs{Disk: slottest.New()}
	s := opened(t, disk)
	if !slices.Contains(disk.flushed, "..") {
		t.Errorf("an empty directory: flushed %q", disk.flushed)
	}
	if err := put(s, "A"); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []string{slotstore.SlotA, slotstore.SlotB} {
		disk.Put(slot, []byte{}) // Open repairs it, which makes the names uncertain
		disk.flushed = nil
		s = opened(t, disk)
		if err := put(s, "B"); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(disk.flushed, "..") || !slices.Contains(disk.flushed, ".") {
			t.Errorf("%s repaired: flushed %q, want the directory and not its parent", slot, disk.flushed)
		}
	}
}

// TestDamagedSlotsAreSetAside: if neither slot can be decoded, Open reports it and keeps
// both under another name for an administrator.
func TestDamagedSlotsAreSetAside(t *testing.T) {
	disk := slottest.New()
	s := opened(t, disk)
	if err := put(s, "A"); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []string{slotstore.SlotA, slotstore.SlotB} {
		disk.Put(slot, []byte("damaged "+slot))
	}
	s = slotstore.New(config(disk))
	damage, err := s.Open()
	if err != nil || !errors.Is(damage, slotstore.ErrSlots) {
		t.Errorf("Open: %v, %v; want %v", damage, err, slotstore.ErrSlots)
	}
	for _, slot := range []string{slotstore.SlotA, slotstore.SlotB} {
		if data, err := disk.ReadFile(slot+slotstore.BadSuffix, 100); string(data) != "damaged "+slot {
			t.Errorf("%s was set aside as %q, %v", slot, data, err)
		}
	}
}

// TestPayloadDirectoryMadeAgain: if p/ was removed, its new name is flushed before
// a record refers to a payload in it, and the error of that flush is returned.
func TestPayloadDirectoryMadeAgain(t *testing.T) {
	for name, twice := range map[string]bool{"removed once": false, "removed again": true} {
		t.Run(name, func(t *testing.T) { testPayloadDirectoryMadeAgain(t, twice) })
	}
}

func testPayloadDirectoryMadeAgain(t *testing.T, twice bool) {
	disk := &syncs{Disk: slottest.New()}
	s := opened(t, disk)
	if err := put(s, "A"); err != nil {
		t.Fatal(err)
	}
	remove := func() {
		for _, name := range disk.Files() {
			if strings.HasPrefix(name, slotstore.PayloadDir) {
				disk.Delete(name)
			}
		}
	}
	remove()
	disk.fail = "."
	if err := put(s, "B"); !errors.Is(err, syscall.EIO) {
		t.Errorf("a flush that fails: %v, want EIO", err)
	}
	if twice {
		remove()
	}
	disk.fail = ""
	if err := put(s, "B"); err != nil {
		t.Fatal(err)
	}
	for _, i := range disk.PowerCut(true) {
		s := opened(t, disk.Boot(i))
		if err := holds(s); err != nil {
			t.Errorf("%s: %v", i.What, err)
		}
	}
}

// TestPayloadThatExistsIsFlushed: the process that gave it its name may have died
// before it flushed the directory.
func TestPayloadThatExistsIsFlushed(t *testing.T) {
	disk := &syncs{Disk: slottest.New()}
	s := opened(t, disk)
	if err := put(s, "A"); err != nil {
		t.Fatal(err)
	}
	disk.flushed = nil
	if err := s.Save(sha256.Sum256([]byte("A")), []byte("A")); err != nil || !slices.Equal(disk.flushed, []string{slotstore.PayloadDir}) {
		t.Errorf("flushed %q, %v", disk.flushed, err)
	}
	disk.fail = slotstore.PayloadDir
	if err := s.Save(sha256.Sum256([]byte("A")), []byte("A")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a flush that fails: %v, want EIO", err)
	}
}

// TestUnreadableSlotIsNotWrittenOver with every method that writes.
func TestUnreadableSlotIsNotWrittenOver(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE} {
		for _, slot := range []string{slotstore.SlotA, slotstore.SlotB} {
			disk := slottest.New()
			s := opened(t, disk)
			if err := errors.Join(put(s, "A"), put(s, "B"), s.Close()); err != nil {
				t.Fatal(err)
			}
			disk.SetUnreadable(slot, errno)
			before := disk.Changes()
			s = slotstore.New(config(disk))
			if damage, err := s.Open(); err != nil || !errors.Is(damage, errno) || s.Unreadable() == nil {
				t.Fatalf("%v on %s: Open: %v, %v", errno, slot, damage, err)
			}
			gen := slottest.Generation(s.Record())
			if gen != 1 && gen != 2 {
				t.Errorf("%v on %s: generation %d", errno, slot, gen)
			}
			for what, err := range map[string]error{
				"Commit": s.Commit([]byte(`{"gen":3}`)), "Save": s.Save(sha256.Sum256([]byte("C")), []byte("C")),
				"Prune": s.Prune(), "SetNote": s.SetNote([]byte("x")),
			} {
				if !errors.Is(err, errno) {
					t.Errorf("%v on %s: %s: %v", errno, slot, what, err)
				}
			}
			if disk.Changes() != before {
				t.Errorf("%v on %s: the disk was changed", errno, slot)
			}
			disk.SetUnreadable(slot, nil)
			if damage, err := s.Open(); err != nil || damage != nil || s.Unreadable() != nil || slottest.Generation(s.Record()) != 2 {
				t.Errorf("%v on %s: readable again: %v, %v, %s", errno, slot, damage, err, s.Record())
			}
			if err := put(s, "C"); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRecordOfTheFutureIsNotWritten although it is in one slot only.
func TestRecordOfTheFutureIsNotWritten(t *testing.T) {
	for _, slot := range []string{slotstore.SlotA, slotstore.SlotB} {
		disk := slottest.New()
		s := opened(t, disk)
		if err := put(s, "A"); err != nil {
			t.Fatal(err)
		}
		data, err := slotstore.EncodeSlot(encode(record{Gen: 1, Future: true}))
		if err != nil {
			t.Fatal(err)
		}
		disk.Put(slot, data)
		s = slotstore.New(config(disk))
		if damage, err := s.Open(); err != nil || !errors.Is(damage, errFuture) || !strings.Contains(string(s.Record()), "future") {
			t.Errorf("%s: Open: %v, %v, %s", slot, damage, err, s.Record())
		}
		if err := s.Commit([]byte(`{"gen":2}`)); !errors.Is(err, errFuture) {
			t.Errorf("%s: Commit: %v", slot, err)
		}
	}
}

// TestNote survives a process, does not survive damage, and costs no flush.
func TestNote(t *testing.T) {
	disk := slottest.New()
	s := opened(t, disk)
	if s.Note() != nil {
		t.Errorf("a new store has the note %q", s.Note())
	}
	disk.ResetCounts()
	for _, text := range []string{"a long note of one process", "short"} {
		if err := s.SetNote([]byte(text)); err != nil {
			t.Fatal(err)
		}
		s = opened(t, disk.Clone())
		if string(s.Note()) != text {
			t.Errorf("the note is %q, want %q", s.Note(), text)
		}
		s = opened(t, disk)
	}
	if disk.Calls["flush"] != 0 {
		t.Errorf("%d flushes", disk.Calls["flush"])
	}
	disk.Put(slotstore.NoteFile, []byte("rot"))
	if s = opened(t, disk); s.Note() != nil {
		t.Errorf("a damaged note is %q", s.Note())
	}
	if err := errors.Join(s.SetNote([]byte("x")), s.SetNote(nil)); err != nil || s.Note() != nil {
		t.Errorf("removed: %q, %v", s.Note(), err)
	}
	if s = opened(t, disk); s.Note() != nil {
		t.Errorf("removed: %q", s.Note())
	}
	if err := s.SetNote(make([]byte, 2000)); err == nil {
		t.Error("a note that does not fit: no error")
	}
}

// TestWrongCalls return errors and change nothing.
func TestWrongCalls(t *testing.T) {
	disk := slottest.New()
	s := slotstore.New(config(disk))
	if err := s.Commit([]byte(`{"gen":1}`)); !errors.Is(err, slotstore.ErrNotOpen) {
		t.Errorf("Commit before Open: %v", err)
	}
	if _, err := s.Load(slotstore.Digest{}); !errors.Is(err, slotstore.ErrNotOpen) {
		t.Errorf("Load before Open: %v", err)
	}
	s = opened(t, disk)
	before := disk.Changes()
	for _, text := range []string{`{"gen":0}`, `{"gen":2}`, `{`, `{"gen":1,"payloads":["x"]}`} {
		if err := s.Commit([]byte(text)); err == nil {
			t.Errorf("Commit(%s): no error", text)
		}
	}
	if err := s.Commit(encode(record{Gen: 1, Payloads: slices.Repeat([]string{strings.Repeat("0", 64)}, 200)})); err == nil {
		t.Error("a record that does not fit a slot: no error")
	}
	if disk.Changes() != before {
		t.Error("the disk was changed")
	}
}

func TestSlotRejectsDamage(t *testing.T) {
	text := []byte(`{"gen":7}`)
	good, err := slotstore.EncodeSlot(text)
	if err != nil || len(good) != 8192 {
		t.Fatal(len(good), err)
	}
	if got, err := slotstore.DecodeSlot(good); err != nil || !bytes.Equal(got, text) {
		t.Fatal(string(got), err)
	}
	for i := range bytes.IndexByte(good, '}') + 1 {
		damaged := bytes.Clone(good)
		damaged[i] ^= 0x01
		if r, err := slotstore.DecodeSlot(damaged); err == nil {
			t.Errorf("byte %d damaged: %s", i, r)
		}
	}
	for _, length := range []int{0, 1, 100, 8191, 8193} {
		if _, err := slotstore.DecodeSlot(append(bytes.Clone(good), 0)[:length]); err == nil {
			t.Errorf("cut to %d bytes: no error", length)
		}
	}
}

// FuzzDecodeSlot: any bytes are a record or an error.
func FuzzDecodeSlot(f *testing.F) {
	good, err := slotstore.EncodeSlot([]byte(`{"gen":7}`))
	if err != nil {
		f.Fatal(err)
	}
	for _, data := range [][]byte{good, nil, make([]byte, 8192), good[:4096], []byte("cc1 -1 x\n"), fmt.Appendf(nil, "cc1 %d x\n", int64(1)<<62)} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := slotstore.DecodeSlot(data)
		if err != nil {
			return
		}
		again, err := slotstore.EncodeSlot(text)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := slotstore.DecodeSlot(again); err != nil || !bytes.Equal(back, text) {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
	})
}

// TestNoDecisionByFileTimes: no code of this package or its parent reads the
// times of a file.
func TestNoDecisionByFileTimes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	parent, parentErr := filepath.Glob("../../*.go")
	if files = append(files, parent...); errors.Join(err, parentErr) != nil || len(files) < 20 {
		t.Fatal(files, err, parentErr)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && slices.Contains([]string{"ModTime", "Mtim", "Chtimes"}, id.Name) {
				t.Errorf("%s uses %s", name, id.Name)
			}
			return true
		})
	}
}
