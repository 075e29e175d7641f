// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/kubeconfig"
	"github.com/kubewright/kubewright/test/controlplane/internal/process"
)

// terminatePatience bounds the graceful shutdown of a component. The API server waits up to 60 s for requests to
// finish.
const terminatePatience = 90 * time.Second

// Kill kills a component, as if its machine had lost power. It ignores a component that does not run.
func (c *Cluster) Kill(component string) error {
	return c.each(component, func(name string) error { return c.end(name, (*process.Process).Kill) })
}

// Terminate ends a component gracefully, with SIGTERM, and waits for it.
func (c *Cluster) Terminate(component string) error {
	return c.each(component, func(name string) error {
		return c.end(name, func(p *process.Process) error { return p.Terminate(terminatePatience) })
	})
}

// Pause stops a component with SIGSTOP, as if its machine hung: connections stay open but get no answers.
func (c *Cluster) Pause(component string) error {
	return c.each(component, func(name string) error { return c.with(name, (*process.Process).Pause) })
}

// Resume undoes Pause.
func (c *Cluster) Resume(component string) error {
	return c.each(component, func(name string) error { return c.with(name, (*process.Process).Resume) })
}

// Restart kills a component if it runs, starts it with the same port, files and arguments, and waits until it is ready.
func (c *Cluster) Restart(ctx context.Context, component string) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	if err := c.Kill(component); err != nil {
		return err
	}
	if component == All {
		return c.startAll(ctx)
	}
	c.mu.Lock()
	err := c.start(component)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.waitReady(ctx, component)
}

// each calls f for the process of component, or for each of them when component is All.
func (c *Cluster) each(component string, f func(name string) error) error {
	all := c.options.processes()
	if component != All {
		if !slices.Contains(all, component) {
			return fmt.Errorf("no process %q; there are %s", component, strings.Join(all, ", "))
		}
		return f(component)
	}
	for _, name := range all {
		c.mu.Lock()
		started := c.processes[name] != nil
		c.mu.Unlock()
		if !started && slices.Contains(c.options.Extra, name) {
			continue
		}
		if err := f(name); err != nil {
			return err
		}
	}
	return nil
}

// with calls f with the process called name. The process must be running.
func (c *Cluster) with(name string, f func(*process.Process) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[name]
	if p == nil {
		return fmt.Errorf("%s does not run", name)
	}
	return f(p)
}

// end ends the process called name with f, if it runs.
func (c *Cluster) end(name string, f func(*process.Process) error) error {
	c.mu.Lock()
	p := c.processes[name]
	if p != nil {
		c.ending[p] = true
	}
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	err := f(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ending, p)
	if err == nil && c.processes[name] == p {
		delete(c.processes, name)
	}
	return err
}

// ComponentStatus describes a process.
type ComponentStatus struct {
	Name  string `json:"name"`
	State string `json:"state"` // running, paused, stopped (by a request) or exited (unexpectedly)
	PID   int    `json:"pid,omitempty"`
	Port  int    `json:"port,omitempty"`
	Log   string `json:"log"`
}

// Status describes a cluster.
type Status struct {
	Version    string            `json:"version"`
	Server     string            `json:"server"`
	Dir        string            `json:"dir"`
	Kubeconfig string            `json:"kubeconfig"`         // the admin's
	AuditLog   string            `json:"auditLog,omitempty"` // if auditing is on
	Binary     string            `json:"binary"`
	Components []ComponentStatus `json:"components"`

	// Admin are the credentials in Kubeconfig.
	Admin kubeconfig.Credentials `json:"admin"`
}

// Status returns the cluster's description.
func (c *Cluster) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Version:    c.options.Version,
		Server:     c.layout.url(APIServer),
		Dir:        c.dir.Path,
		Kubeconfig: c.layout.file(adminConfig),
		Binary:     c.binary,
		Admin:      c.admin,
	}
	if c.options.Audit {
		s.AuditLog = c.layout.file(auditLog)
	}
	for _, name := range c.options.processes() {
		s.Components = append(s.Components, componentStatus(name, c.layout.ports[name], c.LogFile(name), c.processes[name]))
	}
	return s
}

func componentStatus(name string, port int, log string, p *process.Process) ComponentStatus {
	s := ComponentStatus{Name: name, State: "stopped", Port: port, Log: log}
	if p == nil {
		return s
	}
	if p.HasExited() {
		s.State = "exited"
		return s
	}
	s.State, s.PID = "running", p.PID
	if p.Paused() {
		s.State = "paused"
	}
	return s
}

// Identity selects an identity. Exactly one of Node, ServiceAccount and User is set.
type Identity struct {
	Node           string   `json:"node,omitempty"`
	Namespace      string   `json:"namespace,omitempty"`
	ServiceAccount string   `json:"serviceAccount,omitempty"`
	User           string   `json:"user,omitempty"`
	Groups         []string `json:"groups,omitempty"`
}

// Issued are credentials and a kubeconfig file with them.
type Issued struct {
	kubeconfig.Credentials
	Kubeconfig string `json:"kubeconfig"`
}

// Issue creates credentials for id and writes them to a kubeconfig file in the cluster's directory.
func (c *Cluster) Issue(ctx context.Context, id Identity) (Issued, error) {
	creds, err := c.credentials(ctx, id)
	if err != nil {
		return Issued{}, err
	}
	file := c.layout.file("kubeconfigs/" + kubeconfig.FileName(creds.User))
	return Issued{creds, file}, kubeconfig.Write(file, creds.YAML(id.Namespace))
}

func (c *Cluster) credentials(ctx context.Context, id Identity) (kubeconfig.Credentials, error) {
	switch {
	case id.Node != "" && id.ServiceAccount == "" && id.User == "":
		return c.Node(id.Node)
	case id.ServiceAccount != "" && id.Namespace != "" && id.Node == "" && id.User == "":
		return c.ServiceAccount(ctx, id.Namespace, id.ServiceAccount)
	case id.User != "" && id.Node == "" && id.ServiceAccount == "":
		return c.Client(id.User, id.Groups...)
	}
	return kubeconfig.Credentials{}, errors.New("want one of a node, a ServiceAccount with its namespace, and a user")
}
