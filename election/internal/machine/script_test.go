// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

var update = flag.Bool("update", false, "rewrite the decisions in testdata")

// TestScripts plays the stories in testdata. A line without indentation is an event, and
// the indented lines below it are what the candidate decides. A line that begins with #
// is a comment. An empty line begins another story.
//
//	candidate [exclusive] [coordinated] [priority=N]   begins; without it all are the defaults
//	until T           lets time pass until a request is sent, or until T
//	serve T           lets time pass until T; each request is answered as the API server does
//	sleep T           lets time pass until T, in which the process does not run
//	ok                the request is answered as the API server does
//	fail              it fails, and has no effect
//	lose              it has its effect, and the answer is lost
//	stored, answer    it has its effect; the answer comes later
//	WHO FIELD=VALUE…  another client writes the Lease: it creates it if there is none;
//	                  renew, release and claim stand for what candidates write
//	delete            another client deletes the Lease
//	fake              the API server gives objects no UIDs, as client-go's fake
//	restore           the API server is restored from the backup that "backup" made
//	watch             the watch delivers the stored Lease
//	began             a watch began without a version
//	gone, refused     the watch has lost its place, or was refused
//	returned          the work has returned
//	stop, resign      Run ends, or the program calls Resign
//	expired           the timer of the term was faster
//	judge WHO N       the LeaseCandidate of WHO was read: it has priority N; absent for none
//
// The stories in upkeep.txt are about the LeaseCandidate; see keeperPlayer.
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
			begin := func() story { return newPlayer(t, nil) }
			if file == filepath.Join("testdata", "upkeep.txt") {
				begin = func() story { return newKeeperPlayer(t) }
			}
			got := play(string(text), begin)
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

// story is the state of a story.
type story interface {
	// play carries out a line and returns what is decided.
	play(words []string) []string
}

// play returns a script with what is decided. Each story begins with begin.
func play(text string, begin func() story) string {
	var out strings.Builder
	p := begin()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "  "):
			continue
		case line == "":
			p = begin()
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

// player is an API server with one Lease, and a candidate.
type player struct {
	*bench
	step Step    // the request under way
	sent Instant // when it was sent

	versions
	lease   *coordinationv1.Lease // nil if it does not exist
	backup  *coordinationv1.Lease
	deleted types.UID // of the Lease that does not exist any more
	late    func()    // the answer of a request that was carried out
	last    string    // the state that was described last
}

// versions counts the versions and objects of an API server.
type versions struct {
	version, made int
	fake          bool // no UIDs
}

// stamp makes o the newest version of its object, or a new one if it has no UID.
func (v *versions) stamp(o metav1.Object) {
	v.version++
	o.SetResourceVersion(strconv.Itoa(v.version))
	if o.GetUID() == "" && !v.fake {
		v.made++
		o.SetUID(types.UID("u" + strconv.Itoa(v.made)))
	}
}

func newPlayer(t *testing.T, words []string) *player {
	b := newBench(t, func(r *Rules) {
		r.Exclusive, r.Coordinated = slices.Contains(words, "exclusive"), slices.Contains(words, "coordinated")
	})
	for _, w := range words {
		if value, ok := strings.CutPrefix(w, "priority="); ok {
			n, _ := strconv.Atoi(value)
			b.self.Priority = int32(n)
		}
	}
	return &player{bench: b, versions: versions{version: 100}}
}

// store stores a Lease.
func (p *player) store(l *coordinationv1.Lease) {
	p.lease = l.DeepCopy()
	p.stamp(p.lease)
}

// serve carries out the request under way.
func (p *player) serve() (*coordinationv1.Lease, *Outcome) {
	want := p.step.Object
	switch {
	case p.step.Op == Read && p.lease == nil:
		return &coordinationv1.Lease{}, errNotFound // as a client returns it
	case p.step.Op == Read:
	case want.ResourceVersion == "" && p.lease != nil, want.ResourceVersion != "" && p.lease != nil && want.ResourceVersion != p.lease.ResourceVersion:
		return nil, errConflict
	case want.ResourceVersion != "" && p.lease == nil:
		return nil, errNotFound
	default:
		p.store(want)
	}
	return p.lease.DeepCopy(), nil
}

