// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
)

// kubectl runs kubectl, which may fail, and returns its output and exit status.
func (r *kubeletRig) kubectl(stdin io.Reader, args ...string) (stdout, stderr string, status int) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	cmd := r.command(ctx, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &complaint
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) && ctx.Err() == nil {
		status = exit.ExitCode()
	} else if err != nil {
		r.Fatalf("kubectl %q: %v\n%s", args, err, &complaint)
	}
	return out.String(), complaint.String(), status
}

// command returns a kubectl with the rig's transport.
func (r *kubeletRig) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := r.cluster.KubectlCommand(ctx, append([]string{"-n", r.namespace}, args...)...)
	webSockets := fmt.Sprint(!r.spdy)
	cmd.Env = append(cmd.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+webSockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+webSockets)
	return cmd
}

// overBoth runs a test with kubectl's WebSockets, which is the default, and with SPDY. It
// needs the pod quiet.
func (r *kubeletRig) overBoth(t *testing.T, name string, f func(*testing.T)) {
	for _, spdy := range []bool{false, true} {
		transport := "WebSocket"
		if spdy {
			transport = "SPDY"
		}
		t.Run(name+", "+transport, func(t *testing.T) {
			r.spdy = spdy
			defer func() { r.spdy = false }()
			before := r.passedOn()
			_, log, _ := r.kubectl(nil, "exec", "-v=4", "quiet", "--", "true")
			if negotiated := strings.Contains(log, `"Subprotocol negotiated" protocol="v5.channel.k8s.io"`); negotiated == spdy || r.passedOn() == before {
				t.Errorf("negotiated %v, passed on by the API server %v: %s", negotiated, r.passedOn() > before, log)
			}
			f(t)
		})
	}
}

// passedOn returns the number of requests that the API server has passed on to nodes that
// declare nodeapi.FeatureWebSockets. It does not translate them to SPDY.
func (r *kubeletRig) passedOn() (n float64) {
	r.Helper()
	data, err := r.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "apiserver_websocket_streaming_requests_total{") && strings.Contains(line, "proxied_to_kubelet") {
			var value float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &value); err != nil {
				r.Fatal(line, err)
			}
			n += value
		}
	}
	return n
}

// create creates a pod with one container and waits until it is running or has
// ended.
func (r *kubeletRig) create(name string, policy corev1.RestartPolicy, script string, ready func(*corev1.Pod) bool) {
	r.Helper()
	template := r.template(name, policy, script)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template.Spec}
	if policy == corev1.RestartPolicyAlways {
		pod.Labels = map[string]string{"restarts": "expected"}
	}
	if _, err := r.client.CoreV1().Pods(r.namespace).Create(r.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.await("pod "+name, func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			if p.Name == name && ready(p) {
				return true
			}
		}
		return false
	})
}

// awaitLog waits until the log of a pod ends with a text.
func (r *kubeletRig) awaitLog(pod, end string) {
	r.Helper()
	err := wait.PollUntilContextTimeout(r.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		out, _, _ := r.kubectl(nil, "logs", pod)
		return strings.HasSuffix(out, end), nil
	})
	if err != nil {
		r.Fatalf("the log of pod %s: %v", pod, err)
	}
}

