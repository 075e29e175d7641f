// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"maps"
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
	finalizers map[string]bool    // those that programs have added
	changes    map[string]int     // by program and object, since the last rest began
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
	if h.acting == nil {
		return
	}
	if c.Type == watch.Added {
		h.made[m.GetUID()] = true
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
		w.mu.Lock()
		for _, what := range slices.Sorted(maps.Keys(w.history.changes)) {
			if n := w.history.changes[what]; n > busyRate*int(w.cfg.Settle.Seconds()) {
				w.problems = append(w.problems, fmt.Sprintf("%s: %d changes within %v at rest after step %q", what, n, w.cfg.Settle, st.Name))
			}
		}
		w.rest = append(w.rest, spot{place: place, objects: objectNames(w.Server)})
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
	before := normalized(w.Server.Objects(), w.cfg.Ignore)
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
			w.expect(func() error { return missing(before, normalized(w.Server.Objects(), w.cfg.Ignore)) })
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
// create it again.
func (w *World) owned(obj metav1.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := obj.(runtime.Object)
	return w.history.made[obj.GetUID()] && metav1.GetControllerOf(obj) != nil &&
		!(ok && slices.Contains(w.cfg.Once, r.GetObjectKind().GroupVersionKind().Kind))
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

// leftover returns an error if an object that a program has created for owner exists after
// owner was deleted and the garbage has been collected, or if owner still exists because of a
// finalizer of a program.
func (w *World) leftover(owner metav1.Object) error {
	w.Server.CollectGarbage()
	w.mu.Lock()
	made, finalizers := maps.Clone(w.history.made), maps.Clone(w.history.finalizers)
	w.mu.Unlock()
	for _, obj := range w.Server.Objects() {
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
	return nil
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
