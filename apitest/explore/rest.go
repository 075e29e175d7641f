// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// restVerb is the verb of the place at rest after a step. Its program is the first one.
const restVerb = "rest"

// busyRate is the number of changes of one object within a second from which on programs
// at rest count as busy.
const busyRate = 2

// history is what a run remembers of the changes that programs made. World.mu guards it.
type history struct {
	acting     *Process           // the process whose write is being served
	blind      func() bool        // reports whether that write replaces whatever is stored
	made       map[types.UID]bool // objects that programs have created
	touched    map[types.UID]bool // objects that disturbed programs have created or changed
	finalizers map[string]bool    // those that programs have added
	changes    map[string]int     // by program and object, since the last rest began
	now, most  map[string]int     // how many objects with generated names exist, and did at most, by group
}

// group returns what objects with a generated name have in common, or "".
func group(obj runtime.Object, m metav1.Object) string {
	if m.GetGenerateName() == "" {
		return ""
	}
	return obj.GetObjectKind().GroupVersionKind().Kind + " " + m.GetNamespace() + "/" + m.GetGenerateName() + "*"
}

// learn records who made a change.
func (w *World) learn(c apitest.Change) {
	m, err := meta.Accessor(c.Object)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &w.history
	if key := group(c.Object, m); key != "" && c.Type == watch.Deleted && h.made[m.GetUID()] {
		h.now[key]--
	}
	if h.acting == nil {
		return
	}
	if c.Type == watch.Added {
		h.made[m.GetUID()] = true
		if key := group(c.Object, m); key != "" {
			h.now[key]++
			h.most[key] = max(h.most[key], h.now[key])
		}
	}
	if !h.acting.program.Undisturbed {
		h.touched[m.GetUID()] = true
	}
	h.changes[h.acting.lane.name+": "+objectName(c.Object)]++
	w.keepsEdit(c, m)
	for _, f := range m.GetFinalizers() {
		if old, err := meta.Accessor(c.Old); c.Old == nil || err == nil && !slices.Contains(old.GetFinalizers(), f) {
			h.finalizers[f] = true
		}
	}
}

// everyRest stands for the place at rest after each step.
var everyRest = plan.Place{Verb: restVerb}

// keepsEdit reports an annotation of the edit fault that a program has removed without knowing it,
// with an update that has no resourceVersion. One that has read the object may remove it. w.mu must
// be held.
func (w *World) keepsEdit(c apitest.Change, now metav1.Object) {
	old, err := meta.Accessor(c.Old)
	if c.Old == nil || err != nil || old.GetAnnotations()[editedKey] == "" || now.GetAnnotations()[editedKey] != "" {
		return
	}
	kind := c.Object.GetObjectKind().GroupVersionKind().Kind
	n := normalizer{ignore: w.cfg.Ignore}
	if slices.Contains(w.cfg.Ignore, kind) || n.ignored(kind, "metadata.annotations") || !w.history.blind() {
		return
	}
	w.problems = append(w.problems, fmt.Sprintf(
		"%s: an update of %s without a resourceVersion has removed what another client had written, the annotation %s (see Config.Ignore)",
		w.history.acting.lane.name, objectName(c.Object), editedKey))
	w.journal = append(w.journal, &entry{at: w.now(), text: "PROBLEM: the annotation of another client is lost"})
}

// restPlace returns the next place at rest after a step, or false if no program runs.
func (w *World) restPlace(st Step) (plan.Place, bool) {
	running := w.running()
	if len(running) == 0 {
		return plan.Place{}, false
	}
	place := plan.Place{Program: running[0].lane.name, Verb: restVerb, Target: clean(st.Name)}
	w.mu.Lock()
	defer w.mu.Unlock()
	place.Number = w.seen[place] + 1
	return place, true
}

