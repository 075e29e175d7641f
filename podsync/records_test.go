// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/statuserr"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// The record of a pod that counted as lost must no longer say so, or its loss would be believed at
// once after a restart.
func TestTheRecordOfAPodThatIsNotLostIsWritten(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.Checkpoint = &memory{} })
	pod, at := c.due(podOf("a", "u"))
	call := func(op core.Op) {
		s := pod.Next(at.Since, core.Calls, true)
		if s.Op != op {
			t.Fatalf("%q is due, want %q", s.Op, op)
		}
		c.pods.apply(pod, at, core.Called{Seq: c.pods.tick(), Action: s})
		c.pods.apply(pod, at, core.Returned{Seq: c.pods.tick(), Report: &core.Report{}, Saved: op == core.Start})
	}
	call(core.Start)
	held := State{Ref: pod.ref}
	c.lister.apply(at, c.pods.tick(), &held, 1)
	for range 2 {
		at.Since += time.Hour
		c.pods.apply(pod, at, core.ListEnded{Seq: c.pods.tick(), Open: true})
	}
	call(core.Save)
	c.clean()
	c.lister.apply(at, c.pods.tick(), &held, 1)
	if op := pod.Next(at.Since, core.Calls, true).Op; op != core.Save || !pod.dirty {
		t.Errorf("%q is due, and the loop knows: %v", op, pod.dirty)
	}
}

// The pods of the Checkpoint start if the API server has not answered for OfflineAfter.
func TestWhenTheAPIServerCountsAsAway(t *testing.T) {
	code := func(code int) error { return statuserr.New(code, metav1.StatusReasonUnknown, "m") }
	synctest.Test(t, func(t *testing.T) {
		r := &reach{}
		r.begin()
		for i, step := range []struct {
			err   error
			wait  time.Duration // in seconds, of 100
			never bool
		}{
			{errFailed, 99, false},
			{code(502), 98, false}, {code(503), 97, false}, {code(504), 96, false},
			{code(501), 100, false},
			{errFailed, 100, false}, {errFailed, 99, false},
			{code(505), 100, false},
			{errFailed, 100, false}, {errFailed, 99, false},
			{errAnswer, 100, false},
			{errFailed, 100, false}, {errFailed, 99, false},
			{nil, 100, false},
			{code(404), 100, false},
			{code(403), 100, true},
			{nil, 100, true},
		} {
			time.Sleep(time.Second)
			r.note(step.err)
			if wait, never := r.offlineIn(100 * time.Second); wait != step.wait*time.Second || never != step.never {
				t.Errorf("step %d: %v, never: %v", i, wait, never)
			}
		}
		r = &reach{}
		r.note(code(401))
		if _, never := r.offlineIn(0); !never {
			t.Error("401 is not taken for a refusal")
		}
	})
}

