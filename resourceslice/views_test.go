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
)

// written makes a record of a slice.
func written(name, uid, resourceVersion string) *record {
	return &record{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: resourceVersion}, id: testID}
}

func TestOwnWritesCorrectTheStore(t *testing.T) {
	for name, tc := range map[string]struct {
		write  func(*ownWrites)
		stored []*record
		seen   string // the store's resource version
		after  time.Duration
		want   []string // name/uid/resource version
	}{
		"nothing written": {func(*ownWrites) {}, []*record{written("a", "1", "5")}, "9", 0, []string{"a/1/5"}},
		"created, not delivered": {
			func(o *ownWrites) { o.wrote(written("a", "1", "12")) }, nil, "9", 0, []string{"a/1/12"},
		},
		"created, delivered": {
			func(o *ownWrites) { o.wrote(written("a", "1", "12")) }, []*record{written("a", "1", "12")}, "12", 0, []string{"a/1/12"},
		},
		"created, and deleted by others since": {
			func(o *ownWrites) { o.wrote(written("a", "1", "12")) }, nil, "13", 0, nil,
		},
		"updated, not delivered": {
			func(o *ownWrites) { o.wrote(written("a", "1", "100")) }, []*record{written("a", "1", "99")}, "99", 0, []string{"a/1/100"},
		},
		"updated, and by others since": {
			func(o *ownWrites) { o.wrote(written("a", "1", "10")) }, []*record{written("a", "1", "11")}, "9", 0, []string{"a/1/11"},
		},
		"deleted, not delivered": {
			func(o *ownWrites) { o.gone(written("a", "1", "10")) }, []*record{written("a", "1", "10")}, "11", 0, nil,
		},
		"deleted, and made anew by others": {
			func(o *ownWrites) { o.gone(written("a", "1", "10")) }, []*record{written("a", "2", "12")}, "12", 0, []string{"a/2/12"},
		},
		"deleted before it was delivered": {
			func(o *ownWrites) { o.wrote(written("a", "1", "10")); o.gone(written("a", "1", "10")) }, nil, "9", 0, nil,
		},
		"created, the store doesn't tell": {
			func(o *ownWrites) { o.wrote(written("a", "1", "12")) }, nil, "", time.Second, []string{"a/1/12"},
		},
		"created a while ago, the store doesn't tell": {
			func(o *ownWrites) { o.wrote(written("a", "1", "12")) }, nil, "", trustAfter + 1, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := ownWrites{pending: map[string]ownWrite{}}
				tc.write(&o)
				time.Sleep(tc.after)
				for range 2 { // the second call gives the same result
					var got []string
					for _, rec := range o.apply(testID, func() ([]*record, func(*record) string) {
						return slices.Clone(tc.stored), func(*record) string { return tc.seen }
					}) {
						got = append(got, rec.Name+"/"+string(rec.UID)+"/"+rec.ResourceVersion)
					}
					if !slices.Equal(got, tc.want) {
						t.Errorf("got %v, want %v", got, tc.want)
					}
				}
			})
		})
	}
}

// TestOwnWritesAreForgottenWhenTheWatchDeliversThem: an event up to the last own
// write is not another writer's change, every later one is, and nothing is kept.
func TestOwnWritesAreForgottenWhenTheWatchDeliversThem(t *testing.T) {
	create, update, foreign := written("a", "1", "9"), written("a", "1", "10"), written("a", "1", "11")
	o := ownWrites{pending: map[string]ownWrite{}}
	o.wrote(create)
	o.wrote(update)
	if !o.isOwn(nil, create) || !o.isOwn(create, update) {
		t.Error("an own write passes for another writer's")
	}
	if o.isOwn(update, foreign) || o.isOwn(nil, written("b", "2", "1")) {
		t.Error("another writer's change passes for an own one")
	}
	if len(o.pending) != 0 {
		t.Errorf("%d writes are kept", len(o.pending))
	}
	o.wrote(update)
	if o.isOwn(update, foreign) || len(o.pending) != 0 {
		t.Error("a change after an own write passes for an own one")
	}
	o.gone(foreign)
	if !o.isOwn(update, foreign) {
		t.Error("the last change before an own delete passes for another writer's")
	}
	if !o.isOwnDelete(foreign) || o.isOwnDelete(foreign) || len(o.pending) != 0 {
		t.Error("an own delete is known once")
	}
	o.gone(foreign)
	if o.isOwn(nil, written("a", "2", "12")) || o.isOwnDelete(written("a", "2", "12")) {
		t.Error("a slice that another writer created after an own delete passes for an own one")
	}
	o.gone(foreign)
	o.forget(foreign.Name)
	if o.isOwnDelete(foreign) {
		t.Error("a delete that did not happen is known")
	}
	o.wrote(foreign)
	if o.isOwnDelete(foreign) {
		t.Error("another writer's delete of what was written passes for an own one")
	}
	// Restored from a backup: the resource version falls.
	o.wrote(foreign)
	if o.isOwn(foreign, create) || len(o.pending) != 0 {
		t.Error("a slice from a backup passes for an own write")
	}
}

// TestStoreIsReadUnderTheLock: a delete that was delivered between the read of
// the store and the correction was forgotten, and the slice deleted again.
func TestStoreIsReadUnderTheLock(t *testing.T) {
	o := ownWrites{pending: map[string]ownWrite{}}
	rec := written("a", "1", "10")
	o.gone(rec)
	got := o.apply(testID, func() ([]*record, func(*record) string) {
		if o.mu.TryLock() {
			t.Error("the watch can deliver meanwhile")
			o.mu.Unlock()
		}
		return []*record{rec}, func(*record) string { return "9" }
	})
	if len(got) != 0 {
		t.Errorf("%s is there", got[0].Name)
	}
}
