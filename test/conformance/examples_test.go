// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/test/conformance/rig"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// stable selects specs of features that are on by default and that can share a cluster
// with others.
const stable = "--ginkgo.label-filter=!Serial && !Slow && !Disruptive && !Flaky && Feature: isEmpty"

// files of test/e2e with specs that need nodes, but no file system of an image and no
// control groups.
var (
	apiFiles = []string{
		"common/node/configmap.go", "common/node/init_container.go", "common/node/lease.go", "common/node/node_lease.go",
		"common/node/pods.go", "common/node/podtemplates.go", "common/node/runtimeclass.go", "common/node/secrets.go", "node/pods.go",
		"apps/cronjob.go", "apps/deployment.go", "apps/disruption.go", "apps/job.go",
		"apps/rc.go", "apps/replica_set.go", "apps/statefulset.go", "apps/ttl_after_finished.go",
	}
	processFiles = []string{
		"common/node/container_probe.go", "common/node/container_restart_policy.go", "common/node/containers.go", "common/node/downwardapi.go",
		"common/node/ephemeral_containers.go", "common/node/expansion.go", "common/node/kubelet.go", "common/node/lifecycle_hook.go",
		"common/node/runtime.go", "node/events.go", "node/pre_stop.go", "kubectl/debug.go", "kubectl/exec.go", "kubectl/logs.go",
	}
)

// user is the user of most pods of the specs, and the one that examples/kubelet runs as
// if the test runs as root.
const user = 1000

// TestSpecsOnProcesses runs specs of Kubernetes on examples/kubelet.
func TestSpecsOnProcesses(t *testing.T) {
	s := newExampleSuite(t, slices.Concat(apiFiles, processFiles))
	const node = "processes"
	s.runPrograms(t, s.ownCopy(t, rig.Build(t).Agnhost, "agnhost"))
	s.startExample(t, "kubelet", "--kubeconfig="+s.ownCopy(t, s.cluster.NodeKubeconfig(t, node), "kubeconfig"), "--node-name="+node, "--node-credentials",
		"--root-dir="+filepath.Join(s.home, "kubelet"), "--port=0", "--min-free-disk=0", "--register-taint=false", "-v=2",
		"--shutdown-grace-period-by-pod-priority=0=5s") // no process is left
	s.awaitNodes(t, 1)
	s.report(t, s.run(t, workers(), s.arguments()...))
}

// TestSpecsOnSimulatedPods runs specs of Kubernetes on examples/fleet.
func TestSpecsOnSimulatedPods(t *testing.T) {
	s := newExampleSuite(t, apiFiles)
	s.startExample(t, "fleet", "--kubeconfig="+s.ownCopy(t, s.cluster.AdminKubeconfig(), "kubeconfig"), "--nodes=3", "--pod-duration=1s")
	s.awaitNodes(t, 3)
	s.known = simulated
	s.report(t, s.run(t, workers(), s.arguments()...))
}