// The API server must have refused to show the pods for a while.
func TestWhenARefusalCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errFailed)
		e := &cacheErrors{reach: &reach{}}
		for i, step := range []struct {
			err     error
			refused bool
		}{
			{errFailed, false}, {errFailed, false}, {errFailed, false},
			{forbidden, false}, {errFailed, false}, {forbidden, true}, {errFailed, true},
			{nil, false}, {forbidden, false}, {forbidden, false}, {forbidden, true}, {nil, false},
		} {
			e.refusal(time.Now(), step.err)
			if err := e.check(2 * time.Second); (err != nil) != step.refused {
				t.Errorf("step %d: %v", i, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// What a record says of a pod that the API shows, or that an instance is found of (nil).
func TestWhatARecordSays(t *testing.T) {
	generation := func(n int64, image string) *corev1.Pod {
		pod := podOf("a", "u")
		pod.Generation, pod.Spec.Containers = n, []corev1.Container{{Image: image}}
		return pod
	}
	synctest.Test(t, func(t *testing.T) {
		c := atRest(t)
		now, hour := c.pods.now(), new(time.Now().Add(-time.Hour))
		end := &core.End{Reason: core.StopEvicted}
		for name, tc := range map[string]struct {
			rec   *record
			shown *corev1.Pod
			want  core.Saved
		}{
			"there is none":            {nil, generation(3, "i"), core.Saved{}},
			"it can't be read":         {&record{}, generation(3, "i"), core.Saved{Exists: true}},
			"the pod is the same":      {&record{Pod: generation(3, "i")}, generation(3, "i"), core.Saved{Exists: true, Generation: 3}},
			"the pod is newer":         {&record{Pod: generation(3, "i")}, generation(4, "j"), core.Saved{Exists: true, Generation: 3}},
			"it is of another history": {&record{Pod: generation(3, "i")}, generation(3, "j"), core.Saved{Exists: true, Generation: core.NoGeneration}},
			"the pod is older":         {&record{Pod: generation(3, "i")}, generation(2, "i"), core.Saved{Exists: true, Generation: core.NoGeneration}},
			"the pod is not known":     {&record{Pod: generation(3, "i")}, nil, core.Saved{Exists: true, Generation: 3}},
			"it is lost":               {&record{Pod: generation(3, "i"), LostSince: hour}, nil, core.Saved{Exists: true, Generation: 3, Lost: true, LostSince: now - time.Hour}},
			"it is lost by a clock that was set": {
				&record{Pod: generation(3, "i"), LostSince: new(time.Now().Add(time.Hour))}, nil, core.Saved{Exists: true, Generation: 3, Lost: true, LostSince: now - 1},
			},
			"it ends": {&record{Pod: generation(3, "i"), End: end}, nil, core.Saved{Exists: true, Generation: 3, End: end}},
		} {
			if tc.rec != nil {
				c.records.unclaimed["u"] = tc.rec
			}
			if got := c.records.claim("u", tc.shown, now); got != tc.want || len(c.records.unclaimed) > 0 {
				t.Errorf("%s: %+v, and %d records are left", name, got, len(c.records.unclaimed))
			}
		}
	})
}

// What the Checkpoint has of pods that can't be read, or of another node, costs no other pod.
func TestWhichRecordsAreLoaded(t *testing.T) {
	disk := &memory{records: map[types.UID][]byte{}, err: errFailed}
	c := atRest(t, func(cfg *Config) { cfg.Checkpoint = disk })
	for _, node := range []string{"n", "m", "m"} {
		pod := podOf("a", types.UID(fmt.Sprint("u", len(disk.records))))
		pod.Spec.NodeName = node
		data, err := (&record{Pod: pod}).encode()
		if err != nil {
			t.Fatal(err)
		}
		disk.records[pod.UID] = data
	}
	disk.records["broken"], disk.records["another"] = []byte("x"), disk.records["u0"]
	c.records.load(c.run.callCtx)
	if len(c.records.unclaimed) != 3 || c.records.unclaimed["u0"].Pod == nil || c.records.unclaimed["broken"].Pod != nil || c.records.unclaimed["another"].Pod != nil {
		t.Errorf("%+v", c.records.unclaimed)
	}
	slices.Sort(c.told)
	for i, text := range []string{"load the checkpoint: it failed", `has 2 records of pods of other nodes: ["m"]`, "record of pod another", "record of pod broken"} {
		if len(c.told) != 4 || !strings.Contains(c.told[i], text) {
			t.Fatalf("reported %q", c.told)
		}
	}
}

// The records of pods that nothing has are removed, one pass at a time. Each outage of the disk is
// reported once. A pod that comes during the removal waits for it, and its record is not removed again.
func TestWhichRecordsAreRemoved(t *testing.T) {
	disk := &memory{records: map[types.UID][]byte{"u": nil, "v": nil}}
	c := atRest(t, func(cfg *Config) { cfg.Checkpoint = disk })
	c.records.unclaimed = map[types.UID]*record{"u": {}, "v": {}}
	var pod *entry
	for i, step := range []struct {
		before               func()
		err                  error
		recorded, left, told int
	}{
		{func() { c.records.removing["other"] = true }, nil, 2, 2, 0}, // a pass is under way
		{func() { delete(c.records.removing, "other") }, errFailed, 2, 2, 1},
		{func() {}, errFailed, 2, 2, 1},
		{func() {}, nil, 0, 0, 1},
		{func() {}, nil, 0, 0, 1},
		{func() {
			c.records.unclaimed["u"] = &record{}
			pod = c.runs(podOf("a", "u"))
			c.clean()
		}, errFailed, 0, 0, 2},
	} {
		step.before()
		disk.err = step.err
		c.records.drop(c.run.callCtx)
		c.run.calls.Wait()
		if len(disk.records) != step.recorded || len(c.records.unclaimed) != step.left || len(c.told) != step.told || len(c.records.removing) > 0 && i > 0 {
			t.Errorf("step %d: %d records, %d are to be removed, %d are being removed; reported %q", i, len(disk.records), len(c.records.unclaimed), len(c.records.removing), c.told)
		}
	}
	if !pod.dirty {
		t.Error("it waits on")
	}
}

// Without the API server, pods start from their records. When it is back it decides about those that
// it does not show.
func TestWhichPodsStartFromRecords(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.Checkpoint = &memory{} })
	c.runs(podOf("known", "known"))
	c.clean()
	for _, uid := range []types.UID{"known", "recorded", "shown"} {
		c.records.unclaimed[uid] = &record{Pod: podOf(string(uid), uid)}
	}
	c.records.unclaimed["broken"] = &record{}
	c.Report(State{Ref: Ref{Namespace: "ns", Name: "recorded", UID: "recorded"}, Status: corev1.PodStatus{Message: "early"}})
	c.records.goOffline(c.run.callCtx)
	if len(c.pods.pods) != 3 || len(c.pods.dirty) != 2 || len(c.records.unclaimed) != 2 || c.pods.pods["known"].dirty {
		t.Errorf("%d pods, %d are dirty, %d records are unclaimed", len(c.pods.pods), len(c.pods.dirty), len(c.records.unclaimed))
	}
	if report := c.pods.pods["recorded"].LastReport(); report == nil || report.Message != "early" {
		t.Errorf("the report that came before is %+v", report)
	}
	// A new pod of the name proves nothing about a pod that only the Checkpoint has.
	c.intake.onUpdate(podOf("recorded", "new"))
	if _, ends := c.pods.pods["recorded"].Ending(); ends {
		t.Error("it ends before the API was asked")
	}
	c.intake.onUpdate(podOf("shown", "shown"))
	c.clean()
	woken(c.pods.relist)
	c.records.goOnline()
	for name, want := range map[types.UID]bool{"known": false, "shown": false, "recorded": true} {
		pod := c.pods.pods[name]
		if suspicion, _ := pod.Suspect(); suspicion.Missing != want || pod.dirty != want {
			t.Errorf("%s: the API is asked about it: %v, and it is dirty: %v", name, suspicion.Missing, pod.dirty)
		}
	}
	if !woken(c.pods.relist) {
		t.Error("no List is asked for")
	}
}

// A record whose checksum is right may be of a later version of the format.
func TestARecordThatIsNotUnderstoodIsAnError(t *testing.T) {
	for body, want := range map[string]bool{
		`{"pod":{"metadata":{"uid":"u"}}}`:                true,
		`{"pod":{"metadata":{"uid":"u"}},"lostSince":{}}`: false,
		`{"pod":{"metadata":{"uid":"v"}}}`:                false,
		`{}`:                                              false,
		`{`:                                               false,
	} {
		data := append(fmt.Appendf(nil, recordHeader, crc32.Checksum([]byte(body), crcTable)), body...)
		if _, err := decodeRecord("u", data); (err == nil) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// What is saved of a pod is what the next process reads.
func TestWhatIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &memory{records: map[types.UID][]byte{}}
		c := atRest(t, func(cfg *Config) { cfg.Checkpoint = disk })
		for i, want := range []record{
			{},
			{LostSince: new(time.Now().Add(-time.Hour))},
			{End: &core.End{Reason: core.StopEvicted, Grace: time.Second}},
		} {
			var lostSince instant
			if want.LostSince != nil {
				lostSince = c.pods.now() - time.Hour
			}
			if err := c.records.save(t.Context(), podOf("a", "u"), lostSince, want.End); err != nil {
				t.Fatal(err)
			}
			got, err := decodeRecord("u", disk.records["u"])
			if err != nil {
				t.Fatal(err)
			}
			if (got.LostSince == nil) != (want.LostSince == nil) || got.LostSince != nil && !got.LostSince.Equal(*want.LostSince) || !reflect.DeepEqual(got.End, want.End) {
				t.Errorf("record %d: %+v", i, got)
			}
		}
		disk.err = errFailed
		if err := c.records.save(t.Context(), podOf("a", "u"), 0, nil); !errors.Is(err, errFailed) {
			t.Error(err)
		}
	})
}

