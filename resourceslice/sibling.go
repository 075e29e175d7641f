// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// instanceAnnotation has the instance that wrote a slice.
	instanceAnnotation = "resourceslice.kubewright.dev/instance"
	// firstAsk is the time without a write of the newer instance after which an older
	// one asks whether the newer one lives. It doubles with each reply, up to maxAsk.
	firstAsk = time.Minute
	maxAsk   = time.Hour
	// replyTime is the time in which a living instance replies, or repairs a delete.
	replyTime = 15 * time.Second
)

// instance is one process that publishes a pool. Instances of one field manager are
// siblings: during a rolling update two of them run at the same time.
type instance struct {
	manager string
	// at is the time when it began, in milliseconds, or more than any sibling's that it
	// found in the pool before it published. So the clock of its machine may be wrong.
	at   int64
	id   string // random
	asks bool   // the slice was written only to ask whether its other writer lives
}

func (i instance) String() string {
	text := fmt.Sprintf("%s/%d/%s", i.manager, i.at, i.id)
	if i.asks {
		text += "?"
	}
	return text
}

// writer returns the instance that wrote a slice, or the zero value if that is unknown.
func (r *record) writer() instance {
	text, asks := strings.CutSuffix(r.Annotations[instanceAnnotation], "?")
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return instance{}
	}
	at, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return instance{}
	}
	return instance{parts[0], at, parts[2], asks}
}

func (i instance) isSiblingOf(other instance) bool {
	return i.manager == other.manager && i.id != other.id
}

// newer reports whether i is the newer one of two siblings.
func (i instance) newer(than instance) bool {
	return i.isSiblingOf(than) && cmp.Or(cmp.Compare(i.at, than.at), strings.Compare(i.id, than.id)) > 0
}

// siblings decides whether this process publishes a pool or leaves that to a newer
// instance of the same program.
//
// Invariants:
//   - above is the zero value or newer than self.
//   - awaited is not zero: above is not the zero value, and not silent.
//   - silent: above is not the zero value.
//   - settled is false: above is the zero value.
type siblings struct {
	self    instance
	settled bool     // self has published the pool
	above   instance // the newest sibling, if it is newer than self
	heard   time.Time
	pause   time.Duration // after heard, before self asks
	awaited time.Time     // since when a reply or a repair is awaited; zero: none
	silent  bool          // above has not replied: self publishes again
}

// check returns the invariant that does not hold, or nil.
func (s *siblings) check() error {
	none := s.above == instance{}
	for text, broken := range map[string]bool{
		"above is newer than self":                   !none && !s.above.newer(s.self),
		"awaited implies above, which is not silent": !s.awaited.IsZero() && (none || s.silent),
		"silent implies above":                       s.silent && none,
		"settled before above":                       !s.settled && !none,
	} {
		if broken {
			return fmt.Errorf("invariant: %s: %+v", text, *s)
		}
	}
	return nil
}

// found records the writer of a slice. event is set if the slice has just been written.
func (s *siblings) found(now time.Time, writer instance, event bool) {
	writer.asks = false
	switch {
	case !writer.isSiblingOf(s.self):
	case !s.settled:
		// All that was written before this process published is older.
		s.self.at = max(s.self.at, writer.at+1)
	case writer.newer(s.self) && (s.above == instance{} || writer.newer(s.above)):
		s.above, s.heard, s.pause = writer, now, firstAsk
		s.awaited, s.silent = time.Time{}, false
	case writer == s.above && event:
		if !s.awaited.IsZero() {
			s.pause = min(2*s.pause, maxAsk)
		}
		s.heard, s.awaited, s.silent = now, time.Time{}, false
	}
}

// missing records that another client deleted a slice: the newer instance must repair it.
func (s *siblings) missing(now time.Time) {
	if s.yields() && s.awaited.IsZero() {
		s.awaited = now
	}
}

// asked records that the newer instance was asked whether it lives.
func (s *siblings) asked(now time.Time) { s.awaited = now }

// takeOver records that the newer instance has not replied.
func (s *siblings) takeOver() { s.silent, s.awaited = true, time.Time{} }

func (s *siblings) yields() bool { return s.above != instance{} && !s.silent }

// turn is what a sibling does next.
type turn int

const (
	publishes turn = iota
	waits
	asks
	takesOver
)

// next returns what to do now, and how long to wait if there is nothing.
func (s *siblings) next(now time.Time) (turn, time.Duration) {
	due, then := s.heard.Add(s.pause), asks
	if !s.awaited.IsZero() {
		due, then = s.awaited.Add(replyTime), takesOver
	}
	switch {
	case !s.yields():
		return publishes, 0
	case now.Before(due):
		return waits, due.Sub(now)
	}
	return then, 0
}