// under fails the test if no request is under way.
func (p *player) under(word string) {
	if p.busy == "" {
		p.t.Fatalf("%s at %v, and no request is under way", word, p.now)
	}
}

// play carries out a line and returns what the candidate decides.
func (p *player) play(words []string) []string {
	var out []string
	if slices.Contains([]string{"ok", "fail", "lose"}, words[0]) {
		p.under(words[0])
	}
	switch words[0] {
	case "candidate":
		p.bench = newPlayer(p.t, words[1:]).bench
	case "until", "serve":
		end, err := time.ParseDuration(words[1])
		if err != nil {
			p.t.Fatal(err)
		}
		for {
			s := p.next()
			out = append(out, p.effects()...)
			if s.Op != "" {
				p.step, p.sent = s, p.instant()
				out = append(out, fmt.Sprintf("%v: %s", p.now, p.request(s)))
				if words[0] == "until" {
					return out
				}
				l, failed := p.serve()
				p.answer(s.Op, l, failed)
				continue
			}
			if s.Abort {
				out = append(out, fmt.Sprintf("%v: cancel %s", p.now, p.step.Op))
			}
			if p.now >= end || p.phase == Finished {
				break
			}
			if s.Wake <= p.now {
				p.t.Fatalf("at %v it wakes at %v", p.now, s.Wake)
			}
			p.now = min(s.Wake, end)
		}
	case "sleep":
		p.now, _ = time.ParseDuration(words[1])
	case "ok":
		l, failed := p.serve()
		p.answerTo(p.sent, p.step.Op, l, failed)
	case "fail":
		p.answer(p.step.Op, nil, &Outcome{Answer: Failed})
	case "stored":
		l, failed := p.serve()
		p.late = func() { p.answerTo(p.sent, p.step.Op, l, failed) }
	case "answer":
		p.late()
	case "lose":
		p.serve()
		p.answer(p.step.Op, nil, errServer)
	case "fake":
		p.fake = true
	case "delete":
		p.version++
		p.lease, p.deleted = nil, p.lease.UID
	case "backup":
		p.backup = p.lease.DeepCopy()
	case "restore":
		p.lease = p.backup.DeepCopy()
	case "watch":
		l := p.lease.DeepCopy()
		if l == nil {
			l = leaseOf("", 0, atVersion(strconv.Itoa(p.version)))
			l.UID = p.deleted
		}
		p.apply(p.now, WatchWorks{})
		p.apply(p.now, Seen[*coordinationv1.Lease]{Object: l, Deleted: p.lease == nil})
	case "began":
		p.apply(p.now, WatchBegan{})
	case "gone":
		p.apply(p.now, WatchLost{Gone: true})
	case "refused":
		p.apply(p.now, WatchLost{})
	case "returned":
		p.apply(p.now, WorkReturned{})
	case "stop":
		p.apply(p.now, Stopped{})
	case "resign":
		p.apply(p.now, Resigned{})
	case "expired":
		p.apply(p.now, Expired{})
	case "judge":
		p.apply(p.now, p.candidateOf(words[1], words[2]))
	default:
		p.write(words[0], words[1:])
	}
	return append(append(out, p.effects()...), p.state()...)
}

// candidateOf returns the answer to an inquiry.
func (p *player) candidateOf(name, priority string) Inquired {
	if priority == "absent" {
		return Inquired{Name: name, Outcome: *errNotFound}
	}
	lc := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{spec.PeerAnnotation: `{"priority":` + priority + `}`}}}
	lc.Spec.LeaseName = p.Lease.Name
	return Inquired{Name: name, Candidate: lc}
}

