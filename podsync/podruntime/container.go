// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A container is a container of a pod with its newest run. It belongs to the
// goroutine of the pod.
//
// Invariant: rec and obs are about run attempt, prevRec and prev about an older one.
// Invariant: busy implies that the run is not being stopped. It may be listed as running already.
// Invariant: endBy, sent, hook and watch are zero unless run attempt is listed as running.
// Invariant: reading implies that run attempt has exited and that its message is not noted.
//
// check has these sentences as code, and more.
type container struct {
	*corev1.Container
	pod  *pod
	kind kind

	// The runs, from the Runtime's list and the records.
	attempt      int // the newest run that is known; -1: none
	rec, prevRec runRecord
	obs, prev    *Container // nil: not listed
	older        []int      // listed runs before prev

	// The next start.
	busy     bool // Start is under way
	due      time.Time
	failure  *failure // of the last start
	failures int      // in a row

	// The end of the run.
	reading      bool      // of its log, for the termination message
	endBy        time.Time // a probe or hook failed: it must have ended by then
	sent, sentAt time.Time // the deadline of the last Stop and the time of the first
	hook         context.CancelFunc
	hookBy       time.Time

	watch *watch
}

// A failure is the reason why a container or a sandbox could not be started.
type failure struct{ reason, backoffReason, message string }

// failureOf returns the failure for an error.
func failureOf(err error, reason string) *failure {
	f := &failure{reason: reason, message: err.Error()}
	if e := (*StartError)(nil); errors.As(err, &e) {
		f.reason, f.backoffReason = e.Reason, e.BackoffReason
		f.message = e.Err.Error()
	}
	return f
}

// maxPreparation is the longest wait after a start that has failed.
const maxPreparation = time.Minute

// retryIn returns the wait after the nth failure in a row, counted from 0.
func (f *failure) retryIn(n int, b Backoff) time.Duration {
	if f.backoffReason != "" { // it has the kubelet's back-off for pulls
		return min(b.Initial<<min(n, 10), b.Max)
	}
	return min(time.Second<<min(n, 10), maxPreparation)
}

func (c *container) id(attempt int) ContainerID {
	return ContainerID{c.pod.ref.UID, c.Name, attempt}
}

// view returns the input of decide.
func (c *container) view() view {
	v := view{spec: c.Container, kind: c.kind, due: c.due, replace: c.rec.Replace, again: c.inPast()}
	switch {
	case c.busy:
		v.phase = starting
	case c.obs == nil || c.obs.State == ContainerCreated:
	case c.obs.State == ContainerRunning:
		v.phase, v.started = running, c.rec.Started
		v.endBy, v.sent, v.sentAt, v.hookBy = c.endBy, c.sent, c.sentAt, c.hookBy
		switch {
		case c.hook != nil:
			v.hook = hookRunning
		case c.handler(true) != nil && !c.rec.PreStopped:
			v.hook = hookDue
		}
	case c.inPast():
	default:
		v.phase, v.exit = ended, c.obs.ExitCode
	}
	return v
}

// inPast reports whether the newest run does not count, because all containers of
// the pod start again.
func (c *container) inPast() bool {
	last, ok := c.pod.past.Runs[c.Name]
	return ok && c.attempt <= last
}

// take updates the container from the Runtime's list. runs are those of the
// container, by attempt.
func (c *container) take(runs []Container) {
	if n := len(runs); n > 0 && runs[n-1].ID.Attempt > c.attempt {
		// A run without a record: the directory was lost, or its disk.
		c.advance(runs[n-1].ID.Attempt, runRecord{})
	}
	c.obs, c.prev, c.older = nil, nil, nil
	for i := range runs {
		switch run := &runs[i]; {
		case run.ID.Attempt == c.attempt:
			c.obs = run
		default:
			if c.prev != nil {
				c.older = append(c.older, c.prev.ID.Attempt)
			}
			c.prev = run
		}
	}
	if c.obs == nil && !c.busy && !c.rec.Ran.IsZero() {
		if c.rec.Lost.IsZero() {
			c.note(func(r *runRecord) { r.Lost, r.Noted = time.Now(), true })
		}
		c.obs = c.lost(c.attempt, c.rec)
	}
	if c.prev == nil && c.attempt > 0 && !c.prevRec.Lost.IsZero() {
		c.prev = c.lost(c.attempt-1, c.prevRec)
	}
	switch {
	case c.obs == nil:
	case c.obs.State == ContainerRunning:
		if c.rec.Ran.IsZero() {
			c.note(func(r *runRecord) {
				if r.Image == "" { // started by a Provider whose record is gone
					r.Image, r.Resources = c.Image, c.wanted()
				}
				if r.Ran = c.obs.StartedAt; r.Ran.IsZero() {
					r.Ran = time.Now()
				}
				if !c.watched() {
					r.PostStarted, r.Started, r.Ready = true, true, true
				}
			})
		}
		c.observe()
		if c.rec.Image != c.Image {
			c.replace()
		}
	case c.obs.State == ContainerExited:
		c.noteExit()
	}
}

