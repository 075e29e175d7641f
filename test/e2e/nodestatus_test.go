// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// statusConfig returns the Config of a node with its own credentials and, in
// the audit log, its own user agent nodestatus-NAME.
func statusConfig(t *testing.T, cluster *harness.Cluster, name string) nodestatus.Config {
	t.Helper()
	return nodestatus.Config{
		Client:          leaseClient(t, cluster.NodeConfig(t, name), "nodestatus-"+name).CoreV1(),
		NodeName:        name,
		NodeCredentials: true,
		Template: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"example.com/pool": "a"}},
			Spec:       corev1.NodeSpec{ProviderID: "example://" + name, Taints: []corev1.Taint{{Key: "example.com/virtual", Effect: corev1.TaintEffectNoSchedule}}},
		},
		Setters: []nodestatus.Setter{
			nodestatus.StandardLabels(),
			nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: "v1.37.0-kubewright"}),
			nodestatus.Capacity(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("110")}, nil),
			nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::1"}),
		},
		SyncInterval: time.Second,
		ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
	}
}

// statusRun is a running nodestatus controller.
type statusRun struct {
	*nodestatus.Controller
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// runStatus runs a controller until the test ends.
func runStatus(t *testing.T, cfg nodestatus.Config) *statusRun {
	t.Helper()
	c, err := nodestatus.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.EventHandler() // no watch: these tests count all requests, and some have an informer
	return runController(t, c)
}

// runController runs c until the test ends.
func runController(t *testing.T, c *nodestatus.Controller) *statusRun {
	run := &statusRun{Controller: c, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	run.cancel = cancel
	go func() {
		defer close(run.done)
		run.err = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-run.done
	})
	return run
}

// awaitEnd returns the error of Run.
func (r *statusRun) awaitEnd(t *testing.T) error {
	t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(30 * time.Second):
		t.Fatal("Run goes on")
		return nil
	}
}

func (r *statusRun) awaitReady(t *testing.T) {
	t.Helper()
	select {
	case <-r.Ready().Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the node was not registered")
	}
}

// watchNode gives a controller the informer that a kubelet has.
func watchNode(t *testing.T, cluster *harness.Cluster, c *nodestatus.Controller, name string) {
	t.Helper()
	client := leaseClient(t, cluster.NodeConfig(t, name), "kubewright-e2e-informer")
	informer := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, name)),
		&corev1.Node{}, cache.SharedIndexInformerOptions{})
	if _, err := informer.AddEventHandler(c.EventHandler()); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the cache of the Node is not synced")
	}
}

// deleteNode deletes a Node like an administrator.
func deleteNode(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hasTaint reports whether the node has a taint with the key.
func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}

