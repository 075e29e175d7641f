// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// keeperPlayer is an API server with one LeaseCandidate, and its upkeep. It plays the
// stories in upkeep.txt:
//
//	want FIELD=VALUE…  the LeaseCandidate should exist, with a binary or emulation version,
//	                   a priority or a zone; a field that is not named keeps its value;
//	                   waits=true until the candidate may lead
//	unwanted           it should not exist
//	stop               Run ends
//	ask WHO            the LeaseCandidate of WHO is to be read; without WHO none is
//	clock D            the wall clock is wrong by D
//	until, serve, ok, fail, lose, delete, fake, backup, restore, watch, gone
//	                   as for the Lease; "ok T" for an answer at T
//	late [deleted]     the watch delivers the object of the last backup
//	stored, answer     the request is carried out; its answer comes later
//	refused            the watch was refused
//	throttle T         the request fails, and is not to be repeated before T
//	other FIELD=VALUE… another client writes the object, and creates it if there is none
//	webhook            removes the annotations from each write, from now on
//
// A request is written with the description of the candidate, the ping and the renewTime.
type keeperPlayer struct {
	*Upkeep
	t    *testing.T
	now  time.Duration
	skew time.Duration // of the wall clock
	wish Candidacy
	step Action[*coordinationv1beta1.LeaseCandidate] // the request under way

	versions
	stored, backup *coordinationv1beta1.LeaseCandidate // nil if it does not exist
	deleted        *coordinationv1beta1.LeaseCandidate // as it was, if it does not exist
	late           func()                              // the answer of a request that was carried out
	webhook        bool
	last           string // the state that was described last
}

func newKeeperPlayer(t *testing.T) *keeperPlayer {
	return &keeperPlayer{Upkeep: NewUpkeep(testRules()), t: t, versions: versions{version: 100}}
}

func (p *keeperPlayer) instant() Instant {
	return Instant{Mono: p.now, Wall: time.Unix(1e9, 0).Add(p.now + p.skew)}
}

func (p *keeperPlayer) apply(e Event) {
	p.Apply(p.instant(), e)
	if err := p.Check(); err != nil {
		p.t.Fatalf("after %T: %v", e, err)
	}
}

// next returns what the driver does at now.
func (p *keeperPlayer) next() Action[*coordinationv1beta1.LeaseCandidate] {
	p.apply(Wanted{p.wish})
	p.apply(Tick{})
	return p.Next(p.instant())
}

// store stores an object.
func (p *keeperPlayer) store(o *coordinationv1beta1.LeaseCandidate) {
	p.stored = o.DeepCopy()
	p.stamp(p.stored)
}

// serve carries out the request under way.
func (p *keeperPlayer) serve() (*coordinationv1beta1.LeaseCandidate, Outcome) {
	want := p.step.Object
	switch op := p.step.Op; {
	case op == Inquire:
		return want, Outcome{}
	case op != Create && p.stored == nil:
		return nil, *errNotFound
	case op == Create && p.stored != nil, op == Update && want.ResourceVersion != p.stored.ResourceVersion, op == Delete && want.UID != p.stored.UID:
		return nil, *errConflict
	case op == Delete:
		p.version++
		p.stored = nil
		return want, Outcome{}
	case op != Read:
		p.store(want)
		if p.webhook {
			p.stored.Annotations = nil
		}
	}
	return p.stored.DeepCopy(), Outcome{}
}

// answer answers the request under way.
func (p *keeperPlayer) answer(o *coordinationv1beta1.LeaseCandidate, outcome Outcome) {
	op := p.step.Op
	if op == "" {
		p.t.Fatalf("at %v no request is under way", p.now)
	}
	p.step.Op = ""
	p.apply(Answered[*coordinationv1beta1.LeaseCandidate]{Op: op, At: p.instant(), Object: o, Outcome: outcome})
}

