// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/test/conformance/rig"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A measurement is one burst of pods on one kubelet.
type measurement struct {
	kubelet          string
	pods             int
	ready            time.Duration   // from the start of the process until the Node is ready; 0: it has no Node
	running, gone    []time.Duration // of each pod, from the beginning of the burst, sorted
	cpu              time.Duration   // for all pods, from bound to gone
	empty, full      memory
	requestsByObject map[string]int // of the node's user, from bound to gone
}

// requests returns the requests per pod.
func (m *measurement) requests() float64 {
	n := 0
	for _, of := range m.requestsByObject {
		n += of
	}
	return float64(n) / float64(m.pods)
}

// The contenders. The bare clients start as many pods at once as the kubelet, which has no limit,
// and as crikubelet by default.
const (
	theirs     = "kubelet"
	ours       = "crikubelet"
	bareAll    = "bare client, all at once"
	bareAsOurs = "bare client, 32 at once"
)

// TestCompare prints tables, and draws a picture if KUBEWRIGHT_BENCH_OUT names a directory.
// KUBEWRIGHT_BENCH_PODS has the numbers of pods, separated by commas.
func TestCompare(t *testing.T) {
	if os.Getenv("KUBEWRIGHT_BENCH_KUBELET") != "1" {
		t.Skip(`takes minutes and needs root: run "make bench-kubelet"`)
	}
	if missing := rig.Missing(); missing != "" {
		t.Skip(missing)
	}
	sizes, err := sizes(os.Getenv("KUBEWRIGHT_BENCH_PODS"))
	if err != nil {
		t.Fatal(err)
	}
	binaries := rig.Build(t)
	programs := map[string]string{theirs: rig.BuildKubelet(t), ours: rig.BuildCrikubelet(t), bareAll: buildBare(t)}
	var all []measurement
	for _, pods := range sizes {
		for _, name := range []string{bareAll, bareAsOurs} {
			t.Run(fmt.Sprintf("%s/%d", name, pods), func(t *testing.T) {
				m := measurement{kubelet: name, pods: pods}
				atOnce := 0
				if name == bareAsOurs {
					atOnce = podruntime.DefaultMaxStarts
				}
				m.bare(t, programs[bareAll], rig.StartRuntime(t, binaries), atOnce)
				all = append(all, m)
			})
		}
		for _, name := range []string{theirs, ours} {
			t.Run(fmt.Sprintf("%s/%d", name, pods), func(t *testing.T) {
				r := rig.StartRuntime(t, binaries)
				c := harness.Start(t, harness.Options{Audit: true})
				cfg := c.AdminConfig()
				cfg.ContentType = runtime.ContentTypeProtobuf
				client, err := kubernetes.NewForConfig(cfg)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				var k *rig.Kubelet
				if name == theirs {
					k = rig.RealKubelet(t, programs[name], c, r, "worker", freePort(t))
				} else {
					k = rig.Crikubelet(t, programs[name], c, r, "worker")
				}
				k.AwaitReady(t, client)
				m := measurement{kubelet: name, pods: pods, ready: time.Since(begin)}
				m.burst(t, c, client, k)
				all = append(all, m)
			})
		}
	}
	t.Log("\n" + table(all) + "\n" + requestTable(all))
	if dir := os.Getenv("KUBEWRIGHT_BENCH_OUT"); dir != "" && !t.Failed() {
		if err := drawPicture(all, filepath.Join(dir, "kubelet.svg")); err != nil {
			t.Fatal(err)
		}
	}
}

