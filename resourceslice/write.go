// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// graphLag is the time after a write in which a node may be denied its own slice, because
// the node authorizer has not seen the slice yet.
const graphLag = 5 * time.Second

// verdict is the conclusion from a request, a plan or a whole try. If several
// requests run in parallel, the greatest one counts.
type verdict int

const (
	stored   verdict = iota // or the slice is gone, for a delete
	unasked                 // a webhook refuses dry runs
	outdated                // another writer was faster; the facts are known
	refused                 // never in this form; answers has that
	waiting                 // not before after
	failure                 // may work later
	done                    // nothing can or must be done now
)

// result is the end of a request, a plan or a try. The zero value is stored.
type result struct {
	verdict verdict
	err     error         // of a failure
	after   time.Duration // the least wait
	why     core.Phase    // of waiting
}

func waitFor(after time.Duration, why core.Phase) result {
	return result{verdict: waiting, after: after, why: why}
}

func failureOf(err error) result {
	return result{verdict: failure, err: err, after: apierr.RetryAfter(err)}
}

// execute writes a plan, phase by phase. The facts about written slices are
// known when it returns, so the next plan goes on from there.
func (j *job) execute(p *plan) result {
	if p.outcome == newGeneration {
		j.logger.V(4).Info("Switching to a new generation", "generation", p.generation, "slices", len(p.pages))
	}
	if p.outcome == fillUp {
		j.openWindow(p.generation)
	}
	if len(p.pages) > 0 && len(p.pages)+compactAbove/2 <= len(j.live) {
		j.w.compacted = time.Now()
	}
	for _, phase := range p.phases {
		if r := parallel(j, phase, p.window(), func(page *page) result { return j.write(p, page, false) }); r.verdict != stored {
			return r
		}
	}
	if p.window() {
		j.closeWindow()
	}
	for _, group := range p.deletes {
		if r := parallel(j, group, false, func(rec *record) result {
			return j.send(&request{rec: rec, verb: "delete", name: rec.Name, revision: j.status.Revision})
		}); r.verdict != stored {
			return r
		}
	}
	return result{}
}

// rehearse sends a dry run of each write that adds restrictions of a kind that the API
// server has not been seen to store: otherwise a device would be offered without its
// counters or its taint until the answer to the write arrives. It also sends one for a
// doubted answer about the head of slices. The verdict is refused if the answers have
// changed.
func (j *job) rehearse(p *plan) result {
	for _, one := range p.pages {
		kinds, head := one.newRestrictions(), j.w.answers[j.want.heads[one.kind()]]
		isDoubted := head != nil && head.doubted
		if !isDoubted && (one.change == unchanged || j.c.cfg.PublishUnrestricted || j.s.trusts(kinds)) {
			continue
		}
		r := parallel(j, []*page{one}, false, func(page *page) result { return j.write(p, page, true) })
		if r.verdict > unasked {
			return r
		}
		if r.verdict == unasked && j.confirm(one) || isDoubted {
			return result{verdict: refused}
		}
		// Without a dry run the answer to the write shows what is dropped.
		j.s.trust(kinds)
	}
	return result{}
}

// confirm ends the doubts about a page if no dry run can tell whether they are right,
// because a webhook refuses dry runs. It reports whether there were any.
func (j *job) confirm(page *page) (found bool) {
	contents := []hash{j.want.heads[page.kind()]}
	for i := range page.items {
		contents = append(contents, page.items[i].hash)
	}
	for _, h := range contents {
		if a := j.w.answers[h]; a != nil && a.doubted {
			a.doubted, a.at, found = false, time.Now(), true
		}
	}
	return found
}

// write writes a page.
func (j *job) write(p *plan, page *page, dryRun bool) result {
	slice, err := j.build(p, page)
	if err != nil {
		return failureOf(err)
	}
	req := &request{page: page, slice: slice, rec: page.rec, dryRun: dryRun, window: p.window(), verb: "update", name: page.name, revision: j.status.Revision}
	if page.rec == nil {
		req.verb = "create"
	}
	r := j.send(req)
	if r.verdict == stored && !dryRun && p.window() {
		j.openWindow(p.generation)
	}
	return r
}

