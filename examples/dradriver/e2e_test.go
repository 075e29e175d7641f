// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/kubewright/kubewright/resourceslice/claimstore"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// startCluster starts a real control plane with a node, the driver's permissions and
// a class of its devices.
func startCluster(t *testing.T) (*harness.Cluster, kubernetes.Interface) {
	t.Helper()
	if !harness.Enabled() {
		t.Skip("needs a control plane, see test/controlplane")
	}
	cluster := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{
		harness.ControllerManager: {"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"},
	}})
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	cluster.Kubectl(t, "apply", "-f", "rbac.yaml")
	amounts := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, Capacity: amounts, Allocatable: amounts,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller that would remove the taint of new nodes doesn't run.
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nic"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "nic.example.com" && device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:3a"`},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := admin.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
			return cluster, admin
		} else if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// claimPod returns a Pod that uses a claim.
func claimPod(name string, claim corev1.PodResourceClaim) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{claim},
			Containers: []corev1.Container{{Name: "c", Image: "example.com/none", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: claim.Name}},
			}}},
		},
	}
}

// TestThePodGetsItsDevice runs the driver with its permissions against a real
// control plane: the scheduler allocates the device and binds the Pod. The test
// stands for the kubelet.
func TestThePodGetsItsDevice(t *testing.T) {
	cluster, admin := startCluster(t)
	m := newMachine(t)
	cfg := rest.CopyConfig(cluster.AdminConfig())
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:dradriver",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {nodeName}},
	}
	m.start(kubernetes.NewForConfigOrDie(cfg))
	k := m.register()

	if _, err := admin.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "net"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "my-nic", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic"}},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := claimPod("p", corev1.PodResourceClaim{Name: "net", ResourceClaimName: new("net")})
	if _, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.eventually("the Pod on the node", func() bool {
		pod, err := admin.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == nodeName
	})
	claim, err := admin.ResourceV1().ResourceClaims("default").Get(t.Context(), "net", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ids, file := m.prepare(k, claim); len(ids) != 1 {
		t.Errorf("CDI devices %v, file %s", ids, file)
	}
	claim, err = admin.ResourceV1().ResourceClaims("default").Get(t.Context(), "net", metav1.GetOptions{})
	if err != nil || len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Device != device || claim.Status.Devices[0].NetworkData.InterfaceName != "eth0" {
		t.Errorf("status %+v, error %v", claim.Status.Devices, err)
	}
	m.unprepare(k, claim)
}

// driverArgs is the environment variable that makes the test binary the driver.
const driverArgs = "KUBEWRIGHT_DRADRIVER_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(driverArgs); args != "" {
		os.Args = append(os.Args[:1], strings.Split(args, "\n")...)
		main()
		return
	}
	// The second handler limits its rate by the real clock and sleeps for years in a bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// keepKilling runs the driver as a process, kills it with SIGKILL at random and
// starts it again, until stop is called. It returns how often it was killed. The last
// process is left alone until the end of the test.
func (m *machine) keepKilling(args ...string) (stop func() (kills int)) {
	ctx, cancel := context.WithCancel(context.Background())
	kills, done := 0, make(chan struct{})
	var last *exec.Cmd
	go func() {
		defer close(done)
		for {
			last = exec.Command(os.Args[0])
			last.Env = append(os.Environ(), driverArgs+"="+strings.Join(args, "\n"))
			last.Stdout, last.Stderr = &m.out, &m.out
			if err := last.Start(); err != nil {
				m.Error(err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(500+rand.IntN(1500)) * time.Millisecond):
			}
			kills++
			_ = last.Process.Kill()
			_ = last.Wait()
		}
	}()
	m.Cleanup(func() {
		cancel()
		<-done
		_ = last.Process.Kill()
		_ = last.Wait()
	})
	return func() int {
		cancel()
		<-done
		return kills
	}
}

// TestNothingStaysPreparedIfTheDriverIsKilled lets 200 pods with claims come and go
// while the driver is killed again and again. The scheduler and the controller of
// ResourceClaims are real; the test stands for the kubelet, which repeats each call
// until it succeeds.
func TestNothingStaysPreparedIfTheDriverIsKilled(t *testing.T) {
	const pods, cards = 200, 16
	cluster, admin := startCluster(t)
	m := newMachine(t)
	for i := range cards {
		nic := fmt.Sprintf("devices/pci0000:3a/0000:%02x:00.0/net/card%d", 0x40+i, i)
		m.write("sys/"+filepath.Dir(filepath.Dir(nic))+"/numa_node", "1")
		m.write("sys/"+nic+"/address", fmt.Sprintf("02:00:00:00:01:%02x", i))
		m.write("sys/"+nic+"/operstate", "up")
		if err := os.Symlink("../../"+nic, filepath.Join(m.dir, "sys/class/net", filepath.Base(nic))); err != nil {
			t.Fatal(err)
		}
	}
	stop := m.keepKilling("--kubeconfig="+cluster.AdminKubeconfig(), "--node-name="+nodeName, "--poll=1s", "--sysfs="+filepath.Join(m.dir, "sys"),
		"--cdi-dir="+filepath.Join(m.dir, "cdi"), "--plugin-dir="+filepath.Join(m.dir, "plugin"), "--registry-dir="+filepath.Join(m.dir, "registry"))

	if _, err := admin.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "net"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "my-nic", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic"}},
		}}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	created := 0
	create := func() {
		pod := claimPod(fmt.Sprintf("p%d", created), corev1.PodResourceClaim{Name: "net", ResourceClaimTemplateName: new("net")})
		if _, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		created++
	}
	for range cards {
		create()
	}
	driver := draapi.NewDRAPluginClient(m.dial(filepath.Join(m.dir, "plugin", "dra.sock")))
	for done := 0; done < pods; {
		list, err := admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range list.Items {
			claim, err := admin.ResourceV1().ResourceClaims("default").Get(t.Context(), *pod.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			one := &draapi.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
			m.eventually("Prepare of "+pod.Name, func() bool {
				answer, err := driver.NodePrepareResources(t.Context(), &draapi.NodePrepareResourcesRequest{Claims: []*draapi.Claim{one}})
				return err == nil && answer.Claims[one.Uid].Error == ""
			})
			if _, err := os.Stat(filepath.Join(m.dir, "cdi", driverName+"-"+one.Uid+".json")); err != nil {
				t.Error(err)
			}
			m.eventually("Unprepare of "+pod.Name, func() bool {
				answer, err := driver.NodeUnprepareResources(t.Context(), &draapi.NodeUnprepareResourcesRequest{Claims: []*draapi.Claim{one}})
				return err == nil && answer.Claims[one.Uid].Error == ""
			})
			// The API server releases the device after the kubelet did.
			if err := admin.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				t.Fatal(err)
			}
			done++
			if created < pods {
				create()
			}
		}
	}
	kills := stop()
	t.Logf("the driver was killed %d times", kills)
	if kills == 0 {
		t.Error("the driver was never killed")
	}
	left, err := filepath.Glob(filepath.Join(m.dir, "cdi", "*.json"))
	if err != nil || len(left) > 0 {
		t.Errorf("CDI files are left: %v, %v", left, err)
	}
	// Another process may read the store while the driver runs. On another boot it is
	// handed all claims that are still recorded.
	store, err := claimstore.Open(t.Context(), claimstore.Config[prepared]{
		Dir: filepath.Join(m.dir, "plugin", "claims"), Driver: driverName, BootID: "another", Claims: admin.ResourceV1(),
		Unprepare: func(_ context.Context, claim claimstore.Claim, _ prepared, phase claimstore.Phase) error {
			t.Errorf("claim %s is still recorded as %s", claim, phase)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-store.Ready().Done()
		cancel()
	}()
	if err := store.Run(ctx); err != nil {
		t.Error(err)
	}
}