func podRuns(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

func TestKubectlOnTheExampleKubelet(t *testing.T) {
	busy(t)
	r := newKubeletRig(t, shared.Cluster(t), "kubectl-node")
	r.create("web", corev1.RestartPolicyNever, "for i in 1 2 3 4 5; do echo line $i; done; while :; do echo tick; sleep 0.2; done", podRuns)
	r.create("crash", corev1.RestartPolicyAlways, "echo run $POD; exit 4", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	r.create("quiet", corev1.RestartPolicyNever, "echo line 1; echo line 2; sleep 1000", podRuns)

	// A container runs before its shell has written anything.
	r.awaitLog("quiet", "line 2\n")

	t.Run("logs", func(t *testing.T) {
		// The time of each line, which the flags below take.
		stamped, complaint, status := r.kubectl(nil, "logs", "quiet", "--timestamps")
		var times []time.Time
		for line := range strings.Lines(stamped) {
			at, _, _ := strings.Cut(line, " ")
			parsed, err := time.Parse(time.RFC3339Nano, at)
			if err != nil || len(times) > 0 && parsed.Before(times[0]) || time.Since(parsed) > patience {
				t.Errorf("--timestamps: %q, %v", line, err)
			}
			times = append(times, parsed)
		}
		if len(times) != 2 || status != 0 {
			t.Fatalf("--timestamps: %d %q %q", status, stamped, complaint)
		}
		second := times[0].Truncate(time.Second) // kubectl has no smaller unit
		for args, want := range map[string]string{
			"logs quiet --since-time=" + second.Format(time.RFC3339):                                          "line 1\nline 2\n",
			"logs quiet --since-time=" + times[1].Truncate(time.Second).Add(time.Second).Format(time.RFC3339): "",
			"logs quiet --since=1h":                             "line 1\nline 2\n",
			"logs quiet --since=1h --tail=1":                    "line 2\n",
			"logs quiet --timestamps --tail=1 --limit-bytes=20": times[1].Format("2006-01-02T15:04:05."),

			"logs quiet":                 "line 1\nline 2\n",
			"logs quiet --tail=1":        "line 2\n",
			"logs quiet --tail=0":        "",
			"logs quiet --limit-bytes=4": "line",
		} {
			if out, complaint, status := r.kubectl(nil, strings.Fields(args)...); out != want || status != 0 {
				t.Errorf("%s: %d %q %q", args, status, out, complaint)
			}
		}
		if out, complaint, status := r.kubectl(nil, "logs", "crash", "--previous"); !strings.HasPrefix(out, "run ") || status != 0 {
			t.Errorf("--previous: %d %q %q", status, out, complaint)
		}
		if out, complaint, status := r.kubectl(nil, "logs", "crash", "--previous", "--timestamps"); !strings.Contains(out, "Z run ") || status != 0 {
			t.Errorf("--previous --timestamps: %d %q %q", status, out, complaint)
		}
		for args, sentence := range map[string]string{
			"logs quiet --previous": "previous terminated container c not found",
			"logs quiet --since=1s --since-time=" + second.Format(time.RFC3339): "at most one of",
			"logs quiet -c absent": "container absent is not valid for pod quiet",
		} {
			if _, complaint, status := r.kubectl(nil, strings.Fields(args)...); status != 1 || !strings.Contains(complaint, sentence) {
				t.Errorf("%s: %d %q", args, status, complaint)
			}
		}
	})
	t.Run("logs -f ends with its pod", func(t *testing.T) {
		r.create("ends", corev1.RestartPolicyNever, "for i in 1 2 3; do echo $i; sleep 0.5; done; echo last", func(p *corev1.Pod) bool { return podRuns(p) || terminal(p) })
		if out, complaint, status := r.kubectl(nil, "logs", "-f", "ends"); out != "1\n2\n3\nlast\n" || status != 0 {
			t.Errorf("%d %q %q", status, out, complaint)
		}
	})
	r.overBoth(t, "exec passes input, output and exit code", func(t *testing.T) {
		out, complaint, status := r.kubectl(strings.NewReader("input"), "exec", "-i", "quiet", "--", "sh", "-c", `echo "$HOSTNAME $(cat)"; echo complaint >&2; exit 3`)
		if out != "quiet input\n" || !strings.Contains(complaint, "complaint\n") || status != 3 {
			t.Errorf("%d %q %q", status, out, complaint)
		}
		if _, complaint, status := r.kubectl(nil, "exec", "quiet", "--", "sh", "-c", "kill -KILL $$"); status != 137 {
			t.Errorf("a command that a signal ends: %d %q", status, complaint)
		}
		if _, complaint, status := r.kubectl(nil, "exec", "quiet", "--", "no-such-program"); status == 0 || !strings.Contains(complaint, "no-such-program") {
			t.Errorf("%d %q", status, complaint)
		}
	})
	r.overBoth(t, "exec -it has a terminal that is resized", func(t *testing.T) {
		got, code := r.inTerminal(t, "exec", "-it", "quiet", "--", "sh", "-c", talk)
		if code != 5 || !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "got word") {
			t.Errorf("%d %q", code, got)
		}
	})
	t.Run("debug -it attaches to an ephemeral container", func(t *testing.T) {
		got, code := r.inTerminal(t, "debug", "-it", "quiet", "--image=none", "--container=debugger", "--", "sh", "-c", talk)
		if code != 0 || !strings.Contains(got, "got word") {
			t.Errorf("%d %q", code, got)
		}
		r.await("the end of the ephemeral container", func(pods []*corev1.Pod) bool {
			for _, p := range pods {
				for _, c := range p.Status.EphemeralContainerStatuses {
					if p.Name == "quiet" && c.Name == "debugger" && c.State.Terminated != nil {
						return c.State.Terminated.ExitCode == 5
					}
				}
			}
			return false
		})
		if out, complaint, status := r.kubectl(nil, "logs", "quiet", "-c", "debugger"); !strings.Contains(out, "got word\r\n") || status != 0 {
			t.Errorf("its log: %d %q %q", status, out, complaint)
		}
	})
	t.Run("attach -i passes input to a container once", func(t *testing.T) {
		template := r.template("reader", corev1.RestartPolicyNever, "cat; echo end of input; exec sleep 1000")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Spec: template.Spec}
		pod.Spec.Containers[0].Stdin, pod.Spec.Containers[0].StdinOnce = true, true
		if _, err := r.client.CoreV1().Pods(r.namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.await("pod reader", func(pods []*corev1.Pod) bool {
			for _, p := range pods {
				if p.Name == "reader" && podRuns(p) {
					return true
				}
			}
			return false
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := r.command(ctx, "attach", "-i", "reader")
		cmd.Stdin = strings.NewReader("some input\n")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for lines := bufio.NewScanner(out); len(got) < 2 && lines.Scan(); {
			got = append(got, lines.Text())
		}
		cancel()
		_ = cmd.Wait()
		if strings.Join(got, "|") != "some input|end of input" {
			t.Errorf("%q", got)
		}
		if _, complaint, status := r.kubectl(strings.NewReader("more"), "attach", "-i", "reader"); status == 0 || !strings.Contains(complaint, "the container has no input") {
			t.Errorf("a second time: %d %q", status, complaint)
		}
	})
	r.overBoth(t, "cp moves 100 MB both ways", r.copies)
	t.Run("attach shows what is printed", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := r.command(ctx, "attach", "web")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines, n := bufio.NewScanner(out), 0; n < 3 && lines.Scan(); n++ {
			if lines.Text() != "tick" {
				t.Errorf("%q", lines.Text())
			}
		}
		cancel()
		_ = cmd.Wait()
	})
	r.overBoth(t, "port-forward has 50 connections at once", r.forwards)
	t.Run("nothing without credentials", r.refusesStrangers)
}

// TestAKubectlThatIsInterruptedEndsItsCommand behind input that the command does not read:
// nothing that arrives shows that its client is gone.
func TestAKubectlThatIsInterruptedEndsItsCommand(t *testing.T) {
	quiet(t)
	r := newKubeletRig(t, shared.Cluster(t), "interrupted-node")
	r.create("quiet", corev1.RestartPolicyNever, "sleep 1000", podRuns)
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zeros.Close() }()
	r.overBoth(t, "exec -i", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := r.command(ctx, "exec", "-i", "quiet", "--", "sh", "-c", "echo $$; exec sleep 1000")
		cmd.Stdin = zeros
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		interrupted := time.Now()
		err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return errors.Is(err, os.ErrNotExist), nil
		})
		if took := time.Since(interrupted); err != nil || took > time.Minute {
			t.Errorf("the command ran on for %v: %v", took, err)
		} else {
			t.Logf("the command ended after %v", took.Round(time.Second))
		}
	})
}

