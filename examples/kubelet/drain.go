// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// A shutdownPeriod is the time that pods of a priority, and of those up to the next
// one, have to end when the node shuts down.
type shutdownPeriod struct {
	priority int32
	grace    time.Duration
}

// shutdownPeriods are sorted by priority. It is the kubelet's
// shutdownGracePeriodByPodPriority as a flag: PRIORITY=DURATION, separated by commas.
type shutdownPeriods []shutdownPeriod

// String implements flag.Value.
func (p *shutdownPeriods) String() string {
	var list []string
	for _, period := range *p {
		list = append(list, fmt.Sprintf("%d=%v", period.priority, period.grace))
	}
	return strings.Join(list, ",")
}

// Set implements flag.Value.
func (p *shutdownPeriods) Set(value string) error {
	var list shutdownPeriods
	for item := range strings.SplitSeq(value, ",") {
		priority, grace, _ := strings.Cut(item, "=")
		n, err1 := strconv.ParseInt(priority, 10, 32)
		d, err2 := time.ParseDuration(grace)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%q is not PRIORITY=DURATION: %w", item, err)
		}
		if d < time.Second {
			return fmt.Errorf("%q: a period is at least a second", item)
		}
		list = append(list, shutdownPeriod{int32(n), d})
	}
	slices.SortFunc(list, func(a, b shutdownPeriod) int { return cmp.Compare(a.priority, b.priority) })
	for i := range len(list) - 1 {
		if list[i].priority == list[i+1].priority {
			return fmt.Errorf("priority %d is there twice", list[i].priority)
		}
	}
	*p = list
	return nil
}

// of returns the index of the period of a pod. A pod of a lower priority than all
// periods ends with the first.
func (p shutdownPeriods) of(pod *corev1.Pod) int {
	priority := int32(0)
	if pod.Spec.Priority != nil {
		priority = *pod.Spec.Priority
	}
	i, found := slices.BinarySearchFunc(p, priority, func(s shutdownPeriod, n int32) int { return cmp.Compare(s.priority, n) })
	if !found {
		i--
	}
	return max(i, 0)
}

// A drainer is the part of podsync.Controller that drain needs.
type drainer interface {
	All() iter.Seq2[podsync.Ref, podsync.Info]
	Evict(ref podsync.Ref, eviction podsync.Eviction) error
}

// drain ends the pods of the node in the order of the periods, and returns when none
// runs or the last period is over. A period ends as soon as its pods have ended.
func (p shutdownPeriods) drain(ctx context.Context, pods drainer) {
	for i, period := range p {
		over := time.Now().Add(period.grace)
		for asked := make(map[podsync.Ref]bool); ; {
			left := 0
			for ref, info := range pods.All() {
				if info.Pod == nil || info.Stage >= podsync.StageStopped || p.of(info.Pod) > i {
					continue
				}
				left++
				if !asked[ref] { // a pod may still come, for which the node is not Ready
					err := pods.Evict(ref, podsync.Eviction{
						Reason: "Terminated", Message: "The node is shutting down.", Grace: p.grace(i, info.Pod),
					})
					asked[ref] = err == nil // it is an error while the lease of the node is not held
				}
			}
			if left == 0 || !time.Now().Before(over) || ctx.Err() != nil {
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(min(100*time.Millisecond, time.Until(over))):
			}
		}
	}
}

// grace is the time that a pod has to end: its own, but no longer than its period.
func (p shutdownPeriods) grace(i int, pod *corev1.Pod) time.Duration {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		seconds := min(*own, int64(p[i].grace/time.Second)+1) // a Duration may be too small for *own
		return max(time.Second, min(p[i].grace, time.Duration(seconds)*time.Second))
	}
	return p[i].grace
}

// drained returns a context that is done after ctx is and the node has drained. The
// node is not Ready from the moment at which ctx is done, and alive until the end:
// its status and its lease are written as before. It drains only if the program has been
// asked to end: ctx is also done if another controller has ended, for new settings.
func (k *kubelet) drained(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		if len(k.shutdownPeriods) == 0 || k.asked() == nil {
			return
		}
		k.node.SetNotReady(k.nodeName, &nodestatus.NotReadyError{Reason: "NodeShuttingDown", Message: "the node ends its pods"})
		k.shutdownPeriods.drain(work, k.pods)
	})
	return work, func() { stop(); cancel() }
}
