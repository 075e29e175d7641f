// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// The tests of this file are those of real file systems.

// process is a Controller on a real directory, without Run.
type process struct {
	*machine
	t *testing.T
}

// startIn boots a controller on dir. Its machine's disk only counts.
func startIn(t *testing.T, dir string) (process, error) {
	t.Helper()
	c, err := New(Config[string]{
		Dir: dir, Codec: testCodec(), Build: "test", Source: make(feed), Trial: Trial{Attempts: testAttempts},
		ErrorHandler: func(_ context.Context, err error, msg string) { t.Logf("%s: %v", msg, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p := process{&machine{fs: slottest.New(), c: c, starts: map[string]int{}, promoted: map[Digest]bool{}}, t}
	p.l = newLoop(c)
	p.active, err = c.Boot(t.Context())
	return p, err
}

func start(t *testing.T, dir string) process {
	t.Helper()
	p, err := startIn(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// dies ends the process as kill -9 does, as far as a test can.
func (p process) dies() {
	p.t.Helper()
	if err := p.c.store.Close(); err != nil {
		p.t.Error(err)
	}
}

func (p process) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// is checks what runs and for what reason.
func (p process) is(config string, reason Reason) {
	p.t.Helper()
	if s := p.c.Status(); p.active.Config != config || s.Reason != reason {
		p.t.Errorf("runs %q, %s: %s, want %q, %s", p.active.Config, s.Reason, s.Message, config, reason)
	}
}

func TestOnRealDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	p := start(t, dir)
	p.is("default", ReasonDefault)
	p.must(p.deliver("A"))
	p.dies()
	p = start(t, dir)
	p.is("A", ReasonTrial)
	p.must(p.c.Verdict(nil))
	p.must(p.deliver("B"))
	for range testAttempts {
		p.dies()
		p = start(t, dir)
		p.is("B", ReasonTrial)
	}
	p.dies()
	p = start(t, dir)
	p.is("A", ReasonCrashLoop)
	for name, want := range map[string]fs.FileMode{
		"": fs.ModeDir | 0o700, "p": fs.ModeDir | 0o700, "slot.a": 0o600, "slot.b": 0o600,
		slotstore.PayloadPath(ref("A").Digest): 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%q: %v, %v, want %v", name, info, err, want)
		}
		if err == nil && strings.HasPrefix(name, "slot") && info.Size() != slotSize {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
	}
	p.dies()
	// The documented way to start over.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir)
	p.is("default", ReasonDefault)
	p.dies()
}

// TestSecondProcessRefused also holds within one process.
func TestSecondProcessRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	p := start(t, dir)
	if _, err := startIn(t, dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the second Boot: %v, want ErrLocked with the directory", err)
	}
	cmd := child(t, "boot", dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), ErrLocked.Error()) {
		t.Errorf("another process: %v, %s", err, out)
	}
	p.must(p.c.Close(nil))
	p = start(t, dir)
	p.must(p.c.Close(nil))
}

func TestPermissions(t *testing.T) {
	for _, mode := range []fs.FileMode{0o777, 0o720, 0o702, 0o770} {
		dir := filepath.Join(t.TempDir(), "store")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		if mode&0o002 == 0 { // the group must be that of others
			if os.Geteuid() != 0 {
				continue
			}
			if err := os.Chown(dir, -1, 12345); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := startIn(t, dir); !errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), dir) {
			t.Errorf("mode %v: %v, want ErrPermissions with the directory", mode, err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
			t.Errorf("the directory was changed to %v, %v", info.Mode(), err)
		}
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, dir).dies() // readable by others will do: the files are not
}

// TestFSGroup: at each mount the kubelet makes a volume with fsGroup, and all that is in
// it, writable for the group of the Pod. Boot failed then at the second start.
func TestFSGroup(t *testing.T) {
	volume := t.TempDir()
	dir := filepath.Join(volume, "store")
	mount := func() {
		err := filepath.WalkDir(volume, func(path string, d fs.DirEntry, err error) error {
			mode := fs.FileMode(0o660)
			if d.IsDir() {
				mode = fs.ModeSetgid | 0o770
			}
			return errors.Join(err, os.Chown(path, -1, os.Getegid()), os.Chmod(path, mode))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		mount()
		p := start(t, dir)
		p.must(p.c.Close(nil))
	}
}

func TestForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give a directory away")
	}
	dir := filepath.Join(t.TempDir(), "store")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if _, err := startIn(t, dir); !errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), "12345") {
		t.Errorf("%v, want ErrPermissions with the owner", err)
	}
}

// TestNoWayOut: a link that another user planted in the directory is not followed out of
// it, and does not stop the boot.
func TestNoWayOut(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for name, plant := range map[string]func(path string) error{
		"a link": func(path string) error { return os.Symlink(outside, path) },
		"a relative link": func(path string) error {
			return os.Symlink("../outside", path)
		},
		"a FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
	} {
		for _, victim := range []string{slotstore.SlotA, slotstore.SlotB, slotstore.PayloadDir, slotstore.PayloadPath(ref("A").Digest)} {
			if err := os.WriteFile(outside, []byte("A"), 0o600); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "store")
			p := start(t, dir)
			p.must(p.deliver("A"))
			p.dies()
			path := filepath.Join(dir, victim)
			if err := errors.Join(os.RemoveAll(path), plant(path)); err != nil {
				t.Fatal(err)
			}
			p = start(t, dir)
			if p.active.Config != "A" && p.active.Config != "default" {
				t.Errorf("%s for %s: runs %q", name, victim, p.active.Config)
			}
			err := p.deliver("B")
			t.Logf("%s for %s: runs %q, %s; then: %v", name, victim, p.active.Config, p.c.Status().Reason, err)
			p.dies()
			if data, err := os.ReadFile(outside); err != nil || string(data) != "A" {
				t.Errorf("%s for %s: outside was changed to %q, %v", name, victim, data, err)
			}
		}
	}
}

