// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package side

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/test/e2e/harness"
	"github.com/kubewright/kubewright/vkadapter"
)

// The environment of a process that is a node. A test binary without it runs its tests.
const (
	sideVariable       = "KUBEWRIGHT_PORT_SIDE"
	kubeconfigVariable = "KUBEWRIGHT_PORT_KUBECONFIG"
	lockDirVariable    = "KUBEWRIGHT_PORT_LOCKS"
	timeoutVariable    = "KUBEWRIGHT_PORT_DELETE_TIMEOUT"
)

// patience is the time for what takes up to two minutes on a quiet machine: so long vkadapter
// waits before it stops an instance without a UID that no pod has.
const patience = 5 * time.Minute

// Main is TestMain of a port. newProcess is that of its ports.
func Main(m *testing.M, newProcess func() (Process, error)) {
	if side := os.Getenv(sideVariable); side != "" {
		fmt.Fprintln(os.Stderr, "the node ended:", runNode(side, newProcess))
		os.Exit(1)
	}
	testmain.Run(m)
}

// runNode runs the node of this process until the process is killed.
func runNode(side string, newProcess func() (Process, error)) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVariable))
	if err != nil {
		return err
	}
	config.QPS = -1
	timeout, err := time.ParseDuration(os.Getenv(timeoutVariable))
	if err != nil {
		return err
	}
	process, err := newProcess()
	if err != nil {
		return err
	}
	run, err := newNode(side, kubernetes.NewForConfigOrDie(config), process, vkadapter.NodeConfig{
		InternalIP: "127.0.0.1", Address: "127.0.0.1:0", LockDir: os.Getenv(lockDirVariable),
		Adapter: func(cfg *vkadapter.Config) { cfg.DeleteTimeout = timeout },
	})
	if err != nil {
		return err
	}
	return run(context.Background())
}

// A rig is a back end, an API server, and the processes of a node between them.
type rig struct {
	*testing.T
	port   *Port
	pods   *kubernetes.Clientset
	env    []string
	output *os.File
}

// newRig starts the back end. The processes find the API server with the kubeconfig of the
// node, and the test with that of a user.
func newRig(t *testing.T, port *Port, side, node, user string) *rig {
	config, err := clientcmd.BuildConfigFromFlags("", user)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	dir := t.TempDir()
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(port.Cloud)
	t.Cleanup(func() {
		backend.Close()
		_ = output.Close()
		if printed, _ := os.ReadFile(output.Name()); t.Failed() {
			t.Logf("the processes printed:\n%s", printed[max(0, len(printed)-50_000):])
		}
	})
	r := &rig{T: t, port: port, pods: kubernetes.NewForConfigOrDie(config), output: output}
	r.env = append(os.Environ(), sideVariable+"="+side, kubeconfigVariable+"="+node, lockDirVariable+"="+dir, timeoutVariable+"="+port.DeleteTimeout.String())
	for name, value := range port.Env(backend.URL) {
		r.env = append(r.env, name+"="+value)
	}
	return r
}

// begin starts a process. The returned function kills it with SIGKILL.
func (r *rig) begin() (kill func()) {
	r.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, r.output, r.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	killed := false
	kill = func() {
		r.Helper()
		if killed {
			return
		}
		killed = true
		_ = cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			r.Errorf("the process ended before it was killed: %v", err)
		}
	}
	r.Cleanup(kill)
	return kill
}

