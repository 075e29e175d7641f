// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// TestMain lets the test binary run as the agent that the supervisor starts.
func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ready is the condition of the kubelet.
var ready = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}

// demo is an agent under its supervisor, and its API server.
type demo struct {
	*testing.T
	server *apitest.Server
	args   []string
	store  string
	run    *exampletest.Program
	read   int // of the output
}

func newDemo(t *testing.T) *demo {
	s := exampletest.Server(t, "../rbac/configcheckpoint.yaml", "../rbac/node-condition.yaml")
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}})
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubewright"}})
	d := &demo{T: t, server: s, store: filepath.Join(t.TempDir(), "store")}
	kubeconfig := exampletest.Kubeconfig(t, s, apitest.ServiceAccountUser("kubewright", "virtual-node"))
	d.args = []string{
		"--supervise", "--kubeconfig", kubeconfig, "--store", d.store, "--node-name=n1",
		"--soak=1s", "--health-every=50ms", "--health-grace=500ms",
	}
	return d
}

func (d *demo) start() {
	d.run, d.read = exampletest.Start(d.T, run, d.args...), 0
}

func (d *demo) stop() {
	d.Helper()
	if err := d.run.Stop(); err != nil {
		d.Errorf("the supervisor ended with %v", err)
	}
}

// assign changes the ConfigMap.
func (d *demo) assign(text string) {
	d.server.Put(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubewright", Name: "agent"},
		Data:       map[string]string{"config.yaml": text},
	})
}

// prints waits until the output has each of the texts in order, and returns how
// often the agent was started in the meantime.
func (d *demo) prints(texts ...string) (starts int) {
	d.Helper()
	from := d.read
	for _, text := range texts {
		exampletest.Eventually(d.T, d.server, fmt.Sprintf("%q in:\n%s", text, d.run.Output()[from:]), func() bool {
			at := strings.Index(d.run.Output()[d.read:], text)
			if at < 0 {
				return false
			}
			d.read += at + len(text)
			return true
		})
	}
	return strings.Count(d.run.Output()[from:d.read], "supervisor: start")
}

// TestRollouts follows the steps of the README.
func TestRollouts(t *testing.T) {
	d := newDemo(t)
	// The API server is down, and the disk is empty.
	away := d.server.Inject(apitest.Fault{Status: statuserr.Unavailable(0)})
	d.start()
	d.prints("booted with the Default", "AgentConfigOK=True SourceFailed")
	away()

	d.assign("greeting: good day\nbufferMiB: 1\n")
	if n := d.prints("AgentConfigOK=True Staged", "exit status 75", "booted with the Assigned", "AgentConfigOK=True Trial", "AgentConfigOK=True Good"); n != 1 {
		t.Errorf("a good rollout took %d starts", n)
	}

	exampletest.Eventually(t, d.server, "the condition of the Node, next to the kubelet's", func() bool {
		shown := apitest.Get[*corev1.Node](d.server, "", "n1").Status.Conditions
		return len(shown) == 2 && slices.Contains(shown, ready) && slices.ContainsFunc(shown, func(c corev1.NodeCondition) bool {
			return c.Type == conditionType && c.Status == corev1.ConditionTrue && c.Reason == string(configcheckpoint.ReasonGood)
		})
	})

	for text, want := range map[string]string{
		"greeting: [":                         "AgentConfigOK=False DecodeFailed",
		"greetign: hi":                        `unknown field "greetign"`,
		"bufferMiB: -1\nupstream: nowhere":    "greeting is required",
		"greeting: hi\nupstream: nowhere":     "AgentConfigOK=False ValidationFailed",
		"greeting: hi\nbufferMiB: one\n#more": "AgentConfigOK=False DecodeFailed",
	} {
		d.assign(text)
		if n := d.prints(want); n != 0 {
			t.Errorf("%q, which is rejected, took %d starts", text, n)
		}
	}

	d.assign("greeting: too much\nbufferMiB: 1000000000\n")
	if n := d.prints("Staged: ", "panic in work: runtime error: makeslice", "booted with the LastKnownGood", "AgentConfigOK=False CrashLoop"); n != 4 {
		t.Errorf("a configuration that crashes was started %d times, want 3, and then the good one", n-1)
	}

	d.assign("greeting: is anybody there\nupstream: " + closedPort(t) + "\n")
	if n := d.prints("AgentConfigOK=True Trial", "refused", "exit status 75", "booted with the LastKnownGood", "AgentConfigOK=False Unhealthy"); n != 2 {
		t.Errorf("a configuration that is unhealthy took %d starts, want one and one back", n)
	}

	d.assign("greeting: good day\nbufferMiB: 1\n")
	if n := d.prints("AgentConfigOK=True Good"); n != 0 {
		t.Errorf("the way back took %d starts, and it ran already", n)
	}

	out := d.run.Output()
	for _, greeting := range []string{"hello, with a buffer of 0 MiB", "good day, with a buffer of 1 MiB", "is anybody there, with a buffer of 0 MiB"} {
		if !strings.Contains(out, greeting) {
			t.Errorf("the agent never said %q", greeting)
		}
	}

	d.damage()
	d.kill()
	if n := d.prints("booted with the Default", "AgentConfigOK=False CheckpointCorrupt", "exit status 75", "booted with the Assigned", "AgentConfigOK=True Good"); n != 2 {
		t.Errorf("the repair of a damaged file took %d starts, want one that finds it and one that runs it", n)
	}
	d.stop()

	d.server.Inject(apitest.Fault{Err: apitest.ErrConnReset})
	d.start()
	d.prints("booted with the Assigned", "AgentConfigOK=True Good")
	d.stop()
	if out := d.run.Output(); !strings.Contains(out, "supervisor: exit status 0") {
		t.Errorf("SIGTERM did not end the agent in order:\n%s", out)
	}
	for _, r := range d.server.Requests(apitest.Match{}) {
		if r.Code == http.StatusForbidden {
			t.Errorf("refused: %v", r)
		}
	}
}

