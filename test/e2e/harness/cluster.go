// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// enableVariable must be "1" for end-to-end tests to run.
const enableVariable = "KUBEWRIGHT_E2E"

// versionVariable is the version of clusters whose Options have none, so that all tests can run against another
// version.
const versionVariable = "KUBEWRIGHT_E2E_VERSION"

// Enabled reports whether end-to-end tests should run.
func Enabled() bool { return os.Getenv(enableVariable) == "1" }

// OnlyDefaultVersion skips a test that is valid for the default version only, if the tests run against another version.
func OnlyDefaultVersion(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(versionVariable) != "" {
		t.Skip(versionVariable + " is set, and " + why)
	}
}

// skipMessage says why a test was skipped and how to run it.
const skipMessage = "needs a real control plane: run \"make e2e\", or set " + enableVariable + "=1"

// Cluster is a running control plane. Methods that take a testing.TB fail the test immediately on an error, so they
// must be called from the test's goroutine. Otherwise a Cluster is safe for concurrent use.
type Cluster struct {
	launcher *launcher
	status   status
}

// status is the launcher's description of a cluster.
type status struct {
	Version    string      `json:"version"`
	Server     string      `json:"server"`
	Dir        string      `json:"dir"`
	Kubeconfig string      `json:"kubeconfig"`
	AuditLog   string      `json:"auditLog"`
	Binary     string      `json:"binary"`
	Components []Component `json:"components"`
	Admin      credentials `json:"admin"`
}

// Component describes a process of a cluster.
type Component struct {
	Name  string `json:"name"`
	State string `json:"state"` // running, paused, stopped (on request) or exited (unexpectedly)
	PID   int    `json:"pid"`   // 0 if it does not run
	Port  int    `json:"port"`  // on 127.0.0.1; 0 for All
	Log   string `json:"log"`   // the file with its output
}

// Start starts a control plane for a test and stops it when the test ends. It skips the test if end-to-end tests should
// not run.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if !Enabled() {
		t.Skip(skipMessage)
	}
	c, err := start(o)
	if err != nil {
		t.Fatalf("start a control plane: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.logTails())
		}
		if err := c.launcher.stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	return c
}

func start(o Options) (*Cluster, error) {
	if o.Version == "" {
		o.Version = os.Getenv(versionVariable)
	}
	l, ready, err := startLauncher(o.arguments())
	if err != nil {
		return nil, err
	}
	c := &Cluster{launcher: l}
	return c, json.Unmarshal(ready, &c.status)
}

// Version returns the Kubernetes version, such as v1.37.2.
func (c *Cluster) Version() string { return c.status.Version }

// Server returns the API server's URL.
func (c *Cluster) Server() string { return c.status.Server }

// Dir returns the cluster's directory, which exists as long as the cluster does. A test may create files there.
func (c *Cluster) Dir() string { return c.status.Dir }

// Components returns the current processes.
func (c *Cluster) Components(t testing.TB) []Component {
	t.Helper()
	var s status
	c.must(t, request{Op: "status"}, &s)
	return s.Components
}

// Kill kills a component as if its machine had lost power. It ignores a component that does not run.
func (c *Cluster) Kill(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "kill", Component: component}, nil)
}

// Terminate ends a component gracefully, with SIGTERM, and waits until it has ended, up to 90 s. An API server with
// open watches takes 60 s, during which it serves them.
func (c *Cluster) Terminate(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "terminate", Component: component}, nil)
}

// Pause stops a component as if its machine hung: connections stay open but get no answers. It returns when all threads
// are stopped.
func (c *Cluster) Pause(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "pause", Component: component}, nil)
}

// Resume undoes Pause.
func (c *Cluster) Resume(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "resume", Component: component}, nil)
}

// Restart kills a component if it runs, starts it with the same port, data and arguments, and waits until it is ready,
// up to 60 s. It also starts an instance of Options.Extra.
func (c *Cluster) Restart(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "restart", Component: component}, nil)
}

// WaitReady waits until every component reports that it is ready, up to 60 s.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	c.must(t, request{Op: "wait"}, nil)
}

// Kubectl runs the kubectl of the cluster's version as the admin, or with the --kubeconfig in args, and returns its
// standard output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := c.KubectlCommand(t.Context(), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// KubectlCommand returns the command that Kubectl runs, for tests that need its input or expect it to fail.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.status.Binary)
	cmd.Args = append([]string{"kubectl"}, args...)
	// Use neither the user's settings nor a cache in the user's home directory.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.status.Kubeconfig, "KUBECACHEDIR="+c.status.Dir+"/kubectl-cache", "KUBERC=off")
	return cmd
}

// must sends a request to the launcher.
func (c *Cluster) must(t testing.TB, req request, result any) {
	t.Helper()
	if err := c.launcher.call(req, result); err != nil {
		t.Fatal(err)
	}
}

// AdminConfig returns a client configuration for a member of system:masters. Like all configurations of this package,
// it has no rate limit.
func (c *Cluster) AdminConfig() *rest.Config { return c.status.Admin.config() }

// logTailLines is the number of lines of each log that a failed test shows.
const logTailLines = 15

// logTails returns the end of each component's log.
func (c *Cluster) logTails() string {
	var b strings.Builder
	for _, component := range c.status.Components {
		data, err := os.ReadFile(component.Log)
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		lines = lines[max(0, len(lines)-logTailLines):]
		fmt.Fprintf(&b, "end of %s's log:\n  %s\n", component.Name, strings.Join(lines, "\n  "))
	}
	return b.String()
}