// simulated are the specs that can't pass on simulated pods, or only by chance, because those run no command and
// end after a second. All others must pass, or leave themselves out.
var simulated = []string{
	// apps/cronjob.go: A job fails, or runs for more than a second.
	"[sig-apps] CronJob should delete failed finished jobs with limit of one job",
	"[sig-apps] CronJob should replace jobs when ReplaceConcurrent [Conformance]",
	"[sig-apps] CronJob should schedule multiple jobs concurrently [Conformance]",
	// apps/deployment.go: A pull fails.
	"[sig-apps] Deployment deployment should support proportional scaling [Conformance]",
	// apps/disruption.go: Pods are not ready, or become so later than at their start.
	"[sig-apps] DisruptionController should evict ready pods with AlwaysAllow UnhealthyPodEvictionPolicy",
	"[sig-apps] DisruptionController should evict ready pods with Default UnhealthyPodEvictionPolicy",
	"[sig-apps] DisruptionController should evict ready pods with IfHealthyBudget UnhealthyPodEvictionPolicy",
	"[sig-apps] DisruptionController should evict unready pods with AlwaysAllow UnhealthyPodEvictionPolicy",
	"[sig-apps] DisruptionController should not evict unready pods with Default UnhealthyPodEvictionPolicy",
	"[sig-apps] DisruptionController should not evict unready pods with IfHealthyBudget UnhealthyPodEvictionPolicy",
	// apps/job.go: A container fails, or runs for more than a second. Some pass if the spec looks soon enough.
	"[sig-apps] Job should adopt matching orphans and release non-matching pods [Conformance]",
	"[sig-apps] Job should allow to use a pod failure policy to ignore failure matching on DisruptionTarget condition [Conformance]",
	"[sig-apps] Job should allow to use the pod failure policy on exit code to fail the job early [Conformance]",
	"[sig-apps] Job should allow updating pod resources for a job that started and then was suspended [FeatureGate:MutablePodResourcesForSuspendedJobs] [Beta]",
	"[sig-apps] Job should apply changes to a job status [Conformance]",
	"[sig-apps] Job should delete a job [Conformance]",
	"[sig-apps] Job should delete pods when suspended",
	"[sig-apps] Job should execute all indexes despite some failing when using backoffLimitPerIndex [Conformance]",
	"[sig-apps] Job should fail to exceed backoffLimit",
	"[sig-apps] Job should mark indexes as failed when the FailIndex action is matched in podFailurePolicy [Conformance]",
	"[sig-apps] Job should record the failure-count in the Pod annotation when using backoffLimitPerIndex",
	"[sig-apps] Job should recreate pods only after they have failed if pod replacement policy is set to Failed",
	"[sig-apps] Job should remove pods when job is deleted",
	"[sig-apps] Job should terminate job execution when the number of failed indexes exceeds maxFailedIndexes [Conformance]",
	"[sig-apps] Job should update the status ready field",
	"[sig-apps] Job with successPolicy succeededCount rule should succeeded even when some indexes remain pending [Conformance]",
	"[sig-apps] Job with successPolicy succeededIndexes rule should succeeded even when some indexes remain pending [Conformance]",
	// apps/rc.go: Pods answer requests.
	"[sig-apps] ReplicationController should serve a basic image on each replica with a public image [Conformance]",
	// apps/replica_set.go: Pods answer requests.
	"[sig-apps] ReplicaSet should serve a basic image on each replica with a public image [Conformance]",
	// apps/statefulset.go: A pod fails, or runs a command that the spec starts.
	"[sig-apps] StatefulSet Basic StatefulSet functionality [StatefulSetBasic] Should recreate evicted statefulset [Conformance]",
	"[sig-apps] StatefulSet Basic StatefulSet functionality [StatefulSetBasic] should perform rolling updates and roll backs of template modifications [Conformance]",
	// common/node/configmap.go: The output of a container.
	"[sig-node] ConfigMap should be consumable as environment variable names with various prefixes [Conformance]",
	"[sig-node] ConfigMap should be consumable via environment variable [Conformance] [NodeConformance]",
	"[sig-node] ConfigMap should be consumable via the environment [Conformance] [NodeConformance]",
	// common/node/init_container.go: An init container fails.
	"[sig-node] InitContainer should not start app containers and fail the pod if init containers fail on a RestartNever pod [Conformance] [NodeConformance]",
	"[sig-node] InitContainer should not start app containers if init containers fail on a RestartAlways pod [Conformance] [NodeConformance]",
	// common/node/pods.go: Output, logs, commands, the address of the node, and pods of policy Never that run for longer than a second.
	"[sig-node] Pods should contain environment variables for services [Conformance] [NodeConformance]",
	"[sig-node] Pods should delete a collection of pods [Conformance]",
	"[sig-node] Pods should get a host IP [Conformance] [NodeConformance]",
	"[sig-node] Pods should support remote command execution over websockets [Conformance] [NodeConformance]",
	"[sig-node] Pods should support retrieving logs from the container over websockets [Conformance] [NodeConformance]",
	// common/node/secrets.go: The output of a container.
	"[sig-node] Secrets should be consumable as environment variable names variable names with various prefixes [Conformance]",
	"[sig-node] Secrets should be consumable from pods in env vars [Conformance] [NodeConformance]",
	"[sig-node] Secrets should be consumable via the environment [Conformance] [NodeConformance]",
	// node/pods.go: Containers and pulls that fail, and what a kubelet serves.
	"[sig-node] Pods Extended (pod generation) Pod Generation pod observedGeneration field set in pod conditions",
	"[sig-node] Pods Extended Delete Grace Period should be submitted and removed",
	"[sig-node] Pods Extended Pod Container Status should never report container start when an init container fails",
	"[sig-node] Pods Extended Pod Container Status should never report success for a pending container",
	"[sig-node] Pods Extended Pod Container lifecycle evicted pods should be terminal",
	"[sig-node] Pods Extended Pod Container lifecycle should not create extra sandbox if all containers are done",
}

