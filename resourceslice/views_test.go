// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// written makes a record of a slice.
func written(name, uid, resourceVersion string) *record {
	return &record{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: resourceVersion}, id: testID}
}

// watched is a mirror whose events a test makes.
type watched struct {
	t *testing.T
	m *mirror
	v *view
	p *pool
}

func newWatched(t *testing.T) *watched {
	c := &Controller{pools: map[PoolID]*pool{}, ready: lifecycle.NewReady("test"), view: view{slices: map[string]*entry{}}}
	c.view.begin(false)
	w := &watched{t: t, m: (&session{c: c, ctx: t.Context()}).mirror(scope{}), v: &c.view, p: newPool(testID, core.New(new(core.Instance), 0))}
	w.p.want = &desired{}
	c.pools[testID], c.view.mirrors[w.m.scope] = w.p, w.m
	return w
}

func (w *watched) list(at string, records ...*record) {
	w.t.Helper()
	var all []any
	for _, rec := range records {
		all = append(all, rec)
	}
	if err := w.m.Replace(all, at); err != nil {
		w.t.Error(err)
	}
}

func (w *watched) changed(rec *record) {
	w.t.Helper()
	if err := w.m.Update(rec); err != nil {
		w.t.Error(err)
	}
}

func (w *watched) deleted(rec *record) {
	w.t.Helper()
	if err := w.m.Delete(rec); err != nil {
		w.t.Error(err)
	}
}

// expect checks the slices, as name/uid/resource version, and whether another
// client's change was noticed since the last call.
func (w *watched) expect(foreign bool, want ...string) {
	w.t.Helper()
	var got []string
	all, ok := w.v.pool(testID, []scope{w.m.scope})
	if n := len(w.v.all()); n != len(all) {
		w.t.Errorf("%d slices in all pools, want those of the one, %d", n, len(all))
	}
	for _, rec := range all {
		got = append(got, rec.Name+"/"+string(rec.UID)+"/"+rec.ResourceVersion)
	}
	slices.Sort(got)
	if !ok || !slices.Equal(got, want) {
		w.t.Errorf("slices %v, %v, want %v", got, ok, want)
	}
	if drifted := !w.p.state.Drifted().IsZero(); drifted != foreign {
		w.t.Errorf("another client's change was noticed: %v, want %v", drifted, foreign)
	}
	w.p.state = core.New(new(core.Instance), 0)
}

