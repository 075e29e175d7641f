// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
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

const nodeName = "node-1"

// epoch is the wall clock when the monotonic one is 0.
const epoch = int64(1_000_000_000)

func testRules() *Rules {
	return &Rules{Duration: 40 * time.Second, Interval: 10 * time.Second, Process: Process{"host", "2"}}
}

func node(uid string) metav1.OwnerReference {
	if uid == "none" {
		return metav1.OwnerReference{}
	}
	return metav1.OwnerReference{APIVersion: NodeAPIVersion, Kind: NodeKind, Name: nodeName, UID: types.UID(uid)}
}

// store is the API server, as far as one lease goes.
type store struct {
	lease   *coordinationv1.Lease
	objects int
	writes  int
}

// put stores a lease, as another object if it has no UID.
func (s *store) put(lease *coordinationv1.Lease) {
	s.lease = lease.DeepCopy()
	if s.lease.UID == "" {
		s.objects++
		s.lease.UID = types.UID(fmt.Sprint("lease-", s.objects))
	}
	s.writes++
	s.lease.ResourceVersion = fmt.Sprint(s.writes)
}

// do carries out an action.
func (s *store) do(a Action) (Answer, *coordinationv1.Lease) {
	switch {
	case a.Do == Create && s.lease != nil:
		return Conflict, nil
	case a.Do == Create:
		s.put(a.Lease)
	case s.lease == nil && a.Do == Update: // its UID is a precondition
		return Conflict, nil
	case s.lease == nil:
		return Missing, nil
	case a.Do == Get:
	case a.Lease.ResourceVersion != s.lease.ResourceVersion || a.Lease.UID != s.lease.UID:
		return Conflict, nil
	case a.Do == Delete:
		s.lease = nil
		return OK, &coordinationv1.Lease{}
	default:
		s.put(a.Lease)
	}
	return OK, s.lease.DeepCopy()
}

// player is one process with one lease. It checks the invariants after every event.
type player struct {
	rules *Rules
	lease Lease
	now   Instant
	last  int64 // the highest RenewTime that it sent
}

func newPlayer(rules *Rules) *player {
	return &player{rules: rules, lease: New(), now: Instant{Wall: epoch}}
}

func (p *player) apply(e Event) error {
	before := p.lease.renewTime
	if err := p.lease.Apply(p.rules, p.now, e); err != nil {
		return err
	}
	if p.lease.renewTime < before {
		return fmt.Errorf("after %T: RenewTime went back from %d to %d", e, before, p.lease.renewTime)
	}
	if err := p.lease.Check(); err != nil {
		return fmt.Errorf("after %T: %w", e, err)
	}
	return nil
}

// send applies the answer to an action. RenewTime must grow with every write.
func (p *player) send(e Answered) error {
	if do := e.To.Do; do == Create || do == Update {
		renewTime := microseconds(e.To.Lease.Spec.RenewTime)
		if renewTime <= p.last {
			return fmt.Errorf("a %v with RenewTime %d after %d", do, renewTime, p.last)
		}
		p.last = renewTime
	}
	if e.Answer != OK && e.Err == nil {
		e.Err = errors.New("an error")
	}
	return p.apply(e)
}

// describe prints an action as the scripts do.
func describe(now Instant, a Action) string {
	if a.Do != Finish {
		text := a.Do.String()
		if l := a.Lease; l != nil && a.Do != Delete {
			text += fmt.Sprintf(" renewTime=%v", time.Duration(microseconds(l.Spec.RenewTime)-epoch)*time.Microsecond)
			if l.Spec.HolderIdentity == nil {
				text += " holder=none"
			}
			for _, o := range l.OwnerReferences {
				text += " owner=" + string(o.UID)
			}
			if l.UID != "" {
				text += fmt.Sprintf(" uid=%s version=%s", l.UID, l.ResourceVersion)
			}
			if l.Spec.LeaseTransitions != nil {
				text += fmt.Sprintf(" transitions=%d", *l.Spec.LeaseTransitions)
			}
			for k, v := range l.Labels {
				text += " " + k + "=" + v
			}
		}
		return text
	}
	r := a.Result
	text := "done"
	for _, flag := range []struct {
		set  bool
		text string
	}{
		{r.Written && !r.Created, "written"}, {r.Created, "created"}, {r.Released, "released"}, {r.Skipped, "skipped"}, {r.Vanished, "vanished"},
		{r.Err != nil, "failed"}, {r.Recovered > 0, "recovered after " + r.Recovered.String()},
		{r.HeldBack > 0, "held back"},
		{r.Stolen != Party{}, "contended by " + r.Stolen.String()}, {r.TakenOver != Party{}, "taken over from " + r.TakenOver.String()},
		{r.Behind > 0, "clock behind by " + r.Behind.String()},
	} {
		if flag.set {
			text += ", " + flag.text
		}
	}
	switch {
	case r.Wait == 0:
		return text + "; next at the slot"
	case r.Wait == atOnce:
		return text + "; next at once"
	case r.Err != nil: // with jitter
		return text + fmt.Sprintf("; next within %v", backoffBound(r.Wait))
	}
	return text + fmt.Sprintf("; next in %v", r.Wait)
}

