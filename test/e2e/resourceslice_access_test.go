// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestResourceSliceDroppedFields: with the default feature gates, the API
// server drops some fields and rejects others.
func TestResourceSliceDroppedFields(t *testing.T) {
	busy(t)
	cluster := shared.Cluster(t)
	d := &dra{T: t, cluster: cluster, admin: kubernetes.NewForConfigOrDie(cluster.AdminConfig())}
	d.createNode("dra-dropped")
	t.Cleanup(func() { _ = d.admin.CoreV1().Nodes().Delete(t.Context(), "dra-dropped", metav1.DeleteOptions{}) })
	p := d.publish("dra-dropped", nil)
	id := resourceslice.PoolID{Driver: gpuDriver, Name: "dra-dropped"}
	pool := resourceslice.Pool{Devices: gpusFrom(0, 3, "a"), SkipNodeOperations: []resourcev1.SkipNodeOperation{resourcev1.SkipNodeOperationAll}}
	pool.Devices[1].Attributes["list"] = resourcev1.DeviceAttribute{IntValues: []int64{1, 2}}
	for range 3 {
		if err := p.Set(id, pool); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(t.Context(), id); err == nil {
			t.Error("Wait = nil")
		}
		time.Sleep(100 * time.Millisecond)
	}
	var dropped *resourceslice.DroppedFieldsError
	var invalid *resourceslice.InvalidError
	for _, err := range p.reported() {
		if !errors.As(err, &dropped) && !errors.As(err, &invalid) {
			t.Errorf("reported %v", err)
		}
	}
	if n := len(p.reported()); n != 2 || dropped == nil || invalid == nil || fmt.Sprint(dropped.Fields) != "[skipNodeOperations]" {
		t.Errorf("reported %v", p.reported())
	}
	// One write that is rejected, and one without the named device.
	if n := p.writes.Load(); n != 2 {
		t.Errorf("%d writes", n)
	}
	slices := d.slicesOf(gpuDriver, "dra-dropped")
	if len(slices) != 1 || len(slices[0].Spec.Devices) != 2 {
		t.Errorf("slices %v, want the two devices that the API server takes", slices)
	}
	if err := p.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestResourceSlicePolicy: the manifests in examples/rbac restrict a
// ServiceAccount to the node of its pod.
func TestResourceSlicePolicy(t *testing.T) {
	busy(t)
	d := startDRA(t, harness.Options{Without: []string{harness.Scheduler}})
	for _, manifest := range []string{"serviceaccount", "resourceslice", "resourceslice-policy"} {
		d.cluster.Kubectl(t, "apply", "-f", filepath.Join("..", "..", "examples", "rbac", manifest+".yaml"))
	}
	pod, err := d.admin.CoreV1().Pods("kubewright").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "publisher"},
		Spec:       corev1.PodSpec{NodeName: "dra-1", ServiceAccountName: "virtual-node", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := d.admin.CoreV1().ServiceAccounts("kubewright").CreateToken(t.Context(), "virtual-node", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound := rest.AnonymousClientConfig(d.cluster.AdminConfig())
	bound.QPS = -1
	bound.BearerToken = token.Status.Token

	mine := d.publish("dra-1", bound)
	d.eventually("the policy to be in force", func() bool {
		_, err := d.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(t.Context(), "kubewright-resourceslice", metav1.GetOptions{})
		return err == nil
	})
	time.Sleep(3 * time.Second) // the API server compiles policies in the background and does not report when it is done
	mine.set(gpuDriver, resourceslice.Pool{Devices: gpusFrom(0, 200, "a")})
	if err := mine.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	for name, p := range map[string]*publisher{
		"another node":   d.publish("dra-2", bound),
		"no pod's token": d.publish("dra-1", d.cluster.ServiceAccountConfig(t, "kubewright", "virtual-node")),
	} {
		id := resourceslice.PoolID{Driver: gpuDriver, Name: "other"}
		if err := p.Set(id, resourceslice.Pool{Devices: gpusFrom(0, 1, "a")}); err != nil {
			t.Fatal(err)
		}
		d.eventually(name+": an error", func() bool { return len(p.reported()) > 0 })
		if n := len(d.slicesOf(gpuDriver, p.node)); n != 0 {
			t.Errorf("%s: %d slices, reported %v", name, n, p.reported())
		}
	}
}
