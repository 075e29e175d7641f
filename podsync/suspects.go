// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// Two kinds of pods are suspects: orphans, which are instances whose pods the
// informer never showed, and missing pods, which a LIST of the informer, or an
// answer to a write, left out. The API is asked about each. A suspect whose pod
// is gone is stopped, unless there are suspiciously many.

const (
	// suspectGets is the number of suspects that the API is asked about at once.
	suspectGets = 8
	// suspectIdle is the longest time between two looks at the suspects.
	suspectIdle = time.Hour
)

// suspects asks the API about them. The lock of the table guards hold.
type suspects struct {
	pods     *table
	gates    *gates
	observer *observer
	client   corev1client.PodsGetter
	informer cache.SharedIndexInformer
	// exclusive is Policy.ExclusiveBackend.
	exclusive bool

	hold       hold // the last pass has found too many
	unanswered apierr.Streak
}

// run asks the API about suspects until ctx is done.
func (s *suspects) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := s.askAll(ctx)
		select {
		case <-s.pods.verify:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// A question is a suspect that the API is asked about.
type question struct {
	t       *entry
	node    string
	missing bool
	answer  core.Answer
	err     error // of a request that the API did not answer
}

// askAll asks the API about the suspects that are due, and returns when
// the next one is due. The informer's cache must not decide: one that is empty
// by mistake would end every pod of the node.
func (s *suspects) askAll(ctx context.Context) (wait time.Duration) {
	questions, idle := s.due()
	if !idle {
		var (
			wg     sync.WaitGroup
			places = make(chan struct{}, suspectGets)
		)
		for i := range questions {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				s.ask(ctx, &questions[i])
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return 0
		}
		s.tell(ctx, questions)
		s.apply(ctx, questions)
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	wait = suspectIdle
	now := s.pods.now()
	for _, t := range s.pods.pods {
		if s, suspect := t.Suspect(); suspect && (s.Missing || s.GoneSince > 0) {
			wait = min(wait, max(s.Due-now, core.MissingDelay))
		}
	}
	return wait
}

// due returns the suspects that are due, and whether there is nothing to do.
func (s *suspects) due() (questions []question, idle bool) {
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	now := s.pods.now()
	for _, t := range s.pods.pods {
		// Whose an instance without a UID is, the API can't say: a List decides.
		if suspicion, suspect := t.Suspect(); suspect && suspicion.Due <= now && t.ref.UID != "" && s.gates.mayAct(t) {
			questions = append(questions, question{t: t, node: s.nodeOf(t), missing: suspicion.Missing})
		}
	}
	return questions, len(questions) == 0 && !s.hold.on
}

// nodeOf returns the node that the instance was started for, as far as
// that is certain.
func (s *suspects) nodeOf(t *entry) string {
	if _, started := t.NodeName(); !t.Seen() && started == "" && !s.exclusive {
		return ""
	}
	return s.gates.nodeOf(t)
}

// ask asks the API whether the pod of an instance exists.
func (s *suspects) ask(ctx context.Context, q *question) {
	ref := q.t.ref
	if obj, ok, _ := s.informer.GetIndexer().GetByKey(nameOf(ref).String()); ok && !q.missing {
		if v := versionOf(obj); v != nil && v.UID() == ref.UID {
			q.answer = core.AnswerThere // Owns has said no
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := time.Now()
	pod, err := getPod(ctx, s.client, ref, q.node)
	s.observer.requested(OpGet, ref, time.Since(start), err)
	switch {
	case errors.Is(err, errUnconfirmed):
		q.answer = core.AnswerForbidden
	case err != nil:
		q.err = explain("look for", ref, err)
	case pod == nil:
		q.answer = core.AnswerGone
	default:
		q.answer = core.AnswerThere
	}
}

// tell reports the first error of a pass, once while passes have errors. The suspects of such
// errors run on.
func (s *suspects) tell(ctx context.Context, questions []question) {
	for i := range questions {
		if err := questions[i].err; err != nil {
			s.unanswered.Fail(ctx, s.pods.handler, err, "Failed to ask whether pods exist: their instances run on", "suspects", len(questions))
			return
		}
	}
	if len(questions) > 0 {
		s.unanswered.OK(ctx, "Asking whether pods exist works again")
	}
}

// apply applies the API's answers about the suspects that were due, and stops
// those that are gone unless there are too many.
func (s *suspects) apply(ctx context.Context, questions []question) {
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	at := s.pods.moment()
	for _, q := range questions {
		t := q.t
		if _, suspect := t.Suspect(); !suspect || !s.pods.has(t) || !s.gates.mayAct(t) {
			continue // it changed during the call
		}
		news := s.pods.apply(t, at, core.SuspectAnswered{Answer: q.answer})
		switch {
		case news.Back:
			s.pods.markDirty(t)
		case q.answer == core.AnswerForbidden:
			s.keepUnconfirmed(ctx, t)
		case q.answer == core.AnswerThere:
			s.observer.dropped(t.ref, DroppedOrphan, nil)
		}
	}
	s.decide(ctx, at, len(questions) > 0)
	for _, t := range s.pods.pods {
		if suspicion, suspect := t.Suspect(); suspect && !suspicion.Missing {
			s.announce(ctx, at, t, suspicion)
		}
	}
}

// decide stops the suspects that are gone, unless there are too many. asked says that the
// API was asked just now.
func (s *suspects) decide(ctx context.Context, at core.Moment, asked bool) {
	var gone []*entry
	unsure, held := 0, 0
	for _, t := range s.pods.pods {
		if s.pods.counts(t) {
			held++
		}
		switch suspicion, suspect := t.Suspect(); {
		case !suspect:
		case suspicion.Unsure:
			unsure++
		case suspicion.GoneSince > 0:
			gone = append(gone, t)
		}
	}
	var kept []Ref
	for _, t := range gone {
		if suspicion, _ := t.Suspect(); !s.pods.rules.Believed(at.Since, suspicion.GoneSince, len(gone), unsure, held) {
			kept = append(kept, t.ref)
			s.pods.apply(t, at, core.SuspectHeld{})
			continue
		}
		s.stop(ctx, at, t)
	}
	if len(kept) > 0 && asked || len(kept) == 0 && s.hold.on && !core.TooMany(len(gone)+unsure, held) {
		s.observer.heldBack(ctx, &s.hold, MassOrphans{Refs: kept, Held: held},
			fmt.Errorf("podsync: %d of the %d pods that the provider holds are gone from the API: they run on for %s", len(kept), held, s.pods.holdTime()))
	}
}

// stop begins the termination of a suspect whose pod is gone.
func (s *suspects) stop(ctx context.Context, at core.Moment, t *entry) {
	news := s.pods.apply(t, at, core.SuspectBelieved{})
	s.pods.markDirty(t)
	if !news.Superfluous {
		return
	}
	logger := klog.FromContext(ctx)
	ref := t.ref
	s.pods.later(func() {
		logger.Info("Stopping an orphan: the API server has no such pod", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
	s.observer.warn(t, reasonOrphanRemoved, actionStop, messageOrphanRemoved)
}

// keepUnconfirmed reports an orphan that is kept, once.
func (s *suspects) keepUnconfirmed(ctx context.Context, t *entry) {
	if t.reported {
		return
	}
	t.reported = true
	ref := t.ref
	err := explain("keep the instance of", ref, errUnconfirmed)
	s.pods.later(func() {
		report.Tell(ctx, s.pods.handler, err, "Keeping an instance that may be an orphan", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
	s.observer.warn(t, reasonOrphanKept, actionSync, errUnconfirmed.Error())
	s.observer.dropped(ref, DroppedUnconfirmed, errUnconfirmed)
}

// announce reports to the pods that wait for the name of an orphan why they wait.
func (s *suspects) announce(ctx context.Context, at core.Moment, t *entry, suspicion core.Suspicion) {
	why := "the API server has not confirmed yet that its pod is gone"
	switch {
	case t.reported:
		why = errUnconfirmed.Error()
	case suspicion.GoneSince > 0:
		why = "too many pods are gone from the API at once"
	case !suspicion.Unsure:
		return // the API has not been asked
	}
	logger := klog.FromContext(ctx)
	for other := range s.pods.waiters(t) {
		ref, uid := other.ref, t.ref.UID
		message := fmt.Sprintf("waiting for the instance of pod %s, which had the same name, to stop: %s", uid, why)
		s.pods.apply(other, at, &core.NameTaken{Message: message})
		s.pods.markDirty(other)
		if other.warned == reasonNameTaken {
			continue
		}
		s.observer.warn(other, reasonNameTaken, actionStart, message)
		other.warned = reasonNameTaken // once, whatever the cause is next
		s.pods.later(func() {
			logger.Info("A pod waits for an orphan of its name", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "orphanUID", uid, "reason", why)
		})
	}
}
