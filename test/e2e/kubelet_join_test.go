// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A node joins with a bootstrap token and nothing else. kube-controller-manager
// approves and signs its client certificate, which lives for a minute, and each
// successor. It signs the serving certificate after an administrator, here the test,
// has approved it.
func TestExampleKubeletJoins(t *testing.T) {
	quiet(t)
	const node = "joined"
	cluster := ownCluster(t, harness.Options{Audit: true, ExtraArgs: map[string][]string{
		harness.APIServer: {"--enable-bootstrap-token-auth"},
		// kube-controller-manager dates a certificate back by five minutes. So 70 to
		// 90 % of its life are over 48 s before it is issued to 24 s after it.
		harness.ControllerManager: {"--cluster-signing-duration=60s"},
	}})
	cluster.Kubectl(t, "apply", "-f", "../../examples/rbac/kubelet-bootstrap.yaml")
	letNodesRecordEvents(t, cluster)
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	bootstrap := bootstrapKubeconfig(t, cluster, client)

	root := filepath.Join(t.TempDir(), "kubelet")
	p := startBinary(t, buildExample(t, "kubelet"), "--bootstrap-kubeconfig="+bootstrap, "--node-name="+node,
		"--root-dir="+root, "--port=0", "--min-free-disk=0", "--rotate-server-certificates", "-v=2")
	joined := awaitNode(t, client, node, "ready", isReady)

	// The first serving certificate, and the next one.
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(joined.Status.DaemonEndpoints.KubeletEndpoint.Port)))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cluster.AdminConfig().CAData) {
		t.Fatal("the cluster has no CA")
	}
	serving := func() (string, error) {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	if _, err := serving(); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("before the request is approved the serving certificate is verified with: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	approved := make(chan error, 1)
	go func() { approved <- approveServing(ctx, client, 2) }()
	previous := ""
	for range 2 {
		previous = awaitServing(t, serving, previous)
	}
	if err := <-approved; err != nil {
		t.Fatal(err)
	}

	// The node is alive after its first client certificate has expired: each one was
	// requested with the one before it.
	first := clientRequests(t, client)[0]
	block, _ := pem.Decode(first.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	awaitRenewalAfter(t, client, node, cert.NotAfter)
	by := make(map[string]int)
	for _, csr := range clientRequests(t, client) {
		by[csr.Spec.Username]++
	}
	if by["system:bootstrap:abcdef"] != 1 || by["system:node:"+node] == 0 || len(by) != 2 {
		t.Errorf("client certificates were requested by %v, want one by the token and more by the node", by)
	}
	p.stop()
	for _, user := range []string{"system:node:" + node, "system:bootstrap:abcdef"} {
		if refused := refusals(t, cluster, user, "kubelet"); len(refused) > 0 {
			t.Errorf("refused: %v", refused)
		}
	}
}

// clientRequests returns the requests for client certificates, the oldest first.
func clientRequests(t *testing.T, client kubernetes.Interface) []certificatesv1.CertificateSigningRequest {
	t.Helper()
	list, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeAPIServerClientKubeletSignerName).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b certificatesv1.CertificateSigningRequest) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return list.Items
}

// awaitRenewalAfter waits until the lease of a node is renewed after a time.
func awaitRenewalAfter(t *testing.T, client kubernetes.Interface, node string, after time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lw := cache.NewListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", corev1.NamespaceNodeLease, fields.OneTermEqualSelector(metav1.ObjectNameField, node))
	_, err := watchtools.UntilWithSync(ctx, lw, &coordinationv1.Lease{}, nil, func(event watch.Event) (bool, error) {
		return event.Object.(*coordinationv1.Lease).Spec.RenewTime.After(after), nil
	})
	if err != nil {
		t.Fatalf("waiting for a renewal after %v: %v", after, err)
	}
}

// bootstrapKubeconfig creates a bootstrap token and returns the path of a kubeconfig
// with it.
func bootstrapKubeconfig(t *testing.T, cluster *harness.Cluster, client kubernetes.Interface) string {
	t.Helper()
	_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["e2e"] = &clientcmdapi.Cluster{Server: cluster.Server(), CertificateAuthorityData: cluster.AdminConfig().CAData}
	cfg.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
	cfg.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	cfg.CurrentContext = "e2e"
	path := filepath.Join(t.TempDir(), "bootstrap-kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// approveServing approves the first n requests for serving certificates.
func approveServing(ctx context.Context, client kubernetes.Interface, n int) error {
	api := client.CertificatesV1()
	lw := cache.NewListWatchFromClient(api.RESTClient(), "certificatesigningrequests", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName))
	_, err := watchtools.UntilWithSync(ctx, lw, &certificatesv1.CertificateSigningRequest{}, nil, func(event watch.Event) (bool, error) {
		csr := event.Object.(*certificatesv1.CertificateSigningRequest).DeepCopy()
		if len(csr.Status.Conditions) > 0 {
			return n == 0, nil
		}
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "approved by the test",
		}}
		n--
		_, err := api.CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		return n == 0, err
	})
	if err != nil {
		return fmt.Errorf("approve the serving certificates: %w", err)
	}
	return nil
}

// awaitServing waits for a serving certificate of the cluster other than previous, and
// returns its serial number.
func awaitServing(t *testing.T, serving func() (string, error), previous string) string {
	t.Helper()
	tick, timeout := time.NewTicker(100*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		serial, err := serving()
		if err == nil && serial != previous {
			return serial
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited %v for a serving certificate other than %q: %q, %v", patience, previous, serial, err)
		}
	}
}