func TestTheViewHasTheNewestVersion(t *testing.T) {
	for name, test := range map[string]func(*watched){
		"an own create is delivered later": func(w *watched) {
			w.list("9")
			w.v.wrote(written("a", "1", "12"))
			w.expect(false, "a/1/12")
			w.changed(written("a", "1", "12"))
			w.expect(false, "a/1/12")
		},
		"older events come after an own update": func(w *watched) {
			w.list("99", written("a", "1", "98"))
			w.v.wrote(written("a", "1", "101"))
			w.changed(written("a", "1", "100"))
			w.expect(false, "a/1/101")
		},
		"another client's update follows an own one": func(w *watched) {
			w.list("9")
			w.v.wrote(written("a", "1", "10"))
			w.changed(written("a", "1", "11"))
			w.expect(true, "a/1/11")
			w.v.wrote(written("a", "1", "10"))
			w.expect(false, "a/1/11")
		},
		"another client creates, changes and deletes": func(w *watched) {
			w.list("9", written("a", "1", "5"))
			w.expect(false, "a/1/5")
			w.changed(written("b", "2", "10"))
			w.expect(true, "a/1/5", "b/2/10")
			w.changed(written("a", "1", "11"))
			w.expect(true, "a/1/11", "b/2/10")
			w.deleted(written("b", "2", "12"))
			w.expect(true, "a/1/11")
		},
		"the answer comes after the slice was deleted": func(w *watched) {
			w.list("9")
			w.changed(written("a", "1", "12"))
			w.deleted(written("a", "1", "13"))
			w.expect(true)
			w.v.wrote(written("a", "1", "12"))
			w.expect(false)
		},
		"an own delete is delivered later": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.expect(false)
			w.changed(written("a", "1", "11"))
			w.expect(false)
			w.deleted(written("a", "1", "12"))
			w.expect(false)
			if len(w.v.slices) != 0 {
				w.t.Errorf("%d slices are kept", len(w.v.slices))
			}
		},
		"an own delete fails after another client's update": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.changed(written("a", "1", "11"))
			w.v.mark(written("a", "1", "10"), false)
			w.expect(false, "a/1/11")
		},
		"an own delete fails, and a get has the reason": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.v.wrote(written("a", "1", "10"))
			w.expect(false, "a/1/10")
		},
		"another client creates a slice again after an own delete": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.changed(written("a", "2", "12"))
			w.expect(true, "a/2/12")
			w.v.mark(written("a", "1", "10"), true)
			w.expect(false, "a/2/12")
		},
		"a delete is delivered after an own create of the same name": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.v.wrote(written("a", "2", "12"))
			w.deleted(written("a", "1", "11"))
			w.expect(true, "a/2/12") // another client may have deleted it first
		},
		"another client's delete is delivered after an own create and delete of the same name": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.wrote(written("a", "2", "12"))
			w.v.mark(written("a", "2", "12"), true)
			w.deleted(written("a", "1", "11"))
			w.expect(true) // the owner may have been deleted too
			w.deleted(written("a", "2", "13"))
			w.expect(false)
		},
		"an own create follows an own delete and a restore from a backup": func(w *watched) {
			w.list("100", written("a", "1", "90"))
			w.v.mark(written("a", "1", "90"), true)
			w.v.wrote(written("a", "2", "60"))
			w.expect(false, "a/2/60")
		},
		"an own delete is found by a list": func(w *watched) {
			w.list("10", written("a", "1", "10"))
			w.v.mark(written("a", "1", "10"), true)
			w.list("20")
			w.expect(false)
			if len(w.v.slices) != 0 {
				w.t.Errorf("%d slices are kept", len(w.v.slices))
			}
		},
		"a list is older than an own create": func(w *watched) {
			w.list("5")
			w.v.wrote(written("a", "1", "12"))
			w.list("10")
			w.expect(false, "a/1/12")
			w.list("13")
			w.expect(true)
		},
		"a list has changes that no event had": func(w *watched) {
			w.list("10", written("a", "1", "8"), written("b", "2", "9"), written("c", "3", "9"))
			w.v.mark(written("c", "3", "9"), true)
			w.list("20", written("a", "1", "15"), written("b", "4", "16"))
			w.expect(true, "a/1/15", "b/4/16")
			w.list("21", written("a", "1", "15"), written("b", "4", "16"))
			w.expect(false, "a/1/15", "b/4/16")
		},
		"a list after a restore from a backup": func(w *watched) {
			w.list("100", written("a", "1", "90"), written("b", "2", "91"))
			w.v.wrote(written("a", "1", "101"))
			w.list("50", written("a", "1", "40"))
			w.expect(true, "a/1/40")
		},
		"a later list after a restore from a backup": func(w *watched) {
			w.list("100", written("a", "1", "90"))
			w.list("200", written("a", "1", "50"))
			w.expect(true, "a/1/50")
		},
		"an event after a restore from a backup": func(w *watched) {
			w.list("100", written("a", "1", "90"), written("b", "2", "91"))
			w.v.wrote(written("a", "1", "101"))
			w.changed(written("a", "1", "60"))
			w.expect(true, "a/1/60", "b/2/91")
		},
		"a scope that is no longer watched": func(w *watched) {
			w.list("100", written("a", "1", "90"))
			w.v.forget(w.m.scope)
			w.changed(written("a", "1", "101"))
			w.list("102", written("a", "1", "101"))
			if _, ok := w.v.pool(testID, []scope{w.m.scope}); ok || len(w.v.slices) != 0 {
				w.t.Errorf("slices %v", w.v.slices)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(newWatched(t)) })
	}
}