// TestNodeStatus follows a node with its own credentials: it is registered with
// one POST, kept with one PATCH per report, becomes NotReady with a reason and
// Ready again, and is deleted. No other request is sent, and none is forbidden.
func TestNodeStatus(t *testing.T) {
	quiet(t)
	const name, report = "status-1", 3 * time.Second
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	var health atomic.Pointer[nodestatus.NotReadyError]
	var mu sync.Mutex
	written := make(map[nodestatus.Cause]int)
	cfg := statusConfig(t, cluster, name)
	cfg.ReportInterval = report
	cfg.HealthChecks = []nodestatus.HealthCheck{func(context.Context, string) error {
		if err := health.Load(); err != nil {
			return err
		}
		return nil
	}}
	cfg.ErrorHandler = func(_ context.Context, err error, msg string) {
		if health.Load() == nil {
			t.Errorf("%s: %v", msg, err)
		}
	}
	cfg.Hooks.Written = func(w nodestatus.Written) {
		mu.Lock()
		defer mu.Unlock()
		written[w.Cause]++
	}
	run := runStatus(t, cfg)
	run.awaitReady(t)
	watchNode(t, cluster, run.Controller, name)
	node := awaitNode(t, admin, name, "Ready without the taint of its creation", func(n *corev1.Node) bool {
		return isReady(n) && !hasTaint(n, corev1.TaintNodeNotReady)
	})
	if !hasTaint(node, "example.com/virtual") || node.Labels["kubernetes.io/hostname"] != name || node.Labels["example.com/pool"] != "a" || node.Spec.ProviderID != "example://"+name {
		t.Errorf("the Node lacks something of what it was registered with: %+v", node)
	}
	if len(node.Status.Conditions) != 4 || node.Status.Conditions[3].Type != corev1.NodeReady {
		t.Errorf("conditions are %v", node.Status.Conditions)
	}
	if len(node.Status.Addresses) != 2 || node.Status.NodeInfo.KubeletVersion == "" || node.Status.NodeInfo.KernelVersion == "" {
		t.Errorf("the status is %+v", node.Status)
	}

	// Reports of a status that does not change. Each may be half a SyncInterval early.
	reported := func() int {
		mu.Lock()
		defer mu.Unlock()
		return written[nodestatus.CauseReport]
	}
	began, before := time.Now(), reported()
	awaitNode(t, admin, name, "reported six times", func(*corev1.Node) bool { return reported() >= before+6 })
	if took := time.Since(began); took < 5*(report-cfg.SyncInterval) {
		t.Errorf("six reports took %v, want one in %v", took, report)
	}

	health.Store(&nodestatus.NotReadyError{Reason: "RuntimeDown", Message: "no answer on the socket"})
	run.Trigger(name)
	awaitNode(t, admin, name, "NotReady with its reason, and tainted", func(n *corev1.Node) bool {
		ready := condition(n, corev1.NodeReady)
		return ready.Status == corev1.ConditionFalse && ready.Reason == "RuntimeDown" && ready.Message == "no answer on the socket" && hasTaint(n, corev1.TaintNodeNotReady)
	})
	health.Store(nil)
	run.Trigger(name)
	awaitNode(t, admin, name, "Ready again", func(n *corev1.Node) bool {
		return isReady(n) && !hasTaint(n, corev1.TaintNodeNotReady) && hasTaint(n, "example.com/virtual")
	})

	deleteNode(t, admin, name)
	if err := run.awaitEnd(t); !errors.Is(err, nodestatus.ErrNodeDeleted) {
		t.Errorf("Run = %v, want ErrNodeDeleted", err)
	}

	calls := by(t, cluster, "nodestatus-"+name)
	writes := 0
	for _, n := range written {
		writes += n
	}
	var patches, conflicts int
	for i, call := range calls {
		switch {
		case i == 0 && call == fmt.Sprintf("create nodes/%s 201", name):
		case call == fmt.Sprintf("patch nodes/%s 200", name):
			patches++
		case call == fmt.Sprintf("patch nodes/%s 409", name) && i+1 < len(calls) && calls[i+1] == fmt.Sprintf("get nodes/%s 200", name):
			conflicts++ // with kube-controller-manager, which edits taints
		case call == fmt.Sprintf("get nodes/%s 200", name) && conflicts > 0:
		case i == len(calls)-1 && (call == fmt.Sprintf("get nodes/%s 404", name) || call == fmt.Sprintf("patch nodes/%s 404", name)):
		default:
			t.Errorf("request %d of %d is %q", i, len(calls), call)
		}
	}
	if patches != writes || conflicts > 2 {
		t.Errorf("%d patches and %d conflicts for %v", patches, conflicts, written)
	}
	t.Logf("%d requests, writes by cause: %v", len(calls), written)
}