// lost returns a run that ran and that the Runtime no longer lists.
func (c *container) lost(attempt int, rec runRecord) *Container {
	return &Container{
		ID: c.id(attempt), State: ContainerExited, StartedAt: rec.Ran, FinishedAt: rec.Lost,
		ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "the runtime no longer has the container",
	}
}

// advance makes attempt the newest run.
func (c *container) advance(attempt int, rec runRecord) {
	c.unwatch(false)
	if c.attempt >= 0 {
		c.prevRec, c.prev = c.rec, c.obs
	}
	c.attempt, c.rec, c.obs = attempt, rec, nil
	c.endBy, c.sent, c.sentAt, c.hook, c.hookBy = time.Time{}, time.Time{}, time.Time{}, nil, time.Time{}
}

// replace ends the run because of a change of its spec.
func (c *container) replace() {
	if c.kind == ephemeral || c.pod.deadline != nil || !c.endBy.IsZero() {
		return
	}
	c.pod.event(corev1.EventTypeNormal, "Killing", "Stopping", "Container %s definition changed, will be restarted", c.Name)
	c.note(func(r *runRecord) { r.Replace = true })
	c.endBy = time.Now().Add(grace(c.pod.spec))
}

// wanted returns the text of the grant that the container must have.
func (c *container) wanted() string { return grantOf(c.pod.spec, c.Container).text() }

// start begins the next run.
func (c *container) start() {
	if c.reading {
		return // decide is called again when it has ended
	}
	attempt, rec := max(c.attempt, 0), runRecord{Image: c.Image, Resources: c.wanted()}
	if c.obs != nil && c.obs.State == ContainerExited {
		attempt, rec.Waited = c.attempt+1, c.delay()
	}
	if attempt != c.attempt {
		c.advance(attempt, rec)
	}
	c.rec, c.busy = rec, true
	l := launch{pod: c.pod, container: c.Container, kind: c.kind, spec: c.pod.labelled(), id: c.id(attempt), rec: rec, sandbox: c.pod.sandbox, addresses: c.pod.addresses(), grow: c.pod.mustGrow()}
	ctx := c.pod.starting
	c.pod.p.wg.Go(func() {
		err := l.pull(ctx)
		var env podenv.Environment
		if err == nil { // which may wait for the API server, and takes no place meanwhile
			env, err = l.resolve(ctx)
		}
		if err == nil {
			err = c.pod.p.gate.enter(ctx, ticket{created: l.spec.CreationTimestamp.Time, begun: l.sandbox != nil})
		}
		if err == nil {
			err = l.run(ctx, env)
			c.pod.p.gate.leave()
		}
		c.pod.do(func() {
			c.busy, c.pod.stale = false, true
			switch {
			case err == nil:
				c.failure, c.failures = nil, 0
				c.due = time.Now().Add(retryKeep) // a Runtime that lists it late is not called without end
			case errors.Is(err, ErrMayHaveRun):
				c.failure, c.failures = nil, 0
				c.note(func(r *runRecord) { r.Ran = time.Now() }) // and is lost, since it is not listed
			case ctx.Err() == nil: // else the pod stops
				c.failed(failureOf(err, "RunContainerError"))
			}
		})
	})
}

// failed puts off the next try to start.
func (c *container) failed(f *failure) {
	klog.FromContext(c.pod.ctx).V(2).Info("A container can't start", "container", c.Name, "reason", f.reason, "message", f.message)
	c.pod.event(corev1.EventTypeWarning, "Failed", "Starting", "Error: %s: %s", f.reason, f.message)
	c.failure = f
	c.due = time.Now().Add(f.retryIn(c.failures, c.pod.p.cfg.Backoff))
	c.failures++
}

