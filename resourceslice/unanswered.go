// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// lateWrites is for how long after a write without an answer the API server may
// still carry it out: it gives up on a request after a minute.
const lateWrites = 2 * time.Minute

// attempt is a write that got no answer: it was carried out, or will be, or
// never will. What is planned meanwhile has to be right in all three cases, or
// a consumer sees a device on two slices of a pool that is complete although
// its publisher doesn't know.
type attempt struct {
	rec *record // the slice as it was sent
	was *record // what it was before; nil for a create
	at  time.Time
}

// overtaken reports whether the attempt can't be carried out any longer, given
// what the slice is now: updates carry a resource version, creates a name.
func (a attempt) overtaken(now *record) bool {
	return a.was == nil || now.UID != a.was.UID || now.ResourceVersion != a.was.ResourceVersion
}

// noteUnanswered remembers a write whose answer was lost.
func (j *job) noteUnanswered(sent, was *record) {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.w.unanswered[sent.Name] = append(j.w.unanswered[sent.Name], attempt{sent, was, time.Now()})
}

func (j *job) isUnanswered(name string) bool {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	return len(j.w.unanswered[name]) > 0
}

// found forgets the attempts that can't be carried out any longer: the slice
// is known to be now.
func (w *work) found(now *record) {
	for _, a := range w.unanswered[now.Name] {
		if !a.overtaken(now) {
			return // all of them have one resource version
		}
	}
	delete(w.unanswered, now.Name)
}

// resolve finds out what became of the writes without an answer, as far as
// that can be known. Those stay whose slice is what it was: they may yet be
// carried out.
func (j *job) resolve(live []*record) error {
	if len(j.w.unanswered) == 0 {
		return nil
	}
	for _, rec := range live {
		j.w.found(rec)
	}
	for name, attempts := range maps.Clone(j.w.unanswered) {
		last := attempts[len(attempts)-1]
		if time.Since(last.at) >= lateWrites {
			delete(j.w.unanswered, name)
			continue
		}
		ctx, cancel := context.WithTimeout(j.c.outlives, j.c.cfg.CallTimeout)
		slice, err := j.s.version.get(ctx, name)
		cancel()
		switch {
		case err == nil:
			e := encoder{hasher: j.c.hasher}
			now := e.record(slice)
			if now.id == j.p.id {
				j.c.own.wrote(now)
			} else {
				j.take(name)
			}
			j.w.found(now)
		case versionGone(err, false):
			j.s.end()
			return err
		case apierrors.IsNotFound(err):
			if last.was != nil { // an update finds nothing to update
				j.c.own.gone(last.was)
				delete(j.w.unanswered, name)
			}
		case apierr.Classify(err) == apierr.Forbidden:
			// A node isn't shown what doesn't exist.
		default:
			return err
		}
		j.logger.V(4).Info("Looked for a write without an answer", "slice", klog.KRef("", name), "open", len(j.w.unanswered[name]) > 0, "err", err)
	}
	return nil
}

// assume returns the candidates of a layout as they may be once the writes
// without an answer are carried out, so that what was sent to a page is planned
// for the same page again; and what each of those really is.
func (o *observed) assume(usable []*record, nodeName string) (assumed []*record, really map[*record]*record) {
	if len(o.unanswered) == 0 {
		return usable, nil
	}
	really = make(map[*record]*record)
	there := make(map[string]bool, len(usable))
	for _, rec := range usable {
		there[rec.Name] = true
		attempts := o.unanswered[rec.Name]
		if len(attempts) > 0 {
			sent := attempts[len(attempts)-1].rec
			really[sent] = rec
			rec = sent
		}
		assumed = append(assumed, rec)
	}
	live := make(map[string]bool, len(o.live))
	for _, rec := range o.live {
		live[rec.Name] = true
	}
	for name, attempts := range o.unanswered {
		if last := attempts[len(attempts)-1]; last.was == nil && !live[name] && last.rec.nodeName == nodeName {
			really[last.rec] = nil
			assumed = append(assumed, last.rec)
		}
	}
	slices.SortFunc(assumed, byRecord)
	return assumed, really
}

// collides reports whether a write without an answer, should it be carried out
// while the pages are written at their generation, would show consumers what
// is also elsewhere, or a slice too many.
func (p *plan) collides(o *observed) bool {
	if len(o.unanswered) == 0 {
		return false
	}
	pageOf := make(map[string]string)
	planned := make(map[string]bool, len(p.pages))
	for _, page := range p.pages {
		planned[page.name] = true
		for _, it := range page.items {
			pageOf[it.name] = page.name
		}
	}
	for name, attempts := range o.unanswered {
		for _, a := range attempts {
			if a.was == nil && !planned[name] && a.rec.generation == p.generation {
				return true
			}
			for _, items := range [][]liveItem{a.rec.devices, a.rec.sets} {
				for i := range items {
					if at, ok := pageOf[items[i].name]; ok && at != name {
						return true
					}
				}
			}
		}
	}
	return false
}

// next returns the generation to switch to: the one after the newest that is
// known or, where a write that may be carried out has that already, the same if
// the write is a part of this plan.
func (p *plan) next(o *observed) int64 {
	p.generation++
	next, same := p.generation, true
	for _, attempts := range o.unanswered {
		for _, a := range attempts {
			if a.rec.generation >= p.generation {
				next = max(next, a.rec.generation+1)
				same = same && a.rec.generation == p.generation && a.rec.count == int64(len(p.pages))
			}
		}
	}
	if same && !p.collides(o) {
		return p.generation
	}
	return next
}

// unansweredFirst sorts pages so that those come first of which a write may
// still be carried out: once they are written it can't.
func (o *observed) unansweredFirst(a, b *page) int {
	rank := func(p *page) int {
		if len(o.unanswered[p.name]) > 0 {
			return 0
		}
		return 1
	}
	return rank(a) - rank(b)
}