// repeat sends again all writes whose answers were lost, until the API server
// has answered each. A success or a conflict excludes that the first attempt is
// carried out later: an update carries a resource version, a create a name, and a
// delete a UID. A refusal excludes nothing, because a webhook may have let the first
// attempt pass, so it counts only after core.LateWrites. A plan never has to assume
// anything.
func (j *job) repeat() result {
	return parallel(j, slices.Collect(maps.Values(j.w.unanswered)), false, func(req *request) result {
		j.c.mu.Lock()
		do, wait := j.p.state.Repeat(time.Now(), req.name)
		j.c.mu.Unlock()
		switch do {
		case core.Await:
			return waitFor(wait, core.Failing)
		case core.Relist:
			return j.abandon(req)
		case core.SendLast:
			req.revision = 0
		}
		return j.send(req)
	})
}

// abandon ends the repetition of a lost write that is over. It lists, because the view
// may not know yet that the write was carried out.
func (j *job) abandon(req *request) result {
	for _, sc := range j.c.scopesOf(j.p.id, j.cluster, !j.s.noPool.Load()) {
		all, err := j.s.list(j.c.outlives, sc)
		if err != nil {
			return failureOf(err)
		}
		if i := slices.IndexFunc(all, func(rec *record) bool { return rec.Name == req.name }); i >= 0 {
			j.c.view.wrote(all[i])
		}
	}
	j.mu.Lock()
	delete(j.w.unanswered, req.name)
	j.mu.Unlock()
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.c.apply(j.p, core.Answered{Name: req.name})
	return result{verdict: outdated}
}

// parallel carries out writes, at most concurrency at once for all pools
// together, and returns the worst result. It starts no further writes if one can't
// succeed now. If the pool is incomplete, other writes must not complete it after
// one was outdated.
func parallel[T any](j *job, all []T, window bool, do func(T) result) (worst result) {
	var mu sync.Mutex
	note := func(r result) (isHopeless bool) {
		mu.Lock()
		defer mu.Unlock()
		if r.verdict > worst.verdict {
			worst = r
		}
		return worst.verdict > refused || window && worst.verdict > stored
	}
	var writers sync.WaitGroup
	for _, one := range all {
		j.c.tokens <- struct{}{}
		r := result{}
		if j.mustStop() {
			r.verdict = done
		}
		if note(r) {
			<-j.c.tokens
			break
		}
		writers.Go(func() {
			note(do(one))
			<-j.c.tokens
			j.c.progress.Beat()
		})
	}
	writers.Wait()
	return worst
}

// mustStop reports whether no further write may begin: Run ends, and either no
// time is left or the pool is not half published.
func (j *job) mustStop() bool { return j.c.outlives.Err() != nil || j.ctx.Err() != nil && !j.isHalf() }

// indexTimes indexes the live taints by device, newest generation first.
func (j *job) indexTimes() {
	j.times = make(map[string][]taint)
	for _, rec := range j.live {
		for _, is := range rec.items {
			if len(is.taints) > 0 && j.times[is.name] == nil {
				j.times[is.name] = is.taints
			}
		}
	}
}

// build returns the slice of a page. Its metadata is that of the page with our
// labels and owner; the resource version in it makes an update fail if another
// writer was faster.
func (j *job) build(p *plan, page *page) (*resourcev1.ResourceSlice, error) {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: page.name}, Spec: j.want.spec(page.kind())}
	if page.rec != nil {
		page.rec.DeepCopyInto(&slice.ObjectMeta)
	}
	slice.Labels = labels.Merge(slice.Labels, j.c.cfg.Labels)
	if j.self.ID != "" {
		metav1.SetMetaDataAnnotation(&slice.ObjectMeta, instanceAnnotation, j.self.String())
	}
	if p.digest != "" {
		metav1.SetMetaDataAnnotation(&slice.ObjectMeta, planAnnotation, p.digest)
	}
	if j.owner != nil {
		// An owner of that name with another UID is an earlier instance of the
		// same owner; the garbage collector would delete the slice for it.
		slice.OwnerReferences = append(slices.DeleteFunc(slice.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.Kind == j.owner.Kind && o.Name == j.owner.Name
		}), *j.owner)
	}
	slice.Spec.Pool.Generation = p.generation
	slice.Spec.Pool.ResourceSliceCount = int64(len(p.pages))
	for i, it := range page.written() {
		var err error
		if page.isSets() {
			slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, resourcev1.CounterSet{})
			err = slice.Spec.SharedCounters[i].Unmarshal([]byte(it.encoded))
		} else {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{})
			err = j.decode(&it, &slice.Spec.Devices[i])
		}
		if err != nil {
			return nil, fmt.Errorf("resourceslice: decode %s: %w", it.name, err)
		}
	}
	return slice, nil
}

