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

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

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

// check asks the Runtime whether it can run an ephemeral container, which was not in the
// pod when that was admitted.
func (l *launch) check(ctx context.Context) error {
	checker := l.pod.node.caps.checker
	if checker == nil || l.kind != core.Ephemeral {
		return nil
	}
	pod := l.spec.DeepCopy()
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{*l.container.DeepCopy()}
	return l.pod.node.panics.contain(ctx, "Checker.Check", func() error { return checker.Check(pod) })
}

// prepare makes the files that the run has mounted and returns its mounts.
func (l *launch) prepare(env *podenv.Environment, name, fqdn string) ([]Mount, error) {
	l.pod.prepare.Lock() // containers of a pod share its volumes
	defer l.pod.prepare.Unlock()
	dir := l.pod.dir
	if err := mountMemoryVolumes(l.spec, dir); err != nil {
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
	if old := c.m.Attempt() - 2; old >= 0 { // prune removes the record only with a listed run
		_ = os.Remove(runFile(c.pod.dir, c.Name, old)) // else the next process removes it
	}
	l := launch{pod: c.pod, container: c.Container, kind: c.kind, spec: c.pod.labelled(), id: c.id(c.m.Attempt()), rec: c.m.Record(), sandbox: c.pod.sandbox, addresses: c.pod.addresses(), grow: c.pod.mustGrow()}
	ctx := c.pod.starting
	c.pod.node.wg.Go(func() {
		err := l.pull(ctx)
		var env podenv.Environment
		if err == nil { // which may wait for the API server, and takes no place in the meantime
			env, err = l.resolve(ctx)
		}
		if err == nil {
			err = c.pod.node.gate.enter(ctx, ticket{created: l.spec.CreationTimestamp.Time, begun: l.sandbox != nil})
		}
		if err == nil {
			err = l.run(ctx, env)
			c.pod.node.gate.leave()
		}
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
