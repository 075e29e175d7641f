// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/kubelet/internal/record"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// A container is one of a pod, with its newest run. It belongs to the goroutine
// of the pod.
type container struct {
	*corev1.Container
	pod  *pod
	init bool
	dir  string

	attempt  int           // the number of the newest run, from 0; -1: none
	waited   time.Duration // how long it was held back
	run      *shim.Run     // nil unless it runs
	env      []string      // that it was started with; nil if an earlier process did
	status   shim.Status   // what its files say
	previous *shim.Exit    // how the run before it has ended
	message  string        // that the newest run has left
	due      time.Time     // when the next one may start
	failure  *failure      // why the last start has failed
	failures int           // in a row
	asked    time.Time     // the deadline that the run was given; zero: none
	health   health
	watch    context.CancelFunc // ends probes and hooks; nil: none go on
}

// A failure is why a container could not be started.
type failure struct{ reason, message string }

// maxPreparation is the longest wait after a start that has failed.
const maxPreparation = time.Minute

func (c *container) runDir(attempt int) string { return filepath.Join(c.dir, strconv.Itoa(attempt)) }
func (c *container) root() string              { return filepath.Join(c.dir, "root") }
func (c *container) log(attempt int) string    { return c.runDir(attempt) + ".log" }

// load reads what the folder of the container says.
func (c *container) load() error {
	// What was run in the container for the last kubelet has ended with it.
	if err := removeAll(filepath.Join(c.dir, execPrefix+"*")); err != nil {
		return err
	}
	numbers, err := attempts(c.dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	c.attempt = numbers[len(numbers)-1]
	if len(numbers) > 1 {
		before, err := shim.Read(c.runDir(numbers[len(numbers)-2]))
		if err != nil {
			return err
		}
		c.previous = before.Exit
	}
	dir := c.runDir(c.attempt)
	var rec runRecord
	if _, err := record.Read(filepath.Join(dir, "run.json"), &rec); err != nil {
		return err
	}
	c.waited = rec.Waited
	if _, err := record.Read(filepath.Join(dir, "health.json"), &c.health); err != nil {
		return err
	}
	if c.status, err = shim.Read(dir); err != nil {
		return err
	}
	if c.status.Exit != nil {
		c.noteExit()
		// The shim may be about to end: then nothing is left for sure.
		if run, err := shim.Open(dir); err == nil {
			_ = run.Follow(c.pod.ctx, func() {})
		}
		return nil
	}
	// It runs, unless its FIFO says otherwise.
	if c.run, err = shim.Open(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // the last kubelet has not got further than this
	}
	return err
}

// view returns what next has to know.
func (c *container) view() view {
	v := view{spec: c.Container, init: c.init, started: c.health.Started, due: c.due}
	switch {
	case c.run != nil:
		v.phase = running
	case c.status.Exit != nil:
		v.phase, v.exit = ended, c.status.Exit.Code
	}
	return v
}

// start begins a run.
func (c *container) start(ctx context.Context) {
	if f := c.begin(ctx); f == nil {
		c.failure, c.failures = nil, 0
		c.follow()
	} else if ctx.Err() == nil { // else the pod stops
		c.failed(f)
	}
}

// failed puts off the next try to start.
func (c *container) failed(f *failure) {
	klog.FromContext(c.pod.ctx).V(2).Info("A container can't start", "container", c.Name, "reason", f.reason, "message", f.message)
	c.failure = f
	c.due = time.Now().Add(min(time.Second<<min(c.failures, 10), maxPreparation))
	c.failures++
}

func (c *container) begin(ctx context.Context) *failure {
	// What the environment is made of may have changed since the last run.
	env, err := c.pod.provider.cfg.Environment.Pod(c.pod.spec).Container(ctx, c.Name, c.pod.provider.addresses())
	if err != nil {
		return &failure{"CreateContainerConfigError", err.Error()}
	}
	cpus, err := c.pod.provider.cpus(ctx, c.pod.spec, c.Container)
	if err != nil {
		return &failure{"CreateContainerConfigError", err.Error()}
	}
	attempt, waited := max(c.attempt, 0), time.Duration(0)
	if c.status.Exit != nil {
		attempt, waited = c.attempt+1, c.delay()
	}
	run, err := c.fork(attempt, waited, env, cpus)
	if err != nil {
		return &failure{"RunContainerError", err.Error()}
	}
	if attempt != c.attempt {
		c.previous = c.status.Exit
		c.forget(attempt - 2)
	}
	c.attempt, c.waited, c.run = attempt, waited, run
	c.status, c.health, c.message, c.asked = shim.Status{}, health{}, "", time.Time{}
	return nil
}

// fork makes the folder of a run and starts it.
func (c *container) fork(attempt int, waited time.Duration, env podenv.Environment, cpus []int) (*shim.Run, error) {
	dir := c.runDir(attempt)
	// One that is there belongs to a run that has not come to start anything.
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := record.Write(filepath.Join(dir, "run.json"), runRecord{waited}); err != nil {
		return nil, err
	}
	c.env = c.environ(env.Strings())
	return shim.Start(dir, shim.Command{
		Args: append(slices.Clip(env.Command), env.Args...),
		Env:  c.env,
		Dir:  c.workingDir(),
		Log:  c.log(attempt),
		CPUs: cpus,
	})
}

// environ adds to the variables of a container what a runtime would have set, and
// where its volumes are.
func (c *container) environ(vars []string) []string {
	hostname := c.pod.spec.Spec.Hostname
	if hostname == "" {
		hostname = c.pod.spec.Name
	}
	for _, v := range []string{"PATH=" + os.Getenv("PATH"), "HOSTNAME=" + hostname} {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(vars, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			vars = append(vars, v)
		}
	}
	return append(vars, rootVariable+"="+c.root())
}

// delay returns how long the container waits for its next run.
func (c *container) delay() time.Duration {
	exit := c.status.Exit
	var ran time.Duration
	if !exit.StartedAt.IsZero() {
		ran = exit.FinishedAt.Sub(exit.StartedAt)
	}
	return c.pod.provider.cfg.Backoff.withDefaults().next(c.attempt, c.waited, ran)
}

// forget deletes an old run.
func (c *container) forget(attempt int) {
	if attempt < 0 {
		return
	}
	err := errors.Join(os.RemoveAll(c.runDir(attempt)), os.RemoveAll(c.log(attempt)))
	if err != nil {
		klog.FromContext(c.pod.ctx).Error(err, "An old run is still there", "container", c.Name, "attempt", attempt)
	}
}

// follow has the goroutine of the pod told of what becomes of the run.
func (c *container) follow() {
	if c.run == nil {
		return
	}
	c.refresh(c.run)
	run, dir, p := c.run, c.runDir(c.attempt), c.pod
	p.provider.wg.Go(func() {
		for {
			err := run.Follow(p.ctx, func() { p.do(func() { c.refresh(run) }) })
			if p.ctx.Err() != nil {
				return
			}
			if err == nil {
				p.do(func() { c.over(run) })
				return
			}
			// The disk is full, perhaps. As long as nobody knows how the run has
			// ended it has not.
			klog.FromContext(p.ctx).Error(err, "The end of a container can't be seen", "container", c.Name)
			select {
			case <-time.After(time.Second):
			case <-p.ctx.Done():
				return
			}
			if again, err := shim.Open(dir); err == nil {
				c.reopened(run, again)
				run = again
			}
		}
	})
}

// reopened gives the pod's goroutine another view of the same run.
func (c *container) reopened(old, run *shim.Run) {
	c.pod.do(func() {
		if c.run == old {
			c.run = run
		}
	})
}

// refresh reads the files of the run again.
func (c *container) refresh(run *shim.Run) {
	if c.run != run {
		return
	}
	status, err := shim.Read(c.runDir(c.attempt))
	if err != nil {
		klog.FromContext(c.pod.ctx).Error(err, "The state of a container can't be read", "container", c.Name)
		return
	}
	c.status = status
	if status.Running != nil && status.Exit == nil && c.watch == nil && c.asked.IsZero() && c.pod.deadline == nil {
		c.observe()
	}
}

// over takes note that the shim has ended.
func (c *container) over(run *shim.Run) {
	if c.run != run {
		return
	}
	c.refresh(run)
	c.letGo()
	c.asked = time.Time{}
	if c.status.Exit != nil {
		c.noteExit()
	} else {
		// The shim has not come to start anything: it may be tried again.
		c.failed(&failure{"RunContainerError", "the shim has ended before it started the container"})
	}
}

// noteExit works out what follows from an exit.
func (c *container) noteExit() {
	exit := c.status.Exit
	c.due = due(exit.FinishedAt, c.delay(), time.Now())
	c.message = c.terminationMessage(exit)
	c.health.Ready = false
	if !exit.EndBy.IsZero() {
		c.pod.stop(exit.EndBy) // as the last kubelet knew, whose disk may have been full
	}
}

// letGo ends what this process does about the run, which goes on if it runs.
func (c *container) letGo() {
	c.unwatch()
	if c.run != nil {
		_ = c.run.Close()
		c.run = nil
	}
}

// stop asks the container to end by a time. Its preStop hook comes before that.
func (c *container) stop(deadline time.Time) {
	if c.run == nil || !c.asked.IsZero() && !deadline.Before(c.asked) {
		return
	}
	first := c.asked.IsZero()
	c.asked = deadline
	c.unwatch()
	hook := preStop(c.Container)
	if hook == nil || c.health.PreStopped || c.status.Running == nil {
		c.signal(deadline)
	} else if first {
		c.runPreStop(hook, deadline) // and then signal
	}
}

// kill ends the container now, whatever goes on.
func (c *container) kill() {
	c.unwatch()
	if !c.asked.Equal(past) {
		c.asked = past
		c.signal(time.Now())
	}
}

// past is the deadline of a container that was killed.
var past = time.Unix(0, 0)

// signal hands a stop to the shim.
func (c *container) signal(deadline time.Time) {
	if c.run == nil {
		return
	}
	stop := c.run.Stop
	if c.pod.deadline != nil {
		stop = c.run.End
	}
	if err := stop(deadline); err != nil {
		klog.FromContext(c.pod.ctx).Error(err, "The container can't be stopped", "container", c.Name)
		c.asked = time.Time{}
		time.AfterFunc(time.Second, func() { c.pod.do(func() {}) }) // which tries again
	}
}

// unwatch ends probes and the postStart hook.
func (c *container) unwatch() {
	if c.watch != nil {
		c.watch()
		c.watch = nil
	}
}
