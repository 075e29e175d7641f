// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var update = flag.Bool("update", false, "rewrite the decisions in testdata")

// TestScripts plays the stories in testdata. A line without indentation is an event, and
// the indented lines below it are what the coordinator decides. A line that begins with #
// is a comment. An empty line begins another story.
//
//	NAME renews [N]       a candidate of version 1.N.0 renews or creates its LeaseCandidate
//	NAME listed [N]       it is seen for the first time, and is not new
//	NAME gone             its LeaseCandidate was deleted
//	lease FIELD=VALUE…    another client writes the Lease: holder, prefers, duration; renew
//	lease gone            it was deleted
//	lease seen            the watch shows it as it is
//	until T               lets time pass until a request is sent, or until T
//	ok                    the request is answered as the API server does
//	stored                it is carried out, and the answer comes later
//	answer                that answer arrives
//	fake                  the API server gives Leases no UIDs, as client-go's fake
//	fail                  it fails; conflict and refused fail in that way
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("other decisions:\n%s", got)
			}
		})
	}
}

// play returns a script with what the coordinator decides.
func play(t *testing.T, text string) string {
	var out strings.Builder
	p := newPlayer(t)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "  "):
			continue
		case line == "":
			p = newPlayer(t)
		case !strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
			for _, decided := range p.play(strings.Fields(line)) {
				out.WriteString("  " + decided + "\n")
			}
			continue
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// player is an API server with one Lease and its candidates, and a contest that observes
// them.
type player struct {
	*Contest
	t       *testing.T
	now     time.Duration
	version int
	stored  *coordinationv1.Lease
	objects map[string]Candidate
	step    Decision // the request under way
	answer  Answered // of a request that was carried out, on its way
	fake    bool
}

func newPlayer(t *testing.T) *player {
	return &player{Contest: New(decideRules()), t: t, version: 100, objects: map[string]Candidate{}}
}

func (p *player) time() time.Time { return decideNow.Add(p.now) }

func (p *player) tell(e Event) (out []string) {
	effects := apply(p.t, p.Contest, p.time(), e)
	for _, name := range effects.Silent {
		out = append(out, "silent: "+name)
	}
	return out
}

// play carries out a line and returns what the coordinator decides.
func (p *player) play(words []string) []string {
	switch {
	case words[0] == "fake":
		p.fake = true
		return nil
	case words[0] == "until":
		return p.until(words[1])
	case words[0] == "ok":
		e := p.serve()
		return append(p.tell(e), p.tell(Concluded{To: p.step})...)
	case words[0] == "stored":
		p.answer = p.serve()
		return nil
	case words[0] == "answer":
		return append(p.tell(p.answer), p.tell(Concluded{To: p.step})...)
	case words[0] == "fail":
		return p.tell(Concluded{To: p.step, Result: Failed})
	case words[0] == "refused":
		return p.tell(Concluded{To: p.step, Result: Refused})
	case words[0] == "conflict":
		return p.tell(Concluded{To: p.step, Result: Conflict})
	case words[0] == "lease" && words[1] == "gone":
		gone := LeaseGone{UID: p.stored.UID}
		p.stored = nil
		return p.tell(gone)
	case words[0] == "lease" && words[1] == "seen":
		return p.tell(LeaseSeen{Lease: p.stored.DeepCopy()})
	case words[0] == "lease":
		p.write(func(l *coordinationv1.Lease) {
			for _, change := range words[1:] {
				field, value, _ := strings.Cut(change, "=")
				n, _ := strconv.Atoi(value)
				switch field {
				case "holder":
					l.Spec.HolderIdentity, l.Spec.RenewTime = &value, p.micros()
					l.Spec.LeaseTransitions = ptr.To(ptr.Deref(l.Spec.LeaseTransitions, 0) + 1)
				case "prefers":
					l.Spec.PreferredHolder = &value
				case "duration":
					l.Spec.LeaseDurationSeconds = ptr.To(int32(n))
				case "renew":
					l.Spec.RenewTime = p.micros()
				default:
					p.t.Fatalf("unknown change %q", change)
				}
			}
		})
		return p.tell(LeaseSeen{Lease: p.stored.DeepCopy()})
	case words[1] == "gone":
		delete(p.objects, words[0])
		return p.tell(CandidateGone{Name: words[0], UID: p.candidates[words[0]].UID})
	}
	p.version++
	c, known := p.objects[words[0]]
	if !known {
		minor := 1
		if len(words) > 2 {
			minor, _ = strconv.Atoi(words[2])
		}
		c = nominee(words[0], minor).Candidate
		c.UID = types.UID(fmt.Sprint(words[0], p.version))
	}
	c.Version, c.RenewTime = strconv.Itoa(p.version), max(p.time().UnixMicro(), c.PingTime)
	p.objects[words[0]] = c
	return p.tell(CandidateSeen{Candidate: c, Fresh: !known && words[1] != "listed"})
}

// micros returns a new renewTime.
func (p *player) micros() *metav1.MicroTime {
	p.version++
	return ptr.To(metav1.NewMicroTime(p.time().Add(time.Duration(p.version) * time.Microsecond)))
}

// write changes the stored Lease.
func (p *player) write(change func(*coordinationv1.Lease)) {
	l := p.stored.DeepCopy()
	if l == nil {
		l = leaseAt(0, "")
		if l.UID = types.UID(fmt.Sprint("l", p.version)); p.fake {
			l.UID = ""
		}
		l.Spec.LeaseTransitions = ptr.To[int32](0)
	}
	change(l)
	p.version++
	l.ResourceVersion = strconv.Itoa(p.version)
	p.stored = l
}

// serve carries out the request under way.
func (p *player) serve() Answered {
	e, name := Answered{To: p.step}, p.step.Name
	c, there := p.objects[name]
	switch p.step.Do {
	case Look:
		e.Read = true
	case Ping, Unping:
		p.version++
		c.Version, c.PingTime = strconv.Itoa(p.version), p.step.PingTime
		p.objects[name] = c
	case Assign:
		p.write(func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.PreferredHolder = &name, p.micros(), nil
			l.Spec.LeaseTransitions = ptr.To(*l.Spec.LeaseTransitions + 1)
		})
	case Announce:
		p.write(func(*coordinationv1.Lease) {})
	case Offer, Retract:
		p.write(func(l *coordinationv1.Lease) { l.Spec.PreferredHolder = &name })
	case Collect:
		delete(p.objects, name)
		there = false
	case Wait:
		p.t.Fatalf("no request is under way at %v", p.now)
	}
	if p.step.Do.OfCandidate() {
		e.Gone = !there
		if there {
			e.Candidate = &c
		}
		return e
	}
	e.Lease, e.Gone = p.stored.DeepCopy(), p.stored == nil
	return e
}

// until lets time pass until a request is sent.
func (p *player) until(limit string) (out []string) {
	end, err := time.ParseDuration(limit)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		out = append(out, p.tell(Tick{})...)
		d := p.Next(p.time())
		if d.Do != Wait {
			p.step = d
			p.tell(Sent{Decision: d})
			return append(out, fmt.Sprintf("%v: %s, because %s", p.now, strings.TrimSpace(fmt.Sprint(d.Do, " ", d.Name)), d.Why))
		}
		p.tell(Idle{})
		if p.now >= end || d.WakeAt.IsZero() {
			return out
		}
		wake := d.WakeAt.Sub(decideNow)
		if wake <= p.now {
			p.t.Fatalf("at %v it wakes at %v", p.now, wake)
		}
		p.now = min(wake, end)
	}
}
