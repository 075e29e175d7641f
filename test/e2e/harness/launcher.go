// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// moduleDir is the directory of the launcher's module in the repository.
const moduleDir = "test/controlplane"

// launcherPackage is the import path of the launcher.
const launcherPackage = "github.com/kubewright/kubewright/test/controlplane"

// launcherBuild returns the command that builds the launcher into output. In the repository the launcher's module is
// below a parent of the working directory, because go test runs tests in their package's directory. The module of any
// other test must require the launcher's module: "go get -tool github.com/kubewright/kubewright/test/controlplane".
func launcherBuild(start, output string) *exec.Cmd {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", output, launcherPackage)
	cmd.Dir = start
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD="+start)
	for dir := start; ; dir = filepath.Dir(dir) {
		module := filepath.Join(dir, moduleDir)
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			cmd.Dir = module
			cmd.Env = append(cmd.Env, "GOFLAGS=", "GOWORK=off", "PWD="+module)
			return cmd
		}
		if dir == filepath.Dir(dir) {
			return cmd
		}
	}
}

// launcherOnce builds the launcher once per process. The launcher needs only the standard library, so the build takes a
// second or two.
var launcherOnce = sync.OnceValues(buildLauncher)

// buildLauncher builds the launcher into the cache and returns its path.
func buildLauncher() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	cache := os.Getenv("KUBEWRIGHT_CACHE")
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		cache = filepath.Join(cache, "kubewright")
	}
	if err := os.MkdirAll(filepath.Join(cache, "launcher"), 0o755); err != nil {
		return "", err
	}
	// Test binaries run concurrently, possibly from different work trees. Each builds its own launcher, which its
	// process then uses.
	dir, err := os.MkdirTemp(filepath.Join(cache, "launcher"), "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if out, err := launcherBuild(start, filepath.Join(dir, "controlplane")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the launcher: %w\n%s", err, out)
	}
	return install(filepath.Join(dir, "controlplane"), filepath.Join(cache, "launcher"))
}

// launcher is a running launcher command.
type launcher struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}
	err    error // valid after exited is closed

	mu      sync.Mutex
	lastID  int
	waiting map[int]chan response // nil after the launcher has stopped answering
}

// request and response are the lines of the protocol in test/controlplane/internal/control.
type request struct {
	ID        int       `json:"id"`
	Op        string    `json:"op"`
	Component string    `json:"component,omitempty"`
	Identity  *identity `json:"identity,omitempty"`
}

type identity struct {
	Node           string   `json:"node,omitempty"`
	Namespace      string   `json:"namespace,omitempty"`
	ServiceAccount string   `json:"serviceAccount,omitempty"`
	User           string   `json:"user,omitempty"`
	Groups         []string `json:"groups,omitempty"`
}

type response struct {
	ID     int             `json:"id"`
	Error  string          `json:"error"`
	Result json.RawMessage `json:"result"`
}

// startLauncher starts the launcher with args, and returns its message when the cluster is ready.
func startLauncher(args []string) (*launcher, json.RawMessage, error) {
	path, err := launcherOnce()
	if err != nil {
		return nil, nil, err
	}
	l := &launcher{cmd: exec.Command(path, args...), exited: make(chan struct{}), waiting: map[int]chan response{}}
	l.cmd.Stderr = os.Stderr // a build prints its progress
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, nil, err
	}
	first := make(chan response, 1)
	l.waiting[0] = first
	go l.read(stdout)
	resp, ok := <-first
	if !ok {
		<-l.exited
		return nil, nil, fmt.Errorf("the launcher ended: %w", l.err)
	}
	if resp.Error != "" {
		return nil, nil, errors.Join(errors.New(resp.Error), l.stop())
	}
	return l, resp.Result, nil
}

// read passes the launcher's answers to the waiting callers, until its output ends.
func (l *launcher) read(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var resp response
		if json.Unmarshal(lines.Bytes(), &resp) != nil {
			continue
		}
		l.mu.Lock()
		c := l.waiting[resp.ID]
		delete(l.waiting, resp.ID)
		l.mu.Unlock()
		if c != nil {
			c <- resp
		}
	}
	l.mu.Lock()
	for _, c := range l.waiting {
		close(c)
	}
	l.waiting = nil
	l.mu.Unlock()
	l.err = l.cmd.Wait()
	close(l.exited)
}

// callTimeout bounds a request. A restart may take 60 s and a termination 90 s.
const callTimeout = 2 * time.Minute

// call sends a request and decodes the answer's result into result, which may be nil.
func (l *launcher) call(req request, result any) error {
	answer := make(chan response, 1)
	l.mu.Lock()
	if l.waiting == nil {
		l.mu.Unlock()
		return fmt.Errorf("%s: the launcher has ended", req.Op)
	}
	l.lastID++
	req.ID = l.lastID
	l.waiting[req.ID] = answer
	err := json.NewEncoder(l.stdin).Encode(req)
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", req.Op, err)
	}
	select {
	case resp, ok := <-answer:
		switch {
		case !ok:
			return fmt.Errorf("%s: the launcher has ended", req.Op)
		case resp.Error != "":
			return fmt.Errorf("%s: %s", req.Op, resp.Error)
		case result == nil:
			return nil
		}
		return json.Unmarshal(resp.Result, result)
	case <-time.After(callTimeout):
		return fmt.Errorf("%s: no answer within %s", req.Op, callTimeout)
	}
}

// stopTimeout bounds the time until a cluster is gone.
const stopTimeout = time.Minute

// stop makes the launcher stop the cluster, and waits until no process or file is left.
func (l *launcher) stop() error {
	l.stdin.Close()
	select {
	case <-l.exited:
		return l.err
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("the launcher did not end within %s", stopTimeout), l.cmd.Process.Kill())
	}
}