// decode decodes a device and adds the times of its taints.
func (j *job) decode(it *item, device *resourcev1.Device) error {
	if err := device.Unmarshal([]byte(it.encoded)); err != nil {
		return err
	}
	for i, t := range it.taints {
		if t.added.IsZero() {
			if at := slices.IndexFunc(j.times[it.name], t.same); at >= 0 {
				t.added = j.times[it.name][at].added
			}
		}
		if !t.added.IsZero() {
			device.Taints[i].TimeAdded = &t.added
		}
	}
	return nil
}

// call sends one request with its deadline and calls the hook.
func (j *job) call(req *request, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(j.c.outlives, callTimeout)
	defer cancel()
	begin := time.Now()
	err := do(ctx)
	done := APICall{Pool: j.p.id, Slice: req.name, Verb: req.verb, Latency: time.Since(begin), Err: err}
	if req.slice != nil {
		done.Devices = len(req.slice.Spec.Devices)
	}
	j.logger.V(4).Info("Sent request", "verb", done.Verb, "slice", klog.KRef("", done.Slice), "devices", done.Devices, "dryRun", req.dryRun, "latency", done.Latency, "err", err)
	if req.dryRun {
		return err
	}
	j.mu.Lock()
	j.w.writes++
	j.mu.Unlock()
	if j.c.cfg.Hooks.APICall != nil {
		j.c.cfg.Hooks.APICall(done)
	}
	return err
}

// send sends a write and draws the conclusion.
func (j *job) send(req *request) (r result) {
	req.sent = time.Now()
	if req.slice == nil {
		j.c.view.mark(req.rec, true) // its event may come before the answer
	}
	var got *resourcev1.ResourceSlice
	err := j.call(req, func(ctx context.Context) (err error) {
		if req.slice != nil {
			got, err = j.c.put(ctx, req.slice, req.dryRun)
			return err
		}
		return j.c.client.Delete(ctx, req.rec.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &req.rec.UID, ResourceVersion: &req.rec.ResourceVersion},
		})
	})
	switch {
	case err == nil && got != nil:
		rec := j.c.hasher.record(got)
		if !req.dryRun {
			j.c.view.wrote(rec)
		}
		r.verdict = j.learn(j.c.hasher.answersOf(req, got, rec, j.c.cfg.PublishUnrestricted))
	case req.dryRun && apierrors.IsBadRequest(err):
		r.verdict = unasked
	case err == nil:
	default:
		r = j.judge(req, err)
	}
	if req.dryRun {
		return r
	}
	if isOpen := j.note(req, r.verdict, err); req.slice == nil && r.verdict > refused && !isOpen {
		j.c.view.mark(req.rec, false)
	}
	return r
}

// note records whether a write was answered, and reports whether it may still be carried out.
func (j *job) note(req *request, v verdict, err error) (isOpen bool) {
	answered, lost := v < waiting, v >= waiting && apierr.MayHaveCommitted(err)
	j.mu.Lock()
	if err == nil {
		j.w.wrote = time.Now()
	}
	if answered {
		delete(j.w.unanswered, req.name)
	} else if lost {
		j.w.unanswered[req.name] = req
	}
	isOpen = j.w.unanswered[req.name] != nil
	j.mu.Unlock()
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if answered {
		j.c.apply(j.p, core.Answered{Name: req.name})
	} else if lost {
		if req.window {
			j.p.openWindow(req.sent) // the write may be carried out at any time since
		}
		j.c.apply(j.p, core.LostAnswer{Name: req.name, Create: req.rec == nil, Revision: req.revision})
	}
	return isOpen
}