func (p *keeperPlayer) duration(words []string) time.Duration {
	d, err := time.ParseDuration(words[1])
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// pass lets time pass until end, or until a request is sent that is not served.
func (p *keeperPlayer) pass(end time.Duration, serves bool) (out []string) {
	if p.step.Op != "" {
		p.t.Fatalf("at %v %s is under way", p.now, p.step.Op)
	}
	for {
		s := p.next()
		if s.Op != "" {
			out = append(out, fmt.Sprintf("%v: %s", p.now, p.request(s)))
			if p.step = s; !serves {
				return out
			}
			p.answer(p.serve())
			continue
		}
		if p.now >= end || p.Ended() {
			return out
		}
		if s.Wake <= p.now {
			p.t.Fatalf("at %v it wakes at %v", p.now, s.Wake)
		}
		p.now = min(s.Wake, end)
	}
}

func (p *keeperPlayer) play(words []string) (out []string) {
	switch words[0] {
	case "want":
		p.wish.present = true
		for _, change := range words[1:] {
			p.set(change)
		}
	case "unwanted":
		p.wish.present = false
	case "stop":
		p.wish.present, p.wish.stopping = false, true
	case "ask":
		p.wish.inquiry = strings.Join(words[1:], "")
	case "clock":
		p.skew = p.duration(words)
	case "webhook":
		p.webhook = true
	case "until", "serve":
		out = p.pass(p.duration(words), words[0] == "serve")
	case "ok":
		if len(words) > 1 {
			p.now = p.duration(words)
		}
		p.answer(p.serve())
	case "fail":
		p.answer(nil, Outcome{Answer: Failed})
	case "throttle":
		p.answer(nil, Outcome{Answer: Failed, RetryAfter: p.duration(words) - p.now})
	case "lose":
		p.serve()
		p.answer(nil, *errServer)
	case "stored":
		o, outcome := p.serve()
		p.late = func() { p.answer(o, outcome) }
	case "answer":
		p.late()
	case "fake":
		p.fake = true
	case "delete":
		p.version++
		p.deleted, p.stored = p.stored, nil
	case "backup":
		p.backup = p.stored.DeepCopy()
	case "restore":
		p.stored = p.backup.DeepCopy()
	case "watch", "late":
		o, deleted := p.stored.DeepCopy(), p.stored == nil
		if words[0] == "late" {
			o, deleted = p.backup.DeepCopy(), len(words) > 1
		} else if deleted {
			o = &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "me", ResourceVersion: strconv.Itoa(p.version)}}
			if p.deleted != nil {
				o.UID = p.deleted.UID
			}
		}
		p.apply(WatchWorks{})
		p.apply(Seen[*coordinationv1beta1.LeaseCandidate]{Object: o, Deleted: deleted})
	case "gone", "refused":
		p.apply(WatchLost{Gone: words[0] == "gone"})
	case "other":
		p.write(words[1:])
	default:
		p.t.Fatalf("unknown word %q", words[0])
	}
	return append(out, p.state()...)
}

// set changes a field of the description.
func (p *keeperPlayer) set(change string) {
	field, value, _ := strings.Cut(change, "=")
	switch field {
	case "waits":
		p.wish.waits = value == "true"
	case "binary":
		p.wish.self.BinaryVersion = value
	case "emulation":
		p.wish.self.EmulationVersion = value
	case "priority":
		n, _ := strconv.Atoi(value)
		p.wish.self.Priority = int32(n)
	case "zone":
		p.wish.self.Attributes = map[string]string{"zone": value}
	default:
		p.t.Fatalf("unknown field %q", field)
	}
}

// write writes the object as another client. A time is a duration since the beginning.
func (p *keeperPlayer) write(changes []string) {
	o := p.stored.DeepCopy()
	if o == nil {
		o = &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "me"}}
	}
	for _, change := range changes {
		field, value, _ := strings.Cut(change, "=")
		at, _ := time.ParseDuration(value)
		t := ptr.To(metav1.NewMicroTime(time.Unix(1e9, 0).Add(at)))
		switch field {
		case "ping":
			o.Spec.PingTime = t
		case "renewed":
			o.Spec.RenewTime = t
		case "binary":
			o.Spec.BinaryVersion = value
		case "lease":
			o.Spec.LeaseName = value
		case "label":
			o.Labels = map[string]string{"label": value}
		default:
			p.t.Fatalf("unknown field %q", field)
		}
	}
	p.store(o)
}

// request describes a request.
func (p *keeperPlayer) request(s Action[*coordinationv1beta1.LeaseCandidate]) string {
	text := string(s.Op)
	if s.Timeout != p.rules.CallTimeout {
		text += fmt.Sprintf(" within %v", s.Timeout)
	}
	since := func(t *metav1.MicroTime) time.Duration { return t.Sub(time.Unix(1e9, 0)) }
	switch o := s.Object; s.Op {
	case Inquire:
		text += " " + o.Name
	case Create, Update:
		text += fmt.Sprintf(" %s/%s of %s binary=%s emulation=%s", o.Namespace, o.Name, o.Spec.LeaseName, o.Spec.BinaryVersion, o.Spec.EmulationVersion)
		if string(o.Spec.Strategy) != p.rules.Strategy.Name() {
			text += fmt.Sprintf(" strategy=%q", o.Spec.Strategy)
		}
		if peer := o.Annotations[spec.PeerAnnotation]; peer != "" {
			text += " peer=" + peer
		}
		if o.Labels != nil {
			text += " label=" + o.Labels["label"]
		}
		if o.Spec.PingTime != nil {
			text += fmt.Sprintf(" ping=%v", since(o.Spec.PingTime))
		}
		text += fmt.Sprintf(" renewed=%v", since(o.Spec.RenewTime))
	}
	return text
}

// state describes the state, if it has changed.
func (p *keeperPlayer) state() []string {
	s := p.Next(p.instant())
	text := [...]string{"no watch", "no watch begins", "watched"}[s.Watch]
	switch {
	case s.Watch == Watched && s.Version == "":
		text += " from the present state"
	case p.Polling():
		text = "polled"
	}
	if p.object != nil {
		text = "there, " + text
	} else if p.known {
		text = "not there, " + text
	}
	if s.Stream != 0 {
		text += fmt.Sprintf(", stream %d", s.Stream)
	}
	if p.Ended() {
		text = "ended"
	}
	if text == p.last {
		return nil
	}
	p.last = text
	return []string{text}
}