func (r *rig) create(names ...string) {
	r.Helper()
	for _, name := range names {
		if _, err := r.pods.CoreV1().Pods("default").Create(r.Context(), newPod(name), metav1.CreateOptions{}); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) delete(name string, opts metav1.DeleteOptions) {
	r.Helper()
	if err := r.pods.CoreV1().Pods("default").Delete(r.Context(), name, opts); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) list(ctx context.Context) []*corev1.Pod {
	list, err := r.pods.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

// await waits until the back end and the API are as want says.
func (r *rig) await(stage, want string) {
	r.Helper()
	begun := time.Now()
	var got string
	err := wait.PollUntilContextTimeout(r.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if pods := phases(r.list(ctx)); ctx.Err() == nil {
			got = r.port.Cloud.state() + pods
		}
		return matches(got, want), nil
	})
	if err != nil {
		r.Fatalf("%s: got\n%s\nwant\n%s\nstarts: %v", stage, got, want, r.port.Cloud.starts)
	}
	r.Logf("%s, after %v: %s", stage, time.Since(begun).Round(time.Millisecond), got)
}

// awaitChange waits until an instance has changed.
func (r *rig) awaitChange(changed <-chan struct{}) {
	r.Helper()
	select {
	case <-changed:
	case <-time.After(patience):
		r.Fatalf("the back end was not called; there is %s%s", r.port.Cloud.state(), phases(r.list(r.Context())))
	}
}

// Stages is what there is after each stage of Killed.
type Stages struct{ Created, Started, Stopped, Deleted string }

// AliveKilled is what kubewright makes of a provider that finds its instances by the names of
// their pods.
var AliveKilled = Stages{
	Created: "3 instances, at most 1 for a pod; ended Running, gone Running, web Running",
	Started: "4 instances, at most 1 for a pod; ended Succeeded, half Running, new Running, web Running",
	Stopped: "3 instances, at most 1 for a pod; ended Succeeded, half Running, new Running",
	Deleted: "0 instances, at most 1 for a pod; ",
}

// Killed runs a node in processes that are killed with SIGKILL: before the answer to a start,
// and before the answer to a stop. While no process runs, a pod is deleted, one ends and one
// is created. The node of kubewright runs on a real control plane too, if there is one.
func Killed(t *testing.T, newPort func() *Port, want map[string]Stages) {
	for _, side := range []string{Kubewright, VirtualKubelet} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(apitest.New(apitest.Options{}).Handler(apitest.User{}))
			t.Cleanup(server.Close)
			config := clientcmdapi.NewConfig()
			config.Clusters["memory"] = &clientcmdapi.Cluster{Server: server.URL}
			config.Contexts["memory"] = &clientcmdapi.Context{Cluster: "memory"}
			config.CurrentContext = "memory"
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := clientcmd.WriteToFile(*config, path); err != nil {
				t.Fatal(err)
			}
			newRig(t, newPort(), side, path, path).killed(want[side])
		})
	}
	t.Run(Kubewright+" on a real control plane", func(t *testing.T) {
		if !harness.Enabled() {
			t.Skip("needs a real control plane: KUBEWRIGHT_E2E=1")
		}
		t.Parallel()
		cluster := harness.Start(t, harness.Options{})
		for _, file := range []string{"serviceaccount", "lease", "nodestatus", "podsync", "podenv", "nodeapi"} {
			cluster.Kubectl(t, "apply", "-f", "../../../examples/rbac/"+file+".yaml")
		}
		cluster.Kubectl(t, "wait", "--for=create", "--timeout=90s", "serviceaccount/default")
		node := cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node")
		newRig(t, newPort(), Kubewright, node, cluster.AdminKubeconfig()).killed(want[Kubewright])
	})
}

func (r *rig) killed(want Stages) {
	kill := r.begin()
	r.create("web", "ended", "gone")
	r.await("created", want.Created)

	changed, release := r.port.Cloud.holdAnswers()
	r.create("half")
	r.awaitChange(changed)
	kill()
	release()
	r.delete("gone", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	r.port.Exit("ended")
	r.create("new")
	kill = r.begin()
	r.await("killed before the answer to a start", want.Started)

	changed, release = r.port.Cloud.holdAnswers()
	r.delete("web", metav1.DeleteOptions{})
	r.awaitChange(changed)
	kill()
	release()
	kill = r.begin()
	r.await("killed before the answer to a stop", want.Stopped)

	for _, pod := range r.list(r.Context()) {
		if pod.DeletionTimestamp == nil {
			r.delete(pod.Name, metav1.DeleteOptions{})
		}
	}
	r.await("deleted", want.Deleted)
	kill()
}
