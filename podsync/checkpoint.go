// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/report"
)

// A Checkpoint stores the pods that the node has accepted and that have not ended, so that
// they can start while the API server can't be reached. Its methods are called concurrently,
// but not for one pod. An error of Save fails the call of Start that it belongs to, which is
// repeated. [CheckpointDir] is one. A Checkpoint that implements io.Closer is closed when Run
// returns.
type Checkpoint interface {
	// Load returns all records. An error is reported; the records that come with it count.
	Load(ctx context.Context) (map[types.UID][]byte, error)
	// Save replaces the record of a pod. It must survive a power cut when Save returns nil.
	Save(ctx context.Context, uid types.UID, record []byte) error
	// Remove removes the record of a pod. A missing one is no error.
	Remove(ctx context.Context, uid types.UID) error
}

// A record is the content of a Checkpoint about one pod.
type record struct {
	Pod *corev1.Pod `json:"pod"`
	// LostSince is the time since which the provider's List leaves out the pod, if too many
	// are left out to believe it.
	LostSince *time.Time `json:"lostSince,omitempty"`
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// recordHeader is the first line of a record, with the checksum of the rest.
const recordHeader = "kubewright pod 1 %08x\n"

// encode returns the bytes of the record.
func (r *record) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, recordHeader, crc32.Checksum(body, crcTable)), body...), nil
}

// decodeRecord is the inverse of encode.
func decodeRecord(uid types.UID, data []byte) (*record, error) {
	header, body, _ := bytes.Cut(data, []byte("\n"))
	if string(header)+"\n" != fmt.Sprintf(recordHeader, crc32.Checksum(body, crcTable)) {
		return nil, errors.New("its checksum is wrong")
	}
	r := &record{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, err
	}
	if r.Pod == nil || r.Pod.UID != uid {
		return nil, errors.New("it is about another pod")
	}
	return r, nil
}

// A savedRecord is what the Checkpoint has of the pod.
type savedRecord struct {
	exists     bool
	generation int64
	lost       bool    // it has LostSince
	lostSince  instant // of the process before; 0: none
}

// unsaved reports whether the record of the pod is missing or out of date.
func (t *podState) unsaved(r *rules) bool {
	if !r.checkpoints || t.api.pod == nil || t.removed() || t.end != nil {
		return false
	}
	saved := &t.provider.saved
	return t.running() && (!saved.exists || saved.generation != t.pod().Generation) ||
		saved.exists && saved.lost != (t.provider.lostSince != 0)
}

// loadRecords loads the Checkpoint. A record that can't be read costs its pod only.
func (c *Controller) loadRecords(ctx context.Context) {
	if c.cfg.Checkpoint == nil {
		return
	}
	const msg = "Failed to load the checkpoint of the pods"
	var all map[types.UID][]byte
	err := contain("Checkpoint.Load", func() (err error) {
		all, err = c.cfg.Checkpoint.Load(ctx)
		return err
	})
	if err != nil {
		report.Tell(ctx, c.cfg.ErrorHandler, fmt.Errorf("podsync: load the checkpoint: %w", err), msg, panicValues(err)...)
	}
	for uid, data := range all {
		r, err := decodeRecord(uid, data)
		if err != nil {
			r = &record{} // to be removed when the API is back
			report.Tell(ctx, c.cfg.ErrorHandler, fmt.Errorf("podsync: the record of pod %s: %w", uid, err), msg, "podUID", uid)
		}
		c.records[uid] = r
	}
}

// claim gives a pod its record. c.mu must be held.
func (c *Controller) claim(t *podState, now instant) {
	r, ok := c.records[t.ref.UID]
	if !ok {
		return
	}
	delete(c.records, t.ref.UID)
	t.provider.saved = savedRecord{exists: true}
	if r.Pod != nil {
		t.provider.saved.generation = r.Pod.Generation
	}
	if r.LostSince != nil {
		t.provider.saved.lost = true
		t.provider.saved.lostSince = now - max(time.Since(*r.LostSince), 1)
	}
}

// save saves the record of a pod.
func (c *Controller) save(ctx context.Context, pod *corev1.Pod, lostSince instant) error {
	r := record{Pod: pod}
	if lostSince != 0 {
		at := time.Now().Add(lostSince - c.now())
		r.LostSince = &at
	}
	data, err := r.encode()
	if err == nil {
		err = c.cfg.Checkpoint.Save(ctx, pod.UID, data)
	}
	if err != nil {
		return fmt.Errorf("save the checkpoint: %w", err)
	}
	return nil
}

// dropRecords removes the records of pods that neither the API nor the provider has.
func (c *Controller) dropRecords(ctx context.Context) {
	c.mu.Lock()
	gone := c.records
	c.records = map[types.UID]*record{}
	for uid := range gone {
		c.removing[uid] = true
	}
	c.mu.Unlock()
	for uid, r := range gone {
		err := contain("Checkpoint.Remove", func() error { return c.cfg.Checkpoint.Remove(ctx, uid) })
		c.mu.Lock()
		delete(c.removing, uid)
		if t := c.tracks[uid]; t != nil {
			c.markDirty(t) // it came in the meantime, and waits
		} else if err != nil {
			c.records[uid] = r // with the next List
		}
		c.mu.Unlock()
		wake(c.kick)
	}
}