// delay returns the time for which the next run is held back.
func (c *container) delay() time.Duration {
	var ran time.Duration
	if !c.obs.StartedAt.IsZero() {
		ran = c.obs.FinishedAt.Sub(c.obs.StartedAt)
	}
	return c.pod.p.cfg.Backoff.next(c.attempt, c.rec.Waited, ran)
}

// noteExit records an exit and its consequences.
func (c *container) noteExit() {
	c.unwatch(false)
	if c.hook != nil {
		c.hook()
	}
	c.endBy, c.sent, c.sentAt, c.hook, c.hookBy = time.Time{}, time.Time{}, time.Time{}, nil, time.Time{}
	c.due = due(c.obs.FinishedAt, c.delay(), time.Now())
	if c.inPast() && !podstatus.RestartsPod(c.Container, c.obs.ExitCode) {
		c.due = time.Time{} // only the container that asked for the restart is held back
	}
	if c.rec.Noted || c.reading {
		return
	}
	message := tail(messagePath(c.pod.dir, c.Name), maxMessage)
	if message == "" && c.obs.ExitCode != 0 && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.pod.p.caps.tailer != nil {
		c.readLog()
		return
	}
	c.noteMessage(message)
}

// noteMessage records the termination message of the newest run.
func (c *container) noteMessage(message string) {
	c.note(func(r *runRecord) { r.Message, r.Noted, r.Ready = message, true, false })
}

// logTimeout is the time that the end of a log may take. Until then the container is not started
// again, and its pod does not count as stopped.
const logTimeout = 5 * time.Second

// readLog reads the termination message from the log of the newest run.
func (c *container) readLog() {
	c.reading = true
	p, id := c.pod, c.id(c.attempt)
	p.p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, logTimeout)
		defer cancel()
		data, err := p.p.caps.tailer.LogTail(ctx, id, maxMessageOfLog)
		p.do(func() {
			c.reading = false
			if err != nil {
				if p.ctx.Err() != nil {
					return // the next process reads it
				}
				klog.FromContext(p.ctx).V(2).Info("The log of a container can't be read", "container", c.Name, "err", err)
			}
			if c.attempt != id.Attempt {
				return // it was started without this process
			}
			c.noteMessage(strings.ToValidUTF8(string(data), "\uFFFD"))
		})
	})
}

// stop asks the Runtime to end the run by a time.
func (c *container) stop(by time.Time) {
	c.unwatch(true)
	if c.hook != nil {
		c.hook()
		c.hook = nil
		c.note(func(r *runRecord) { r.PreStopped = true })
	}
	if c.sentAt.IsZero() {
		c.sentAt = time.Now()
	}
	c.sent = by
	p, id, opts := c.pod, c.id(c.attempt), StopOptions{Deadline: by}
	p.p.wg.Go(func() {
		err := p.p.cfg.Runtime.Stop(p.ctx, id, opts)
		p.do(func() { p.stale = true })
		if err == nil || p.ctx.Err() != nil {
			return
		}
		klog.FromContext(p.ctx).Error(err, "The container can't be stopped", "container", id.Name)
		p.after(time.Second, func() {
			if c.attempt == id.Attempt && c.sent.Equal(by) {
				c.sent = time.Time{} // so that decide stops it again
			}
		})
	})
}

// prune removes the runs before the previous one.
func (c *container) prune() {
	for _, attempt := range c.older {
		id := c.id(attempt)
		if c.pod.removing[id] {
			continue
		}
		c.pod.removing[id] = true
		c.pod.call(func(ctx context.Context) error {
			return errors.Join(c.pod.p.cfg.Runtime.Remove(ctx, id), os.RemoveAll(runFile(c.pod.dir, id.Name, id.Attempt)))
		}, func(err error) {
			delete(c.pod.removing, id)
			if err != nil {
				klog.FromContext(c.pod.ctx).Error(err, "An old run is still there", "container", id.Name, "attempt", id.Attempt)
				c.pod.retry(killRetry)
			}
		})
	}
}

// The size of a termination message, as with the kubelet.
const (
	maxMessage      = 4096
	maxMessageOfLog = 2048
)

// messagePath returns the path of the file with a container's termination message.
func messagePath(dir, name string) string { return filepath.Join(dir, "messages", name) }

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