// backoffBound rounds a wait with jitter up to what is certain.
func backoffBound(wait time.Duration) time.Duration {
	for _, bound := range []time.Duration{200, 400, 800, 1600, 3200, 7000, 12000, 40000} {
		if wait <= bound*time.Millisecond {
			return bound * time.Millisecond
		}
	}
	return wait
}

// script plays one file. A line without indentation is a command:
//
//	at 10s [wall 5s]      the time is that; the wall clock is set apart from it
//	restart [host/3]      another process follows, or the same one started again
//	ask [gate=closed] [owner=UID|none|gone|failed]
//	leave expire|delete   the node is removed
//	ok                    the request is carried out and answered
//	lost                  it is carried out, and the answer is lost
//	twice                 it is carried out, answered 503, and sent again by client-go
//	timeout               it is lost
//	refused, invalid, failed, missing [retry-after=12s]   that is its answer
//	notfound              a 404 that may be about something else
//	cut                   Run ends before the answer, and it is not carried out
//	cutoff                Run ends before the answer, and it is carried out
//	other KEY=VALUE ...   another client writes the lease: holder, process, renewTime, duration, label
//	other deletes | creates | restores
//	holds                 does the process hold the lease?
//
// Lines with two spaces are what the lease decides then.
type script struct {
	t     *testing.T
	p     *player
	store *store
	saved *coordinationv1.Lease
	owner string
}

func (s *script) next() []string {
	a := s.p.lease.Next(s.p.rules, s.p.now)
	b := s.p.lease.Next(s.p.rules, s.p.now)
	if describe(s.p.now, a) != describe(s.p.now, b) {
		s.t.Errorf("Next has a side effect: %s, then %s", describe(s.p.now, a), describe(s.p.now, b))
	}
	lines := []string{describe(s.p.now, a)}
	if a.Do == Finish {
		s.apply(Reported{})
		state := s.p.lease.phase.String()
		if by := s.p.lease.HeldBy(); by != (Party{}) {
			state += " by " + by.String()
		}
		if n, _ := s.p.lease.Failures(); n > 0 {
			state += fmt.Sprintf(", %d failed", n)
		}
		if s.p.lease.trouble == nil {
			state += ", quiet"
		}
		lines[0] += ". " + state
	}
	return lines
}

func (s *script) apply(e Event) {
	if err := s.p.apply(e); err != nil {
		s.t.Error(err)
	}
}

