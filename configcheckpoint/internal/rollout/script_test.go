// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what the scripts of testdata decide into them")

// TestScripts runs the stories of testdata. Each line is an event, and after the arrow
// the state that follows. testdata/README has the events.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m := newMachine(t)
			var out []string
			for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
				event, want, _ := strings.Cut(line, " -> ")
				if event = strings.TrimSpace(event); event == "" || event[0] == '#' {
					out = append(out, line)
					continue
				}
				got := m.run(strings.Fields(event))
				out = append(out, fmt.Sprintf("%-26s -> %s", event, got))
				if got != strings.TrimSpace(want) && !*update {
					t.Errorf("%s:%d: %s: %s, want %s", file, i+1, event, got, want)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(out, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// machine is a machine with a disk, on which one process runs at a time.
type machine struct {
	*testing.T
	rules  Rules
	state  State
	now    time.Time
	disk   []byte // the record
	note   []byte
	broken bool   // nothing can be written
	damage string // the payload that can't be read
	boots  int    // of the machine
	news   News
}

func newMachine(t *testing.T) *machine {
	m := &machine{T: t, now: time.Unix(0, 0), boots: 1, rules: Rules{Build: "1", Attempts: 3, Soak: 10 * time.Minute, Grace: time.Minute, Every: 10 * time.Second, Health: true}}
	m.state = New(m.rules)
	return m
}

// apply applies an event and commits what must be written.
func (m *machine) apply(event Event) {
	m.Helper()
	step := func(event Event) {
		news, err := m.state.Apply(m.now, event)
		if err = errors.Join(err, m.state.Check()); err != nil {
			m.Errorf("after %T: %v", event, err)
		}
		if news != (News{}) {
			m.news = news
		}
	}
	step(event)
	text, err := m.state.Next()
	switch {
	case err != nil:
		m.Error(err)
	case text == nil:
	case m.broken:
		step(Lost{})
	default:
		m.disk = text
		step(Committed{})
	}
}

// start starts the best candidate, as Boot does.
func (m *machine) start() {
	m.Helper()
	skipped := false
	for _, c := range m.state.Candidates() {
		if m.damage != "" && c.Ref.Name == m.damage {
			skipped = true
			continue
		}
		if c.Unproven {
			if m.apply(Starting{Digest: c.Ref.Digest, BootID: fmt.Sprint(m.boots)}); m.state.attempt != c.Ref.Digest {
				skipped = true
				continue
			}
		}
		m.apply(Running{Ref: c.Ref, Role: c.Role, Skipped: skipped})
		return
	}
}

// show describes the state.
func (m *machine) show() string {
	parts := []string{m.state.Record().show()}
	if ref, role := m.state.Running(); m.state.runs {
		name := ref.Name
		if role == Default {
			name = "default"
		}
		if n := m.state.OnTrial(); n > 0 {
			name += fmt.Sprint(" start ", n)
		}
		parts = append(parts, "runs "+name)
	}
	if ref, wanted := m.state.Wanted(); wanted {
		parts = append(parts, strings.TrimSpace("wants "+ref.Name))
	}
	if n := m.state.Record().Repairs; n > 0 {
		parts = append(parts, fmt.Sprint("repairs ", n))
	}
	if m.state.Unsaved() {
		parts = append(parts, "unsaved")
	}
	if x := m.news.Rejected; x != nil {
		what := "rejected"
		if m.news.RolledBack {
			what = "rolled back"
		}
		parts = append(parts, fmt.Sprintf("%s %s: %s %s", what, m.news.Ref.Name, x.Reason, x.Message))
	}
	m.news = News{}
	return strings.Join(parts, ", ")
}

func (m *machine) run(words []string) string {
	m.Helper()
	arg := ""
	if len(words) > 1 {
		arg = words[1]
	}
	digest := Digest{}
	if r := ref(arg); r != nil && arg != "0" {
		digest = r.Digest
	}
	stops := slices.Contains(words, "stops")
	switch words[0] {
	case "boot":
		if arg != "" {
			m.rules.Build = arg
		}
		m.state = New(m.rules)
		m.apply(Opened{Record: m.disk, Note: m.note, BootID: fmt.Sprint(m.boots), Old: slices.Contains(words, "old")})
		m.start()
	case "blind": // the disk can't be opened
		m.state = New(m.rules)
		m.apply(NotOpened{})
		m.start()
	case "unchecked": // there are no health checks from the next boot on
		m.rules.Health = false
		return "ok"
	case "opened":
		m.apply(Opened{Record: m.disk, Note: m.note, BootID: fmt.Sprint(m.boots)})
	case "power":
		m.boots++
		return "ok"
	case "damage":
		m.damage = arg
		return "ok"
	case "disk":
		m.broken = arg == "broken"
		return "ok"
	case "after":
		d, err := time.ParseDuration(arg)
		if err != nil {
			m.Fatal(err)
		}
		m.now = m.now.Add(d)
		return "ok"
	case "deliver":
		return m.state.Delivery(Reason(strings.Join(words[2:], "")), digest).String()
	case "withdrawn":
		m.apply(Withdrawn{})
	case "accepted":
		m.apply(Accepted{Ref: *ref(arg)})
	case "repaired":
		m.damage = ""
		m.apply(Repaired{})
	case "replace": // as Apply does
		m.apply(Replacing{})
		m.start()
	case "unblocked":
		m.apply(Unblocked{})
	case "retried":
		m.apply(Retried{})
	case "check":
		m.apply(Checked{Healthy: arg == "good"})
		return fmt.Sprintf("%v, next in %v", m.state.Verdict(m.now), m.state.NextCheck(m.now))
	case "confirmed":
		m.apply(Confirmed{})
	case "lived":
		m.apply(Lived{})
	case "rejected":
		m.apply(Rejected{Ref: *ref(arg), Reason: Reason(words[2]), Message: "why", Stops: stops})
	case "forgotten":
		m.apply(Forgotten{Digest: digest})
	case "inspect":
		m.note = m.state.Note(digest)
		m.apply(Inspecting{Digest: digest})
		return string(m.note[strings.IndexByte(string(m.note), ',')+1:])
	case "inspected":
		m.note = nil
		m.apply(Inspected{})
	case "deaths":
		return fmt.Sprint(m.state.Deaths(digest), " ", m.state.Died(digest))
	case "stop":
		m.apply(Stopping{Failed: arg != "", Note: arg})
		if note, changed := m.state.LastNote(); changed {
			m.note = note
		}
	default:
		m.Fatalf("no event %s", words[0])
	}
	return m.show()
}