// write writes the Lease as another client.
func (p *player) write(who string, changes []string) {
	l := p.lease.DeepCopy()
	if l == nil {
		l = leaseOf("", 0)
		l.UID, l.Spec.LeaseTransitions = "", ptr.To[int32](0)
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	now := ptr.To(metav1.NewMicroTime(p.instant().Wall))
	for _, change := range changes {
		field, value, _ := strings.Cut(change, "=")
		n, _ := strconv.Atoi(value)
		switch field {
		case "claim":
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &who, now, now, ptr.To[int32](15)
			l.Spec.LeaseTransitions = ptr.To(*l.Spec.LeaseTransitions + 1)
			l.Annotations[termAnnotation] = markOf(l)
		case "renew":
			l.Spec.RenewTime = now
		case "release":
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = ptr.To(""), now, now, ptr.To[int32](1)
		case "hand":
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &value, now, now, ptr.To[int32](5)
			l.Spec.LeaseTransitions = ptr.To(*l.Spec.LeaseTransitions + 1)
			l.Annotations[handoverAnnotation], l.Annotations[termAnnotation] = who, markOf(l)
		case "assign":
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = &value, now, now
			l.Spec.LeaseTransitions = ptr.To(*l.Spec.LeaseTransitions + 1)
		case "unset":
			l.Spec.AcquireTime, l.Spec.LeaseTransitions = nil, nil
		case "strategy":
			l.Spec.Strategy = ptr.To(coordinationv1.CoordinatedLeaseStrategy(value))
		case "holder":
			l.Spec.HolderIdentity = &value
		case "duration":
			l.Spec.LeaseDurationSeconds = ptr.To(int32(n))
		case "prefers":
			l.Spec.PreferredHolder = &value
		case "priority":
			l.Annotations[recordKey(who)] = record{Peer: spec.Peer{Identity: who, Priority: int32(n)}, Strategy: p.Strategy.Name()}.encode()
		case "offers":
			l.Annotations[offerAnnotation] = "1 " + value
		case "accepts":
			r := records(l.Annotations)[who]
			r.Ack, _, _ = strings.Cut(l.Annotations[offerAnnotation], " ")
			l.Annotations[recordKey(who)] = r.encode()
		case "withdraws":
			delete(l.Annotations, recordKey(who))
		default:
			p.t.Fatalf("unknown change %q", change)
		}
	}
	p.store(l)
}

// request describes a request.
func (p *player) request(s Step) string {
	if s.Op == Read {
		return "read"
	}
	l := s.Object
	text := fmt.Sprintf("%s holder=%q transitions=%d", s.Op, spec.HolderOf(l), spec.TransitionsOf(l))
	if l.Spec.LeaseDurationSeconds != nil {
		text += fmt.Sprintf(" duration=%ds", *l.Spec.LeaseDurationSeconds)
	}
	for _, id := range slices.Sorted(func(yield func(string) bool) {
		for id := range records(l.Annotations) {
			if !yield(id) {
				return
			}
		}
	}) {
		text += " record=" + id
	}
	if _, to, ok := strings.Cut(l.Annotations[offerAnnotation], " "); ok {
		text += " offer=" + to
	}
	if l.Annotations[handoverAnnotation] != "" {
		text += " handed by " + l.Annotations[handoverAnnotation]
	}
	if to := spec.PreferredOf(l); to != "" {
		text += " prefers=" + to
	}
	return text
}

// effects describes the effects since the last call.
func (p *player) effects() (out []string) {
	for _, e := range p.told {
		switch e := e.(type) {
		case TermStarted:
			out = append(out, fmt.Sprintf("the work starts, until %v", e.Deadline))
			if e.Vacant != 0 {
				out = append(out, fmt.Sprintf("the last holder wrote %v ago", e.Vacant))
			}
		case TermExtended:
			out = append(out, fmt.Sprintf("the work goes on until %v", e.Deadline))
		case WorkCancelled:
			out = append(out, fmt.Sprintf("the work is cancelled: %v", e.Cause))
		case TermEnded:
			out = append(out, fmt.Sprintf("the term has ended: %v", e.Cause))
		case LeaderChanged:
			out = append(out, fmt.Sprintf("leader %q", e.To))
		case Offered:
			out = append(out, "offered to "+e.To)
		case OfferEnded:
			out = append(out, fmt.Sprintf("offer to %s, accepted: %v", e.To, e.Accepted))
		default:
			out = append(out, fmt.Sprintf("%T", e))
		}
	}
	p.told = nil
	return out
}

// state describes the state, if it has changed.
func (p *player) state() []string {
	text := p.phase.String()
	if p.phase == Standby && p.known && p.claimWait() > p.now {
		text += fmt.Sprintf(", another process may lead until %v", p.claimWait())
	}
	if p.polling {
		text += ", polls"
	} else if p.from("version") == "" {
		text += ", watches from the present state"
	}
	if p.registry.inquiry() != "" {
		text += ", asks about " + p.registry.inquiry()
	}
	if text == p.last {
		return nil
	}
	p.last = text
	return []string{text}
}