// damage overwrites every stored payload.
func (d *demo) damage() {
	d.Helper()
	files, err := filepath.Glob(filepath.Join(d.store, "p", "*"))
	if err != nil || len(files) == 0 {
		d.Fatal(files, err)
	}
	for _, file := range files {
		if err := os.WriteFile(file, []byte("greeting: from a broken disk\n"), 0o600); err != nil {
			d.Fatal(err)
		}
	}
}

// kill kills the agent but not its supervisor.
func (d *demo) kill() {
	d.Helper()
	all := regexp.MustCompile(`supervisor: start \d+, pid (\d+)`).FindAllStringSubmatch(d.run.Output(), -1)
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		d.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		d.Fatal(err)
	}
}

// closedPort returns an address on which no server listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestSupervisedAgentDoesNotSupervise checks every spelling of the flag:
// otherwise an agent would start an agent that starts an agent.
func TestSupervisedAgentDoesNotSupervise(t *testing.T) {
	t.Setenv(childMark, "1")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	kubeconfig := exampletest.Kubeconfig(t, exampletest.Server(t), apitest.User{})
	err := run(ctx, []string{"--kubeconfig", kubeconfig, "--supervise=true", "--configmap", "agent"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "source ConfigMap") {
		t.Errorf("run = %v, want the error of an agent", err)
	}
}

func TestWrongFlags(t *testing.T) {
	kubeconfig := exampletest.Kubeconfig(t, exampletest.Server(t), apitest.User{})
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--no-such-flag"}, "no-such-flag"},
		{[]string{"--configmap", "agent"}, "namespace \"agent\""},
		{[]string{"--configmap", "kubewright/../x"}, `name ".."`},
		{[]string{"--store", "../state"}, "Dir"},
		{[]string{"--soak=1ms"}, "Trial.Soak"},
	} {
		err := exampletest.Start(t, run, append([]string{"--kubeconfig", kubeconfig}, test.args...)...).Wait()
		if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(test.want, `namespace "agent"`, `name ""`)) {
			t.Errorf("%q: %v, want an error with %q", test.args, err, test.want)
		}
	}
}
