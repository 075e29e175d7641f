// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// firstAsk is the time without a write of the newer instance after which an older
	// one asks whether the newer one lives. It doubles with each reply, up to maxAsk.
	firstAsk = time.Minute
	maxAsk   = 10 * time.Minute
	// ReplyTime is the time in which a living instance replies, or repairs a delete.
	ReplyTime = 15 * time.Second
)

// Instance is one process that publishes a pool. Instances of one field manager are
// siblings: during a rolling update two of them run at the same time.
type Instance struct {
	// Manager is the field manager of its writes.
	Manager string
	// At is the time when it began, in milliseconds, or more than that of any sibling that
	// had written before: see Follow. So the clock of its machine may be wrong.
	At int64
	// ID is random.
	ID string
	// Asks is set if the slice was written only to ask whether its other writer lives.
	Asks bool
}

// String returns the instance as in the annotation of a slice.
func (i Instance) String() string {
	text := fmt.Sprintf("%s/%d/%s", i.Manager, i.At, i.ID)
	if i.Asks {
		text += "?"
	}
	return text
}

// ParseInstance returns the instance whose String is text, or the zero value if text is
// none.
func ParseInstance(text string) Instance {
	text, asks := strings.CutSuffix(text, "?")
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[2] == "" {
		return Instance{}
	}
	at, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return Instance{}
	}
	return Instance{parts[0], at, parts[2], asks}
}

// IsSiblingOf reports whether other is another instance of the same program.
func (i Instance) IsSiblingOf(other Instance) bool {
	return i.Manager == other.Manager && i.ID != other.ID
}

// newer reports whether i is the newer one of two siblings.
func (i Instance) newer(than Instance) bool {
	return i.IsSiblingOf(than) && cmp.Or(cmp.Compare(i.At, than.At), strings.Compare(i.ID, than.ID)) > 0
}

// Follow makes i newer than an instance that had written before i began to read.
func (i *Instance) Follow(earlier Instance) {
	if earlier.IsSiblingOf(*i) {
		i.At = max(i.At, earlier.At+1)
	}
}

// Precedes reports whether i is an older sibling of other.
func (i Instance) Precedes(other Instance) bool { return other.newer(i) }

// siblings decides whether this process publishes a pool or leaves that to a newer
// instance of the same program.
//
// Invariants:
//   - above is the zero value or a sibling of self. It was newer when it was found.
//   - awaited is not zero: above is not the zero value.
//   - asked: awaited is not zero.
type siblings struct {
	self    *Instance // of all pools of this process
	above   Instance  // the newest sibling, if it is newer than self
	heard   time.Time
	pause   time.Duration // after heard, before self asks
	awaited time.Time     // since when a reply or a repair is awaited; zero: none
	asked   bool          // a reply is awaited, not just a repair
}

// broken tells for each invariant whether it is broken.
func (s *siblings) broken() map[string]bool {
	none := s.above == Instance{}
	return map[string]bool{
		"above is a sibling of self": !none && !s.above.IsSiblingOf(*s.self),
		"awaited implies above":      !s.awaited.IsZero() && none,
		"asked implies awaited":      s.asked && s.awaited.IsZero(),
	}
}

func (e Found) apply(s *State, now time.Time) error {
	s.siblings.found(now, e.Writer, e.Now)
	s.await(now)
	return nil
}

// await sets when a pool that is left to a newer instance is reconciled.
func (s *State) await(now time.Time) {
	if s.phase == Yielding {
		_, wait := s.Turn(now, false)
		s.next = now.Add(wait)
	}
}

// found records the writer of a slice. event is set if the slice has just been written.
func (s *siblings) found(now time.Time, writer Instance, event bool) {
	writer.Asks = false
	switch {
	case !writer.newer(*s.self):
	case writer.ID == s.above.ID:
		s.above = writer
		if !event {
			return
		}
		if !s.awaited.IsZero() && !s.silent(now) {
			s.pause = min(2*s.pause, maxAsk)
		}
		s.heard, s.awaited, s.asked = now, time.Time{}, false
	case s.above == Instance{} || writer.newer(s.above):
		s.above, s.heard, s.pause, s.awaited, s.asked = writer, now, firstAsk, time.Time{}, false
	}
}

// missing records that another client deleted a slice: the newer instance must repair it.
func (s *siblings) missing(now time.Time) {
	if s.above != (Instance{}) && s.awaited.IsZero() {
		s.awaited = now
	}
}

func (Asked) apply(s *State, now time.Time) error {
	if !s.siblings.isBelow() || s.siblings.asked && s.siblings.silent(now) {
		return errors.New("resourceslice: there is no newer instance to ask")
	}
	s.siblings.awaited, s.siblings.asked = now, true
	return nil
}

// silent reports whether the newer instance has not replied.
func (s *siblings) silent(now time.Time) bool {
	return !s.awaited.IsZero() && now.Sub(s.awaited) >= ReplyTime
}

// isBelow reports whether there is a newer instance.
func (s *siblings) isBelow() bool { return s.above.newer(*s.self) }

// Turn is what an instance does about a pool.
type Turn int

// The turns of an instance.
const (
	Publish Turn = iota // there is no newer instance, or it is silent
	Wait                // the newer instance publishes the pool
	Ask                 // the same, and it must be asked whether it lives
)

// Turn returns what this process does about a pool that may have a newer publisher, and how
// long to wait if there is nothing to do now. elsewhere is set if the pool has no slices,
// and the newer instance has some in other pools: it may have removed this one, so that the
// missing repair does not show that it is silent.
func (s *State) Turn(now time.Time, elsewhere bool) (Turn, time.Duration) {
	sib := &s.siblings
	ask := sib.heard.Add(sib.pause)
	switch {
	case !sib.isBelow():
		return Publish, 0
	case elsewhere && !sib.awaited.IsZero() && !sib.asked:
		return Ask, 0
	case sib.silent(now):
		return Publish, 0
	case !sib.awaited.IsZero():
		return Wait, sib.awaited.Add(ReplyTime).Sub(now)
	case now.Before(ask):
		return Wait, ask.Sub(now)
	}
	return Ask, 0
}
