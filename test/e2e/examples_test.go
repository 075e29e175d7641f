// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// program is an example that runs as a separate process, as a user would run
// it.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

// Write collects the output of the program.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// startExample builds examples/NAME and runs it until the end of the test.
func startExample(t *testing.T, name string, args ...string) *program {
	t.Helper()
	return startBinary(t, buildExample(t, name), args...)
}

// builds holds the build of each example by its name.
var builds sync.Map

// buildExample builds examples/NAME, once for all tests, and returns the path of
// the executable.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	build, _ := builds.LoadOrStore(name, sync.OnceValues(func() (binary string, err error) {
		binary = filepath.Join(binaries, name)
		out, err := exec.Command("go", "build", "-C", "../../examples/"+name, "-o", binary, ".").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build examples/%s: %w\n%s", name, err, out)
		}
		return binary, err
	}))
	binary, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// startBinary runs a program until the end of the test.
func startBinary(t *testing.T, binary string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary, args...)}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	// The program must not outlive the test, even if the test is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("%s printed:\n%s", filepath.Base(binary), p.out.String())
		}
	})
	return p
}

// stop ends the program as a service manager would, and checks that it ends
// cleanly.
func (p *program) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the example ended with %v", err)
	}
}

// awaitNode waits until the Node satisfies the condition.
func awaitNode(t *testing.T, client kubernetes.Interface, name, what string, condition func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	event, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		return ok && event.Type != watch.Deleted && condition(node), nil
	})
	if err != nil {
		t.Fatalf("waiting for node %s to be %s: %v", name, what, err)
	}
	return event.Object.(*corev1.Node)
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func isReady(node *corev1.Node) bool {
	return condition(node, corev1.NodeReady).Status == corev1.ConditionTrue
}

// refusals returns the requests of an example, with the credentials of a user,
// that the API server refused.
func refusals(t *testing.T, cluster *harness.Cluster, user, example string) (refused []harness.AuditEvent) {
	t.Helper()
	sent := 0
	for _, event := range cluster.AuditEvents(t) {
		if event.User != user || !strings.HasPrefix(event.UserAgent, example+"/") {
			continue
		}
		sent++
		if event.Code == 403 {
			refused = append(refused, event)
		}
	}
	if sent == 0 {
		t.Errorf("%s has sent no request as %s", example, user)
	}
	return refused
}

// refusedEarly reports whether a node may be refused a request that it sends again.
// The Node authorizer and the admission plugin NodeRestriction allow a node its own
// slices, and what concerns its pods and the objects that these refer to. They learn
// of pods and slices from watches of their own, at times after the node.
func refusedEarly(e harness.AuditEvent) bool {
	return slices.Contains([]string{
		"configmaps", "podcertificaterequests", "resourceclaims", "resourceslices", "secrets", "serviceaccounts",
	}, e.Resource)
}

const serviceAccount = "system:serviceaccount:kubewright:virtual-node"

// applying is held while manifests are applied: two kubectl that find an object
// absent would both create it.
var applying sync.Mutex

// applyManifests applies these files for the ServiceAccount of the examples.
func applyManifests(t *testing.T, cluster *harness.Cluster, files ...string) {
	t.Helper()
	applying.Lock()
	defer applying.Unlock()
	args := []string{"apply"}
	for _, file := range append([]string{"serviceaccount.yaml"}, files...) {
		args = append(args, "-f", "../../examples/rbac/"+file)
	}
	cluster.Kubectl(t, args...)
}

// letNodesRecordEvents grants nodes what API servers since 1.35 grant them.
func letNodesRecordEvents(t *testing.T, cluster *harness.Cluster) {
	t.Helper()
	if !isAtLeast(cluster, "1.35") {
		applyManifests(t, cluster, "node-events.yaml")
	}
}

// isAtLeast reports whether a cluster has a minor version of Kubernetes or a later one.
func isAtLeast(cluster *harness.Cluster, minor string) bool {
	return version.MustParseGeneric(cluster.Version()).AtLeast(version.MustParseGeneric(minor))
}

func TestExampleNodeUnderItsManifests(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	applyManifests(t, cluster, "lease.yaml", "nodestatus.yaml", "events.yaml", "flowschema.yaml")
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	kubeconfig := cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node")

	p := startExample(t, "node", "--kubeconfig="+kubeconfig, "--node-name=example-node", "--sync-interval=1s")
	node := awaitNode(t, client, "example-node", "ready", isReady)
	awaitLeaseRenewals(t, client, "example-node", node, 2)
	p.stop()
	node = awaitNode(t, client, "example-node", "not ready after the end", func(n *corev1.Node) bool { return !isReady(n) })
	if c := condition(node, corev1.NodeReady); c.Status != corev1.ConditionFalse {
		t.Errorf("after an orderly end Ready is %s (%s), want False", c.Status, c.Reason)
	}
	if refused := refusals(t, cluster, serviceAccount, "node"); len(refused) > 0 {
		t.Errorf("the manifests do not allow %v", refused)
	}
	metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(metrics), `apiserver_flowcontrol_dispatched_requests_total{flow_schema="kubewright-node-high",priority_level="node-high"}`) {
		t.Error("no request was given the priority of node-high by flowschema.yaml")
	}
}

func TestExampleLeaseUnderItsManifests(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	applyManifests(t, cluster, "lease.yaml", "node-reader.yaml")
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "example-lease"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, kubeconfig := range map[string]string{
		serviceAccount:              cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"),
		"system:node:example-lease": cluster.NodeKubeconfig(t, "example-lease"),
	} {
		p := startExample(t, "lease", "--kubeconfig="+kubeconfig, "--node-name=example-lease", "--lease-duration=4s")
		awaitLeaseRenewals(t, client, "example-lease", node, 3)
		p.stop()
		if refused := refusals(t, cluster, name, "lease"); len(refused) > 0 {
			t.Errorf("%s was refused %v", name, refused)
		}
	}
}

func TestExampleFleetUnderItsManifests(t *testing.T) {
	busy(t)
	const nodes = 300
	cluster := shared.Cluster(t)
	applyManifests(t, cluster, "lease.yaml", "nodestatus.yaml", "podsync.yaml", "flowschema.yaml")
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	p := startExample(t, "fleet", "--kubeconfig="+cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"), fmt.Sprint("--nodes=", nodes), "--node-prefix=example-fleet-")
	for i := range nodes {
		awaitNode(t, client, fmt.Sprint("example-fleet-", i), "ready", isReady)
	}
	p.stop()
	if refused := refusals(t, cluster, serviceAccount, "fleet"); len(refused) > 0 {
		t.Errorf("the manifests do not allow %v", refused)
	}
	for i := range nodes {
		if err := client.CoreV1().Nodes().Delete(t.Context(), fmt.Sprint("example-fleet-", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitLeaseRenewals waits until the lease, owned by node, was renewed the
// given number of times.
func awaitLeaseRenewals(t *testing.T, client kubernetes.Interface, name string, node *corev1.Node, renewals int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	seen := make(map[time.Time]bool)
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	for len(seen) < renewals {
		w, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatalf("watching lease %s, renewed %d of %d times: %v", name, len(seen), renewals, err)
		}
		for event := range w.ResultChan() {
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok || event.Type == watch.Deleted || lease.Spec.RenewTime == nil {
				continue
			}
			if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID {
				t.Errorf("lease %s has the owners %v, want the Node with UID %s", name, lease.OwnerReferences, node.UID)
			}
			if seen[lease.Spec.RenewTime.Time] = true; len(seen) == renewals {
				break
			}
		}
		w.Stop()
	}
}