// TestNodeStatusDeleted deletes Nodes under the policies that keep running.
func TestNodeStatusDeleted(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())

	t.Run("Reregister", func(t *testing.T) {
		const name = "status-reregister"
		cfg := statusConfig(t, cluster, name)
		cfg.OnDeleted = nodestatus.DeletedReregister
		run := runStatus(t, cfg)
		run.awaitReady(t)
		watchNode(t, cluster, run.Controller, name)
		for range 2 {
			uid := run.Node(name).UID
			deleteNode(t, admin, name)
			node := awaitNode(t, admin, name, "registered again", func(n *corev1.Node) bool { return n.UID != uid && isReady(n) })
			if !hasTaint(node, "example.com/virtual") {
				t.Errorf("taints are %v", node.Spec.Taints)
			}
			awaitOwner(t, run, name, node.UID)
		}
	})

	t.Run("Idle", func(t *testing.T) {
		const name = "status-idle"
		deleted := make(chan struct{})
		cfg := statusConfig(t, cluster, name)
		cfg.OnDeleted = nodestatus.DeletedIdle
		cfg.Hooks.Deleted = func(nodestatus.Deleted) { close(deleted) }
		run := runStatus(t, cfg)
		run.awaitReady(t)
		watchNode(t, cluster, run.Controller, name)
		deleteNode(t, admin, name)
		<-deleted
		if _, err := run.OwnerReference(t.Context(), name); !apierrors.IsNotFound(err) {
			t.Errorf("OwnerReference: %v", err)
		}
		before := len(by(t, cluster, "nodestatus-"+name))
		time.Sleep(5 * time.Second)
		if after := len(by(t, cluster, "nodestatus-"+name)); after != before {
			t.Errorf("%d requests for a node that is idle", after-before)
		}
		createReadyNode(t, admin, name)
		awaitNode(t, admin, name, "adopted", func(n *corev1.Node) bool { return condition(n, corev1.NodeReady).Reason == nodestatus.ReasonReady })
	})
}

