// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_000_000, 0)

// story is a script of events and of the decisions that must follow.
type story struct {
	s   *State
	now time.Time
}

func newStory() *story {
	return &story{s: New(&Instance{Manager: "gpu", At: 100, ID: "me"}, 10*time.Second), now: epoch}
}

// apply applies an event and checks the state.
func (st *story) apply(e Event) error {
	before := fmt.Sprintf("%+v", *st.s)
	err := st.s.Apply(st.now, e)
	if after := fmt.Sprintf("%+v", *st.s); err != nil && after != before {
		return fmt.Errorf("an event that is refused (%w) changes\n%s\nto\n%s", err, before, after)
	}
	if broken := st.s.Check(); broken != nil {
		return broken
	}
	return err
}

// has removes word from words and reports whether it was there.
func has(words *[]string, word string) bool {
	i := slices.Index(*words, word)
	if i >= 0 {
		*words = slices.Delete(*words, i, i+1)
	}
	return i >= 0
}

// do carries out one line and returns what is to be seen.
func (st *story) do(words []string) (string, error) {
	number := func(i int) int64 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	duration := func(i int) time.Duration {
		d, err := time.ParseDuration(words[i])
		if err != nil {
			panic(err)
		}
		return d
	}
	name := words[0]
	words = words[1:]
	wait := func(text string, d time.Duration) string {
		if d > 0 {
			text += " " + d.String()
		}
		return text
	}
	switch name {
	case "wait":
		st.now = st.now.Add(duration(0))
		return "", nil
	case "set":
		return "", st.apply(Set{Urgent: has(&words, "urgent"), Remove: has(&words, "nothing")})
	case "begin":
		return "", st.apply(Begin{})
	case "published":
		var e Published
		if len(words) > 0 {
			e.Fault = st.now.Add(duration(0))
		}
		return "", st.apply(e)
	case "delay":
		return "", st.apply(Delay{Wait: duration(0), Phase: Phase(words[1])})
	case "foreign":
		e := Foreign{Deleted: has(&words, "delete")}
		if len(words) > 0 {
			e.Writer = ParseInstance(words[0])
		}
		return "", st.apply(e)
	case "found":
		return "", st.apply(Found{Now: has(&words, "now"), Writer: ParseInstance(words[0])})
	case "follow":
		st.s.siblings.self.Follow(ParseInstance(words[0]))
		return "", st.s.Check()
	case "repair":
		return "", st.apply(Repair{})
	case "asked":
		return "", st.apply(Asked{})
	case "restarted":
		return "", st.apply(Restarted{})
	case "lost":
		return "", st.apply(LostAnswer{Name: words[0], Revision: number(1), Create: has(&words, "create")})
	case "answered":
		return "", st.apply(Answered{words[0]})
	case "next":
		if st.s.Gone() {
			return "gone", nil
		}
		return wait(string(st.s.Phase()), st.s.Next(st.now)), nil
	case "turn":
		turn, d := st.s.Turn(st.now, has(&words, "elsewhere"))
		return wait([]string{"publish", "wait", "ask"}[turn], d), nil
	case "repeat":
		step, d := st.s.Repeat(st.now, words[0])
		return wait(string(step), d), nil
	case "late":
		return fmt.Sprint(st.s.isLost(words[0]), " ", st.s.over(st.now, words[0]), " ", st.s.LostCreate(st.now)), nil
	case "refused", "denied", "conflicts":
		return string(st.s.Judge(st.now, words[0], Answer(name), has(&words, "delete"))), nil
	case "found-in-the-way":
		create := has(&words, "create")
		return string(st.s.Found(words[0], create, Finding(words[1]))), nil
	case "self":
		return st.s.Self().String(), nil
	case "repairs":
		return fmt.Sprintf("%d, the next after %v", st.s.Repairs(), st.s.RepairDelay(st.now)), nil
	}
	return "", fmt.Errorf("unknown word %q", name)
}

// TestStories carries out the scripts in testdata. A line is an event, or a question with the
// answer after an arrow. "refused" after an arrow means that the event is not possible.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			st := newStory()
			for i, line := range strings.Split(string(text), "\n") {
				line, _, _ = strings.Cut(line, "#")
				if strings.TrimSpace(line) == "---" {
					st = newStory()
					continue
				}
				do, want, _ := strings.Cut(line, "->")
				words := strings.Fields(do)
				if len(words) == 0 {
					continue
				}
				got, err := st.do(words)
				if err != nil && strings.HasPrefix(err.Error(), "resourceslice: ") {
					got = "refused"
				} else if err != nil {
					t.Fatalf("%s:%d: %s: %v", file, i+1, line, err)
				}
				if got != strings.TrimSpace(want) {
					t.Errorf("%s:%d: %s: got %q", file, i+1, line, got)
				}
			}
		})
	}
}

