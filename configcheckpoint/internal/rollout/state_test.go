// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestCheckNamesTheInvariant breaks each invariant of State.
func TestCheckNamesTheInvariant(t *testing.T) {
	for want, spoil := range map[string]func(s *State){
		"schema 0":                        func(s *State) { s.rec.Schema = 0 },
		"a reference without a digest":    func(s *State) { s.rec.LKG = &Ref{} },
		"that is not assigned":            func(s *State) { s.rec.Trial = &Trial{Digest: digestOf(nil)} },
		"a negative count of starts":      func(s *State) { s.rec = state("A", "", "").withTrial(Trial{Failed: -1}) },
		"a negative count of repairs":     func(s *State) { s.rec.Repairs = -1 },
		"open is one of this process":     func(s *State) { s.rec = state("A", "", "").withTrial(Trial{Open: true}) },
		"has the next generation":         func(s *State) { s.write = &write{next: s.rec} },
		"none must replace it":            func(s *State) { s.diverged = true },
		"none was healthy or ill":         func(s *State) { s.soak.good = time.Unix(1, 0) },
		"not healthy and ill at once":     func(s *State) { s.runs, s.soak = true, soak{good: time.Unix(1, 0), bad: time.Unix(1, 0)} },
		"under way is of a payload":       func(s *State) { s.inspect = &inspection{} },
		"under way is of a payload, and ": func(s *State) { s.inspect = &inspection{Digest: digestOf(nil), Over: true} },
	} {
		s := New(Rules{})
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if spoil(&s); s.Check() == nil || !strings.Contains(s.Check().Error(), want) {
			t.Errorf("%v, want %q", s.Check(), want)
		}
	}
	s := New(Rules{})
	s.rec = Record{Schema: Schema + 1, MinReader: Schema + 1, Repairs: -1}
	if err := s.Check(); err != nil {
		t.Errorf("the record of a newer program: %v", err)
	}
}

// TestWritesEndBeforeOtherEvents: nothing happens between a record that must be
// committed and its end.
func TestWritesEndBeforeOtherEvents(t *testing.T) {
	s, now := New(Rules{Attempts: 3}), time.Unix(0, 0)
	apply := func(event Event, want error) {
		t.Helper()
		if _, err := s.Apply(now, event); !errors.Is(err, want) {
			t.Errorf("%T: %v, want %v", event, err, want)
		}
	}
	apply(Committed{}, errWrite)
	apply(Lost{}, errWrite)
	apply(Accepted{Ref: *ref("A")}, nil)
	before, _ := s.Next()
	for _, event := range []Event{Accepted{Ref: *ref("B")}, Checked{}, Replacing{}, Opened{}} {
		apply(event, errWrite)
	}
	if after, _ := s.Next(); !slices.Equal(before, after) || s.IsAssigned(ref("A").Digest) {
		t.Errorf("%s, want %s", after, before)
	}
	apply(Committed{}, nil)
	if rec := s.Record(); !s.IsAssigned(ref("A").Digest) || rec.Gen != 1 || rec.Schema != Schema {
		t.Errorf("%+v", rec)
	}
	if text, err := s.Next(); text != nil || err != nil {
		t.Errorf("%s, %v", text, err)
	}
}

// TestARejectionIsReported with what it is about, and is in the record at once.
func TestARejectionIsReported(t *testing.T) {
	s, now := New(Rules{Build: "1"}), time.Unix(7, 0)
	news, err := s.Apply(now, Rejected{Ref: *ref("A"), Reason: NotAdmitted, Message: "a\nb" + strings.Repeat("c", MaxMessage)})
	x, found := s.Rejection(ref("A").Digest)
	if err != nil || !found || news.Rejected == nil || *news.Rejected != x || !news.Changed || news.Ref != *ref("A") || news.RolledBack {
		t.Errorf("%+v, %+v, %v", news, x, err)
	}
	if x.Build != "1" || x.Reason != NotAdmitted || !x.Time.Equal(now) || !strings.HasPrefix(x.Message, "a bc") || len(x.Message) != MaxMessage {
		t.Errorf("%+v", x)
	}
	if text, err := s.Next(); err != nil || !strings.Contains(string(text), "NotAdmitted") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestParse: of the record of a newer program it returns what it must know, and of
// nonsense nothing.
func TestParse(t *testing.T) {
	digest := digestOf([]byte("A")).String()
	for text, want := range map[string]Record{
		`{"schema":1,"minReader":1,"gen":7}`: {Schema: 1, MinReader: 1, Gen: 7},
		`{"schema":9,"minReader":1,"gen":7}`: {Schema: 9, MinReader: 1, Gen: 7},
		`{"schema":9,"minReader":9,"gen":7,"assigned":{"digest":"` + digest + `"},"lastKnownGood":{"digest":"` + digest + `"}}`: {
			Schema: 9, MinReader: 9, Gen: 7, LKG: &Ref{Digest: digestOf([]byte("A"))},
		},
		`{"schema":9,"minReader":9,"gen":7,"assigned":"?"}`:                                               {Schema: 9, MinReader: 9, Gen: 7},
		`{"schema":9,"minReader":9,"gen":7,"lastKnownGood":"?"}`:                                          {Schema: 9, MinReader: 9, Gen: 7},
		`{"schema":9,"minReader":9,"gen":7,"lastKnownGood":{}}`:                                           {Schema: 9, MinReader: 9, Gen: 7},
		`{"schema":9,"minReader":9,"gen":7,"lastKnownGood":{"digest":"` + strings.Repeat("0", 64) + `"}}`: {Schema: 9, MinReader: 9, Gen: 7},
	} {
		got, err := Parse([]byte(text))
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{
		"", "{", "null", `{"schema":1}`, `{"minReader":1}`, `{"schema":1,"minReader":2}`, `{"schema":1,"minReader":1,"assigned":"?"}`,
		`{"schema":1,"minReader":1,"assigned":{}}`, `{"schema":1,"minReader":1,"repairs":-1}`,
	} {
		if r, err := Parse([]byte(text)); err == nil && r.MinReader <= Schema {
			t.Errorf("%q: %+v", text, r)
		}
	}
}