// learn records what the API server made of a slice. The verdict is refused if a device
// must be withheld.
func (j *job) learn(answers map[hash]*answer) verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := stored
	for h, a := range answers {
		if a == nil {
			delete(j.w.answers, h)
		} else if j.w.answers[h] = a; a.omits() {
			j.s.trusted.Store(0)
			v = refused
		}
	}
	return v
}

// refuse records which items the API server refused: those that it names or, if
// it names none, all that are not live as wanted. Their live versions are
// published instead. If nothing can be left out the pool is stuck.
func (j *job) refuse(page *page, err error) result {
	invalid := &InvalidError{Pool: j.p.id, Slice: page.name, Err: err}
	bad := namedItems(err, page)
	as := rejected
	if len(bad) == 0 {
		as = suspect
		for i := range page.items {
			if it := &page.items[i]; j.holder(it) == nil || find(j.holder(it).items, it.name).hash != it.hash {
				bad = append(bad, it)
			}
		}
	}
	if len(bad) == 0 {
		j.permanent(invalid)
		return waitFor(retryFaults, core.Stuck)
	}
	instead, err := j.liveItems(bad)
	if err != nil {
		return failureOf(err)
	}
	for _, it := range bad {
		invalid.Refused = append(invalid.Refused, it.name)
	}
	slices.Sort(invalid.Refused)
	j.logger.V(2).Info("The API server refused a ResourceSlice", "slice", klog.KRef("", page.name), "leftOut", len(bad))
	j.report(invalid.Error(), invalid, "The pool can't be published as it is")
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, it := range bad {
		a := &answer{standing: as, instead: instead[it.name], err: invalid, at: time.Now()}
		if a.instead != nil && a.instead.isSet != it.isSet {
			a.instead = nil // another thing of that name
		}
		j.w.answers[it.hash] = a
	}
	return result{verdict: refused}
}

// holder returns the newest slice that has an item of the name and kind, or nil.
func (j *job) holder(it *item) *record {
	i := slices.IndexFunc(j.live, func(rec *record) bool {
		is := find(rec.items, it.name)
		return is != nil && is.isSet == it.isSet
	})
	if i < 0 {
		return nil
	}
	return j.live[i]
}