// How long a process waits for the first list of the informer.
func TestHowLongTheInformerIsAwaited(t *testing.T) {
	for name, tc := range map[string]struct {
		checkpoint bool
		during     func(*reach) // after a second
		waits      time.Duration
		offline    bool
	}{
		"no answer":               {true, func(*reach) {}, 10 * time.Second, true},
		"an answer":               {true, func(r *reach) { r.note(nil) }, time.Hour, false},
		"an answer, and no other": {true, func(r *reach) { r.note(nil); r.note(errFailed) }, 11 * time.Second, true},
		"a refusal":               {true, func(r *reach) { r.note(statuserr.New(403, metav1.StatusReasonForbidden, "m")) }, time.Hour, false},
		"without a Checkpoint":    {false, func(*reach) {}, time.Hour, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := atRest(t, func(cfg *Config) {
				cfg.OfflineAfter = 0
				if tc.checkpoint {
					cfg.Checkpoint = &memory{}
				}
			})
			c.records.after = 10 * time.Second
			c.records.unclaimed["u"] = &record{Pod: podOf("a", "u")}
			c.records.reach.begin()
			synced := make(chan struct{})
			start := time.Now()
			go func() {
				time.Sleep(time.Second)
				tc.during(c.records.reach)
				time.Sleep(time.Hour - time.Second)
				close(synced)
			}()
			c.records.awaitPods(c.run.callCtx, synced)
			if d := time.Since(start); d != tc.waits || (len(c.pods.pods) > 0) != tc.offline {
				t.Errorf("%s: it has waited %v, and %d pods start from records", name, d, len(c.pods.pods))
			}
			<-synced
			c.run.calls.Wait()
			if pod := c.pods.pods["u"]; pod != nil {
				if suspicion, _ := pod.Suspect(); !suspicion.Missing {
					if _, ends := pod.Ending(); !ends {
						t.Errorf("%s: the API that is back does not decide", name)
					}
				}
			}
		})
	}
}

