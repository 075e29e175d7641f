// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// graphLag is for how long after a write an API server's answer to a node that
// the slice is not its own may be due to an authorizer that hasn't heard of
// the slice yet; graphRetry is the first pause before it is asked again.
const (
	graphLag   = 5 * time.Second
	graphRetry = 5 * time.Millisecond
	graphTries = 8
)

// verdict is what follows from the answer to one write.
type verdict int

const (
	stored    verdict = iota // or the slice is gone that was to go
	outdated                 // somebody else was faster, and what there is now is known
	refused                  // never in this form; what is wanted has changed accordingly
	forbidden                // by the API server's policy
	failure                  // may work later
	stopped
)

// batch is the writes that may be under way at the same time.
type batch struct {
	mu       sync.Mutex
	verdicts [stopped + 1]int
	err      error
	after    time.Duration
}

func (b *batch) note(v verdict, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verdicts[v]++
	if v == failure || v == forbidden {
		b.err = err
		b.after = max(b.after, apierr.RetryAfter(err))
	}
}

// hopeless reports whether there is no point in starting further writes.
func (b *batch) hopeless() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.verdicts[failure]+b.verdicts[forbidden]+b.verdicts[stopped] > 0
}

func (b *batch) result() (r result, ok bool) {
	switch {
	case b.verdicts[failure] > 0:
		return result{err: b.err, after: b.after}, false
	case b.verdicts[stopped] > 0:
		return result{done: true}, false
	case b.verdicts[forbidden] > 0:
		return result{after: forbiddenRetry}, false
	case b.verdicts[refused] > 0:
		return result{progress: true}, false
	case b.verdicts[outdated] > 0:
		return result{again: true}, false
	}
	return result{}, true
}

// execute writes a plan, phase by phase. What it has written is known when it
// returns, whether that was all or not, so the next plan goes on from there.
func (j *job) execute(p *plan) result {
	if p.window && !p.bump {
		j.openWindow() // it is half published already
	}
	j.w.compactedBy(p, j.live)
	for _, phase := range p.phases {
		r, ok := parallel(j, phase, func(page *page) (verdict, error) {
			v, err := j.write(p, page)
			if v == stored && p.window {
				j.openWindow()
			}
			return v, err
		})
		if !ok {
			return r
		}
	}
	if p.window {
		j.closeWindow()
	}
	for _, group := range p.deletes {
		if r, ok := parallel(j, group, j.delete); !ok {
			return r
		}
	}
	return result{progress: true, written: true}
}

// compactedBy notes that a plan gets rid of many pages.
func (w *work) compactedBy(p *plan, live []*record) {
	if len(p.pages) > 0 && len(p.pages)+compactAbove/2 <= len(live) {
		w.compacted = time.Now()
	}
}

// parallel does some writes, as many at once as Config.Concurrency lets all
// pools together. ok is false when not all of them were stored.
func parallel[T any](j *job, all []T, do func(T) (verdict, error)) (r result, ok bool) {
	var b batch
	var writers sync.WaitGroup
	next := make(chan T)
	for range min(len(all), cap(j.c.tokens)) {
		writers.Go(func() {
			for one := range next {
				j.c.tokens <- struct{}{}
				switch {
				case b.hopeless():
				case j.mustStop():
					b.note(stopped, nil)
				default:
					b.note(do(one))
				}
				<-j.c.tokens
				j.c.progress.Beat()
			}
		})
	}
	for _, one := range all {
		if b.hopeless() {
			break
		}
		next <- one
	}
	close(next)
	writers.Wait()
	return b.result()
}

// mustStop reports whether no further write may begin: Run is to end, and
// there is no pool half published that the write would complete, or no time.
func (j *job) mustStop() bool {
	if j.c.outlives.Err() != nil {
		return true
	}
	return j.ctx.Err() != nil && !j.isOpen()
}

func (j *job) isOpen() bool {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	return j.p.open
}