// liveItems gets the live versions of items, by name.
func (j *job) liveItems(of []*item) (map[string]*item, error) {
	live := make(map[string]*item)
	for _, it := range of {
		rec := j.holder(it)
		if rec == nil || live[it.name] != nil {
			continue
		}
		slice, err := j.get(rec.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range slice.Spec.Devices {
			is, _ := j.c.hasher.device(&slice.Spec.Devices[i], nil)
			live[is.name] = &is
		}
		for i := range slice.Spec.SharedCounters {
			is := j.c.hasher.counterSet(&slice.Spec.SharedCounters[i])
			live[is.name] = &is
		}
	}
	return live, nil
}

// refusals are the answers that the core judges.
var refusals = map[apierr.Class]core.Answer{
	apierr.Invalid: core.Refused, apierr.Forbidden: core.Denied, apierr.Conflict: core.Conflicts, apierr.AlreadyExists: core.Conflicts,
}

// judge returns the result that follows from an error, and updates the facts
// about the slice.
func (j *job) judge(req *request, err error) result {
	class := apierr.Classify(err)
	if answer, ok := refusals[class]; ok {
		j.c.mu.Lock()
		step := j.p.state.Judge(time.Now(), req.name, answer, req.slice == nil)
		j.c.mu.Unlock()
		switch step {
		case core.LeaveOut:
			return j.refuse(req.page, err)
		case core.Relist:
			return j.abandon(req) // only a plan of now may be refused
		case core.LookUp:
			return j.lookUp(req, err)
		}
	}
	switch class {
	case apierr.NotFound:
		if req.rec == nil || notServed(err, req.name) {
			j.s.end()
			break
		}
		j.c.view.mark(req.rec, true)
		if req.slice == nil {
			return result{}
		}
		return result{verdict: outdated}
	case apierr.Forbidden:
		j.mu.Lock()
		recent := time.Since(j.w.wrote) < graphLag
		j.mu.Unlock()
		if recent {
			break
		}
		if req.rec != nil {
			// A node may always list its slices, but is denied a slice that doesn't
			// exist.
			all, err := j.s.list(j.c.outlives, scope{nodeName: req.rec.nodeName, driver: req.rec.id.Driver})
			switch {
			case err != nil && apierr.Classify(err) != apierr.Forbidden:
				return failureOf(err)
			case err == nil && !slices.ContainsFunc(all, func(rec *record) bool { return rec.UID == req.rec.UID }):
				j.c.view.mark(req.rec, true)
				return result{verdict: outdated}
			}
		}
		j.report("forbidden to "+req.verb, &ForbiddenError{Pool: j.p.id, Verb: req.verb, Err: err}, "A ResourceSlice can't be written")
		return waitFor(forbiddenRetry, core.Forbidden)
	case apierr.Throttled:
		j.c.mu.Lock()
		j.c.paused = time.Now().Add(max(apierr.RetryAfter(err), time.Second))
		j.c.mu.Unlock()
	case apierr.Canceled:
		if j.c.outlives.Err() != nil {
			return result{verdict: done}
		}
	}
	return failureOf(err)
}

// lookUp gets the slice that is in the way of a write.
func (j *job) lookUp(req *request, because error) result {
	slice, err := j.get(req.name)
	var found *record
	var finding core.Finding
	switch {
	case err == nil:
		found = j.c.hasher.record(slice)
		finding = j.compare(req, found)
	case apierrors.IsNotFound(err) && !notServed(err, req.name):
		finding = core.Nothing
	case apierr.Classify(err) == apierr.Forbidden:
		finding = core.Hidden
	default:
		return failureOf(err)
	}
	j.c.mu.Lock()
	step := j.p.state.Found(req.name, req.rec == nil, finding)
	j.c.mu.Unlock()
	switch {
	case step == core.Avoid:
		j.mu.Lock()
		j.w.taken[req.name] = true
		j.mu.Unlock()
	case step == core.Send:
		return failureOf(because)
	case step == core.Restart:
		// The watch waits for the resource versions of before: only a list has the facts.
		j.c.view.begin(true)
		j.s.end()
		return failureOf(because)
	case step == core.Replan && found != nil:
		j.c.view.wrote(found)
	case step == core.Replan && req.rec != nil:
		j.c.view.mark(req.rec, true)
	}
	return result{verdict: outdated}
}

// compare returns what a slice that is in the way of a write is.
func (j *job) compare(req *request, found *record) core.Finding {
	switch {
	case found.id != j.p.id, req.rec == nil && found.nodeName != ptr.Deref(req.slice.Spec.NodeName, ""):
		return core.Stranger
	case req.rec == nil:
	case found.UID == req.rec.UID && found.ResourceVersion == req.rec.ResourceVersion:
		return core.Same
	case newer(req.rec.ResourceVersion, found.ResourceVersion):
		return core.Older
	}
	return core.Newer
}

func (j *job) get(name string) (*resourcev1.ResourceSlice, error) {
	ctx, cancel := context.WithTimeout(j.c.outlives, callTimeout)
	defer cancel()
	slice, err := j.c.client.Get(ctx, name, metav1.GetOptions{})
	return apierr.Answer(slice, err, name)
}

// put creates a slice without a resource version, and updates others. The API server stores
// nothing if dryRun is set, but answers as if it did.
func (c *Controller) put(ctx context.Context, slice *resourcev1.ResourceSlice, dryRun bool) (got *resourcev1.ResourceSlice, err error) {
	var runs []string
	if dryRun {
		runs = []string{metav1.DryRunAll}
	}
	manager := fieldManagerPrefix + c.cfg.Name
	if slice.ResourceVersion == "" {
		got, err = c.client.Create(ctx, slice, metav1.CreateOptions{FieldManager: manager, DryRun: runs})
	} else {
		got, err = c.client.Update(ctx, slice, metav1.UpdateOptions{FieldManager: manager, DryRun: runs})
	}
	return apierr.Answer(got, err, slice.Name)
}

// answersOf returns what the API server made of a slice, by the hash of the content as
// sent: nil if it stored that. The API server silently drops fields that it doesn't know or whose
// feature is off. If it dropped a restriction, and unless unrestricted content may be
// published, the item must be withheld.
func (f *hasher) answersOf(req *request, got *resourcev1.ResourceSlice, rec *record, unrestricted bool) map[hash]*answer {
	found := make(map[hash]*answer)
	fieldsOf := sync.OnceValue(func() map[string][]string { return missingFields(&req.slice.Spec, &got.Spec) })
	add := func(name string, sent, live hash, unsafe bool) {
		if found[sent] = nil; sent == live {
			return
		}
		a := &answer{stored: live, at: time.Now(), head: name == ""}
		if fields := fieldsOf()[name]; len(fields) > 0 {
			err := &DroppedFieldsError{Pool: PoolID{req.slice.Spec.Driver, req.slice.Spec.Pool.Name}, Slice: got.Name, Fields: fields}
			a.standing, a.err = partial, err
			if unsafe && !unrestricted {
				a.standing, err.Withheld = withheld, []string{name}
			}
		}
		found[sent] = a
	}
	add("", f.head(&req.slice.Spec), rec.head, false)
	for i := range req.page.items {
		it := &req.page.items[i]
		is := cmp.Or(find(rec.items, it.name), noItem)
		add(it.name, it.hash, is.hash, is.isLooser(it))
	}
	return found
}

// keyedByName are the fields whose keys are names, not fields.
var keyedByName = []string{"attributes", "capacity", "nodeAllocatableResources", "counters"}

// missingFields returns the paths, without indexes, of all values that sent has and
// got has not, by the name of the device or the counter set. An empty name stands
// for the rest of the slice.
func missingFields(sent, got *resourcev1.ResourceSliceSpec) map[string][]string {
	// A spec can always be converted.
	wanted, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(sent)
	stored, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
	fields := make(map[string][]string)
	for _, path := range []string{"devices", "sharedCounters"} {
		found := named(stored[path])
		for name, value := range named(wanted[path]) {
			fields[name] = missing(path, value, found[name], false)
		}
		delete(wanted, path)
	}
	fields[""] = missing("", wanted, stored, false)
	return fields
}

// named returns the elements of a list by name.
func named(list any) map[string]any {
	elements, _ := list.([]any)
	names := make(map[string]any, len(elements))
	for _, one := range elements {
		names[one.(map[string]any)["name"].(string)] = one
	}
	return names
}

// missing returns the paths of all values in sent that got has not. names reports
// that the keys of sent are names.
func missing(path string, sent, got any, names bool) (paths []string) {
	switch sent := sent.(type) {
	case map[string]any:
		if got, ok := got.(map[string]any); ok {
			for key, value := range sent {
				sub := path
				if !names {
					sub = strings.TrimPrefix(path+"."+key, ".")
				}
				paths = append(paths, missing(sub, value, got[key], !names && slices.Contains(keyedByName, key))...)
			}
			return paths
		}
	case []any:
		got, _ := got.([]any)
		lost := slices.ContainsFunc(sent, func(one any) bool {
			return !slices.ContainsFunc(got, func(other any) bool { return len(missing(path, one, other, false)) == 0 })
		})
		switch {
		case !lost: // a webhook may add elements, or change their order
			return nil
		case len(got) == len(sent):
			for i := range sent {
				paths = append(paths, missing(path, sent[i], got[i], false)...)
			}
			return paths
		}
	}
	if !reflect.DeepEqual(sent, got) {
		paths = append(paths, path)
	}
	return paths
}

// namedItems returns the items of a page that an error names.
func namedItems(err error, page *page) (items []*item) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	written := page.written()
	format := "spec.devices[%d]"
	if page.isSets() {
		format = "spec.sharedCounters[%d]"
	}
	for _, cause := range status.Status().Details.Causes {
		var i int
		if _, err := fmt.Sscanf(cause.Field, format, &i); err == nil && i >= 0 && i < len(written) {
			items = append(items, &written[i])
		}
	}
	return items
}