func (s *script) answer(e Answered) {
	e.To = s.p.lease.Next(s.p.rules, s.p.now)
	if err := s.p.send(e); err != nil {
		s.t.Error(err)
	}
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// play carries out one command and returns the decisions that follow.
func (s *script) play(line string) []string {
	words := strings.Fields(line)
	args := map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	a := s.p.lease.Next(s.p.rules, s.p.now)
	retryAfter := time.Duration(0)
	if v := args["retry-after"]; v != "" {
		retryAfter = s.duration(v)
	}
	switch words[0] {
	case "ok", "twice", "lost", "timeout", "cut", "cutoff", "refused", "invalid", "throttled", "missing", "notfound":
		if a.Do == Finish {
			s.t.Errorf("%q: there is no request", line)
			return []string{"there is no request"}
		}
	}
	switch words[0] {
	case "at":
		since := s.duration(words[1])
		s.p.now = Instant{Since: since, Wall: epoch + since.Microseconds()}
		if len(words) > 2 {
			s.p.now.Wall = epoch + s.duration(words[3]).Microseconds()
		}
		return nil
	case "restart":
		rules := *s.p.rules
		rules.Process.Start += "'"
		if len(words) > 1 {
			rules.Process.Name, rules.Process.Start, _ = strings.Cut(words[1], "/")
		}
		now := s.p.now
		s.p = newPlayer(&rules)
		s.p.now = now
		return nil
	case "ask":
		if v := args["owner"]; v != "" {
			s.owner = v
		}
		e := Consent{NodeName: nodeName, Holder: nodeName}
		switch s.owner {
		case "gone":
			e.OwnerErr, e.NodeGone = errors.New("not found"), true
		case "failed":
			e.OwnerErr = errors.New("a cache that is not synced")
		default:
			e.Owner = node(s.owner)
		}
		if args["gate"] == "closed" {
			e.Gate = errors.New("closed")
		}
		s.apply(e)
	case "leave":
		s.apply(Leaving{NodeName: nodeName, Holder: nodeName, Last: map[bool]Do{true: Delete, false: Expire}[words[1] == "delete"]})
	case "end":
		s.apply(Ended{})
		return []string{s.p.lease.phase.String()}
	case "ok":
		answer, lease := s.store.do(a)
		s.answer(Answered{Answer: answer, Lease: lease})
	case "twice":
		s.store.do(a)
		answer, lease := s.store.do(a)
		s.answer(Answered{Answer: answer, Lease: lease})
	case "lost":
		s.store.do(a)
		s.answer(Answered{Answer: Failed})
	case "timeout":
		s.answer(Answered{Answer: Failed})
	case "cutoff":
		s.store.do(a)
		s.apply(CutOff{To: a})
	case "cut":
		s.apply(CutOff{To: a})
	case "refused":
		s.answer(Answered{Answer: Refused, RetryAfter: retryAfter})
	case "invalid":
		s.answer(Answered{Answer: Invalid, RetryAfter: retryAfter})
	case "throttled":
		s.answer(Answered{Answer: Failed, RetryAfter: retryAfter})
	case "missing":
		s.answer(Answered{Answer: Missing})
	case "notfound":
		s.answer(Answered{Answer: NotFound})
	case "other":
		s.other(words[1], args)
		return nil
	case "holds":
		if err := s.p.lease.Holds(s.p.rules, s.p.now); err != nil {
			return []string{"no: " + err.Error()}
		}
		return []string{"yes"}
	default:
		s.t.Fatalf("unknown command %q", line)
	}
	return s.next()
}

// other lets another client act.
func (s *script) other(verb string, args map[string]string) {
	switch verb {
	case "deletes":
		s.store.lease = nil
		return
	case "saves":
		s.saved = s.store.lease.DeepCopy()
		return
	case "restores":
		s.store.put(s.saved)
		return
	}
	lease := s.store.lease.DeepCopy()
	if lease == nil {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName, OwnerReferences: []metav1.OwnerReference{node("n1")}}}
		lease.Spec.LeaseDurationSeconds = ptr.To[int32](40)
	}
	for k, v := range args {
		switch k {
		case "holder":
			lease.Spec.HolderIdentity = ptr.To(v)
		case "process":
			lease.Annotations = map[string]string{ProcessAnnotation: v}
		case "renewTime":
			lease.Spec.RenewTime = microTime(epoch + s.duration(v).Microseconds())
		case "duration":
			lease.Spec.LeaseDurationSeconds = nil
			if n, _ := strconv.Atoi(v); n > 0 {
				lease.Spec.LeaseDurationSeconds = ptr.To(int32(n))
			}
		case "label":
			lease.Labels = map[string]string{"label": v}
		default:
			s.t.Fatalf("unknown field %q", k)
		}
	}
	s.store.put(lease)
}

// TestScripts plays the stories in testdata, and compares the decisions.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			var out strings.Builder
			var s *script
			for line := range strings.Lines(string(data)) {
				line = strings.TrimSuffix(line, "\n")
				switch {
				case strings.HasPrefix(line, "  "):
					continue
				case strings.HasPrefix(line, "#"):
					s = nil // a paragraph that begins with a comment is a new story
				case line != "":
					if s == nil {
						s = &script{t: t, p: newPlayer(testRules()), store: &store{}, owner: "n1"}
					}
					out.WriteString(line + "\n")
					for _, decision := range s.play(line) {
						out.WriteString("  " + decision + "\n")
					}
					continue
				}
				out.WriteString(line + "\n")
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out.String() != string(data) {
				t.Errorf("%s: other decisions; go test -update shows them in git diff:\n%s", file, out.String())
			}
		})
	}
}