// reach follows whether the API server answers, before the informer has its first list.
type reach struct {
	mu     sync.Mutex
	since  time.Time // the beginning, or the first failure after an answer; zero: the last request was answered
	denied bool      // the server does not let this program read pods
}

// note records the result of a request of the informer. An answer is any except 502 to 504,
// which are a proxy's.
func (r *reach) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		r.denied = r.denied || code == 401 || code == 403
		if code < 502 || code > 504 {
			err = nil
		}
	}
	switch {
	case err == nil || errors.Is(err, errAnswer):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	}
}

// begin starts the time without an answer.
func (r *reach) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = time.Now()
}

// offlineIn returns the time until the pods of the Checkpoint may start.
func (r *reach) offlineIn(after time.Duration) (wait time.Duration, never bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		return after, r.denied
	}
	return time.Until(r.since.Add(after)), r.denied
}

// awaitPods waits until the informer has synced, or until the pods of the Checkpoint must start
// without it.
func (c *Controller) awaitPods(ctx context.Context, synced <-chan struct{}) {
	var offline <-chan time.Time
	for {
		if c.cfg.Checkpoint != nil {
			wait, never := c.reach.offlineIn(c.cfg.OfflineAfter)
			switch {
			case never:
				offline = nil
			case wait <= 0:
				c.goOffline(ctx)
				c.calls.Go(func() {
					select {
					case <-synced:
						c.goOnline()
					case <-ctx.Done():
					}
				})
				return
			default:
				offline = time.After(wait)
			}
		}
		select {
		case <-synced:
			return
		case <-ctx.Done():
			return
		case <-offline:
		}
	}
}

// goOffline takes the pods from the Checkpoint.
func (c *Controller) goOffline(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := c.now(), 0
	for uid, r := range c.records {
		if r.Pod == nil || c.tracks[uid] != nil {
			continue
		}
		t := c.add(RefOf(r.Pod), now)
		t.setPod(&c.rules, now, &version{pod: r.Pod})
		t.api.cachedVersion = r.Pod.ResourceVersion
		c.markDirty(t)
		n++
	}
	logger := klog.FromContext(ctx)
	c.later(func() {
		logger.Info("The API server can't be reached: the pods of the checkpoint are started", "pods", n)
	})
	wake(c.kick)
}

// goOnline lets the API decide again: what it does not have is asked about, and ends.
func (c *Controller) goOnline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, t := range c.tracks {
		if t.api.pod != nil && !t.api.cached {
			t.markMissing(now)
			c.markDirty(t)
		}
	}
	wake(c.verify)
	wake(c.relist)
	wake(c.kick)
}

// recordSuffix ends the names of the files of CheckpointDir. maxRecord is more than the API
// server stores of a pod.
const (
	recordSuffix = ".pod"
	maxRecord    = 8 << 20
)

// CheckpointDir returns a Checkpoint of one file for each pod, in a directory that it creates.
// Its parent must exist. A power cut at any moment leaves each record as it was or as it
// became. The directory is locked until Run returns: a second process gets an error from Load,
// and then from each Save. The files may have secrets, because a pod's environment may, and
// only the user of the process can read them.
func CheckpointDir(path string) Checkpoint { return checkpointOn(durable.Dir(path)) }

func checkpointOn(disk durable.FS) *checkpointDir {
	return &checkpointDir{disk: disk, open: errors.New("the checkpoint is not loaded")}
}

type checkpointDir struct {
	disk durable.FS

	mu   sync.Mutex
	open error // nil if it is open
}

// Load implements Checkpoint.
func (d *checkpointDir) Load(context.Context) (map[types.UID][]byte, error) {
	d.mu.Lock()
	d.open = d.disk.Open()
	err := d.open
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	durable.RemoveLeftovers(d.disk, ".")
	err = d.disk.SyncDir("..")
	names, e := d.disk.ReadDir(".")
	err = errors.Join(err, e)
	records := map[types.UID][]byte{}
	for _, name := range names {
		uid, ok := strings.CutSuffix(name, recordSuffix)
		if !ok {
			continue
		}
		data, e := d.disk.ReadFile(name, maxRecord)
		if e != nil {
			err = errors.Join(err, e)
			data = nil // the record exists, and can't be read
		}
		records[types.UID(uid)] = data
	}
	return records, err
}

// name returns the name of the file of a pod.
func (d *checkpointDir) name(uid types.UID) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return "", d.open
	}
	if uid == "" || uid[0] == '.' || strings.ContainsAny(string(uid), "/\\:\x00") {
		return "", fmt.Errorf("the UID %q is no name of a file", uid)
	}
	return string(uid) + recordSuffix, nil
}

// Save implements Checkpoint.
func (d *checkpointDir) Save(_ context.Context, uid types.UID, record []byte) error {
	name, err := d.name(uid)
	if err != nil {
		return err
	}
	return durable.Replace(d.disk, name, record)
}

// Remove implements Checkpoint.
func (d *checkpointDir) Remove(_ context.Context, uid types.UID) error {
	name, err := d.name(uid)
	if err != nil {
		return err
	}
	if err := d.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.disk.SyncDir(".")
}

// Close implements io.Closer.
func (d *checkpointDir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return nil
	}
	d.open = errors.New("the checkpoint is closed")
	return d.disk.Close()
}

var _ io.Closer = (*checkpointDir)(nil)