// rests waits until the programs have nothing to do after a step, tries the faults of the
// plan that act there, and compares what exists then with the reference, unless the end comes
// next. It reports whether nothing differs. It does not wait before a fault has acted, or while one
// lasts that the next step is to meet, or after a step that itself waits for nothing.
func (w *World) rests(st Step, last bool) bool {
	place, ok := w.restPlace(st)
	if !ok {
		return true
	}
	w.mu.Lock()
	w.seen[plan.Place{Program: place.Program, Verb: place.Verb, Target: place.Target}]++
	w.mu.Unlock()
	if w.how.rest == everyRest || w.how.rest == place {
		w.records(st, place)
		return true
	}
	hit := slices.ContainsFunc(w.plan, func(h plan.Hit) bool { return h.Place.Covers(place) })
	if !hit && (last || st.Until == nil || !w.isComparable(place)) {
		return true
	}
	w.settle()
	if hit {
		w.disturbRest(place)
	}
	if last || !w.isComparable(place) {
		return true
	}
	err := w.await(w.sameAs(fmt.Sprintf("what exists after step %q", st.Name), w.judge.rests[place]))
	if err != nil {
		w.problem("%v", err)
	}
	return err == nil
}

// isComparable reports whether what exists at a place at rest must be as in the reference.
func (w *World) isComparable(place plan.Place) bool {
	if w.judge == nil || w.judge.rests[place] == nil || w.worldly.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.faults {
		if !w.hit[i] || f.spans && time.Now().Before(w.busy) {
			return false
		}
	}
	return true
}

// records waits until the programs have nothing to do after a step, and records what exists.
func (w *World) records(st Step, place plan.Place) {
	w.settle()
	first := w.state()
	w.mu.Lock()
	clear(w.history.changes)
	w.mu.Unlock()
	w.settle()
	r := rested{spot: spot{place: place, objects: w.targets()}, first: first, later: w.state()}
	for _, o := range w.scenario.Outside {
		for _, thing := range o.resting() {
			r.things = append(r.things, o.Name+"/"+clean(thing))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(w.history.changes)) {
		if n := w.history.changes[what]; n > busyRate*int(w.cfg.Settle.Seconds()) {
			w.problems = append(w.problems, fmt.Sprintf("%s: %d changes within %v at rest after step %q", what, n, w.cfg.Settle, st.Name))
		}
	}
	w.rested = append(w.rested, r)
}

// disturbRest tries the faults of the plan that act at a place at rest.
func (w *World) disturbRest(place plan.Place) {
	w.mu.Lock()
	worldly := w.worldly.Load()
	faults := w.faultsAt(place)
	w.mu.Unlock()
	running := w.running()
	if worldly || len(running) == 0 {
		return
	}
	w.worldly.Store(false) // decided here
	before := normalized(w.Server.Objects(), w.cfg.Ignore, w.how.names)
	for _, f := range faults {
		x := &exchange{w: w, p: running[0], place: place}
		obj := w.object(f.object)
		owned := obj != nil && w.owned(obj)
		if f.World && !owned {
			w.worldly.Store(true)
		}
		x.apply(f)
		w.changed()
		switch {
		case obj == nil:
		case owned:
			w.expect(func() error { return missing(before, normalized(w.Server.Objects(), w.cfg.Ignore, w.how.names)) })
		case f.World:
			w.expect(func() error { return w.leftover(obj) })
		}
		w.settle()
	}
}

// expect waits until f returns nil, and reports its error as a problem.
func (w *World) expect(f func() error) {
	time.Sleep(time.Nanosecond)
	if err := w.await(f); err != nil {
		w.problem("%v", err)
	}
}

// targets returns the objects that another client may change, as "Kind ns/name". What every
// cluster has, and its own controllers keep, is one only if a program has changed it.
func (w *World) targets() (names []string) {
	objects := w.Server.Objects()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, obj := range objects {
		name := objectName(obj)
		m, err := meta.Accessor(obj)
		if err == nil && name != "" && (!isOfEveryCluster(name) || w.history.touched[m.GetUID()]) {
			names = append(names, name)
		}
	}
	return names
}

// isOfEveryCluster reports whether the cluster itself makes the object of a name.
func isOfEveryCluster(name string) bool {
	kind, of, _ := strings.Cut(name, " ")
	return kind == "PriorityClass" && strings.HasPrefix(of, "system-") ||
		kind == "ServiceAccount" && strings.HasSuffix(of, "/default") || kind == "ConfigMap" && strings.HasSuffix(of, "/kube-root-ca.crt")
}

// object returns the object of a name, or nil.
func (w *World) object(name string) metav1.Object { return named(w.Server.Objects(), name) }

func named(objects []runtime.Object, name string) metav1.Object {
	for _, obj := range objects {
		if objectName(obj) == name {
			m, _ := meta.Accessor(obj)
			return m
		}
	}
	return nil
}

// owned reports whether a program has created an object for another one, and so must
// create it again. The owner need not be the controller: a program that forgets that in its
// references, and so sees no event of the object, is to be found.
func (w *World) owned(obj metav1.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := obj.(runtime.Object)
	once := ok && (slices.Contains(w.cfg.Once, r.GetObjectKind().GroupVersionKind().Kind) || slices.Contains(w.cfg.Once, objectName(r)) || isHistory(r))
	return w.history.made[obj.GetUID()] && len(obj.GetOwnerReferences()) > 0 && !once
}

// missing returns an error if an object does not exist that existed before.
func missing(before, now map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := now[name]; !ok {
			return fmt.Errorf("%s was deleted at rest, and no program has created it again (see Config.Once)", name)
		}
	}
	return nil
}

