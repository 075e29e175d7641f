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
	for _, f := range m.GetFinalizers() {
		if old, err := meta.Accessor(c.Old); c.Old == nil || err == nil && !slices.Contains(old.GetFinalizers(), f) {
			h.finalizers[f] = true
		}
	}
}

// rests waits until the programs have nothing to do after a step, and tries the faults of
// the plan that act there. Runs without such a fault do not wait, unless the places are
// listed.
func (w *World) rests(st Step) {
	place := plan.Place{Verb: restVerb, Target: clean(st.Name)}
	running := w.running()
	if len(running) == 0 {
		return
	}
	p := running[0]
	place.Program = p.lane.name
	w.mu.Lock()
	w.seen[place]++
	place.Number = w.seen[place]
	w.mu.Unlock()
	if !w.listRests && !slices.ContainsFunc(w.plan, func(h plan.Hit) bool { return h.Place.Covers(place) }) {
		return
	}
	w.settle()
	if w.listRests {
		w.mu.Lock()
		clear(w.history.changes)
		w.mu.Unlock()
		w.settle()
		targets := w.targets()
		var things []string
		for _, o := range w.scenario.Outside {
			for _, thing := range o.resting() {
				things = append(things, o.Name+"/"+clean(thing))
			}
		}
		w.mu.Lock()
		for _, what := range slices.Sorted(maps.Keys(w.history.changes)) {
			if n := w.history.changes[what]; n > busyRate*int(w.cfg.Settle.Seconds()) {
				w.problems = append(w.problems, fmt.Sprintf("%s: %d changes within %v at rest after step %q", what, n, w.cfg.Settle, st.Name))
			}
		}
		w.rest = append(w.rest, spot{place: place, objects: targets, things: things})
		w.mu.Unlock()
		return
	}
	w.mu.Lock()
	worldly := w.worldly.Load()
	faults := w.faultsAt(place)
	w.mu.Unlock()
	if worldly {
		return
	}
	w.worldly.Store(false) // decided here
	before, things := normalized(w.Server.Objects(), w.cfg.Ignore, w.names), w.outside()
	for _, f := range faults {
		x := &exchange{w: w, p: p, place: place}
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
			w.expect(func() error { return missing(before, normalized(w.Server.Objects(), w.cfg.Ignore, w.names)) })
		case f.World:
			w.expect(func() error { return w.leftover(obj, things) })
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
		kind, of, _ := strings.Cut(name, " ")
		own := kind == "PriorityClass" && strings.HasPrefix(of, "system-") ||
			kind == "ServiceAccount" && strings.HasSuffix(of, "/default") || kind == "ConfigMap" && strings.HasSuffix(of, "/kube-root-ca.crt")
		m, err := meta.Accessor(obj)
		if err == nil && name != "" && (!own || w.history.touched[m.GetUID()]) {
			names = append(names, name)
		}
	}
	return names
}

// object returns the object of a name, or nil.
func (w *World) object(name string) metav1.Object {
	for _, obj := range w.Server.Objects() {
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

// leftover returns an error if something that a program has made for owner exists after owner was
// deleted and the garbage has been collected: an object, or one of things outside. It also does if
// owner still exists because of a finalizer of a program.
func (w *World) leftover(owner metav1.Object, things map[string]any) error {
	if now := w.now(); now >= w.collected+time.Second { // not at once after each change, as no cluster is
		w.collected = now
		w.Server.CollectGarbage()
	}
	made := w.madeByPrograms()
	w.mu.Lock()
	finalizers := maps.Clone(w.history.finalizers)
	w.mu.Unlock()
	objects := w.Server.Objects()
	for _, obj := range objects {
		m, err := meta.Accessor(obj)
		if err != nil || objectName(obj) == "" || slices.Contains(w.cfg.Ignore, obj.GetObjectKind().GroupVersionKind().Kind) {
			continue
		}
		if m.GetUID() == owner.GetUID() {
			for _, f := range m.GetFinalizers() {
				if finalizers[f] {
					return fmt.Errorf("%s was deleted, and stays because of its finalizer %s", objectName(obj), f)
				}
			}
			return nil // another client keeps it
		}
		if made[m.GetUID()] && w.isFor(m, owner) {
			return fmt.Errorf("%s was made for %s, which is gone, and stays (see Config.Ignore)", objectName(obj), owner.GetName())
		}
	}
	return w.leftOutside(owner, things, objects)
}

// leftOutside returns an error if one of things, which were outside before owner was deleted, still
// is there, and is named after owner and after none of the objects that exist.
func (w *World) leftOutside(owner metav1.Object, things map[string]any, objects []runtime.Object) error {
	now := w.outside()
	for _, o := range w.scenario.Outside {
		for _, key := range slices.Sorted(maps.Keys(now)) {
			thing, ok := strings.CutPrefix(key, outsideKind+" "+o.Name+"/")
			if o.Retain || !ok || things[key] == nil || !isNamedAfter(thing, owner) {
				continue
			}
			if !slices.ContainsFunc(objects, func(obj runtime.Object) bool {
				m, err := meta.Accessor(obj)
				return err == nil && objectName(obj) != "" && isNamedAfter(thing, m)
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
