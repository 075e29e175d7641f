// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// tutorialFile matches a file of the page, with its content.
var tutorialFile = regexp.MustCompile("(?ms)^`([a-z0-9_]+\\.go)`:\n\n```go\n(.*?)^```$")

// buildTutorial builds the program of docs/tutorial.md as the page has it. It has the
// defaults of every Config.
func buildTutorial(t *testing.T) (binary string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, match := range tutorialFile.FindAllSubmatch(page, -1) {
		if name := string(match[1]); !strings.HasSuffix(name, "_test.go") {
			write(name, match[2]) // a later step may have it again
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(root, "test", "tutorial", name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, content)
	}
	for _, args := range [][]string{
		{"mod", "edit", "-module=example.com/mynode", "-replace=github.com/kubewright/kubewright=" + root,
			"-replace=github.com/kubewright/kubewright/nodeapi=" + filepath.Join(root, "nodeapi")},
		{"build", "-o", "mynode", "."},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
	}
	return filepath.Join(dir, "mynode")
}

// twins are processes of the tutorial's program with one node name on this machine.
type twins struct {
	*testing.T
	cluster *harness.Cluster
	client  kubernetes.Interface
	node    string
	binary  string
	dir     string
	args    []string
}

// newTwins starts the first process, and a pod on its node.
func newTwins(t *testing.T, node string) (w *twins, first *program) {
	w = &twins{T: t, cluster: shared.Cluster(t), node: node, binary: buildTutorial(t), dir: t.TempDir()}
	w.client = kubernetes.NewForConfigOrDie(w.cluster.AdminConfig())
	authentication, err := w.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	clientCA := filepath.Join(w.dir, "client-ca.crt")
	if err := os.WriteFile(clientCA, []byte(authentication.Data["client-ca-file"]), 0o600); err != nil {
		t.Fatal(err)
	}
	w.args = []string{"--kubeconfig=" + w.cluster.NodeKubeconfig(t, node), "--node-name=" + node, "--client-ca-file=" + clientCA}
	first = w.start("root")
	awaitNode(t, w.client, node, "ready", isReady)
	if _, err := w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := watchPods(t, w.client, node)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: new(bool),
		Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sh", "-c", "echo $$$$ >>" + w.startedFile() + "; exec sleep 1000"}}},
	}}
	w.eventually("the pod to be created", func() bool {
		_, err := w.client.CoreV1().Pods(node).Create(t.Context(), pod, metav1.CreateOptions{})
		return err == nil // the ServiceAccount of the namespace comes after a while
	})
	timeout := time.After(patience)
	for {
		list, change := pods.list()
		if len(list) == 1 && list[0].Status.Phase == corev1.PodRunning {
			return w, first
		}
		select {
		case <-change:
		case <-timeout:
			t.Fatal("the pod does not run")
		}
	}
}

// start starts a process that keeps its pods below the directory of that name.
func (w *twins) start(root string) *program {
	w.Helper()
	return startBinary(w.T, w.binary, append(w.args, "--root="+filepath.Join(w.dir, root))...)
}

func (w *twins) startedFile() string { return filepath.Join(w.dir, "started") }

func (w *twins) eventually(what string, condition func() bool) {
	w.Helper()
	timeout := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			w.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// started returns how often the container was started, and how many of these processes
// there are.
func (w *twins) started() (all, running int) {
	w.Helper()
	data, err := os.ReadFile(w.startedFile())
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			w.Fatal(err)
		}
		all++
		if syscall.Kill(pid, 0) == nil {
			running++
		}
	}
	return all, running
}

// quietly watches the Node for a while: it must stay as it is, and so must the pod.
func (w *twins) quietly(d time.Duration) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	nodes, err := w.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.node).String()})
	if err != nil {
		w.Fatal(err)
	}
	defer nodes.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case event, ok := <-nodes.ResultChan():
			if !ok {
				if ctx.Err() == nil {
					w.Fatal("the watch of the Node has ended")
				}
				return
			}
			if node, ok := event.Object.(*corev1.Node); !ok || event.Type == watch.Deleted || !isReady(node) {
				w.Fatalf("the Node is no longer ready: %v %+v", event.Type, event.Object)
			}
		case <-tick.C:
			if all, running := w.started(); all != 1 || running != 1 {
				w.Fatalf("the container was started %d times, and %d of them run", all, running)
			}
		case <-ctx.Done():
			return
		}
	}
}

// holder returns the process that the lease names.
func (w *twins) holder() string {
	w.Helper()
	l, err := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.Context(), w.node, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return processOf(l)
}

// processOf returns the process that a lease names: the name of the host, and its start.
func processOf(l *coordinationv1.Lease) string { return l.Annotations["lease.kubewright.dev/process"] }

// A second process with the same root directory loses the lock and ends. The first one must
// not be fenced for that.
func TestASecondProcessThatEndsLeavesTheFirstAlone(t *testing.T) {
	quiet(t)
	w, first := newTwins(t, "twins-one-root")
	before := w.holder()
	second := w.start("root")
	err := second.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Fatalf("the second process ended with %v, want an error of its own", err)
	}
	w.quietly(lease.DefaultDuration + 35*time.Second)
	if after := w.holder(); after != before {
		t.Errorf("the lease was that of %s, and is that of %s", before, after)
	}
	first.stop()
	awaitNode(t, w.client, w.node, "not ready", func(n *corev1.Node) bool { return !isReady(n) })
}

// A second process with another root directory waits for as long as the first one lives. It
// follows a process that was killed as soon as it sees that.
func TestASecondProcessWaitsForTheEndOfTheFirst(t *testing.T) {
	quiet(t)
	w, first := newTwins(t, "twins-two-roots")
	before := w.holder()
	second := w.start("other")
	w.quietly(lease.DefaultDuration + 35*time.Second)
	if after := w.holder(); after != before {
		t.Errorf("the lease was that of %s, and is that of %s", before, after)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	killed := time.Now()
	w.eventually("the second process to have the lease", func() bool { return w.holder() != before })
	// Its slots are ten seconds apart. Without a proof it would wait for the lease to expire.
	if took := time.Since(killed); took > lease.DefaultDuration/2 {
		t.Errorf("the second process follows after %v", took)
	}
	awaitNode(t, w.client, w.node, "ready", isReady)
	if _, running := w.started(); running > 1 {
		t.Errorf("%d containers of one pod run", running)
	}
	second.stop()
	if w.holder() == before {
		t.Error("the lease is that of the first process again")
	}
}
