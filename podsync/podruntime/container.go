// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/record"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// A container is a container of a pod with what this process does about it. Its state, m, is in
// package internal/container. It belongs to the goroutine of the pod.
type container struct {
	*corev1.Container
	kind core.Kind
	pod  *pod
	m    *core.Container
	kept kept // the record that is on disk

	reports reports

	watch *watch             // nil: no hook or probe is under way, but preStop
	hook  context.CancelFunc // of the preStop hook; nil: it is not under way
}

// failureOf returns the failure for an error.
func failureOf(err error, reason string) *core.Failure {
	f := &core.Failure{Reason: reason, Message: err.Error()}
	if e := (*StartError)(nil); errors.As(err, &e) {
		f.Reason, f.BackoffReason = e.Reason, e.BackoffReason
		f.Message = e.Err.Error()
	}
	return f
}

func (c *container) id(attempt int) ContainerID {
	return ContainerID{c.pod.ref.UID, c.Name, attempt}
}

// A kept is the record of a run that is on disk.
type kept struct {
	attempt int
	record  core.Record
}

// apply records a fact, and writes the record of the newest run if it has changed. It reports
// whether the fact can be true.
func (c *container) apply(fact core.Event) bool {
	ok := c.note(fact)
	c.keep()
	return ok
}

// note records a fact, and reports whether it can be true. The caller must call keep before it
// does or reports anything because of the fact.
func (c *container) note(fact core.Event) bool {
	attempt := c.m.Attempt()
	if err := c.m.Apply(time.Now(), fact); err != nil {
		c.reports.groups[breaking].Fail(c.pod.ctx, nil, &apierr.Member{}, err, "A container is in another state than expected")
		if f := c.pod.node.checked; f != nil {
			f(err)
		}
		return false
	}
	if c.m.Attempt() != attempt {
		c.unwatch(false)
		c.endHook()
	}
	if _, ok := fact.(core.Starting); ok {
		c.kept = kept{c.m.Attempt(), c.m.Record()} // the launch writes the record of its run
	}
	return true
}

// keep writes the record of the newest run if it is not on disk yet. A disk that is full keeps
// nothing from going on: keep is called again with the next fact or list, and the next Provider
// runs a hook or probe again.
func (c *container) keep() {
	now := kept{c.m.Attempt(), c.m.Record()}
	if now.attempt < 0 || now == c.kept {
		return
	}
	if err := record.Write(runFile(c.pod.dir, c.Name, now.attempt), now.record); err != nil {
		c.reports.fail(c.pod.ctx, recording, err, "The record of a container is not on disk", "container", c.Name)
		return
	}
	c.kept = now
	c.reports.ok(c.pod.ctx, recording)
}

// take updates the container from the Runtime's list. runs are those of the
// container, by attempt.
func (c *container) take(runs []Container) {
	listed := core.Listed{Resources: c.wanted()}
	for i := range runs {
		r := &runs[i]
		listed.Runs = append(listed.Runs, core.Run{
			Attempt: r.ID.Attempt, State: core.State(r.State), RuntimeID: r.RuntimeID, ImageID: r.ImageID, StartedAt: r.StartedAt,
			FinishedAt: r.FinishedAt, ExitCode: r.ExitCode, Signal: r.Signal, Reason: r.Reason, Message: r.Message,
		})
	}
	ending := c.m.Ending()
	c.note(listed)
	if c.m.NeedsMessage() {
		c.readMessage() // with the end in one write
	}
	c.keep()
	if !ending && c.m.Ending() {
		c.noteReplaced()
	}
	switch {
	case c.m.MayBeProbed():
		c.observe(false)
	case c.m.Listed(core.Running) && c.m.Record().Started && c.ReadinessProbe != nil: // it ends, perhaps since an earlier process
		c.observe(true)
	case !c.m.Listed(core.Running):
		c.reports.ok(c.pod.ctx, stopping)
		c.unwatch(false)
		c.endHook()
	}
}

// replace ends the run because of a change of its spec.
func (c *container) replace() {
	ending := c.m.Ending()
	if c.apply(core.Replaced{}); !ending && c.m.Ending() {
		c.noteReplaced()
	}
}

func (c *container) noteReplaced() {
	c.pod.event(corev1.EventTypeNormal, "Killing", "Stopping", "Container %s definition changed, will be restarted", c.Name)
}

// wanted returns the text of the grant that the container must have.
func (c *container) wanted() string { return grantOf(c.pod.spec, c.Container).text() }

