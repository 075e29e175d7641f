// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"time"
	"unsafe"
)

// stepped returns now as a process reads it after its wall clock was set by d: the same
// moment of the monotonic clock.
func stepped(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	// The fields of a time.Time. With a monotonic reading, wall has the seconds since 1885
	// in 33 bits above 30 bits of nanoseconds.
	fields := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&now))
	before := now
	fields.wall += uint64(int64(d/time.Second)) << 30
	if now.Sub(before) != 0 || now.Round(0).Sub(before.Round(0)) != d {
		t.Fatalf("%v is not %v, set by %v", now, before, d)
	}
	return now
}

// TestTheWallClockIsSetDuringATrial by decades, to and fro, at each check: a trial takes as
// long as it does without.
func TestTheWallClockIsSetDuringATrial(t *testing.T) {
	const year = 365 * 24 * time.Hour
	rules := Rules{Build: "1", Attempts: 3, Soak: 10 * time.Minute, Grace: time.Minute, Every: 10 * time.Second, Health: true}
	for _, healthy := range []bool{true, false} {
		begin := time.Now()
		if !strings.Contains(begin.String(), "m=") {
			t.Fatal("there is no monotonic clock")
		}
		s := New(rules)
		apply := func(now time.Time, event Event) {
			t.Helper()
			if _, err := s.Apply(now, event); err != nil {
				t.Fatal(err)
			}
			if next, err := s.Next(); err != nil {
				t.Fatal(err)
			} else if next != nil {
				if _, err := s.Apply(now, Committed{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		ref := Ref{Digest: Digest{1}}
		apply(begin, Opened{BootID: "boot"})
		apply(begin, Accepted{Ref: ref})
		apply(begin, Starting{Digest: ref.Digest, BootID: "boot"})
		apply(begin, Running{Ref: ref, Role: Assigned})
		now, verdict := begin, Undecided
		for i := 0; verdict == Undecided && i < 1000; i++ {
			set := stepped(t, now, time.Duration(i%3-1)*40*year)
			apply(set, Checked{Healthy: healthy})
			if verdict = s.Verdict(set); verdict != Undecided {
				break
			}
			wait := s.NextCheck(set)
			if wait <= 0 || wait > rules.Every {
				t.Fatalf("the next check is in %v", wait)
			}
			now = now.Add(wait)
		}
		want, after := Passed, rules.Soak
		if !healthy {
			want, after = Failed, rules.Grace
		}
		if verdict != want || now.Sub(begin) != after {
			t.Errorf("healthy %v: %v after %v, want %v after %v", healthy, verdict, now.Sub(begin), want, after)
		}
	}
}
