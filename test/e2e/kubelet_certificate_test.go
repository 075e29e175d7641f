// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod gets a certificate from a signer, and the trust anchors to check it with.
func TestExampleKubeletPodCertificates(t *testing.T) {
	busy(t)
	const signer = "kubewright.dev/e2e"
	r := newKubeletRig(t, shared.Cluster(t), "kubelet-certificates")
	requests := r.client.CertificatesV1().PodCertificateRequests(r.namespace)
	if _, err := requests.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Skipf("this version has no certificates for pods: %v", err)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	anchor := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if _, err := r.client.CertificatesV1().ClusterTrustBundles().Create(t.Context(), &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "kubewright.dev:e2e:one", Labels: map[string]string{"live": "yes"}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchor},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	pod := r.template("secure", corev1.RestartPolicyNever, `cp $CONTAINER_SANDBOX_MOUNT_POINT/credentials/bundle.pem $OUT.bundle; cp $CONTAINER_SANDBOX_MOUNT_POINT/credentials/ca.pem $OUT.ca`)
	pod.Name = "secure"
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "credentials", MountPath: "/credentials"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "credentials", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{PodCertificate: &corev1.PodCertificateProjection{SignerName: signer, KeyType: "ECDSAP256", CredentialBundlePath: "bundle.pem"}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}, Path: "ca.pem"}},
	}}}}}
	if _, err := r.client.CoreV1().Pods(r.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// The signer is this test.
	var request *certificatesv1.PodCertificateRequest
	r.await("a request for a certificate", func([]*corev1.Pod) bool {
		list, err := requests.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 {
			request = &list.Items[0]
		}
		return request != nil
	})
	proof, err := x509.ParseCertificateRequest(request.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: request.Spec.PodName}, NotBefore: now, NotAfter: now.Add(2 * time.Hour)}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, root, proof.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	request.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{
			Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed", Message: "by a test", LastTransitionTime: metav1.Now(),
		}},
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        new(metav1.NewTime(leaf.NotBefore)), NotAfter: new(metav1.NewTime(leaf.NotAfter)), BeginRefreshAt: new(metav1.NewTime(now.Add(90 * time.Minute))),
	}
	if _, err := requests.UpdateStatus(t.Context(), request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	r.await("the pod to succeed", func(pods []*corev1.Pod) bool { return len(pods) == 1 && pods[0].Status.Phase == corev1.PodSucceeded })
	bundle, err := os.ReadFile(r.out + ".bundle")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(bundle, bundle)
	if err != nil || pair.Leaf.Subject.CommonName != "secure" {
		t.Errorf("the bundle: %v", err)
	}
	if ca, err := os.ReadFile(r.out + ".ca"); err != nil || string(ca) != anchor {
		t.Errorf("the trust anchors are %q, %v", ca, err)
	}
	if list, err := requests.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("%d requests, want 1: %v", len(list.Items), err)
	}
	r.cluster.Kubectl(t, "delete", "-n", r.namespace, "--wait=false", "pod/secure")
	r.awaitNone()
	r.program.stop()
	r.nothingRefused()
}