// TestLinksRacedIntoTheStore: another process puts links, FIFOs and directories in the place
// of each file of the store, and takes them away, while payloads are delivered and processes
// start. Nothing outside is changed, nothing hangs, and the node goes on afterwards.
func TestLinksRacedIntoTheStore(t *testing.T) {
	parent := t.TempDir()
	dir, outside := filepath.Join(parent, "store"), filepath.Join(parent, "outside")
	if err := os.MkdirAll(filepath.Join(outside, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "file"), []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir)
	p.must(p.deliver("A"))
	p.dies()
	plants := []func(path string) error{
		func(path string) error { return os.Symlink(filepath.Join(outside, "file"), path) },
		func(path string) error { return os.Symlink("../outside/file", path) },
		func(path string) error { return os.Symlink(filepath.Join(outside, "dir"), path) },
		func(path string) error { return os.Symlink(slotstore.SlotB, path) },
		func(path string) error { return syscall.Mkfifo(path, 0o600) },
		func(path string) error { return os.Mkdir(path, 0o700) },
	}
	stop := make(chan struct{})
	var racing sync.WaitGroup
	var planted atomic.Int64
	racing.Go(func() {
		kept := filepath.Join(outside, "kept")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := fmt.Sprintf("payload %d", i%10)
			victims := []string{slotstore.SlotA, slotstore.SlotB, slotstore.NoteFile, slotstore.PayloadDir, slotstore.PayloadPath(ref(next).Digest), slotstore.PayloadPath(ref(next).Digest) + ".tmp"}
			victim := filepath.Join(dir, victims[i%len(victims)])
			// A name that the process has taken in the meantime is left to it.
			_ = os.Rename(victim, kept)
			if plants[i/len(victims)%len(plants)](victim) == nil {
				planted.Add(1)
			}
			if info, err := os.Lstat(victim); err == nil && !info.Mode().IsRegular() && victim != filepath.Join(dir, slotstore.PayloadDir) {
				_ = os.RemoveAll(victim)
			} else if err == nil && !info.IsDir() {
				_ = os.Remove(victim)
			}
			_ = os.Rename(kept, victim)
			_ = os.RemoveAll(kept)
		}
	})
	// Both are as fast as the disk and the scheduler let them be, so each goes on for the other.
	for i := 0; i < 200 || planted.Load() < 500; i++ {
		p, err := startIn(t, dir)
		if err != nil {
			if errors.Is(err, ErrPermissions) {
				continue
			}
			t.Fatal(err)
		}
		_ = p.deliver(fmt.Sprintf("payload %d", i%10))
		p.dies()
	}
	close(stop)
	racing.Wait()
	left, err := os.ReadDir(filepath.Join(outside, "dir"))
	data, err2 := os.ReadFile(filepath.Join(outside, "file"))
	if err := errors.Join(err, err2); err != nil || len(left) > 0 || string(data) != "theirs" {
		t.Errorf("outside: %v, %q, %v", left, data, err)
	}
	p = start(t, dir)
	p.must(p.deliver("last"))
	p.dies()
	p = start(t, dir)
	p.is("last", ReasonTrial)
	p.dies()
}

