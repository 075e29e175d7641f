// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// TestADiskThatFailsWhileASourceDelivers: the disk fills, breaks or loses its permissions at
// any moment, and comes back, while a source delivers one payload after the other and a
// supervisor restarts the process. What was proven stays the fallback, nothing starts that
// was not recorded, and the last payload runs when the disk is well again.
func TestADiskThatFailsWhileASourceDelivers(t *testing.T) {
	deliveries := 300
	if testing.Short() {
		deliveries = 60
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EACCES} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, reads %v", errno, reads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testADiskThatFails(t, errno, reads, deliveries) })
			})
		}
	}
}

func testADiskThatFails(t *testing.T, errno syscall.Errno, reads bool, deliveries int) {
	n := proven(t, "good")
	random := rand.New(rand.NewPCG(uint64(errno), 0))
	broken := false
	set := func(b bool) {
		broken = b
		var err error
		if b {
			err = errno
		}
		n.disk.Break(err)
		if !reads {
			for _, name := range n.disk.Files() {
				n.disk.SetUnreadable(name, err)
			}
		}
	}
	// supervise restarts a process that has ended.
	supervise := func() {
		for range 20 {
			synctest.Wait()
			select {
			case <-n.done:
			default:
				return
			}
			if !errors.Is(n.err, ErrRestart) {
				t.Fatalf("Run returned %v", n.err)
			}
			if err := n.c.Close(nil); err != nil && !broken {
				t.Fatalf("Close: %v", err)
			}
			before := n.disk.Count("flush")
			n.start()
			if n.active.Trial && n.disk.Count("flush") == before {
				t.Fatalf("%q was started, and the start was not recorded", n.active.Config)
			}
		}
		t.Fatal("the process restarts again and again")
	}
	outages, attempts := 0, n.disk.Changes()
	last := ""
	for i := range deliveries {
		if random.IntN(4) == 0 {
			set(!broken)
			outages++
		}
		last = fmt.Sprintf("payload %d", i)
		n.delivers(last)
		supervise()
		n.goes(time.Duration(random.Int64N(int64(time.Minute))))
		supervise()
		if lkg := n.c.Status().LastKnownGood; !lkg.Digest.IsZero() && lkg.Digest != DigestOf([]byte("good")) {
			t.Fatalf("%s is called good", lkg)
		}
	}
	if n := n.disk.Changes() - attempts; n > 30*deliveries {
		t.Errorf("%d changes of the disk were tried for %d deliveries", n, deliveries)
	}
	if outages < deliveries/10 {
		t.Errorf("%d outages", outages)
	}
	set(false)
	n.goes(storeRetry().Cap)
	supervise()
	n.goes(storeRetry().Cap)
	supervise()
	n.goes(DefaultSoak)
	n.is(last, isTrue, PhaseGood, ReasonGood)
}

// TestHostileNames: what a source calls its payloads is text for people. It names no file,
// has one line in logs, and costs nothing to change.
func TestHostileNames(t *testing.T) { synctest.Test(t, testHostileNames) }
func testHostileNames(t *testing.T) {
	n := newNode(t)
	var delivered []Ref
	n.cfg.Hooks.Delivered = func(d Delivered) { delivered = append(delivered, d.Ref) }
	n.start()
	names := []string{
		"../../etc/passwd", "/etc/passwd", "slot.a", "p/..", "a\x00b", "line\nERROR forged", "\x1b[2J", "\xff\xfe",
		strings.Repeat("x", 1<<20), strings.Repeat("é\n", 1<<16), "",
	}
	for i, name := range names {
		n.yields(delivery{payload: Payload{Data: fmt.Appendf(nil, "payload %d", i), Name: name, Version: name}})
		n.restarts()
	}
	files := n.disk.Files()
	for _, file := range files {
		digest, payload := strings.CutPrefix(file, slotstore.PayloadDir+"/")
		var d Digest
		if payload && d.UnmarshalText([]byte(digest)) != nil || !payload && len(file) > len("slot.a") {
			t.Errorf("the store has a file %q", file)
		}
	}
	if len(delivered) != len(names) {
		t.Fatalf("%d deliveries", len(delivered))
	}
	for _, ref := range append(delivered, n.c.Status().Assigned) {
		if name := rollout.Tidy(ref.Name, rollout.MaxName); name != ref.Name {
			t.Errorf("a name of %d bytes is shown: %.60q", len(ref.Name), ref.Name)
		}
		if version := rollout.Tidy(ref.Version, rollout.MaxVersion); version != ref.Version {
			t.Errorf("a version of %d bytes is shown: %.60q", len(ref.Version), ref.Version)
		}
	}
	n.goes(time.Minute)
	before := n.disk.Changes()
	for i := range 100_000 {
		n.feed <- delivery{payload: Payload{Data: fmt.Appendf(nil, "payload %d", len(names)-1), Name: fmt.Sprint("../", i)}}
	}
	synctest.Wait()
	n.runs()
	if n.disk.Changes() != before {
		t.Errorf("new names of the payload that runs cost %d changes of the disk", n.disk.Changes()-before)
	}
}

// TestHTTPTagsThatCanNotBeSentBack: an entity tag that is too long for the headers of the
// server, or that is no header, would make every later request fail.
func TestHTTPTagsThatCanNotBeSentBack(t *testing.T) {
	for name, tag := range map[string]string{"long": `"` + strings.Repeat("x", 1<<16) + `"`, "control": "\"a\x01b\"", "not UTF-8": "\"\xff\""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{t: t, content: content{body: "A", tag: tag}}
				got := s.follow()
				if list := got(); len(list) != 1 || list[0].err != nil {
					t.Fatalf("%+v", list)
				}
				time.Sleep(30 * time.Minute)
				if list := got(); len(list) != 0 {
					t.Errorf("an unchanged half hour: %+v", list)
				}
				if _, tagged := s.requests(); tagged > 0 {
					t.Errorf("%d requests have the tag", tagged)
				}
				s.change(func(c *content) { c.body = "B" })
				time.Sleep(DefaultHTTPInterval)
				if list := got(); len(list) != 1 || string(list[0].payload.Data) != "B" {
					t.Errorf("%+v", list)
				}
			})
		})
	}
}

// TestAnEndlessSourceOfErrors: each of them has another text, of a megabyte.
func TestAnEndlessSourceOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := proven(t, "A")
		reports := 0
		n.cfg.ErrorHandler = func(context.Context, error, string) { reports++ }
		n.stop(nil)
		n.start()
		for i := range 50 {
			n.yields(delivery{err: fmt.Errorf("%d %s", i, strings.Repeat("x", 1<<20))})
			n.goes(sourceRetry().Cap)
		}
		if s := n.c.Status(); len(s.Message) > maxStatusMessage || reports != 1 {
			t.Errorf("a message of %d bytes, %d reports", len(s.Message), reports)
		}
		n.is("A", isTrue, PhaseGood, ReasonSourceFailed)
	})
}