// call does one request with its deadline, and tells the hook.
func (j *job) call(verb, name string, devices int, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(j.c.outlives, j.c.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	err := do(ctx)
	done := APICall{Pool: j.p.id, Slice: name, Verb: verb, Devices: devices, Latency: time.Since(begin), Err: err}
	j.c.mu.Lock()
	j.w.writes++
	if apierr.MayHaveCommitted(err) {
		j.w.unsure = time.Now()
	}
	j.c.mu.Unlock()
	j.logger.V(4).Info("Sent request", "verb", verb, "slice", klog.KRef("", name), "devices", devices, "latency", done.Latency, "err", err)
	if j.c.cfg.Hooks.APICall != nil {
		j.c.cfg.Hooks.APICall(done)
	}
	return err
}

// write creates or updates a page.
func (j *job) write(p *plan, page *page) (verdict, error) {
	slice, err := j.build(p, page)
	if err != nil {
		return j.judge("update", page.rec, page.name, err)
	}
	verb, request := "update", j.s.version.update
	if page.rec == nil {
		verb, request = "create", j.s.version.create
	}
	var answer *resourcev1.ResourceSlice
	err = j.patiently(page.name, func() error {
		return j.call(verb, page.name, len(slice.Spec.Devices), func(ctx context.Context) (err error) {
			answer, err = request(ctx, slice)
			return err
		})
	})
	if err != nil {
		if apierr.Classify(err) == apierr.Invalid {
			j.refuse(page, err)
			return refused, err
		}
		if apierr.MayHaveCommitted(err) {
			e := encoder{hasher: j.c.hasher}
			j.noteUnanswered(e.record(slice), page.rec)
		}
		return j.judge(verb, page.rec, page.name, err)
	}
	e := encoder{hasher: j.c.hasher}
	rec := e.record(answer)
	j.c.own.wrote(rec)
	j.c.mu.Lock()
	j.w.found(rec)
	j.c.mu.Unlock()
	j.compare(page, slice, answer, rec)
	return stored, nil
}

// delete deletes a slice that is of no use any longer, provided it is still
// what it was when that was decided.
func (j *job) delete(rec *record) (verdict, error) {
	j.c.own.deleting(rec, true)
	err := j.patiently(rec.Name, func() error {
		return j.call("delete", rec.Name, 0, func(ctx context.Context) error {
			return j.s.version.delete(ctx, rec.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &rec.UID, ResourceVersion: &rec.ResourceVersion},
			})
		})
	})
	switch {
	case err == nil:
		j.c.own.gone(rec)
		return stored, nil
	case apierr.Classify(err) != apierr.NotFound && !apierr.MayHaveCommitted(err):
		j.c.own.deleting(rec, false)
	}
	v, err := j.judge("delete", rec, rec.Name, err)
	if v == outdated && apierr.Classify(err) == apierr.NotFound {
		return stored, nil
	}
	return v, err
}

// patiently repeats a request that a node is denied although it wrote the
// slice a moment ago.
func (j *job) patiently(name string, request func() error) error {
	pause := graphRetry
	for try := 1; ; try++ {
		err := request()
		if apierr.Classify(err) != apierr.Forbidden || try == graphTries || !j.c.own.writtenWithin(name, graphLag) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-j.c.outlives.Done():
			return err
		}
		pause *= 2
	}
}

// judge finds out what follows from an error, and what the slice is now.
func (j *job) judge(verb string, rec *record, name string, err error) (verdict, error) {
	switch class := apierr.Classify(err); class {
	case apierr.Canceled:
		if j.c.outlives.Err() != nil {
			return stopped, err
		}
		return failure, err
	case apierr.Conflict, apierr.AlreadyExists:
		return j.lookUp(rec, name, err)
	case apierr.NotFound:
		if versionGone(err, rec == nil) {
			j.s.end()
			return failure, err
		}
		j.c.own.gone(rec)
		return outdated, err
	case apierr.Forbidden:
		if rec != nil {
			if v, found := j.stillThere(rec); found {
				return v, err
			}
		}
		j.report(&ForbiddenError{Pool: j.p.id, Verb: verb, Err: err}, "A ResourceSlice can't be written")
		return forbidden, err
	case apierr.Throttled:
		j.c.mu.Lock()
		j.c.paused = time.Now().Add(max(apierr.RetryAfter(err), time.Second))
		j.c.mu.Unlock()
		return failure, err
	case apierr.Invalid:
		return failure, err // a delete, or a get
	}
	return failure, err
}

// lookUp gets the slice that stands in the way.
func (j *job) lookUp(rec *record, name string, because error) (verdict, error) {
	ctx, cancel := context.WithTimeout(j.c.outlives, j.c.cfg.CallTimeout)
	defer cancel()
	slice, err := j.s.version.get(ctx, name)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) && !versionGone(err, false):
		if rec != nil {
			j.c.own.gone(rec)
		}
		return outdated, because
	case apierr.Classify(err) == apierr.Forbidden && rec == nil && j.isUnanswered(name):
		return failure, because // it is the one we sent, and the authorizer will know soon
	case apierr.Classify(err) == apierr.Forbidden && rec == nil:
		return j.take(name), because // a node can't see what isn't its own
	default:
		return failure, err
	}
	e := encoder{hasher: j.c.hasher}
	found := e.record(slice)
	j.c.mu.Lock()
	j.w.found(found)
	j.c.mu.Unlock()
	if found.id != j.p.id || found.nodeName != j.want.nodeName() && rec == nil {
		return j.take(name), because
	}
	j.c.own.wrote(found)
	if found.deleting() && rec == nil {
		return failure, because // it has finalizers; its name is not free yet
	}
	return outdated, because
}

// take remembers that a name is used by something else.
func (j *job) take(name string) verdict {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.w.taken[name] = true
	return outdated
}

// stillThere asks what an API server that denies an update or a delete of a
// slice doesn't say: whether it exists. A node may list its slices always.
func (j *job) stillThere(rec *record) (v verdict, known bool) {
	for sc, m := range j.s.watched() {
		if !sc.covers(rec) {
			continue
		}
		list, err := m.list(j.c.outlives, metav1.ListOptions{})
		if err != nil {
			return failure, apierr.Classify(err) != apierr.Forbidden
		}
		there := false
		_ = eachSlice(list, func(name, uid string) { there = there || name == rec.Name && uid == string(rec.UID) })
		if there {
			return forbidden, false
		}
		j.c.own.gone(rec)
		return outdated, true
	}
	return forbidden, false
}

func (d *desired) nodeName() string {
	if d == nil {
		return ""
	}
	return d.selection.nodeName
}
