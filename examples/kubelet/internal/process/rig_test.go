// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func TestMain(m *testing.M) {
	shim.Main()
	if os.Getenv(titled) != "" {
		err := setTitle()
		fmt.Println(err)
		if err == nil {
			select {}
		}
		os.Exit(1)
	}
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// patience bounds every wait. A test that needs it has failed.
const patience = time.Minute

// rig is a Provider that is watched, with an API server for what pods refer to.
type rig struct {
	*testing.T
	api     *apitest.Server
	root    string
	backoff podruntime.Backoff
	*node
	stop func() // ends the watch

	mu     sync.Mutex
	change chan struct{} // closed at the next report
}

func newRig(t *testing.T) *rig {
	return newRigWith(t, podruntime.Backoff{Initial: 10 * time.Millisecond, Max: 20 * time.Millisecond})
}

func newRigWith(t *testing.T, backoff podruntime.Backoff) *rig {
	r := &rig{T: t, api: apitest.New(apitest.Options{}), root: t.TempDir(), backoff: backoff, change: make(chan struct{})}
	r.open()
	t.Cleanup(func() {
		r.stopAll()
		r.close()
		left, err := shim.Processes(r.root)
		if err != nil || len(left) > 0 {
			t.Errorf("processes left behind: %v, %v", left, err)
		}
	})
	return r
}

// A node is a Provider that runs, with its Runtime.
type node struct {
	*podruntime.Provider
	cfg     podruntime.Config
	runtime *Runtime
	lock    *Root
	cancel  context.CancelFunc
	ran     sync.WaitGroup
	closed  bool // another one has its pods
}

// openNode begins with the content of the directory, as a new kubelet does.
func openNode(t testing.TB, api *apitest.Server, path string, backoff podruntime.Backoff) *node {
	lock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	core := api.Client(apitest.User{}).CoreV1()
	env, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core, Services: core, ServiceAccounts: core, ReadFile: podruntime.ReadFile(lock.Path())})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{lock: lock}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if n.runtime, err = New(ctx, Config{Root: lock}); err != nil {
		t.Fatal(err)
	}
	n.cfg = podruntime.Config{Runtime: n.runtime, Root: lock.Path(), Environment: env, HostIPs: []string{"127.0.0.1"}, Backoff: backoff}
	if n.Provider, err = podruntime.New(n.cfg); err != nil {
		t.Fatal(err)
	}
	n.ran.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if _, err := n.List(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

// Close ends the process, and not its pods.
func (n *node) Close(t testing.TB) {
	n.cancel()
	n.ran.Wait()
	n.runtime.Close()
	if err := n.lock.Close(); err != nil {
		t.Error(err)
	}
}

func (r *rig) open() {
	r.Helper()
	n := openNode(r, r.api, r.root, r.backoff)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Watch(ctx, r.note); err != nil {
			r.Errorf("Watch: %v", err)
		}
	})
	r.node, r.stop = n, func() { cancel(); wg.Wait() }
}

func (r *rig) close() {
	r.stop()
	r.node.Close(r)
}

// restart is a kubelet that dies and is started again.
func (r *rig) restart() {
	r.close()
	r.open()
}

func (r *rig) note(podsync.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.change)
	r.change = make(chan struct{})
}

// stopAll ends all pods at once.
func (r *rig) stopAll() {
	states, err := r.List(context.Background())
	if err != nil {
		r.Error(err)
	}
	for _, s := range states {
		if _, err := r.Stop(context.Background(), s.Ref, podsync.StopOptions{Grace: time.Nanosecond}); err != nil {
			r.Error(err)
		}
		r.await(s.Ref, "its end", func(s podsync.State) bool { return s.Stopped })
	}
}

// begin starts a pod.
func (r *rig) begin(pod *corev1.Pod) podsync.Ref {
	r.Helper()
	if _, err := r.Start(r.Context(), pod); err != nil {
		r.Fatal(err)
	}
	return podsync.RefOf(pod)
}

// await waits until the state of a pod satisfies the condition.
func (r *rig) await(ref podsync.Ref, what string, condition func(podsync.State) bool) podsync.State {
	r.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		change := r.change
		r.mu.Unlock()
		s, err := r.Inspect(context.Background(), ref)
		if err != nil {
			r.Fatal(err)
		}
		if condition(s) {
			return s
		}
		select {
		case <-change:
		case <-timeout:
			r.Fatalf("waited %v for %s; the pod has %+v", patience, what, s.Status)
		}
	}
}

// eventually waits until a condition holds that no State shows.
func (r *rig) eventually(what string, condition func() bool) {
	r.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !condition(); {
		select {
		case <-tick.C:
		case <-timeout:
			r.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func stopped(s podsync.State) bool { return s.Stopped }

func allRunning(s podsync.State) bool {
	for _, c := range s.Status.ContainerStatuses {
		if c.State.Running == nil || !c.Ready {
			return false
		}
	}
	return true
}

// container runs a shell script. It can append to the file $OUT, which all
// containers of the rig share.
func (r *rig) container(name, script string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "none", Command: []string{"sh", "-c", script},
		Env: []corev1.EnvVar{{Name: "OUT", Value: filepath.Join(r.root, "out")}},
	}
}

// output returns the output of containers.
func (r *rig) output() []string {
	data, err := os.ReadFile(filepath.Join(r.root, "out"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

var serial int

func newPod(policy corev1.RestartPolicy, containers ...corev1.Container) *corev1.Pod {
	serial++
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", serial), UID: types.UID(fmt.Sprint("uid-", serial)), Generation: 1},
		Spec:       corev1.PodSpec{RestartPolicy: policy, Containers: containers},
	}
}

// titled is a variable that makes a program of this test binary, which sets its title.
const titled = "KUBEWRIGHT_TEST_TITLED"

// setTitle writes over the environment of this process, where programs such as nginx
// put their title.
func setTitle() error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	begin, err := strconv.ParseInt(fields[47], 10, 64) // env_start
	if err != nil {
		return err
	}
	end, err := strconv.ParseInt(fields[48], 10, 64) // env_end
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }()
	if _, err := memory.WriteAt(bytes.Repeat([]byte("t"), int(end-begin)), begin); err != nil {
		return err
	}
	if environ, err := os.ReadFile("/proc/self/environ"); err != nil || bytes.Contains(environ, []byte(shim.Variable)) {
		return fmt.Errorf("the environment is still there: %w", err)
	}
	return nil
}

// forever is a script that reports that it runs, and ends when it is asked to.
const forever = `echo $KUBEWRIGHT_RUN >> $OUT; exec sleep 1000`

func exitOf(c corev1.ContainerStatus) *corev1.ContainerStateTerminated { return c.State.Terminated }

// listen accepts connections on loopback and returns the port.
func listen(t *testing.T) int32 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return int32(l.Addr().(*net.TCPAddr).Port)
}