// talk is a script that waits for the terminal's size, then for another one and a
// line of input, and ends.
const talk = "tty; until [ \"$(stty size)\" = '31 77' ]; do sleep 0.1; done; echo first; until [ \"$(stty size)\" = '40 99' ]; do sleep 0.1; done; read word; echo got $word; exit 5"

// inTerminal runs a kubectl in a terminal of its own, with a script like talk, and
// returns the output of the terminal and the exit status.
func (r *kubeletRig) inTerminal(t *testing.T, args ...string) (shown string, status int) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = master.Close() }()
	ioctl := func(request uintptr, arg unsafe.Pointer) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(arg)); errno != 0 {
			t.Fatal(errno)
		}
	}
	var unlock, number int32
	ioctl(syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	ioctl(syscall.TIOCGPTN, unsafe.Pointer(&number))
	resize := func(rows, columns uint16) {
		size := [4]uint16{rows, columns}
		ioctl(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	}
	resize(31, 77)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := r.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	var got strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := master.Read(buf)
		got.Write(buf[:n])
		if strings.Contains(string(buf[:n]), "first") {
			resize(40, 99)
			_, _ = io.WriteString(master, "word\n")
		}
		if err != nil {
			break // the terminal no longer has a process
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("kubectl %q: %v; the terminal showed %q", args, err, got.String())
	}
	return got.String(), cmd.ProcessState.ExitCode()
}

// copies copies a file into a pod and back.
func (r *kubeletRig) copies(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 100<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	from, inside, back := filepath.Join(dir, "from"), filepath.Join(dir, "inside"), filepath.Join(dir, "back")
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"cp", from, "quiet:" + inside}, {"cp", "quiet:" + inside, back}} {
		if _, complaint, status := r.kubectl(nil, args...); status != 0 {
			t.Fatalf("kubectl %q: %s", args, complaint)
		}
	}
	got, err := os.ReadFile(back)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, or others than the %d that were sent: %v", len(got), len(data), err)
	}
}