// TestManyForeignFiles: a directory of payloads with 100,000 other names, and payloads that
// nothing refers to, costs one look at each.
func TestManyForeignFiles(t *testing.T) {
	files := 100_000
	if testing.Short() {
		files = 5_000
	}
	dir := filepath.Join(t.TempDir(), "store")
	p := start(t, dir)
	p.must(p.deliver("A"))
	for i := range files {
		name := fmt.Sprintf("name %d", i)
		if i%2 == 0 {
			name = DigestOf([]byte(name)).String()
		}
		if err := os.Symlink("nowhere", filepath.Join(dir, slotstore.PayloadDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p.dies()
	p = start(t, dir)
	p.is("A", ReasonTrial)
	p.must(p.deliver("B"))
	p.dies()
	p = start(t, dir)
	p.is("B", ReasonTrial)
	p.dies()
	left, err := os.ReadDir(filepath.Join(dir, slotstore.PayloadDir))
	if err != nil || len(left) != files/2+2 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// mount mounts a file system for the test, or skips it: a container without
// CAP_SYS_ADMIN can't.
func mount(t *testing.T, fstype, options string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", fstype, "-o", options, fstype, dir).CombinedOutput(); err != nil {
		t.Skipf("mount is not permitted here: %v: %s", err, bytes.TrimSpace(out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// fill leaves no room in a file system.
func fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 16; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return filler
}

// TestFullDiskStillCounts: on a disk without a free byte starts are counted,
// configurations promoted and rejected; only a new payload has to wait.
func TestFullDiskStillCounts(t *testing.T) {
	disk := mount(t, "tmpfs", "size=256k,mode=0700")
	dir := filepath.Join(disk, "store")
	p := start(t, dir)
	p.must(p.deliver("A"))
	p.dies()
	p = start(t, dir)
	p.must(p.c.Verdict(nil))
	p.must(p.deliver("B"))
	filler := fill(t, disk)
	for range testAttempts {
		p.dies()
		p = start(t, dir)
		p.is("B", ReasonTrial)
	}
	p.dies()
	p = start(t, dir)
	p.is("A", ReasonCrashLoop)
	if err := p.deliver("C"); err == nil || p.c.Status().Reason != ReasonCrashLoop || !strings.Contains(p.c.Status().Message, "StoreFull") {
		t.Errorf("a payload was stored on a full disk: %v, %+v", err, p.c.Status())
	}
	names, err := os.ReadDir(filepath.Join(dir, slotstore.PayloadDir))
	if err != nil || len(names) != 2 {
		t.Errorf("the disk holds %v, %v", names, err)
	}
	p.must(p.deliver("A")) // the way back needs no room
	p.is("A", ReasonGood)
	p.must(os.Remove(filler))
	p.must(p.deliver("C"))
	p.dies()
	p = start(t, dir)
	p.is("C", ReasonTrial)
	p.dies()
}

// TestFirstBootOnFullDisk has nothing to fall back on but the default.
func TestFirstBootOnFullDisk(t *testing.T) {
	disk := mount(t, "tmpfs", "size=64k,mode=0700")
	filler := fill(t, disk)
	dir := filepath.Join(disk, "store")
	p := start(t, dir)
	p.is("default", ReasonStoreFull)
	p.must(os.Remove(filler))
	p.must(p.deliver("A"))
	p.dies()
	p = start(t, dir)
	p.is("A", ReasonTrial)
	p.dies()
}

func TestReadOnlyMount(t *testing.T) {
	disk := mount(t, "tmpfs", "size=1m,mode=0700")
	remount := func(options string) {
		t.Helper()
		if out, err := exec.Command("mount", "-o", "remount,"+options, disk).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	dir := filepath.Join(disk, "store")
	remount("ro")
	p := start(t, dir)
	p.is("default", ReasonStoreReadOnly)
	p.dies()
	remount("rw")
	p = start(t, dir)
	p.must(p.deliver("A"))
	p.dies()
	remount("ro")
	p = start(t, dir) // A is on trial and can't be counted
	p.is("default", ReasonStoreReadOnly)
	p.dies()
	remount("rw")
	p = start(t, dir)
	p.is("A", ReasonTrial)
	p.must(p.c.Verdict(nil))
	p.dies()
	remount("ro")
	p = start(t, dir) // a good one needs no write
	p.is("A", ReasonGood)
	if _, err := startIn(t, dir); !errors.Is(err, ErrLocked) {
		t.Errorf("the lock does not hold on a read-only disk: %v", err)
	}
	if err := p.deliver("B"); err == nil {
		t.Error("a payload was stored")
	}
	p.is("A", ReasonStoreReadOnly)
	p.dies()
}

// TestSteadyBootWritesNothing watches the directory through its times, which
// the kernel changes with every write.
func TestSteadyBootWritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	p := start(t, dir)
	p.must(p.deliver("A"))
	p.dies()
	p = start(t, dir)
	p.must(p.c.Verdict(nil))
	p.dies()
	look := func() string {
		var all []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			stat := info.Sys().(*syscall.Stat_t)
			all = append(all, fmt.Sprintln(path, stat.Ino, stat.Size, stat.Mtim, stat.Ctim))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "")
	}
	before := look()
	for range 10 {
		p = start(t, dir)
		p.is("A", ReasonGood)
		p.must(p.deliver("A"))
		p.must(p.c.Close(nil))
	}
	if after := look(); after != before {
		t.Errorf("was:\n%sis:\n%s", before, after)
	}
}