// leftovers reports what programs have made for an object that a fault has deleted, and that
// nobody has made again. After a restore, or a fault of the caller's that changes the world, it may
// stay for another reason.
func (w *World) leftovers() {
	if slices.ContainsFunc(w.faults, func(f Fault) bool { return f.World && !f.objects }) {
		return
	}
	w.mu.Lock()
	deleted := w.deleted
	w.mu.Unlock()
	for _, owner := range deleted {
		err := w.await(func() error {
			if again := w.object(objectName(owner.(runtime.Object))); again != nil && again.GetUID() != owner.GetUID() {
				return nil
			}
			return w.leftover(owner)
		})
		if err != nil {
			w.problem("%v", err)
		}
	}
}

// leftover returns an error if something that a program has made for owner exists after owner was
// deleted and the garbage has been collected: an object, or a thing outside. It also does if owner
// still exists because of a finalizer of a program.
func (w *World) leftover(owner metav1.Object) error {
	if now := w.now(); now >= w.collected+time.Second { // not at once after each change, as no cluster is
		w.collected = now
		w.Server.CollectGarbage()
	}
	made := w.madeByPrograms()
	w.mu.Lock()
	finalizers := maps.Clone(w.history.finalizers)
	w.mu.Unlock()
	objects := w.Server.Objects()
	name := objectName(owner.(runtime.Object))
	if kept := named(objects, name); kept != nil && kept.GetUID() == owner.GetUID() {
		for _, f := range kept.GetFinalizers() {
			if finalizers[f] {
				return fmt.Errorf("%s was deleted, and stays because of its finalizer %s", name, f)
			}
		}
		return nil // another client keeps it
	}
	for _, obj := range objects {
		m, err := meta.Accessor(obj)
		if err != nil || objectName(obj) == "" || slices.Contains(w.cfg.Ignore, obj.GetObjectKind().GroupVersionKind().Kind) {
			continue
		}
		if made[m.GetUID()] && w.isFor(m, owner) {
			return fmt.Errorf("%s was made for %s, which is gone, and stays (see Config.Ignore)", objectName(obj), owner.GetName())
		}
	}
	return w.leftOutside(owner, objects)
}