// forwards forwards a port to a server that echoes.
func (r *kubeletRig) forwards(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the address of all pods
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := r.command(ctx, "port-forward", "--address=127.0.0.1", "quiet", fmt.Sprintf(":%d", listener.Addr().(*net.TCPAddr).Port))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	var port int
	if _, scanErr := fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d ->", &port); err != nil || scanErr != nil {
		t.Fatalf("%q: %v %v", line, err, scanErr)
	}
	payload := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(patience))
			go func() {
				_, _ = conn.Write(payload)
			}()
			got := make([]byte, len(payload))
			if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("connection %d: %d bytes, %v", i, n, err)
			}
		})
	}
	wg.Wait()
}

// refusesStrangers sends requests directly to the node.
func (r *kubeletRig) refusesStrangers(t *testing.T) {
	node, err := r.client.CoreV1().Nodes().Get(t.Context(), r.node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("https://127.0.0.1:%d", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	reader, err := clientcmd.BuildConfigFromFlags("", r.cluster.ServiceAccountKubeconfig(t, r.namespace, "reader"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: r.node + "-reader"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes/proxy", "nodes/metrics"}, ResourceNames: []string{r.node}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.node + "-reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.node + "-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: r.namespace, Name: "reader"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server learns of them by a watch, and the node remembers a refusal.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for allowed := false; !allowed; {
		review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + r.namespace + ":reader",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy", Name: r.node},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		allowed = review.Status.Allowed
	}
	nobody, err := clientcmd.BuildConfigFromFlags("", r.cluster.ServiceAccountKubeconfig(t, r.namespace, "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	logs, command := "/containerLogs/"+r.namespace+"/quiet/c", "/exec/"+r.namespace+"/quiet/c?command=id&output=1"
	for _, c := range []struct {
		name, token, path string
		want              int
	}{
		{"no credentials", "", logs, 401},
		{"no credentials", "", command, 401},
		{"an unknown token", "x.y.z", logs, 401},
		{"a token without rights", nobody.BearerToken, logs, 403},
		{"a token without rights", nobody.BearerToken, "/stats/summary", 403},
		{"get nodes/proxy and nodes/metrics", reader.BearerToken, logs, 200},
		{"get nodes/proxy and nodes/metrics", reader.BearerToken, "/metrics/resource", 200},
		{"get nodes/proxy and nodes/metrics", reader.BearerToken, "/metrics", 200},
		{"get nodes/proxy and nodes/metrics", reader.BearerToken, command, 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("GET %s with %s: %d %q, want %d", c.path, c.name, resp.StatusCode, body, c.want)
		}
		if c.path == "/metrics" && !strings.Contains(string(body), `kubewright_healthy{controller="podsync"} 1`) {
			t.Errorf("%s: %s", c.path, body)
		}
		if c.path == "/metrics/resource" && !strings.Contains(string(body), `container_memory_working_set_bytes{container="c",namespace="`+r.namespace+`",pod="quiet"} `) {
			t.Errorf("the metrics have no pod:\n%s", body)
		}
	}
}
