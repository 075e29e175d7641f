// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// listGap is the least time between two Lists: pods that ask for one at the
// same time share it.
const listGap = time.Second

// A lister calls List and Watch of the provider. The lock of the table guards hold and
// health.
type lister struct {
	pods     *table
	gates    *gates
	observer *observer
	reports  *reports
	records  *records
	intake   *intake
	provider Provider
	watcher  Watcher // nil: the provider has no Watch
	nodeName string  // Config.NodeName
	relist   time.Duration
	retries  backoff.Policy // of List
	ready    *lifecycle.Ready
	forget   func(t *entry) // drops a pod

	health listHealth
	hold   hold // the last List has left out too many pods
}

// listHealth follows the calls of List.
type listHealth struct {
	since instant // when the first List without a success began; 0: the last one succeeded
	err   error
}

// run calls List until ctx is done: when the informer has synced, then each
// Config.Relist, and when table.relist is woken.
func (l *lister) run(ctx context.Context, synced cache.DoneChecker) {
	l.records.awaitPods(ctx, synced.Done())
	var streak apierr.Streak
	for ctx.Err() == nil {
		l.gates.askAll(ctx, true)
		l.intake.askOwnsAgain()
		err := l.list(ctx)
		wait := time.Duration(float64(l.relist) * (0.9 + 0.2*rand.Float64()))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			streak.Fail(ctx, l.pods.handler, fmt.Errorf("podsync: list of the provider: %w", err), "Failed to list the provider's pods")
			wait = min(wait, l.retries.Delay(streak.Failures()))
		default:
			streak.OK(ctx, "Listing the provider's pods works again")
			if cache.IsDone(synced) { // before the List, as List has seen
				l.ready.Mark()
				l.records.drop(ctx)
			}
			wake(l.pods.verify)
		}
		l.wait(ctx, wait)
	}
}

// wait waits for the next List to be due, or asked for.
func (l *lister) wait(ctx context.Context, wait time.Duration) {
	gap := min(listGap, wait)
	sleep(ctx, gap)
	select {
	case <-time.After(wait - gap):
	case <-l.pods.relist:
	case <-ctx.Done():
	}
}

// list calls the provider's List and applies its result to each pod.
func (l *lister) list(ctx context.Context) error {
	l.pods.mu.Lock()
	begin := l.pods.tick()
	if l.health.since == 0 {
		l.health.since = l.pods.now()
	}
	l.pods.mu.Unlock()

	callCtx, cancel := context.WithTimeout(ctx, max(listTimeout, l.relist))
	defer cancel()
	start := time.Now()
	var states []State
	err := contain("List", func() (err error) {
		states, err = l.provider.List(callCtx)
		return err
	})
	l.observer.called(OpList, Ref{}, time.Since(start), err)
	if err != nil {
		l.pods.mu.Lock()
		defer l.pods.mu.Unlock()
		l.health.err = err
		l.reports.expire(l.pods.now())
		return err
	}
	fps := make([]uint64, len(states))
	for i := range states {
		fps[i] = l.reports.prints.of(&states[i])
	}
	klog.FromContext(ctx).V(5).Info("Listed the provider's pods", "pods", len(states))

	l.pods.mu.Lock()
	defer l.pods.mu.Unlock()
	at := l.pods.moment()
	if l.health.err != nil {
		l.pods.retry(core.Calls, at, func(*entry) bool { return true }) // the backend is back
	}
	l.health = listHealth{}
	l.pods.listed, l.pods.nameless = begin, map[types.NamespacedName]bool{}
	for i := range states {
		l.apply(at, begin, &states[i], fps[i])
	}
	if !l.pods.synced {
		l.tellFound(ctx)
	}
	for _, t := range l.pods.pods {
		l.conclude(t, at, begin)
	}
	l.decideLosses(at)
	l.pods.synced = true
	l.reports.expire(at.Since)
	l.gates.prune()
	return nil
}

// maxFound bounds a log line.
const maxFound = 50

// tellFound logs which pods of an earlier process the first List has, and which it has not. One that
// is missing may run in another process that acts for the node, be held back, or start again.
func (l *lister) tellFound(ctx context.Context) {
	var found, missing, orphans []string
	for _, t := range l.pods.pods {
		name := klog.KRef(t.ref.Namespace, t.ref.Name).String()
		switch {
		case t.Orphan():
			orphans = append(orphans, name)
		case l.pods.shows(t):
			found = append(found, name)
		case t.Ran():
			missing = append(missing, name)
		}
	}
	if len(found)+len(missing)+len(orphans) == 0 {
		return
	}
	values := []any{"found", len(found), "missing", len(missing), "orphans", len(orphans)}
	for i, names := range [][]string{found, missing, orphans} {
		slices.Sort(names)
		if len(names) > maxFound {
			names = append(names[:maxFound:maxFound], "…")
		}
		values = append(values, []string{"foundPods", "missingPods", "orphanPods"}[i], names)
	}
	logger := klog.FromContext(ctx)
	l.pods.later(func() { logger.Info("Found the pods of an earlier process", values...) })
}