// failed puts off the next try to start.
func (c *container) failed(f *core.Failure) {
	klog.FromContext(c.pod.ctx).V(2).Info("A container can't start", "container", c.Name, "reason", f.Reason, "message", f.Message)
	c.pod.event(corev1.EventTypeWarning, "Failed", "Starting", "Error: %s: %s", f.Reason, f.Message)
	c.apply(core.StartEnded{Failure: f})
}

// readMessage reads the termination message of the newest run, which has exited.
func (c *container) readMessage() {
	message := tail(messagePath(c.pod.dir, c.Name), maxMessage)
	if message == "" && c.m.Run().ExitCode != 0 && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.pod.node.caps.tailer != nil {
		c.readLog()
		return
	}
	c.apply(core.MessageRead{Attempt: c.m.Attempt(), Message: message})
}

// logTimeout is the time that the end of a log may take. Until then the container is not started
// again, and its pod does not count as stopped.
const logTimeout = 5 * time.Second

// readLog reads the termination message from the log of the newest run.
func (c *container) readLog() {
	c.apply(core.MessageReading{})
	p, id := c.pod, c.id(c.m.Attempt())
	p.node.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, logTimeout)
		defer cancel()
		data, err := p.node.caps.tailer.LogTail(ctx, id, maxMessageOfLog)
		p.do(func() {
			switch {
			case err != nil && p.ctx.Err() != nil:
				c.apply(core.MessageGivenUp{}) // the next process reads it
				return
			case err != nil:
				klog.FromContext(p.ctx).V(2).Info("The log of a container can't be read", "container", c.Name, "err", err)
			}
			c.apply(core.MessageRead{Attempt: id.Attempt, Message: strings.ToValidUTF8(string(data), "\uFFFD")})
		})
	})
}

// stop asks the Runtime to end the run by a time. With reset its exit code says nothing about its
// work.
func (c *container) stop(by time.Time, reset bool) {
	c.unwatch(true)
	if !c.apply(core.StopSent{By: by, Reset: reset}) {
		return
	}
	c.endHook()
	p, id, opts := c.pod, c.id(c.m.Attempt()), StopOptions{Deadline: by}
	p.node.wg.Go(func() {
		ctx, cancel := context.WithDeadline(p.ctx, by.Add(callTimeout)) // it is called again, and must not pile up
		defer cancel()
		err := p.node.cfg.Runtime.Stop(ctx, id, opts)
		if err == nil {
			c.reports.ok(p.ctx, stopping)
		} else if p.ctx.Err() == nil {
			c.reports.fail(p.ctx, stopping, err, "The container can't be stopped", "container", id.Name)
		}
		p.do(func() { p.stale = true })
		if err == nil || p.ctx.Err() != nil {
			return
		}
		p.after(time.Second, func() { c.apply(core.StopFailed{Attempt: id.Attempt, By: by}) })
	})
}

// endHook cancels the preStop hook if it is under way.
func (c *container) endHook() {
	if c.hook != nil {
		c.hook()
		c.hook = nil
	}
}

// prune removes the runs before the previous one.
func (c *container) prune() {
	for _, attempt := range c.m.Older() {
		id := c.id(attempt)
		if c.pod.removing[id] {
			continue
		}
		c.pod.removing[id] = true
		c.pod.call(func(ctx context.Context) error {
			return errors.Join(c.pod.node.cfg.Runtime.Remove(ctx, id), os.RemoveAll(runFile(c.pod.dir, id.Name, id.Attempt)))
		}, func(err error) {
			if err == nil {
				delete(c.pod.removing, id)
				c.reports.ok(c.pod.ctx, removing)
				return
			}
			c.reports.fail(c.pod.ctx, removing, err, "An old run is still there", "container", id.Name, "attempt", id.Attempt)
			c.pod.after(core.KillRetry, func() {
				delete(c.pod.removing, id)
				c.pod.stale = true
			})
		})
	}
}

// The size of a termination message, as with the kubelet.
const (
	maxMessage      = 4096
	maxMessageOfLog = 2048
)

// tail returns the last bytes of a file, and nothing of one that can't be read. It does
// not block if a container has made a FIFO of the file.
func tail(path string, size int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data := make([]byte, min(size, info.Size()))
	n, _ := f.ReadAt(data, info.Size()-int64(len(data)))
	return strings.ToValidUTF8(string(data[:n]), "\uFFFD")
}