// awaitOwner waits until the controller knows the object's UID.
func awaitOwner(t *testing.T, run *statusRun, name string, uid types.UID) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		if ref, err := run.OwnerReference(t.Context(), name); err == nil && ref.UID == uid {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("the owner of %s is not %s", name, uid)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestNodeStatusReplaced: another client deletes and re-creates a Node, and no
// informer reports it. The next write is refused because of its UID.
func TestNodeStatusReplaced(t *testing.T) {
	quiet(t)
	const name = "status-replaced"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	replaced := make(chan nodestatus.Replaced, 10)
	var conditions int
	var pool atomic.Value
	pool.Store("a")
	cfg := statusConfig(t, cluster, name)
	cfg.ReportInterval = time.Hour // the next write is the one that the test asks for
	cfg.Setters = append(cfg.Setters, func(_ context.Context, node *corev1.Node) error {
		node.Labels["example.com/pool"] = pool.Load().(string)
		return nil
	})
	cfg.Hooks.Replaced = func(r nodestatus.Replaced) {
		if node, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			conditions = len(node.Status.Conditions)
		}
		replaced <- r
	}
	run := runStatus(t, cfg)
	run.awaitReady(t)
	old := run.Node(name).UID
	deleteNode(t, admin, name)
	other, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"theirs": "x"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Theirs", Status: corev1.ConditionTrue, Reason: "X"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteNodeAfter(t, admin, name) })
	pool.Store("b")
	run.Trigger(name)
	select {
	case r := <-replaced:
		if r.OldUID != old || r.NewUID != other.UID || conditions != 1 {
			t.Errorf("replaced: %+v, with %d conditions before it was adopted; want %s by %s with 1", r, conditions, old, other.UID)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nobody noticed")
	}
	node := awaitNode(t, admin, name, "adopted", isReady)
	if node.UID != other.UID || node.Labels["theirs"] != "x" || node.Labels["example.com/pool"] != "b" || condition(node, "Theirs").Reason != "X" || hasTaint(node, "example.com/virtual") {
		t.Errorf("after adoption: %+v", node)
	}
	awaitOwner(t, run, name, other.UID)
	calls := by(t, cluster, "nodestatus-"+name)
	refused := slices.IndexFunc(calls, func(call string) bool { return strings.HasPrefix(call, "patch") && !strings.HasSuffix(call, " 200") })
	if refused < 0 {
		t.Fatalf("the requests were %v", calls)
	}
	read, patched := fmt.Sprintf("get nodes/%s 200", name), fmt.Sprintf("patch nodes/%s %%d", name)
	after := calls[refused+1:]
	for len(after) > 2 && after[0] == read && after[1] == fmt.Sprintf(patched, 409) {
		after = after[2:] // kube-controller-manager has written the new Node in between
	}
	if len(after) < 2 || after[0] != read || after[1] != fmt.Sprintf(patched, 200) {
		t.Fatalf("the requests were %v", calls)
	}
	t.Logf("a patch for another uid is answered with: %s", calls[refused])
}

func deleteNodeAfter(t *testing.T, admin kubernetes.Interface, name string) {
	if err := admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// TestNodeStatusForbidden: setters and administrators set fields that a node's
// credentials may not change. The controller omits them, and no request is
// refused.
func TestNodeStatusForbidden(t *testing.T) {
	quiet(t)
	const name = "status-forbidden"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	// The Node exists, with fields that only an administrator may set.
	created := createReadyNode(t, admin, name)
	// Use a patch, because the controller manager writes to a new Node at the
	// same time.
	patch := `{"metadata":{"labels":{"node-role.kubernetes.io/worker":"","node-restriction.kubernetes.io/x":"y"}},"spec":{"taints":[{"key":"admin","effect":"NoExecute"}]}}`
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), created.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var reports, round, written atomic.Int32
	cfg := statusConfig(t, cluster, name)
	cfg.OnShutdown = nodestatus.ShutdownNotReady
	cfg.Hooks.Written = func(nodestatus.Written) { written.Add(1) }
	cfg.ErrorHandler = func(_ context.Context, err error, msg string) {
		if !strings.Contains(err.Error(), "node-role.kubernetes.io/master") {
			t.Errorf("%s: %v", msg, err)
		}
		reports.Add(1)
	}
	cfg.Setters = append(cfg.Setters, func(_ context.Context, node *corev1.Node) error {
		node.Labels["round"] = fmt.Sprint(round.Add(1))
		node.Labels["node-role.kubernetes.io/master"] = ""
		node.Spec.Taints = nil
		node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		return nil
	})
	runStatus(t, cfg)
	node := awaitNode(t, admin, name, "written a few times", func(*corev1.Node) bool { return written.Load() > 3 })
	if _, master := node.Labels["node-role.kubernetes.io/master"]; master || node.Labels["node-restriction.kubernetes.io/x"] != "y" || !hasTaint(node, "admin") {
		t.Errorf("labels %v, taints %v", node.Labels, node.Spec.Taints)
	}
	if _, worker := node.Labels["node-role.kubernetes.io/worker"]; !worker {
		t.Error("a label of the administrator is gone")
	}
	if got := reports.Load(); got != 1 {
		t.Errorf("the label was reported %d times", got)
	}
	for _, call := range by(t, cluster, "nodestatus-"+name) {
		if strings.HasSuffix(call, " 403") {
			t.Errorf("forbidden: %s", call)
		}
	}

	// Use the credentials of another node.
	told := make(chan error, 10)
	wrong := statusConfig(t, cluster, name)
	wrong.NodeName = "status-of-another"
	wrong.ErrorHandler = func(_ context.Context, err error, _ string) { told <- err }
	runStatus(t, wrong)
	select {
	case err := <-told:
		var identity *nodestatus.IdentityError
		if !errors.As(err, &identity) || identity.Identity != "system:node:"+name || identity.NodeName != "status-of-another" {
			t.Errorf("the report is %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("nothing was reported")
	}
}

// helperVariable names the kubeconfig of TestNodeStatusHelper.
const helperVariable = "KUBEWRIGHT_E2E_NODESTATUS_KUBECONFIG"

// TestNodeStatusHelper is the process that TestNodeStatusUnknown stops: a node
// without a lease. It does nothing without its variable.
func TestNodeStatusHelper(t *testing.T) {
	path := os.Getenv(helperVariable)
	if path == "" {
		return
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c, err := nodestatus.New(nodestatus.Config{
		Client: kubernetes.NewForConfigOrDie(config).CoreV1(), NodeName: "status-unknown", NodeCredentials: true,
		SyncInterval: time.Second, ReportInterval: time.Second, GracePeriod: 3 * time.Second,
		OnShutdown: nodestatus.ShutdownNotReady,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestNodeStatusUnknown: with a short grace period, kube-controller-manager
// keeps the node Ready over a restart of the API server. It writes Unknown
// while the process is stopped, and the process repairs all these changes as
// soon as it runs again.
func TestNodeStatusUnknown(t *testing.T) {
	quiet(t)
	const name, grace = "status-unknown", 20 * time.Second
	cluster := ownCluster(t, harness.Options{ExtraArgs: map[string][]string{
		harness.ControllerManager: {"--node-monitor-grace-period=" + grace.String(), "--node-monitor-period=1s"},
	}})
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	helper := exec.Command(os.Args[0], "-test.run=^TestNodeStatusHelper$", "-test.v")
	helper.Env = append(os.Environ(), helperVariable+"="+cluster.NodeKubeconfig(t, name))
	helper.Stdout, helper.Stderr = os.Stdout, os.Stderr
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- helper.Wait() }()
	tell := func(s syscall.Signal) {
		if err := helper.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	}
	t.Cleanup(func() { tell(syscall.SIGKILL) })
	node := awaitNode(t, admin, name, "Ready", isReady)
	since := condition(node, corev1.NodeReady).LastTransitionTime

	began := time.Now()
	cluster.Restart(t, harness.APIServer)
	if took := time.Since(began); took < grace-8*time.Second {
		time.Sleep(grace)
		node = awaitNode(t, admin, name, "there", func(*corev1.Node) bool { return true })
		if ready := condition(node, corev1.NodeReady); ready.Status != corev1.ConditionTrue || !ready.LastTransitionTime.Equal(&since) {
			t.Errorf("Ready is %+v after a restart of the API server that took %v", ready, took)
		}
	} else {
		t.Logf("the API server was away for %v: no promise is kept or broken", took)
		back := time.Now()
		awaitNode(t, admin, name, "Ready again", func(n *corev1.Node) bool {
			return isReady(n) && condition(n, corev1.NodeReady).LastHeartbeatTime.After(back)
		})
	}

	tell(syscall.SIGSTOP)
	stopped := time.Now()
	node = awaitNode(t, admin, name, "Unknown", func(n *corev1.Node) bool {
		return condition(n, corev1.NodeReady).Status == corev1.ConditionUnknown && condition(n, corev1.NodeDiskPressure).Status == corev1.ConditionUnknown
	})
	if took := time.Since(stopped); took < grace-2*time.Second {
		t.Errorf("Unknown after %v, less than the grace period", took)
	}
	unknown := condition(node, corev1.NodeReady).LastTransitionTime
	time.Sleep(2 * time.Second) // transition times are whole seconds
	tell(syscall.SIGCONT)
	resumed := time.Now()
	node = awaitNode(t, admin, name, "Ready again", isReady)
	t.Logf("Unknown %v after it was stopped, Ready %v after it was resumed", unknown.Sub(stopped).Round(time.Second), time.Since(resumed).Round(time.Millisecond))
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		c := condition(node, kind)
		if c.Status == corev1.ConditionUnknown || !c.LastTransitionTime.After(unknown.Time) {
			t.Errorf("%s is %+v, Unknown since %v", kind, c, unknown)
		}
	}
	awaitNode(t, admin, name, "without the taint", func(n *corev1.Node) bool { return !hasTaint(n, corev1.TaintNodeUnreachable) })

	tell(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("the process ended with %v", err)
	}
	awaitNode(t, admin, name, "NotReady because it shut down", func(n *corev1.Node) bool {
		return condition(n, corev1.NodeReady).Reason == nodestatus.ReasonShutdown
	})
}

// TestNodeStatusRestart: a process that starts without a resource, a label or a
// condition that the one before it has written takes it back, although it never
// wrote it itself, and leaves alone what other clients have written.
func TestNodeStatusRestart(t *testing.T) {
	quiet(t)
	const name = "status-restart"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	gpus := atomic.Int64{}
	gpus.Store(8)
	first := statusConfig(t, cluster, name)
	first.Setters = append(first.Setters, func(_ context.Context, node *corev1.Node) error {
		node.Labels["example.com/old"], node.Annotations = "x", map[string]string{"example.com/old": "y"}
		node.Status.Capacity["example.com/gpu"] = *resource.NewQuantity(gpus.Load(), resource.DecimalSI)
		node.Status.Allocatable["example.com/gpu"] = *resource.NewQuantity(gpus.Load(), resource.DecimalSI)
		node.Status.Capacity["example.com/fpga"] = resource.MustParse("2")
		node.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.example/a:1"}, SizeBytes: 7}}
		nodestatus.SetCondition(node, corev1.NodeCondition{Type: "ExampleOld", Status: corev1.ConditionFalse, Reason: "R"})
		return nil
	})
	run := runStatus(t, first)
	run.awaitReady(t)
	gpus.Store(7) // of the two resources one was written when the Node was created only
	run.Trigger(name)
	awaitNode(t, admin, name, "with 7 GPUs", func(n *corev1.Node) bool {
		gpu := n.Status.Capacity["example.com/gpu"]
		return gpu.Value() == 7
	})
	run.cancel()
	if err := run.awaitEnd(t); err != nil {
		t.Fatal(err)
	}
	for subresource, patch := range map[string]string{
		"": `{"metadata":{"labels":{"example.com/theirs":"1"},"annotations":{"example.com/theirs":"2"}}}`,
		"status": `{"status":{"capacity":{"example.com/dongle":"3"},"volumesInUse":["kubernetes.io/csi/theirs^1"],
			"conditions":[{"type":"KernelDeadlock","status":"False","reason":"KernelHasNoDeadlock"}]}}`,
	} {
		subresources := []string{}
		if subresource != "" {
			subresources = append(subresources, subresource)
		}
		if _, err := admin.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "e2e"}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	node := awaitNode(t, admin, name, "there", func(*corev1.Node) bool { return true })
	for _, entry := range node.ManagedFields {
		t.Logf("%s %q: %s", entry.Manager, entry.Subresource, entry.FieldsV1)
	}

	second := runStatus(t, statusConfig(t, cluster, name))
	second.awaitReady(t)
	node = awaitNode(t, admin, name, "without the GPUs", func(n *corev1.Node) bool {
		_, there := n.Status.Capacity["example.com/gpu"]
		return !there
	})
	_, fpga := node.Status.Capacity["example.com/fpga"]
	_, allocatable := node.Status.Allocatable["example.com/gpu"]
	old := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "ExampleOld" })
	if fpga || allocatable || old || node.Labels["example.com/old"] != "" || node.Annotations["example.com/old"] != "" || len(node.Status.Images) != 0 {
		t.Errorf("left of the first process: labels %v, annotations %v, status %+v", node.Labels, node.Annotations, node.Status)
	}
	dongle := node.Status.Capacity["example.com/dongle"]
	if dongle.Value() != 3 || node.Labels["example.com/theirs"] != "1" || node.Annotations["example.com/theirs"] != "2" || len(node.Status.VolumesInUse) != 1 ||
		condition(node, "KernelDeadlock").Reason != "KernelHasNoDeadlock" {
		t.Errorf("lost of other clients: labels %v, annotations %v, status %+v", node.Labels, node.Annotations, node.Status)
	}
	if cpu := node.Status.Capacity[corev1.ResourceCPU]; cpu.Value() != 4 || node.Labels["example.com/pool"] != "a" {
		t.Errorf("lost of both processes: labels %v, status %+v", node.Labels, node.Status)
	}
}

// TestNodeStatusForeignUnknown: Run sees with its own watch that another client has
// written Unknown.
func TestNodeStatusForeignUnknown(t *testing.T) {
	quiet(t)
	const name = "status-foreign"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	c, err := nodestatus.New(statusConfig(t, cluster, name))
	if err != nil {
		t.Fatal(err)
	}
	runController(t, c)
	awaitNode(t, admin, name, "Ready", isReady)
	patch := `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	node, err := admin.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if isReady(node) {
		t.Fatal("the Node is Ready in the answer to the patch")
	}
	began := time.Now()
	awaitNode(t, admin, name, "Ready again", isReady)
	t.Logf("Ready again after %v", time.Since(began).Round(time.Millisecond))
}

// TestNodeStatusFeatures reads back what the setters for a custom kubelet write, with a
// node's own credentials, and reports a drain and a reboot.
func TestNodeStatusFeatures(t *testing.T) {
	quiet(t)
	const name = "status-features"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	info := corev1.NodeSystemInfo{KubeletVersion: "v1.37.0-kubewright", BootID: "boot-1", Swap: &corev1.NodeSwapStatus{Capacity: new(int64(1 << 30))}}
	recorder := events.NewFakeRecorder(100)
	rebooted := make(chan nodestatus.Rebooted, 1)
	config := func() nodestatus.Config {
		cfg := statusConfig(t, cluster, name)
		cfg.Template = nil
		cfg.EventRecorder = recorder
		cfg.Hooks.Rebooted = func(r nodestatus.Rebooted) { rebooted <- r }
		cfg.Setters = []nodestatus.Setter{
			nodestatus.ExternalCloud("10.0.0.7"),
			nodestatus.HostInfo(info),
			nodestatus.StandardLabels(),
			nodestatus.Cloud(func(context.Context, string) (nodestatus.CloudInstance, error) {
				return nodestatus.CloudInstance{
					ProviderID: "example://7", Type: "small", Zone: "zone-1", Region: "region-1",
					Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}},
				}, nil
			}),
			nodestatus.DeclaredFeatures("UserNamespacesHostNetworkSupport", "RestartAllContainersOnContainerExits"),
			nodestatus.Runtime([]corev1.NodeRuntimeHandler{
				{Name: "sandboxed", Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: new(true)}},
				{Name: "", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: new(true)}},
			}, &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)}),
			nodestatus.VolumesInUse(func(context.Context, string) ([]corev1.UniqueVolumeName, error) {
				return []corev1.UniqueVolumeName{"kubernetes.io/csi/b", "kubernetes.io/csi/a"}, nil
			}),
			nodestatus.Images(func(context.Context, string) ([]corev1.ContainerImage, error) {
				return []corev1.ContainerImage{{Names: []string{"example.com/small:1"}, SizeBytes: 1}, {Names: []string{"example.com/large:1"}, SizeBytes: 2}}, nil
			}),
		}
		return cfg
	}

	run := runStatus(t, config())
	run.awaitReady(t)
	node := awaitNode(t, admin, name, "ready", isReady)
	type written struct {
		ProviderID, Address, ProvidedIP, Type, Zone, Region string
		Uninitialized, UserNamespaces, Recursive, Groups    bool
		Features                                            []string
		Volumes                                             []corev1.UniqueVolumeName
		Handlers, Images                                    []string
		Swap                                                int64
	}
	got := written{
		ProviderID: node.Spec.ProviderID, ProvidedIP: node.Annotations["alpha.kubernetes.io/provided-node-ip"],
		Type: node.Labels[corev1.LabelInstanceTypeStable], Zone: node.Labels[corev1.LabelTopologyZone], Region: node.Labels[corev1.LabelTopologyRegion],
		Uninitialized: hasTaint(node, "node.cloudprovider.kubernetes.io/uninitialized"),
		Features:      node.Status.DeclaredFeatures, Volumes: node.Status.VolumesInUse,
	}
	for _, a := range node.Status.Addresses {
		got.Address = a.Address
	}
	for _, h := range node.Status.RuntimeHandlers {
		got.Handlers = append(got.Handlers, h.Name)
		if f := h.Features; f != nil {
			got.UserNamespaces = got.UserNamespaces || h.Name == "" && ptr.Deref(f.UserNamespaces, false)
			got.Recursive = got.Recursive || h.Name == "sandboxed" && ptr.Deref(f.RecursiveReadOnlyMounts, false)
		}
	}
	if f := node.Status.Features; f != nil {
		got.Groups = ptr.Deref(f.SupplementalGroupsPolicy, false)
	}
	for _, image := range node.Status.Images {
		got.Images = append(got.Images, image.Names...)
	}
	if swap := node.Status.NodeInfo.Swap; swap != nil {
		got.Swap = ptr.Deref(swap.Capacity, 0)
	}
	var features []string
	if isAtLeast(cluster, "1.36") { // before, the API server drops them by default
		features = []string{"RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"}
	}
	if diff := cmp.Diff(written{
		ProviderID: "example://7", Address: "10.0.0.7", ProvidedIP: "10.0.0.7", Type: "small", Zone: "zone-1", Region: "region-1",
		Uninitialized: true, UserNamespaces: true, Recursive: true, Groups: true,
		Features: features,
		Volumes:  []corev1.UniqueVolumeName{"kubernetes.io/csi/a", "kubernetes.io/csi/b"},
		Handlers: []string{"", "sandboxed"}, Images: []string{"example.com/large:1", "example.com/small:1"}, Swap: 1 << 30,
	}, got); diff != "" {
		t.Errorf("the Node that was read back differs (-want +got):\n%s", diff)
	}

	// A drain: not ready for its reason until it is called off.
	run.SetNotReady(name, &nodestatus.NotReadyError{Reason: "Draining", Message: "the node ends its pods"})
	awaitNode(t, admin, name, "draining", func(n *corev1.Node) bool {
		c := condition(n, corev1.NodeReady)
		return c.Status == corev1.ConditionFalse && c.Reason == "Draining"
	})
	run.SetNotReady(name, nil)
	awaitNode(t, admin, name, "ready again", isReady)

	// A reboot: the next process reports it, once it is written.
	run.cancel()
	if err := run.awaitEnd(t); err != nil {
		t.Fatal(err)
	}
	info.BootID = "boot-2"
	runStatus(t, config()).awaitReady(t)
	select {
	case r := <-rebooted:
		if r.NodeName != name || r.OldBootID != "boot-1" || r.NewBootID != "boot-2" {
			t.Errorf("rebooted: %+v", r)
		}
	case <-time.After(patience):
		t.Fatal("no reboot was reported")
	}
	awaitNode(t, admin, name, "with the new boot ID", func(n *corev1.Node) bool { return n.Status.NodeInfo.BootID == "boot-2" })
	for event := ""; !strings.Contains(event, "Rebooted"); {
		select {
		case event = <-recorder.Events:
		case <-time.After(patience):
			t.Fatal("no event of the reboot was recorded")
		}
	}
	for _, call := range by(t, cluster, "nodestatus-"+name) {
		if strings.HasSuffix(call, " 403") {
			t.Errorf("refused: %s", call)
		}
	}
}

// TestNodeStatusKeepsTaints removes a taint with kubectl's permissions. A controller
// that has these permissions puts it back, and leaves the taints of others alone.
func TestNodeStatusKeepsTaints(t *testing.T) {
	quiet(t)
	const name, edge = "status-taints", "example.com/edge"
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	cfg := statusConfig(t, cluster, name)
	cfg.Client, cfg.NodeCredentials, cfg.Template = admin.CoreV1(), false, nil
	cfg.KeepTaints = []corev1.Taint{{Key: edge, Effect: corev1.TaintEffectNoSchedule}}
	c, err := nodestatus.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runController(t, c)
	awaitNode(t, admin, name, "with its taint", func(n *corev1.Node) bool { return hasTaint(n, edge) })

	patch := []byte(`{"spec":{"taints":[{"key":"example.com/other","effect":"PreferNoSchedule"}]}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, admin, name, "with both taints", func(n *corev1.Node) bool { return hasTaint(n, edge) && hasTaint(n, "example.com/other") })
}
