// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/internal/mounts"
)

// packages are those of Debian that a Runtime needs.
const packages = "containerd runc containernetworking-plugins busybox-static bash-static curl netcat-openbsd iptables"

// Missing returns a sentence that names the missing prerequisites, or nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "containers need root: run it as root"
	}
	for _, program := range []string{"containerd", "ctr", "runc", "busybox", "bash-static", "curl", "nc"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is missing: apt-get install " + packages
		}
	}
	if _, err := os.Stat(filepath.Join(cniPlugins, "bridge")); err != nil {
		return "the CNI plugins are missing in " + cniPlugins + ": apt-get install " + packages
	}
	if err := permitted(); err != nil {
		return "this machine does not permit containers: " + err.Error()
	}
	return ""
}

// permitted tries what containers need and root may not have in a container: overlay
// mounts, cgroups and network devices.
func permitted() (err error) {
	dir, err := os.MkdirTemp("", "kubewright-probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(in(name), 0o755); err != nil {
			return err
		}
	}
	options := "lowerdir=" + in("lower") + ",upperdir=" + in("upper") + ",workdir=" + in("work")
	if err := syscall.Mount("overlay", in("merged"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay: %w", err)
	}
	defer func() { err = errors.Join(err, syscall.Unmount(in("merged"), syscall.MNT_DETACH)) }()
	group := "/" + filepath.Base(dir)
	if err := errors.Join(cgroups.Kernel.Set(group, cgroups.Limits{Shares: 2}, false), cgroups.Kernel.Remove(context.Background(), group)); err != nil {
		return err
	}
	bridge := "kwprobe" + strconv.Itoa(os.Getpid()%1e6)
	for _, verb := range []string{"add", "del"} {
		if out, err := exec.Command("busybox", "ip", "link", verb, "name", bridge, "type", "bridge").CombinedOutput(); err != nil {
			return fmt.Errorf("%s a bridge: %w: %s", verb, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// cniPlugins is the directory in which Debian installs the CNI plugins.
const cniPlugins = "/usr/lib/cni"

// A Runtime is a containerd with a directory, a socket and a bridge of its own.
type Runtime struct {
	Dir    string
	bridge string
	cmd    *exec.Cmd
	exited chan struct{}
}

// StartRuntime starts a containerd with the images, on a machine of which nothing is
// Missing.
func StartRuntime(t testing.TB, b Binaries) *Runtime {
	t.Helper()
	if err := sweep(t); err != nil {
		t.Logf("what a test that was killed has left: %v", err)
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{Dir: dir, bridge: "kw" + strconv.Itoa(os.Getpid()%1e6)}
	if _, err := r.lock(t); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.remove(); err != nil {
			t.Errorf("the container runtime left something: %v", err)
		}
	})
	if err := r.configure(b.Containerd); err != nil {
		t.Fatal(err)
	}
	r.Start(t)
	if err := r.importImages(b); err != nil {
		t.Fatal(err)
	}
	return r
}

// prefix begins the names of the directories.
const prefix = "kubewright-containerd-"

// lock takes the lock of the directory until the test ends. The kernel drops it with
// this process.
func (r *Runtime) lock(t testing.TB) (bool, error) {
	f, err := os.OpenFile(filepath.Join(r.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	t.Cleanup(func() { _ = f.Close() })
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// sweep removes the runtimes of tests that were killed. Their containers may still run.
func sweep(t testing.TB) error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	errs := []error{err}
	for _, dir := range dirs {
		r := &Runtime{Dir: dir}
		free, err := r.lock(t)
		if err != nil || !free {
			errs = append(errs, err)
			continue
		}
		if conf, err := os.ReadFile(filepath.Join(dir, "bridge")); err == nil {
			r.bridge = string(conf)
			r.Start(t)
		}
		errs = append(errs, r.remove())
	}
	return errors.Join(errs...)
}

func (r *Runtime) socket() string { return filepath.Join(r.Dir, "containerd.sock") }

// Endpoint is the endpoint of the CRI.
func (r *Runtime) Endpoint() string { return "unix://" + r.socket() }

// CgroupParent is a cgroup for containers, which is removed with the Runtime.
func (r *Runtime) CgroupParent() string { return "/" + filepath.Base(r.Dir) }

// CDI is the directory of CDI files.
func (r *Runtime) CDI() string { return filepath.Join(r.Dir, "cdi") }

// Plugins is the directory in which the plugins of crikubelet register.
func (r *Runtime) Plugins() string { return filepath.Join(r.Dir, "plugins") }

// Log is the path of containerd's log.
func (r *Runtime) Log() string { return filepath.Join(r.Dir, "containerd.log") }

// configure writes the configurations of containerd and of the network.
func (r *Runtime) configure(programs string) error {
	cni := filepath.Join(r.Dir, "cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return err
	}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  cdi_spec_dirs = ["%[1]s/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[3]s"
    conf_dir = "%[1]s/cni"
`, r.Dir, PauseImage, cniPlugins)
	// No address comes twice in a run: the host would send the first packet to the pod that had
	// it before, and a probe that may fail once, after a second, would fail.
	network := fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "%[1]s", "plugins": [
  {"type": "bridge", "bridge": "%[1]s", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%[2]s/ipam", "ranges": [[{"subnet": "10.213.%[3]d.0/21"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}`, r.bridge, r.Dir, os.Getpid()%32*8)
	return errors.Join(
		os.WriteFile(filepath.Join(r.Dir, "config.toml"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(r.Dir, "bridge"), []byte(r.bridge), 0o644),
		os.WriteFile(filepath.Join(r.Dir, "programs"), []byte(programs), 0o644),
		os.WriteFile(filepath.Join(cni, "10-bridge.conflist"), []byte(network), 0o644),
	)
}

// Start starts containerd and waits until it answers.
func (r *Runtime) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(r.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	programs, err := os.ReadFile(filepath.Join(r.Dir, "programs"))
	if err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command("containerd", "--config", filepath.Join(r.Dir, "config.toml"))
	if len(programs) > 0 {
		r.cmd.Path, r.cmd.Err = filepath.Join(string(programs), "containerd"), nil
		r.cmd.Env = append(os.Environ(), "PATH="+string(programs)+":"+os.Getenv("PATH")) // of its shims
	}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if r.exited, err = start(r.cmd); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, client, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for {
		// The socket is there before the CRI is.
		_, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("containerd does not answer: %v; its log is %s", err, r.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// start starts a process that is killed when this one ends, however that ends. The
// channel is closed when the process has ended.
func start(cmd *exec.Cmd) (chan struct{}, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	exited, started := make(chan struct{}), make(chan error)
	go func() {
		defer close(exited)
		// The signal comes when the thread ends that forked, so it must not.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return exited, <-started
}

// Kill kills containerd; the containers run on.
func (r *Runtime) Kill() {
	_ = r.cmd.Process.Kill()
	<-r.exited
}

// Shims returns the processes of the shims, or of those of one sandbox.
func (r *Runtime) Shims(sandbox ...string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := strings.Split(string(line), "\x00")
		if strings.Contains(args[0], "containerd-shim") && slices.Contains(args, r.socket()) && (len(sandbox) == 0 || slices.Contains(args, sandbox[0])) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// stopPatience is the time that containerd has to stop a container before its shim hangs.
const stopPatience = 20 * time.Second

// KillHangingShims kills the shims of a pod whose containers containerd can't stop, as an administrator must, and returns
// them: a start that containerd's death has cut in two may leave a shim that answers no one.
func (r *Runtime) KillHangingShims(ctx context.Context, client runtimeapi.RuntimeServiceClient, pod types.UID) (killed []int, err error) {
	label := map[string]string{"io.kubernetes.pod.uid": string(pod)}
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: label}})
	if err != nil {
		return nil, err
	}
	for _, c := range list.Containers {
		stop, cancel := context.WithTimeout(ctx, stopPatience)
		_, err := client.StopContainer(stop, &runtimeapi.StopContainerRequest{ContainerId: c.Id})
		cancel()
		if err == nil || !strings.Contains(status.Convert(err).Message(), "deadline exceeded") {
			continue
		}
		for _, pid := range r.Shims(c.PodSandboxId) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed = append(killed, pid)
			}
		}
	}
	return killed, nil
}

func (r *Runtime) connect() (*grpc.ClientConn, runtimeapi.RuntimeServiceClient, error) {
	conn, err := grpc.NewClient(r.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, nil, err
	}
	return conn, runtimeapi.NewRuntimeServiceClient(conn), nil
}

// Client returns a client of the CRI.
func (r *Runtime) Client(t testing.TB) runtimeapi.RuntimeServiceClient {
	t.Helper()
	conn, client, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client
}

// remove ends all containers and containerd, and deletes everything, even if containerd
// has forgotten it.
func (r *Runtime) remove() error {
	var errs []error
	if r.cmd != nil && r.cmd.Process != nil {
		errs = append(errs, r.stop())
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.exited:
		case <-time.After(20 * time.Second):
			r.Kill()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for pids := r.Shims(); len(pids) > 0 && ctx.Err() == nil; pids = r.Shims() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	errs = append(errs, cgroups.Kernel.Remove(ctx, r.CgroupParent()))
	if err := mounts.UnmountBelow(r.Dir); err != nil {
		errs = append(errs, err) // what may be mounted is not deleted
	} else {
		errs = append(errs, os.RemoveAll(r.Dir))
	}
	if _, err := os.Stat("/sys/class/net/" + r.bridge); err == nil && r.bridge != "" {
		if out, err := exec.Command("busybox", "ip", "link", "del", r.bridge).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("delete the bridge: %w: %s", err, out))
		}
	}
	return errors.Join(errs...)
}

// stop stops all sandboxes.
func (r *Runtime) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, client, err := r.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return stopSandboxes(ctx, client)
}

// stopSandboxes kills the containers of all sandboxes and removes their networks. What
// remains is in the directory. RemovePodSandbox would be refused while a container starts.
func stopSandboxes(ctx context.Context, client runtimeapi.RuntimeServiceClient) error {
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list.Items {
		_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id})
		// containerd finishes a removal that a kubelet requested before it was stopped.
		if status.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