// TestAnyOrderOfEventsKeepsTheInvariants: whatever the events are, an event that is refused
// changes nothing, and a pool that is wanted is never forgotten.
func TestAnyOrderOfEventsKeepsTheInvariants(t *testing.T) {
	writers := []Instance{{}, {"gpu", 50, "old", false}, {"gpu", 200, "new", true}, {"gpu", 300, "newest", false}, {"other", 900, "x", false}, {"gpu", 100, "me", false}}
	phases := []Phase{Idle, Working, Spacing, Drifted, Holding, Failing, Forbidden, Faulty, Stuck, Yielding}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 11))
		st := newStory()
		for step := range 80 {
			st.now = st.now.Add(time.Duration(rng.IntN(40)) * time.Second)
			name := string(rune('a' + rng.IntN(3)))
			revision := max(0, st.s.revision-int64(rng.IntN(2)))
			e := []Event{
				Set{Remove: rng.IntN(4) == 0, Urgent: rng.IntN(2) == 0}, Begin{}, Begin{},
				Published{}, Published{Fault: st.now.Add(time.Hour)}, Published{},
				Delay{Wait: time.Minute, Phase: phases[rng.IntN(len(phases))]},
				Foreign{Deleted: rng.IntN(2) == 0, Writer: writers[rng.IntN(len(writers))]}, Found{writers[rng.IntN(len(writers))], rng.IntN(2) == 0},
				Repair{}, Asked{}, Restarted{}, LostAnswer{Name: name, Revision: revision}, Answered{name},
			}[rng.IntN(14)]
			if rng.IntN(100) == 0 {
				st.s.siblings.self.Follow(writers[rng.IntN(len(writers))])
			}
			if err := st.apply(e); err != nil && !strings.HasPrefix(err.Error(), "resourceslice: ") {
				t.Fatalf("seed %d, step %d, %#v: %v", seed, step, e, err)
			}
			if wait := st.s.Next(st.now); wait > 0 && st.s.Phase() == Idle || wait > time.Hour {
				t.Fatalf("seed %d, step %d, %#v: next %v in %+v", seed, step, e, wait, *st.s)
			}
			if turn, wait := st.s.Turn(st.now, rng.IntN(2) == 0); wait > maxAsk || (turn == Wait) != (wait > 0) {
				t.Fatalf("seed %d, step %d, %#v: turn %v, %v in %+v", seed, step, e, turn, wait, *st.s)
			}
		}
	}
}

// TestCheckNamesTheBrokenInvariant breaks each of them.
func TestCheckNamesTheBrokenInvariant(t *testing.T) {
	for want, spoil := range map[string]func(*State){
		"not beyond begun":    func(s *State) { s.published, s.phase = 1, Working },
		"beyond revision":     func(s *State) { s.begun, s.phase = 1, Working },
		"idle or faulty":      func(s *State) { s.revision = 1 },
		"change was noticed":  func(s *State) { s.phase = Drifted },
		"questioned implies":  func(s *State) { s.questioned = epoch },
		"only after a repair": func(s *State) { s.repairs = 1 },
		"first loss":          func(s *State) { s.lost["a"] = Lost{First: epoch, Last: epoch.Add(-1)} },
		"sibling of self":     func(s *State) { s.siblings.above = Instance{Manager: "other", At: 1, ID: "old"} },
		"awaited implies":     func(s *State) { s.siblings.awaited = epoch },
		"asked implies":       func(s *State) { s.siblings.asked = true },
	} {
		st := newStory()
		if err := st.s.Check(); err != nil {
			t.Fatal(err)
		}
		if spoil(st.s); st.s.Check() == nil || !strings.Contains(st.s.Check().Error(), want) {
			t.Errorf("%s: Check = %v", want, st.s.Check())
		}
	}
}

// TestOnlyWhatStringWritesIsAnInstance: the annotation may have been changed by hand.
func TestOnlyWhatStringWritesIsAnInstance(t *testing.T) {
	for _, i := range []Instance{{"gpu", 5, "a", false}, {"gpu", 5, "a", true}} {
		if got := ParseInstance(i.String()); got != i {
			t.Errorf("%s is %+v, want %+v", i, got, i)
		}
	}
	for _, text := range []string{"", "?", "gpu/5", "gpu/x/a", "gpu//a", "gpu/5/", "gpu/5/a/b"} {
		if got := ParseInstance(text); got != (Instance{}) {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