// leftOutside returns an error if a thing outside is named after owner, which is gone, and after
// none of the objects that exist and that not every cluster has.
func (w *World) leftOutside(owner metav1.Object, objects []runtime.Object) error {
	now := w.outside()
	for _, o := range w.scenario.Outside {
		for _, key := range slices.Sorted(maps.Keys(now)) {
			thing, ok := strings.CutPrefix(key, outsideKind+" "+o.Name+"/")
			if o.Retain || !ok || !isNamedAfter(thing, owner) {
				continue
			}
			if !slices.ContainsFunc(objects, func(obj runtime.Object) bool {
				m, err := meta.Accessor(obj)
				name := objectName(obj)
				return err == nil && name != "" && !isOfEveryCluster(name) && isNamedAfter(thing, m)
			}) {
				return fmt.Errorf("%s is named after %s, which is gone, and stays (see Outside.Retain)", key, owner.GetName())
			}
		}
	}
	return nil
}

// isNamedAfter reports whether the name of a thing contains that of an object, and not only as a
// part of a word.
func isNamedAfter(thing string, m metav1.Object) bool {
	const edge = "(^|[^a-zA-Z0-9]|$)"
	return regexp.MustCompile(edge + regexp.QuoteMeta(m.GetName()) + edge).MatchString(thing)
}

// isFor reports whether an object was created for owner, by its references, labels and name.
func (w *World) isFor(m, owner metav1.Object) bool {
	if m.GetCreationTimestamp().Time.Before(owner.GetCreationTimestamp().Time) || m.GetNamespace() != owner.GetNamespace() {
		return false
	}
	for _, ref := range m.GetOwnerReferences() {
		if ref.UID == owner.GetUID() {
			return true
		}
	}
	return len(m.GetOwnerReferences()) == 0 && strings.HasPrefix(m.GetName(), owner.GetName()+"-")
}

// ahead returns an error if an object has a status about a generation that it never had.
func (w *World) ahead() error {
	for _, obj := range w.Server.Objects() {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			continue
		}
		u := unstructured.Unstructured{Object: content}
		if g, ok, _ := unstructured.NestedInt64(content, "status", "observedGeneration"); ok && g > u.GetGeneration() && u.GetGeneration() > 0 {
			return fmt.Errorf("%s has status.observedGeneration %d and generation %d", objectName(obj), g, u.GetGeneration())
		}
	}
	return nil
}

// surplus returns an error if programs have made more objects of one group than the reference
// ever had. Objects that are being deleted, or whose owner is gone, don't count.
func (w *World) surplus(most map[string]int) error {
	objects := w.Server.Objects()
	exist, made := map[types.UID]bool{}, w.madeByPrograms()
	for _, obj := range objects {
		if m, err := meta.Accessor(obj); err == nil {
			exist[m.GetUID()] = true
		}
	}
	now := map[string]int{}
	for _, obj := range objects {
		m, err := meta.Accessor(obj)
		if err != nil || !made[m.GetUID()] || m.GetDeletionTimestamp() != nil {
			continue
		}
		owners := m.GetOwnerReferences()
		if len(owners) == 0 || slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return exist[o.UID] }) {
			now[group(obj, m)]++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(most)) {
		if now[key] > most[key] {
			return fmt.Errorf("there are %d of %s, and the reference never has more than %d", now[key], key, most[key])
		}
	}
	return nil
}

func (w *World) madeByPrograms() map[types.UID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.history.made)
}

// unreached returns an error if an object of the reference has an observedGeneration that is
// current, and the same object of another run has not.
func unreached(want, got map[string]any) error {
	observed := func(end map[string]any, key string) any {
		obj, _ := end[key].(map[string]any)
		status, _ := obj["status"].(map[string]any)
		return status["observedGeneration"]
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if _, exists := got[key]; exists && observed(want, key) == "current" && observed(got, key) != "current" {
			return fmt.Errorf("%s does not have status.observedGeneration of its generation", key)
		}
	}
	return nil
}
