// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster starts, monitors and stops the components of a Kubernetes control plane on the loopback interface.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/kubeconfig"
	"github.com/kubewright/kubewright/test/controlplane/internal/pki"
	"github.com/kubewright/kubewright/test/controlplane/internal/ports"
	"github.com/kubewright/kubewright/test/controlplane/internal/process"
	"github.com/kubewright/kubewright/test/controlplane/internal/rundir"
)

// Cluster is a running control plane. It is safe for concurrent use.
type Cluster struct {
	options Options
	binary  string
	dir     *rundir.Dir
	layout  layout
	ca      *pki.Authority
	admin   kubeconfig.Credentials
	client  *http.Client // as the admin
	spawner *process.Spawner
	logf    func(format string, args ...any)

	reservations []*ports.Reservation

	// mu is held while a component is started or stopped, but not while the cluster waits for a component to become
	// ready.
	mu        sync.Mutex
	ready     bool // the start has succeeded; before that, Start returns all errors
	stopped   bool
	processes map[string]*process.Process
	ending    map[*process.Process]bool // processes that are being stopped on purpose
}

// Start starts a control plane from the executable binary in the directory dir, and returns when the cluster is usable.
// If it fails or ctx is done, it stops everything it started. It calls logf if a component ends unexpectedly.
//
// The owner of dir removes the directory afterwards.
func Start(ctx context.Context, binary string, dir *rundir.Dir, o Options, logf func(format string, args ...any)) (*Cluster, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Cluster{
		options:   o,
		binary:    binary,
		dir:       dir,
		layout:    layout{dir: dir.Path, ports: map[string]int{}},
		spawner:   process.NewSpawner(),
		logf:      logf,
		processes: map[string]*process.Process{},
		ending:    map[*process.Process]bool{},
	}
	err := c.prepare()
	if err == nil {
		err = c.startAll(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	return c, nil
}

// prepare reserves the ports and writes the files.
func (c *Cluster) prepare() error {
	for _, name := range slices.Concat(components, []string{etcdPeer}, c.options.Extra) {
		r, err := ports.Reserve()
		if err != nil {
			return err
		}
		c.reservations = append(c.reservations, r)
		c.layout.ports[name] = r.Port
	}
	if err := os.Mkdir(c.layout.file("pki"), 0o700); err != nil {
		return err
	}
	var err error
	if c.ca, err = pki.NewAuthority("kubewright-test-ca"); err != nil {
		return err
	}
	// A client with a certificate of this authority may impersonate any user. Only the API server gets one, by which it
	// authenticates to aggregated API servers.
	proxyAuthority, err := pki.NewAuthority("kubewright-test-front-proxy-ca")
	if err != nil {
		return err
	}
	proxy, err := proxyAuthority.Client(proxyUser)
	if err != nil {
		return err
	}
	serving, err := c.ca.Server("kube-apiserver", "127.0.0.1", "localhost", "10.0.0.1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	// The user as which the API server authenticates to nodes.
	kubelet, err := c.ca.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		caCert: c.ca.Cert, caKey: c.ca.Key,
		servingCert: serving.Cert, servingKey: serving.Key,
		proxyCA: proxyAuthority.Cert, proxyCert: proxy.Cert, proxyKey: proxy.Key,
		kubeletCert: kubelet.Cert, kubeletKey: kubelet.Key,
		tokenKey: private, tokenPub: public,
		auditPolicy: []byte(auditPolicyYAML),
	} {
		if err := os.WriteFile(c.layout.file(name), content, 0o600); err != nil {
			return err
		}
	}
	if err := os.Mkdir(c.layout.file(etcdData), 0o700); err != nil {
		return err
	}
	for _, component := range []string{ControllerManager, Scheduler} {
		// The users in the bootstrap policy's role bindings.
		creds, err := c.Client("system:" + component)
		if err != nil {
			return err
		}
		if err := kubeconfig.Write(c.layout.file(component+".kubeconfig"), creds.YAML("")); err != nil {
			return err
		}
	}
	if c.admin, err = c.Client("kubewright-admin", "system:masters"); err != nil {
		return err
	}
	if err := kubeconfig.Write(c.layout.file(adminConfig), c.admin.YAML("")); err != nil {
		return err
	}
	c.client, err = newHTTPClient(c.admin)
	return err
}

// startAll starts all processes and waits until the cluster is usable.
func (c *Cluster) startAll(ctx context.Context) error {
	for _, name := range c.options.starting() {
		if name == ControllerManager {
			// The controller manager and the scheduler soon give up without an API server.
			if err := c.waitReady(ctx, APIServer); err != nil {
				return err
			}
		}
		c.mu.Lock()
		err := c.start(name)
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return c.WaitReady(ctx)
}

// start starts a process. c.mu must be held.
func (c *Cluster) start(name string) error {
	if c.stopped {
		return errors.New("the cluster is stopped")
	}
	if p := c.processes[name]; p != nil && !p.HasExited() {
		return fmt.Errorf("%s runs already", name)
	}
	args := singleArguments(c.options, c.layout)
	if name != All {
		args = arguments(c.options, c.layout)[name]
	}
	if slices.Contains(c.options.Extra, name) {
		// The executable selects its program by argv[0] or, if that is not a program, by the next argument.
		args = append([]string{componentOf(name)}, args...)
	}
	p, err := c.spawner.Start(process.Spec{Name: name, Path: c.binary, Args: args, Dir: c.dir.Path, Log: c.LogFile(name)})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.logTail(name))
	}
	c.processes[name] = p
	// If this process is killed here, the parent-death signal kills p too.
	if err := c.dir.Record(p.Identity); err != nil {
		return errors.Join(err, p.Kill())
	}
	go c.watch(name, p)
	return nil
}

// watch logs it if p ends unexpectedly.
func (c *Cluster) watch(name string, p *process.Process) {
	<-p.Exited()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[name] == p && c.ready && !c.stopped && !c.ending[p] {
		c.logf("%s ended unexpectedly: %v\n%s", name, p.Err(), c.logTail(name))
	}
}

// Stop kills all processes and releases the ports. The data is discarded, so there is no graceful shutdown.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true // keeps concurrent restarts from starting anything
	var running []*process.Process
	for _, p := range c.processes {
		running = append(running, p)
	}
	err := process.KillAll(running)
	for _, r := range c.reservations {
		r.Release()
	}
	c.reservations = nil
	return err
}

// LogFile returns the output file of a process. In a cluster with SingleProcess, all components share one.
func (c *Cluster) LogFile(component string) string {
	return filepath.Join(c.dir.Path, c.options.process(component)+".log")
}

// ReadyTimeout bounds the time until a cluster or a restarted component is ready. A start takes 4 s on a quiet machine
// and 10 s on a loaded one.
const ReadyTimeout = 60 * time.Second