// sizes returns the numbers of pods to measure.
func sizes(list string) (all []int, err error) {
	if list == "" {
		return []int{50, 100, 250}, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > rig.MaxPods {
			return nil, fmt.Errorf("%q is no number of pods from 1 to %d", word, rig.MaxPods)
		}
		all = append(all, n)
	}
	return all, nil
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// settle is the time in which a kubelet finishes its work after its start.
const settle = 5 * time.Second

// burst binds pods at once, waits until they run, and deletes them.
func (m *measurement) burst(t *testing.T, c *harness.Cluster, client kubernetes.Interface, k *rig.Kubelet) {
	t.Helper()
	limited, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	ctx, fail := context.WithCancelCause(limited)
	defer fail(nil)
	awaitServiceAccount(ctx, t, client)
	time.Sleep(settle)
	m.empty = resident(t, k.PID())
	cpu := cpuTime(t, k.PID())
	before := len(c.AuditEvents(t))

	list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server ends a watch that does not keep up with so many changes.
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods("default").Watch(ctx, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	begin := time.Now()
	for i := range m.pods {
		go func() {
			if _, err := client.CoreV1().Pods("default").Create(ctx, pausePod(i), metav1.CreateOptions{}); err != nil {
				fail(err)
			}
		}()
	}
	m.running = follow(ctx, t, w, m.pods, begin, func(e watch.Event) bool {
		return e.Object.(*corev1.Pod).Status.Phase == corev1.PodRunning
	})
	m.full = resident(t, k.PID())
	begin = time.Now()
	go func() {
		if err := client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			fail(err)
		}
	}()
	m.gone = follow(ctx, t, w, m.pods, begin, func(e watch.Event) bool { return e.Type == watch.Deleted })
	m.cpu = cpuTime(t, k.PID()) - cpu
	m.requestsByObject = map[string]int{}
	for _, e := range c.AuditEvents(t)[before:] {
		if e.User == "system:node:worker" {
			name := e.Verb + " " + e.Resource
			if e.Subresource != "" {
				name += "/" + e.Subresource
			}
			m.requestsByObject[name]++
		}
	}
}

func awaitServiceAccount(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	for {
		_, account := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		_, ca := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if account == nil && ca == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(account, ca)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// follow returns the times at which the condition holds for each pod, sorted.
func follow(ctx context.Context, t *testing.T, w watch.Interface, pods int, begin time.Time, condition func(watch.Event) bool) (times []time.Duration) {
	t.Helper()
	seen := map[string]bool{}
	for len(seen) < pods {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch has ended")
			}
			pod, ok := e.Object.(*corev1.Pod)
			if ok && !seen[pod.Name] && condition(e) {
				seen[pod.Name] = true
				times = append(times, time.Since(begin))
			}
		case <-ctx.Done():
			t.Fatalf("%d of %d pods: %v", len(seen), pods, context.Cause(ctx))
		}
	}
	return times
}

func pausePod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pause-" + strconv.Itoa(i)},
		Spec: corev1.PodSpec{
			NodeName: "worker", TerminationGracePeriodSeconds: new(int64(5)),
			Containers: []corev1.Container{{Name: "pause", Image: rig.PauseImage}},
		},
	}
}

// memory is the resident memory of a process in KiB.
type memory struct {
	all int
	own int // without the program's file, which the kernel can drop and read again
}

func resident(t *testing.T, pid int) memory {
	t.Helper()
	status, err := process(t, pid).NewStatus()
	if err != nil || status.VmRSS == 0 || status.RssAnon == 0 {
		t.Fatalf("no memory in %+v: %v", status, err)
	}
	return memory{all: int(status.VmRSS >> 10), own: int(status.RssAnon >> 10)}
}

// cpuTime returns the CPU time of a process.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := process(t, pid).Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

func process(t *testing.T, pid int) procfs.Proc {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// at returns a percentile of sorted times.
func at(times []time.Duration, percent int) time.Duration {
	return times[(len(times)-1)*percent/100].Round(10 * time.Millisecond)
}

// table returns the measurements as Markdown.
func table(all []measurement) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| pods | | all Running | p50 | p99 | all gone | requests per pod | CPU | memory without pods | with pods | of that its own | start to Ready |")
	fmt.Fprintln(&b, "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, m := range all {
		requests, ready := "–", "–"
		if m.ready != 0 {
			requests, ready = fmt.Sprintf("%.1f", m.requests()), m.ready.Round(10*time.Millisecond).String()
		}
		fmt.Fprintf(&b, "| %d | %s | %v | %v | %v | %v | %s | %v | %d MiB | %d MiB | %d MiB | %s |\n", m.pods, m.kubelet,
			at(m.running, 100), at(m.running, 50), at(m.running, 99), at(m.gone, 100), requests, m.cpu, m.empty.all>>10, m.full.all>>10, m.full.own>>10, ready)
	}
	return b.String()
}

// requestTable returns the requests per pod by verb and resource as Markdown, the most frequent
// ones first. A column is a measurement.
func requestTable(all []measurement) string {
	all = slices.DeleteFunc(slices.Clone(all), func(m measurement) bool { return m.ready == 0 })
	total := map[string]float64{}
	head, rule := "| request |", "|---|"
	for _, m := range all {
		head, rule = head+fmt.Sprintf(" %s, %d |", m.kubelet, m.pods), rule+"--:|"
		for name, n := range m.requestsByObject {
			total[name] += float64(n) / float64(m.pods)
		}
	}
	var b strings.Builder
	fmt.Fprintln(&b, head+"\n"+rule)
	names := slices.SortedFunc(maps.Keys(total), func(x, y string) int {
		return cmp.Or(cmp.Compare(total[y], total[x]), cmp.Compare(x, y))
	})
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, m := range all {
			fmt.Fprintf(&b, " %.2f |", float64(m.requestsByObject[name])/float64(m.pods))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// The arithmetic needs no containers.
func TestPercentiles(t *testing.T) {
	var times []time.Duration
	for i := range 101 {
		times = append(times, time.Duration(i)*time.Second)
	}
	if !slices.IsSorted(times) || at(times, 0) != 0 || at(times, 50) != 50*time.Second || at(times, 99) != 99*time.Second || at(times, 100) != 100*time.Second {
		t.Errorf("%v %v %v", at(times, 50), at(times, 99), at(times, 100))
	}
}
