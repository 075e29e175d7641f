// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A recorder records the history of a run.
type recorder struct {
	out string // the file that the commands write
	lw  *cache.ListWatch

	mu       sync.Mutex
	history  history
	current  map[types.UID]*corev1.Pod // the pods in the API
	events   int                       // number of watch events
	relists  int
	lookedUp int            // last states that were looked up at earlier revisions
	misdated int            // pods whose reported start time is wrong
	settings map[string]int // number of times for each reason of the settings condition
	notes    []note
}

// A note is an event for the timeline of a pod.
type note struct {
	at   time.Time
	uid  types.UID // "" if it concerns all pods
	text string
}

func newRecorder(out string, lw *cache.ListWatch) *recorder {
	return &recorder{out: out, lw: lw, current: map[types.UID]*corev1.Pod{}, settings: map[string]int{}, history: history{
		Pods: map[types.UID]*life{}, Instances: map[instance]time.Time{},
	}}
}

// note records an event for timelines.
func (r *recorder) note(uid types.UID, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, note{time.Now(), uid, fmt.Sprintf(format, args...)})
}

// replace implements sink.
func (r *recorder) replace(ctx context.Context, objects []runtime.Object, since, now string) {
	r.mu.Lock()
	r.relists++
	missing := maps.Clone(r.current)
	for _, o := range objects {
		pod := o.(*corev1.Pod)
		delete(missing, pod.UID)
		r.see(pod)
	}
	r.mu.Unlock()
	for uid, pod := range missing {
		last, found := r.lastState(ctx, pod, since, now)
		r.mu.Lock()
		if found {
			r.lookedUp++
			r.see(last)
		}
		r.gone(uid)
		r.history.Pods[uid].Blind = !found
		r.mu.Unlock()
	}
}

// change implements sink.
func (r *recorder) change(kind watch.EventType, object runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	pod := object.(*corev1.Pod)
	r.see(pod)
	if kind == watch.Deleted {
		r.gone(pod.UID)
	}
}

// see records a state of a pod. mu must be held.
func (r *recorder) see(pod *corev1.Pod) {
	l := r.history.Pods[pod.UID]
	if l == nil {
		l = &life{Name: pod.Name, App: pod.Labels[appLabel], UID: pod.UID, Policy: pod.Spec.RestartPolicy, Crashes: pod.Labels[crashLabel] != ""}
		r.history.Pods[pod.UID] = l
	}
	if start, known := pod.Status.StartTime, r.current[pod.UID]; start != nil && known != nil && known.Status.StartTime == nil && time.Since(start.Time).Abs() > time.Minute {
		r.misdated++ // by the kubelet's clock
	}
	r.current[pod.UID] = pod
	s := stateOf(pod, time.Now())
	if last := l.last(); last != nil {
		same := *last
		if same.At = s.At; reflect.DeepEqual(same, s) {
			return
		}
	}
	l.States = append(l.States, s)
}

// gone records that a pod is no longer in the API. mu must be held.
func (r *recorder) gone(uid types.UID) {
	r.history.Pods[uid].Gone = time.Now()
	delete(r.current, uid)
}

// lastState returns the last state of a pod that was deleted between two
// revisions. The API server can show its state at any revision of the last
// minutes.
func (r *recorder) lastState(ctx context.Context, pod *corev1.Pod, since, now string) (last *corev1.Pod, found bool) {
	low, err1 := strconv.ParseUint(since, 10, 64)
	high, err2 := strconv.ParseUint(now, 10, 64)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	last = pod
	for low+1 < high {
		middle := low + (high-low)/2
		then, err := r.at(ctx, pod, middle)
		if err != nil {
			return nil, false
		}
		if then != nil {
			low, last = middle, then
		} else {
			high = middle
		}
	}
	return last, true
}

// at returns the pod at a revision, or nil. It retries for a while, because the
// API server may be down.
func (r *recorder) at(ctx context.Context, pod *corev1.Pod, revision uint64) (*corev1.Pod, error) {
	var err error
	for range 100 {
		var objects []runtime.Object
		objects, _, err = listAll(ctx, r.lw, metav1.ListOptions{
			FieldSelector:        "metadata.name=" + pod.Name,
			ResourceVersion:      strconv.FormatUint(revision, 10),
			ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		})
		if err == nil {
			for _, o := range objects {
				if then := o.(*corev1.Pod); then.UID == pod.UID {
					return then, nil
				}
			}
			return nil, nil
		}
		if ctx.Err() != nil || lost(err) {
			break
		}
		sleep(ctx, pause)
	}
	return nil, err
}

// force records that a pod is about to be deleted without grace.
func (r *recorder) force(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.history.Pods[uid]; l != nil && l.Forced.IsZero() {
		l.Forced = time.Now()
	}
}

// pods returns the pods in the API, sorted by name.
func (r *recorder) pods() []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.current), func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
}

// processes records a scan of the process table.
func (r *recorder) processes(found []process, root string, pairs []overlap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, p := range found {
		if i, ok := p.instance(root); ok {
			if _, known := r.history.Instances[i]; !known {
				r.history.Instances[i] = now
				r.notes = append(r.notes, note{now, i.UID, fmt.Sprintf("process: container %s, run %s, session %d", i.Container, i.Run, i.Session)})
			}
		}
	}
	r.history.Overlaps = append(r.history.Overlaps, pairs...)
}

// outage records a period in which the kubelet did not run or could not reach
// the API.
func (r *recorder) outage(from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Outages = append(r.history.Outages, span{from, time.Now()})
}

// judge checks the current history.
func (r *recorder) judge() ([]verdict, error) {
	data, err := os.ReadFile(r.out)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Starts, r.history.Ends = parseLines(string(data))
	return check(&r.history), nil
}

// parseLines parses the output of the commands: "start UID CONTAINER" and "end
// UID CONTAINER CODE". It ignores further fields.
func parseLines(text string) (starts, ends []line) {
	for entry := range strings.Lines(text) {
		f := strings.Fields(entry)
		switch {
		case len(f) >= 3 && f[0] == "start":
			starts = append(starts, line{UID: types.UID(f[1]), Container: f[2]})
		case len(f) >= 4 && f[0] == "end":
			if code, err := strconv.ParseInt(f[3], 10, 32); err == nil {
				ends = append(ends, line{types.UID(f[1]), f[2], int32(code)})
			}
		}
	}
	return starts, ends
}
