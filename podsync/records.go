// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// records keep Config.Checkpoint, and start its pods while the API can't be reached. The lock
// of the table guards unclaimed and removing.
type records struct {
	pods       *table
	reports    *reports
	checkpoint Checkpoint // nil: none
	nodeName   string     // Config.NodeName
	reach      *reach
	after      time.Duration // Config.OfflineAfter

	unclaimed map[types.UID]*record // of pods that are not in the table
	removing  map[types.UID]bool    // records that are being removed
	streak    apierr.Streak         // of those removals, one at a time
}

// load loads the Checkpoint. A record that can't be read costs its pod only. A record of another
// node is left as it is: the disk may be a copy, or the node's name a mistake, and only the API
// server that has the other node's pods could say that the record is of no use.
func (r *records) load(ctx context.Context) {
	if r.checkpoint == nil {
		return
	}
	const msg = "Failed to load the checkpoint of the pods"
	var all map[types.UID][]byte
	err := contain("Checkpoint.Load", func() (err error) {
		all, err = r.checkpoint.Load(ctx)
		return err
	})
	if err != nil {
		report.Tell(ctx, r.pods.handler, fmt.Errorf("podsync: load the checkpoint: %w", err), msg, panicValues(err)...)
	}
	others, nodes := 0, map[string]bool{}
	for uid, data := range all {
		rec, err := decodeRecord(uid, data)
		switch {
		case err != nil:
			rec = &record{} // to be removed when the API is back
			report.Tell(ctx, r.pods.handler, fmt.Errorf("podsync: the record of pod %s: %w", uid, err), msg, "podUID", uid)
		case rec.Pod.Spec.NodeName != r.nodeName:
			others++
			nodes[rec.Pod.Spec.NodeName] = true
			continue
		}
		r.unclaimed[uid] = rec
	}
	if others > 0 {
		err := fmt.Errorf("podsync: the checkpoint of node %q has %d records of pods of other nodes: %q", r.nodeName, others, slices.Sorted(maps.Keys(nodes)))
		report.Tell(ctx, r.pods.handler, err, "Pods of other nodes are not started, and their records are kept", "records", others)
	}
}

// close closes a Checkpoint that can be closed.
func (r *records) close() {
	if closer, ok := r.checkpoint.(io.Closer); ok {
		_ = closer.Close() // nothing is lost: each record is durable already
	}
}

// claim returns what the Checkpoint has of a pod that is added to the table; nil if the API has not
// shown it. The lock of the table must be held.
func (r *records) claim(uid types.UID, pod *corev1.Pod, now instant) (saved core.Saved) {
	rec, ok := r.unclaimed[uid]
	if !ok {
		return saved
	}
	delete(r.unclaimed, uid)
	saved.Exists, saved.End = true, rec.End
	if rec.Pod != nil {
		saved.Generation = rec.Pod.Generation
		if pod != nil && !core.Stands(rec.Pod, pod) {
			saved.Generation = core.NoGeneration
		}
	}
	if rec.LostSince != nil {
		saved.Lost, saved.LostSince = true, now-max(time.Since(*rec.LostSince), 1)
	}
	return saved
}

// save saves the record of a pod.
func (r *records) save(ctx context.Context, pod *corev1.Pod, lostSince instant, end *core.End) error {
	rec := record{Pod: pod, End: end}
	if lostSince != 0 {
		rec.LostSince = new(time.Now().Add(lostSince - r.pods.now()))
	}
	data, err := rec.encode()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = r.checkpoint.Save(ctx, pod.UID, data)
	}
	if err != nil {
		return fmt.Errorf("save the checkpoint: %w", err)
	}
	return nil
}

// remove removes the record of a pod.
func (r *records) remove(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.checkpoint.Remove(ctx, uid)
}

// drop removes the records of pods that neither the API nor the provider has. It does not wait
// for the Checkpoint, which may hang.
func (r *records) drop(ctx context.Context) {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	if len(r.removing) > 0 || len(r.unclaimed) == 0 {
		return
	}
	gone := r.unclaimed
	r.unclaimed = map[types.UID]*record{}
	for uid := range gone {
		r.removing[uid] = true
	}
	r.pods.run.calls.Go(func() { r.removeAll(ctx, gone) })
}

// removeAll removes records, and keeps those that can't be removed for the next call of drop.
func (r *records) removeAll(ctx context.Context, gone map[types.UID]*record) {
	for uid, rec := range gone {
		err := contain("Checkpoint.Remove", func() error { return r.remove(ctx, uid) })
		switch {
		case err == nil:
			r.streak.OK(ctx, "Removing records of pods that are gone works again")
		case ctx.Err() == nil:
			err = fmt.Errorf("podsync: remove the record of pod %s: %w", uid, err)
			r.streak.Fail(ctx, r.pods.handler, err, "Failed to remove the record of a pod that is gone")
		}
		r.pods.mu.Lock()
		delete(r.removing, uid)
		if t := r.pods.pods[uid]; t != nil {
			r.pods.markDirty(t) // it came in the meantime, and waits
		} else if err != nil {
			r.unclaimed[uid] = rec
		}
		r.pods.mu.Unlock()
	}
}

// awaitPods waits until the informer has synced, or until the pods of the Checkpoint must start
// without it.
func (r *records) awaitPods(ctx context.Context, synced <-chan struct{}) {
	var offline <-chan time.Time
	for {
		if r.checkpoint != nil {
			wait, never := r.reach.offlineIn(r.after)
			switch {
			case never:
				offline = nil
			case wait <= 0:
				r.goOffline(ctx)
				r.pods.run.calls.Go(func() {
					select {
					case <-synced:
						r.goOnline()
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
func (r *records) goOffline(ctx context.Context) {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	at, n := r.pods.moment(), 0
	for uid, rec := range r.unclaimed {
		if rec.Pod == nil || r.pods.pods[uid] != nil {
			continue
		}
		t := r.pods.add(RefOf(rec.Pod), core.New(&r.pods.rules, at.Since, r.pods.tick(), r.claim(uid, rec.Pod, at.Since)))
		r.pods.apply(t, at, core.Recorded{Pod: rec.Pod})
		r.reports.join(t, at)
		n++
	}
	logger := klog.FromContext(ctx)
	r.pods.later(func() {
		logger.Info("The API server can't be reached: the pods of the checkpoint are started", "pods", n)
	})
}

// goOnline lets the API decide again: what it does not have is asked about, and ends.
func (r *records) goOnline() {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	at := r.pods.moment()
	for _, t := range r.pods.pods {
		if t.Seen() && !t.Cached() {
			r.pods.apply(t, at, core.Vanished{Doubtful: true})
			r.pods.markDirty(t)
		}
	}
	wake(r.pods.relist)
}