// A sick is a disk with one record, of which one operation fails.
type sick struct {
	durable.FS
	op  string
	err error
}

func (d *sick) fails(op string) error {
	if op == d.op {
		return d.err
	}
	return nil
}

func (d *sick) Open() error               { return d.fails("Open") }
func (d *sick) SyncDir(name string) error { return d.fails("SyncDir " + name) }
func (d *sick) ReadDir(string) ([]string, error) {
	return []string{"u.pod", "README"}, d.fails("ReadDir")
}
func (d *sick) ReadFile(string, int) ([]byte, error) { return []byte("x"), d.fails("ReadFile") }
func (d *sick) Remove(string) error                  { return d.fails("Remove") }
func (d *sick) Close() error                         { return d.fails("Close") }

// Each error of the disk is one of the operation that it concerns.
func TestWhichErrorsOfADiskAreReturned(t *testing.T) {
	for _, tc := range []struct {
		op                  string
		err                 error
		load, remove, close bool
		records             int
	}{
		{"", nil, false, false, false, 1},
		{"Open", errFailed, true, true, false, 0},
		{"SyncDir ..", errFailed, true, false, false, 1},
		{"ReadDir", errFailed, true, false, false, 1},
		{"ReadFile", errFailed, true, false, false, 1},
		{"Remove", errFailed, false, true, false, 1},
		{"Remove", fs.ErrNotExist, false, false, false, 1},
		{"SyncDir .", errFailed, false, true, false, 1},
		{"Close", errFailed, false, false, true, 1},
	} {
		d := checkpointOn(&sick{op: tc.op, err: tc.err})
		if d.Remove(t.Context(), "u") == nil {
			t.Errorf("%s: a record is removed before the checkpoint is loaded", tc.op)
		}
		records, err := d.Load(t.Context())
		if (err != nil) != tc.load || len(records) != tc.records || (records["u"] == nil) != (tc.op == "ReadFile" || tc.records == 0) {
			t.Errorf("%s: Load returns %q, %v", tc.op, records, err)
		}
		if err := d.Remove(t.Context(), "u"); (err != nil) != tc.remove {
			t.Errorf("%s: Remove returns %v", tc.op, err)
		}
		if err := d.Close(); (err != nil) != tc.close {
			t.Errorf("%s: Close returns %v", tc.op, err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: the second Close returns %v", tc.op, err)
		}
		if d.Save(t.Context(), "u", nil) == nil {
			t.Errorf("%s: a record is saved after Close", tc.op)
		}
	}
}