// apply applies one entry of a List that began at begin.
func (l *lister) apply(at core.Moment, begin uint64, st *State, fp uint64) {
	t := l.pods.find(st.Ref)
	if t != nil && t.ref.UID == "" && t.Orphan() && t.InFlight(core.Calls) == nil {
		// It was the instance of an earlier pod of the name when the gate closed. Whose it is now, this
		// List decides.
		l.forget(t)
		t = l.pods.find(st.Ref)
	}
	if t == nil {
		if st.UID == "" {
			// It may be the instance of any pod of the name: none is absent.
			for t := l.pods.names[nameOf(st.Ref)]; t != nil; t = t.next {
				t.shown = begin
			}
			l.pods.nameless[nameOf(st.Ref)] = true
			l.observer.dropped(st.Ref, DroppedAmbiguous, nil)
			return
		}
		if l.foreign(st) {
			return
		}
		t = l.pods.add(st.Ref, core.NewOrphan(&l.pods.rules, at.Since, l.pods.tick(), l.records.claim(st.UID, nil, at.Since), st.NodeName))
		l.reports.join(t, at) // it may be newer than the List
	}
	if st.UID == "" && !t.MayBe(begin) {
		l.supersede(t, st.Ref, at)
		return
	}
	t.shown = begin
	l.reports.apply(t, at, st, fp, begin, true)
}

// foreign reports whether the instance was started for a node of another
// Controller.
func (l *lister) foreign(st *State) bool {
	return st.NodeName != "" && l.nodeName != "" && st.NodeName != l.nodeName
}

// supersede stops the instance of an earlier pod of the name of t. The
// backend keeps no UIDs, so t would be taken to run already.
func (l *lister) supersede(t *entry, ref Ref, at core.Moment) {
	if !l.gates.mayAct(t) {
		l.pods.nameless[nameOf(ref)] = true
		l.observer.dropped(ref, DroppedAmbiguous, nil)
		return
	}
	if t.InFlight(core.Calls) != nil || t.Held() {
		return // Start was called, and the List is older
	}
	earlier := l.pods.add(ref, core.NewLeftover(&l.pods.rules, at.Since, l.pods.tick(), l.gates.nodeOf(t)))
	earlier.shown = l.pods.listed
	l.observer.warn(t, reasonNameTaken, actionStart, messageInstanceWithoutUID)
}

// conclude applies to a pod that a List, which began at begin, has ended.
func (l *lister) conclude(t *entry, at core.Moment, begin uint64) {
	if t.Orphan() {
		for range l.pods.waiters(t) {
			l.pods.apply(t, at, core.NameWanted{})
			break
		}
	}
	shown := l.pods.shows(t)
	if shown && t.Known() {
		return // as for most pods
	}
	news := l.pods.apply(t, at, core.ListEnded{Seq: begin, Shown: shown, First: !l.pods.synced, Open: l.gates.mayAct(t)})
	if news.Changed {
		l.pods.markDirty(t)
	}
	if news.Lost {
		l.observer.warn(t, ReasonLost, actionSync, core.MessageLost)
	}
}

// decideLosses decides about the pods that Lists have left out. So many losses at once are more
// likely a mistake of the backend: they are held, unless the Inspector confirms each.
func (l *lister) decideLosses(at core.Moment) {
	var lost []*entry
	held := 0
	for _, t := range l.pods.pods {
		if _, may := t.MayBeLost(); may {
			lost = append(lost, t)
			held++
		} else if l.pods.counts(t) {
			held++
		}
	}
	var kept []Ref
	for _, t := range lost {
		since, _ := t.MayBeLost()
		switch {
		case l.pods.rules.Believed(at.Since, since, len(lost), 0, held):
			if l.pods.apply(t, at, core.LossBelieved{}).Lost {
				l.observer.warn(t, ReasonLost, actionSync, core.MessageLost)
			}
		case l.pods.rules.Inspects:
			l.pods.apply(t, at, core.LossQuestioned{})
		default:
			kept = append(kept, t.ref)
		}
		l.pods.markDirty(t)
	}
	if len(kept) > 0 || l.hold.on {
		l.observer.heldBack(l.pods.run.callCtx, &l.hold, MassOrphans{Refs: kept, Held: held, Lost: true},
			fmt.Errorf("podsync: the provider's List leaves out %d of %d pods that had started: they are not taken for lost for %s", len(kept), held, l.pods.holdTime()))
	}
}

// watch runs the provider's Watch again and again. take takes its reports.
func (l *lister) watch(ctx context.Context, take func(State)) {
	var streak apierr.Streak
	failures := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := contain("Watch", func() error { return l.watcher.Watch(ctx, take) })
		l.observer.called(OpWatch, Ref{}, time.Since(start), err)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > time.Minute {
			failures = 0
		}
		failures++
		if err != nil {
			streak.Fail(ctx, l.pods.handler, fmt.Errorf("podsync: watch of the provider: %w", err), "Watch of the provider ended")
		} else {
			streak.OK(ctx, "Watch of the provider works again")
		}
		wake(l.pods.relist) // for missed reports
		sleep(ctx, l.pods.rules.Retry.Delay(failures))
	}
}
