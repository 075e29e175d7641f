// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync/podenv"
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
	attempt := c.m.Attempt
	if err := c.m.Apply(time.Now(), fact); err != nil {
		c.reports.groups[breaking].Fail(c.pod.ctx, nil, &apierr.Member{}, err, "A container is in another state than expected")
		if f := c.pod.node.checked; f != nil {
			f(err)
		}
		return false
	}
	if c.m.Attempt != attempt {
		c.unwatch(false)
		c.endHook()
	}
	if _, ok := fact.(core.Starting); ok {
		c.kept = kept{c.m.Attempt, c.m.Record} // the launch writes the record of its run
	}
	return true
}

// keep writes the record of the newest run if it is not on disk yet. A disk that is full keeps
// nothing from going on: keep is called again with the next fact or list, and the next Provider
// runs a hook or probe again.
func (c *container) keep() {
	now := kept{c.m.Attempt, c.m.Record}
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
	case c.m.Listed(core.Running) && c.m.Record.Started && c.ReadinessProbe != nil: // it ends, perhaps since an earlier process
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

// failed puts off the next try to start.
func (c *container) failed(f *core.Failure) {
	klog.FromContext(c.pod.ctx).V(2).Info("A container can't start", "container", c.Name, "reason", f.Reason, "message", f.Message)
	c.pod.event(corev1.EventTypeWarning, "Failed", "Starting", "Error: %s: %s", f.Reason, f.Message)
	c.apply(core.StartEnded{Failure: f})
}

// readMessage reads the termination message of the newest run, which has exited.
func (c *container) readMessage() {
	message := tail(messagePath(c.pod.dir, c.Name), maxMessage)
	if message == "" && c.m.Run.ExitCode != 0 && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.pod.node.caps.tailer != nil {
		c.readLog()
		return
	}
	c.apply(core.MessageRead{Attempt: c.m.Attempt, Message: message})
}

// logTimeout is the time that the end of a log may take. Until then the container is not started
// again, and its pod does not count as stopped.
const logTimeout = 5 * time.Second

// readLog reads the termination message from the log of the newest run.
func (c *container) readLog() {
	c.apply(core.MessageReading{})
	p, id := c.pod, c.id(c.m.Attempt)
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
	p, id, opts := c.pod, c.id(c.m.Attempt), StopOptions{Deadline: by}
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
	for _, attempt := range c.m.Older {
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

// A launch is the start of one run, in a goroutine of its own. It reads nothing
// that the pod's goroutine writes.
type launch struct {
	pod       *pod // only for its constants and prepare
	container *corev1.Container
	kind      core.Kind
	spec      *corev1.Pod
	id        ContainerID
	rec       core.Record
	sandbox   *Sandbox
	addresses podenv.Addresses
	grow      bool // the pod as a whole must grow first
}

// maxLaunches is the number of containers of one pod that are launched at once. Each launch copies the
// pod, and a tenant can give it thousands of containers.
const maxLaunches = 32

// launch pulls the image, reads what the run needs, and starts it.
func (l *launch) launch(ctx context.Context) error {
	if err := l.pod.launches.enter(ctx, ticket{}); err != nil {
		return err
	}
	defer l.pod.launches.leave()
	l.spec = l.pod.labelled(l.spec)
	if err := l.pull(ctx); err != nil {
		return err
	}
	env, err := l.resolve(ctx) // which may wait for the API server, and takes no place of a start in the meantime
	if err != nil {
		return err
	}
	gate := &l.pod.node.gate
	if err := gate.enter(ctx, ticket{created: l.spec.CreationTimestamp.Time, begun: l.sandbox != nil}); err != nil {
		return err
	}
	defer gate.leave()
	return l.run(ctx, env)
}

// pull makes sure that the image is there.
func (l *launch) pull(ctx context.Context) error {
	puller := l.pod.node.caps.puller
	if puller == nil {
		return nil
	}
	return puller.Pull(ctx, l.spec.DeepCopy(), l.container.DeepCopy())
}

// resolve reads what the run needs from the API, or recalls it. The sources may have changed
// since the last run.
func (l *launch) resolve(ctx context.Context) (env podenv.Environment, err error) {
	if err := l.check(ctx); err != nil {
		return env, &StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	p := l.pod
	err = p.node.panics.contain(ctx, "Config.Environment", func() (err error) {
		resolved := p.node.cfg.Environment.Recall(l.spec, p.memory)
		if err = p.fillAbsent(ctx, resolved, l.spec); err == nil {
			env, err = resolved.Container(ctx, l.id.Name, l.addresses)
		}
		return err
	})
	if err != nil {
		return env, &StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	p.prepare.Lock()
	defer p.prepare.Unlock()
	p.keepInputs()
	return env, nil
}

// run prepares the files of the run and starts it.
func (l *launch) run(ctx context.Context, env podenv.Environment) error {
	p := l.pod.node
	name, fqdn := hostnameOf(l.spec, p.cfg.DNS.Domain)
	mounts, err := l.prepare(&env, name, fqdn)
	if err != nil {
		return &StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	spec := ContainerSpec{
		ID: l.id, Pod: l.spec.DeepCopy(), Container: l.container.DeepCopy(),
		Environment: env, Mounts: mounts, Hostname: name,
		Dir: filepath.Join(l.pod.dir, "containers", l.id.Name),
	}
	if l.sandbox != nil {
		sandbox := *l.sandbox
		sandbox.IPs = slices.Clone(sandbox.IPs)
		spec.Sandbox = &sandbox
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return err
	}
	if err := record.Write(runFile(l.pod.dir, l.id.Name, l.id.Attempt), l.rec); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.grow {
		if err := l.pod.resizePod(ctx, spec.Pod.DeepCopy(), true); err != nil {
			return err
		}
	}
	start, cancel := l.pod.lasting()
	defer cancel()
	return p.cfg.Runtime.Start(start, spec)
}

// check returns why an ephemeral container can't run here: it was not in the pod when that was
// admitted.
func (l *launch) check(ctx context.Context) error {
	if l.kind != core.Ephemeral {
		return nil
	}
	pod := l.spec.DeepCopy()
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{*l.container.DeepCopy()}
	pod.Spec.EphemeralContainers = nil
	if why := l.pod.node.unsupported(pod); why != "" {
		return errors.New(why)
	}
	checker := l.pod.node.caps.checker
	if checker == nil {
		return nil
	}
	return l.pod.node.panics.contain(ctx, "Checker.Check", func() error { return checker.Check(pod) })
}

// prepare makes the files that the run has mounted and returns its mounts.
func (l *launch) prepare(env *podenv.Environment, name, fqdn string) ([]Mount, error) {
	l.pod.prepare.Lock() // containers of a pod share its volumes
	defer l.pod.prepare.Unlock()
	dir := l.pod.dir
	if err := restoreEmptyDirs(l.spec, dir); err != nil {
		return nil, err
	}
	// Containers of a Sandboxer have a mount namespace, and can't see other files.
	mounts, err := mountsOf(l.spec, l.container, env, dir, l.pod.node.caps.sandboxer != nil)
	if err != nil {
		return nil, err
	}
	taken := func(path string) bool {
		return slices.ContainsFunc(mounts, func(m Mount) bool { return filepath.Clean(m.ContainerPath) == filepath.Clean(path) })
	}
	if path := l.container.TerminationMessagePath; path != "" && !taken(path) {
		file := messagePath(dir, l.id.Name)
		if err := rewrite(file, nil, 0o666); err != nil {
			return nil, err
		}
		mounts = append(mounts, Mount{HostPath: file, ContainerPath: path})
	}
	if l.sandbox != nil && !taken("/etc/hosts") && (!l.spec.Spec.HostNetwork || len(l.spec.Spec.HostAliases) > 0) {
		var host []byte
		if l.spec.Spec.HostNetwork {
			if host, err = os.ReadFile("/etc/hosts"); err != nil {
				return nil, err
			}
		}
		file := hostsPath(dir)
		if err := rewrite(file, hostsFile(l.spec, l.addresses.PodIPs, name, fqdn, host), 0o644); err != nil {
			return nil, err
		}
		mounts = append(mounts, Mount{HostPath: file, ContainerPath: "/etc/hosts"})
	}
	return mounts, nil
}

func hostsPath(dir string) string { return filepath.Join(dir, "hosts") }

// rewrite makes data the content of a file, which containers may have mounted. A
// container can make the file as long as it likes, so no more is read than tells whether
// it differs.
func rewrite(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	changed := err == nil // a new file needs the mode, too: the umask has taken from it
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, os.O_RDWR, mode) // O_RDWR does not block for a FIFO
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// Reading a FIFO blocks, and a link leads to a file of the node.
	opened, err1 := f.Stat()
	named, err2 := os.Lstat(path)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !opened.Mode().IsRegular() || !os.SameFile(opened, named) {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if old, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1)); err != nil || !bytes.Equal(old, data) {
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.WriteAt(data, 0); err != nil {
			return err
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return f.Chmod(mode)
}

// start begins the next run.
func (c *container) start() {
	if !c.apply(core.Starting{Resources: c.wanted()}) {
		return
	}
	if old := c.m.Attempt - 2; old >= 0 { // prune removes the record only with a listed run
		_ = os.Remove(runFile(c.pod.dir, c.Name, old)) // else the next process removes it
	}
	l := launch{pod: c.pod, container: c.Container, kind: c.kind, spec: c.pod.spec, id: c.id(c.m.Attempt), rec: c.m.Record, sandbox: c.pod.sandbox, addresses: c.pod.addresses(), grow: c.pod.mustGrow()}
	ctx := c.pod.starting
	c.pod.node.wg.Go(func() {
		err := l.launch(ctx)
		c.pod.do(func() {
			c.pod.stale = true
			switch {
			case err == nil:
				c.apply(core.StartEnded{})
			case errors.Is(err, ErrMayHaveRun):
				c.apply(core.StartEnded{MayHaveRun: true})
			case ctx.Err() == nil:
				c.failed(failureOf(err, "RunContainerError"))
			default: // the pod stops
				c.apply(core.StartEnded{GivenUp: true})
			}
		})
	})
}

// A watch is the hooks and probes of one run. Canceling essential ends all of it;
// canceling live ends all but the readiness probe, which goes on while the container
// is being stopped.
type watch struct {
	attempt   int
	live      context.CancelFunc
	essential context.CancelFunc
}

// observe begins the hooks and probes of a run, or its readiness probe alone if the run ends.
func (c *container) observe(ends bool) {
	if c.watch != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.pod.ctx)
	live, cancelLive := context.WithCancel(ctx)
	c.watch = &watch{c.m.Attempt, cancelLive, cancel}
	if ends {
		cancelLive()
	}
	a := &attendant{c: c, attempt: c.m.Attempt, target: c.target(), startedAt: c.m.Record.Ran, begin: c.m.Record}
	hook := c.handler(false)
	c.pod.node.wg.Go(func() { a.attend(ctx, live, hook) })
}

// unwatch ends the hooks and probes of a run, except for the readiness probe if
// ready is true.
func (c *container) unwatch(ready bool) {
	if c.watch == nil {
		return
	}
	c.watch.live()
	if !ready {
		c.watch.essential()
		c.watch = nil
	}
}

// target returns the target for probes and hooks of the newest run.
func (c *container) target() target {
	host := ""
	if ips := c.pod.addresses().PodIPs; len(ips) > 0 {
		host = ips[0]
	}
	n := c.pod.node
	return target{execer: n.caps.execer, grpc: n.cfg.GRPC, id: c.id(c.m.Attempt), spec: c.Container, host: host, panics: &n.panics}
}

// An attendant runs hooks and probes of one run, in a goroutine of its own.
type attendant struct {
	c         *container // only for do
	attempt   int
	target    target
	startedAt time.Time
	begin     core.Record // the record at the beginning
}

// probed records a result in the pod's goroutine.
func (a *attendant) probed(result core.Probed) {
	result.Attempt = a.attempt
	a.c.pod.do(func() { a.c.apply(result) })
}

// graceAfter returns the time that a run has to end after a failure of a probe, or of a hook if
// probe is nil.
func (c *container) graceAfter(probe *corev1.Probe) time.Duration {
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return limited(*probe.TerminationGracePeriodSeconds)
	}
	return grace(c.pod.spec)
}

// fail ends the run because of a probe, or of a hook if probe is nil. After a probe the next one
// starts whatever the exit code, as in the kubelet, unless the policy is Never; after a hook the
// code decides, too.
func (a *attendant) fail(reason, message string, probe *corev1.Probe) {
	a.c.pod.do(func() {
		c := a.c
		if c.m.Attempt != a.attempt || !c.m.MayBeProbed() {
			return
		}
		policy := string(c.pod.spec.Spec.RestartPolicy)
		if c.RestartPolicy != nil {
			policy = string(*c.RestartPolicy)
		}
		again := probe != nil && policy != string(corev1.RestartPolicyNever)
		follows := ""
		if again {
			follows = ", will be restarted"
		}
		c.pod.event(corev1.EventTypeNormal, "Killing", "Stopping", "Container %s %s%s", c.Name, message, follows)
		klog.FromContext(c.pod.ctx).V(2).Info("A container is ended", "container", c.Name, "reason", reason, "message", message)
		c.apply(core.Unhealthy{Attempt: a.attempt, By: time.Now().Add(c.graceAfter(probe)), Again: again})
		c.unwatch(true)
	})
}

func (a *attendant) attend(ctx, live context.Context, hook *corev1.LifecycleHandler) {
	t := a.target
	if hook != nil && !a.begin.PostStarted {
		if err := t.hook(live, hook); err != nil {
			if live.Err() == nil {
				a.event("FailedPostStartHook", fmt.Sprintf("PostStartHook failed: %v", err))
				a.fail("FailedPostStartHook", "failed its postStart hook", nil)
			}
			return
		}
		a.probed(core.Probed{PostStarted: true})
	}
	if p := t.spec.StartupProbe; p != nil && !a.begin.Started {
		if !t.poll(live, p, a.startedAt, a.report("Startup"), func(bool) bool { return false }) { // until the first verdict
			a.failed(live, "startup", p)
			return
		}
	}
	started := core.Probed{PostStarted: true, Started: true}
	if t.spec.ReadinessProbe == nil {
		started.Ready = new(true)
	}
	a.probed(started)
	var wg sync.WaitGroup
	if p := t.spec.LivenessProbe; p != nil {
		wg.Go(func() {
			t.poll(live, p, a.startedAt, a.report("Liveness"), func(ok bool) bool { return ok }) // until it fails
			a.failed(live, "liveness", p)
		})
	}
	if p := t.spec.ReadinessProbe; p != nil {
		wg.Go(func() {
			t.poll(ctx, p, a.startedAt, a.report("Readiness"), func(ok bool) bool {
				a.probed(core.Probed{Ready: &ok})
				return true
			})
		})
	}
	wg.Wait()
}

// report returns a function that records the results of a probe that are not a
// plain success.
func (a *attendant) report(which string) func(error) {
	return func(err error) {
		reason, message := "Unhealthy", fmt.Sprintf("%s probe failed: %v", which, err)
		if w := (*warning)(nil); errors.As(err, &w) {
			reason, message = "ProbeWarning", fmt.Sprintf("%s probe warning: %v", which, err)
		}
		a.event(reason, message)
	}
}

func (a *attendant) event(reason, message string) {
	a.c.pod.do(func() { a.c.pod.event(corev1.EventTypeWarning, reason, "Probing", "%s", message) })
}

// failed ends the run because of a probe, unless that was interrupted.
func (a *attendant) failed(ctx context.Context, which string, p *corev1.Probe) {
	if ctx.Err() == nil {
		a.fail("Unhealthy", "failed "+which+" probe", p)
	}
}

// handler returns the preStop hook of the container if stop is true, else its
// postStart hook; nil if there is none.
func (c *container) handler(stop bool) *corev1.LifecycleHandler {
	switch {
	case c.Lifecycle == nil:
		return nil
	case stop:
		return c.Lifecycle.PreStop
	}
	return c.Lifecycle.PostStart
}

// callPreStop calls the preStop hook, or shortens it if it runs.
func (c *container) callPreStop(by time.Time) {
	c.unwatch(true)
	if !c.apply(core.HookCalled{By: by}) {
		return
	}
	if c.hook != nil {
		time.AfterFunc(time.Until(by), c.hook)
		return
	}
	t, attempt, hook := c.target(), c.m.Attempt, c.handler(true)
	ctx, cancel := context.WithDeadline(c.pod.ctx, by)
	c.hook = cancel
	c.pod.node.wg.Go(func() {
		defer cancel()
		err := t.hook(ctx, hook)
		c.pod.do(func() {
			if c.m.Attempt != attempt || c.hook == nil || c.pod.ctx.Err() != nil {
				return
			}
			if err != nil {
				c.pod.event(corev1.EventTypeWarning, "FailedPreStopHook", "Stopping", "PreStopHook failed: %v", err)
				klog.FromContext(c.pod.ctx).V(2).Info("A preStop hook failed", "container", c.Name, "err", err)
			}
			c.hook = nil
			c.apply(core.HookEnded{Attempt: attempt})
		})
	})
}