// TestANewSessionKeepsOwnWrites, because its first list may be older, unless the
// API server was restored from a backup. No pool is known before that list.
func TestANewSessionKeepsOwnWrites(t *testing.T) {
	for restored, want := range map[bool][]string{false: {"a/1/12", "b/2/5"}, true: {"b/2/5"}} {
		w := newWatched(t)
		w.list("9")
		w.v.wrote(written("a", "1", "12"))
		w.v.begin(restored)
		if _, ok := w.v.pool(testID, []scope{w.m.scope}); ok {
			t.Error("the pool is known without a watch")
		}
		w.m = &mirror{to: w.m.to, view: w.v}
		w.v.mirrors[w.m.scope] = w.m
		w.list("10", written("b", "2", "5"))
		w.expect(false, want...)
	}
}

// TestANewSessionForgetsAnOldEntryThatIsNewerThanItsList: the API server was restored
// from a backup while no session had a list. An own write is that much newer only for
// a short time.
func TestANewSessionForgetsAnOldEntryThatIsNewerThanItsList(t *testing.T) {
	for _, tc := range []struct {
		name string
		age  time.Duration
		list []*record
		want []string
	}{
		{"an own write", core.LateWrites - time.Second, []*record{written("a", "1", "5")}, []string{"a/1/12"}},
		{"an own create", core.LateWrites - time.Second, nil, []string{"a/1/12"}},
		{"an older version is listed", core.LateWrites, []*record{written("a", "1", "5")}, []string{"a/1/5"}},
		{"the slice is not listed", core.LateWrites, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, watched := range []bool{false, true} {
					w := newWatched(t)
					w.list("9")
					if w.v.wrote(written("a", "1", "12")); watched {
						w.v.begin(true)
						w.v.mirrors[w.m.scope] = w.m
						w.changed(written("a", "1", "12"))
						w.p.state = core.New(new(core.Instance), 0)
					}
					w.v.begin(false)
					time.Sleep(tc.age)
					w.m = &mirror{to: w.m.to, view: w.v}
					w.v.mirrors[w.m.scope] = w.m
					w.list("10", tc.list...)
					w.expect(false, tc.want...)
				}
			})
		})
	}
}

// TestANewSessionStillWaitsForFinalizers: a slice that this process has deleted is not
// live again because it is listed.
func TestANewSessionStillWaitsForFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.list("9", written("a", "1", "5"))
		w.v.mark(written("a", "1", "5"), true)
		w.v.begin(false)
		time.Sleep(time.Hour)
		w.m = &mirror{to: w.m.to, view: w.v}
		w.v.mirrors[w.m.scope] = w.m
		w.list("10", written("a", "1", "5"))
		w.expect(false)
	})
}

// TestAnOldEntryStaysInALaterList of the same session: the versions of the lists show
// whether there was a restore.
func TestAnOldEntryStaysInALaterList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.list("9")
		w.v.wrote(written("a", "1", "12"))
		time.Sleep(time.Hour)
		w.list("10")
		w.expect(false, "a/1/12")
	})
}

// TestTheViewIsUnknownBeforeTheFirstList: a plan from half of the slices would
// create the others again.
func TestTheViewIsUnknownBeforeTheFirstList(t *testing.T) {
	w := newWatched(t)
	w.v.wrote(written("a", "1", "12"))
	if _, ok := w.v.pool(testID, []scope{w.m.scope}); ok || len(w.v.all()) != 0 {
		t.Error("the slices are known before the list")
	}
	w.list("20", written("b", "2", "11"))
	w.expect(false, "b/2/11") // the first list is no change, and knows of the delete
	if n := len(w.v.all()); n != 1 {
		t.Errorf("%d slices", n)
	}
}