// newExampleSuite starts a control plane for the specs in some files of test/e2e.
func newExampleSuite(t *testing.T, files []string) *suite {
	t.Helper()
	if os.Getenv(variable) != "1" {
		t.Skip("takes half an hour: see test/e2e/README.md")
	}
	s := &suite{e2e: rig.Build(t).E2E, root: "test/e2e/", files: files, dir: resultDir(t)}
	var err error
	if s.home, err = os.MkdirTemp("", "specs-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.home) })
	s.own(t, s.home)
	s.cluster = harness.Start(t, harness.Options{})
	kubectl := filepath.Join(s.dir, "kubectl")
	if err := os.Symlink(s.cluster.KubectlCommand(t.Context()).Path, kubectl); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return s
}

// own makes the user of the example the owner of a file.
func (s *suite) own(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() == 0 {
		if err := os.Chown(path, user, user); err != nil {
			t.Fatal(err)
		}
	}
}

// ownCopy copies a program or a kubeconfig to the home directory of the example.
func (s *suite) ownCopy(t *testing.T, from, name string) string {
	t.Helper()
	to := filepath.Join(s.home, name)
	if err := copyFile(from, to); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
	s.own(t, to)
	return to
}

// arguments returns the arguments of the program with the tests.
func (s *suite) arguments() []string {
	return append(selection(stable), "--kubectl-path="+filepath.Join(s.dir, "kubectl"), "--allowed-not-ready-nodes=0")
}

// startExample starts an example, which ends with the test.
func (s *suite) startExample(t *testing.T, name string, args ...string) {
	t.Helper()
	program := filepath.Join(s.home, name+"-program")
	if out, err := exec.Command("go", "build", "-C", "../../examples/"+name, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build examples/%s: %v\n%s", name, err, out)
	}
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = s.home
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("examples/%s ended with %v", name, err)
		}
		_ = log.Close()
	})
}

// awaitNodes waits until all nodes are ready, and removes their taints, which pods of
// the specs do not tolerate.
func (s *suite) awaitNodes(t *testing.T, count int) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(s.cluster.AdminConfig())
	ready := 0
	for began := time.Now(); ready < count; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d of %d nodes are ready", ready, count)
		}
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready = 0
		for _, node := range nodes.Items {
			if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) && s.removeTaints(t, client, &node) {
				ready++
			}
		}
	}
}

// removeTaints reports whether the node has no taint.
func (s *suite) removeTaints(t *testing.T, client kubernetes.Interface, node *corev1.Node) bool {
	t.Helper()
	if len(node.Spec.Taints) == 0 {
		return true
	}
	_, err := client.CoreV1().Nodes().Patch(t.Context(), node.Name, "application/merge-patch+json", []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// runPrograms makes pods whose images run a program on their own name one: agnhost,
// which is that of the cache, instead of agnhost and of each image that only waits. A
// process has no image.
func (s *suite) runPrograms(t *testing.T, agnhost string) {
	t.Helper()
	var patches []string
	for _, list := range []string{"initContainers", "containers"} {
		r := strings.NewReplacer("LIST", list, "AGNHOST", agnhost)
		const each = `(has(object.spec.LIST) ? [0, 1, 2, 3, 4, 5, 6, 7].filter(i, i < size(object.spec.LIST)) : [])`
		patches = append(patches, r.Replace(each+`.filter(i, !has(object.spec.LIST[i].command) || size(object.spec.LIST[i].command) == 0).map(i, JSONPatch{
			op: "add", path: "/spec/LIST/" + string(i) + "/command", value:
				object.spec.LIST[i].image.contains("/busybox:") ? ["env"] :
				object.spec.LIST[i].image.contains("/agnhost:") && has(object.spec.LIST[i].args) && size(object.spec.LIST[i].args) > 0 ? ["AGNHOST"] :
				["AGNHOST", "pause"]})`),
			r.Replace(each+`.filter(i, has(object.spec.LIST[i].command) && size(object.spec.LIST[i].command) > 0 && object.spec.LIST[i].command[0] == "/agnhost").map(i, JSONPatch{
			op: "replace", path: "/spec/LIST/" + string(i) + "/command/0", value: "AGNHOST"})`),
			// In scripts, too.
			r.Replace(each+`.filter(i, has(object.spec.LIST[i].args) && object.spec.LIST[i].args.exists(a, a.contains("/agnhost "))).map(i, JSONPatch{
			op: "replace", path: "/spec/LIST/" + string(i) + "/args", value: object.spec.LIST[i].args.map(a, a.replace("/agnhost ", "AGNHOST "))})`))
	}
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "programs"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}},
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: strings.Join(patches, " + ")},
			}},
		},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "programs"},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "programs"},
	}
	client := kubernetes.NewForConfigOrDie(s.cluster.AdminConfig())
	if _, err := client.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A policy applies once the API server has seen it.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.k8s.io/pause:3"}}},
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		got, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && fmt.Sprint(got.Spec.Containers[0].Command) == fmt.Sprint([]string{agnhost, "pause"}) {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the policy has no effect: %v", err)
		}
	}
}
