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

// versionVariable is the version of clusters whose Options name none, so that all tests can be run against another one.
const versionVariable = "KUBEWRIGHT_E2E_VERSION"

// Enabled reports whether end-to-end tests are to run.
func Enabled() bool { return os.Getenv(enableVariable) == "1" }

// OnlyDefaultVersion skips a test whose truth is that of one version, where the tests are run against another one.
func OnlyDefaultVersion(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(versionVariable) != "" {
		t.Skip(versionVariable + " is set, and " + why)
	}
}

// skipMessage tells why a test was skipped and how to run it.
const skipMessage = "needs a real control plane: run \"make e2e\", or set " + enableVariable + "=1"

// Cluster is a running control plane. Methods that take a testing.TB fail the test at once when they can't do what they are for; so
// they must be called from the test's goroutine. Otherwise a Cluster may be used concurrently.
type Cluster struct {
	launcher *launcher
	status   status
}

// status is what the launcher says about a cluster.
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
	State string `json:"state"` // running, paused, stopped (on request) or exited (by itself)
	PID   int    `json:"pid"`   // 0 when it doesn't run
	Port  int    `json:"port"`  // on 127.0.0.1; 0 for All
	Log   string `json:"log"`   // the file with its output
}

// Start starts a control plane for a test and stops it when the test ends. It skips the test when end-to-end tests are not
// to run.
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

// Version returns the Kubernetes version, such as v1.37.1.
func (c *Cluster) Version() string { return c.status.Version }

// Server returns the API server's URL.
func (c *Cluster) Server() string { return c.status.Server }

// Dir returns the cluster's directory, which exists as long as the cluster does. A test may put files there.
func (c *Cluster) Dir() string { return c.status.Dir }

// Components returns the processes as they are now.
func (c *Cluster) Components(t testing.TB) []Component {
	t.Helper()
	var s status
	c.must(t, request{Op: "status"}, &s)
	return s.Components
}

// Kill kills a component as if its machine had lost power. One that doesn't run is left alone.
func (c *Cluster) Kill(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "kill", Component: component}, nil)
}

// Terminate ends a component in order, with SIGTERM, and waits until it is gone, up to 90 s. An API server with open watches takes
// 60 s, in which it serves them.
func (c *Cluster) Terminate(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "terminate", Component: component}, nil)
}

// Pause stops a component as if its machine hung: connections stay open and nobody answers. It returns when no thread of it runs.
func (c *Cluster) Pause(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "pause", Component: component}, nil)
}

// Resume undoes Pause.
func (c *Cluster) Resume(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "resume", Component: component}, nil)
}

// Restart kills a component if it runs, starts it with the same port, data and arguments, and waits until it is ready, up to 60 s.
// It is also what starts an instance of Options.Extra.
func (c *Cluster) Restart(t testing.TB, component string) {
	t.Helper()
	c.must(t, request{Op: "restart", Component: component}, nil)
}

// WaitReady waits until every component says that it is ready, up to 60 s.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	c.must(t, request{Op: "wait"}, nil)
}

// Kubectl runs the kubectl of the cluster's version as the admin, or as whom a --kubeconfig among args says, and returns its
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

// KubectlCommand returns the command that Kubectl runs, for tests with an input, or with a kubectl that fails.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.status.Binary)
	cmd.Args = append([]string{"kubectl"}, args...)
	// Neither the user's settings nor a cache in the user's home directory.
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

// AdminConfig returns a client configuration of a member of system:masters. It doesn't limit the rate of requests, as none of the
// configurations here does.
func (c *Cluster) AdminConfig() *rest.Config { return c.status.Admin.config() }

// logTailLines is how much of each log a failed test shows.
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
