// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

const signer = "example.com/signer"

// A signingWorld has a signer, which a test runs or does not run.
type signingWorld struct {
	*world
	t   *testing.T
	key crypto.Signer
	ca  *x509.Certificate
}

func newSigningWorld(t *testing.T, objects ...runtime.Object) *signingWorld {
	w := &signingWorld{t: t}
	w.world = newWorld(t, nil, append(objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default", UID: "account-uid"}},
	)...)
	clientset := w.server.Client(apitest.NodeUser("n1"))
	core := clientset.CoreV1()
	var err error
	w.resolver, err = New(Config{ConfigMaps: core, Secrets: core, ServiceAccounts: core, Nodes: core, Certificates: clientset.CertificatesV1()})
	if err != nil {
		t.Fatal(err)
	}
	if w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	w.ca = &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	return w
}

// open returns the requests without an answer.
func (w *signingWorld) open() (list []certificatesv1.PodCertificateRequest) {
	w.t.Helper()
	all, err := w.server.Client(apitest.User{}).CertificatesV1().PodCertificateRequests(ns).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range all.Items {
		if len(r.Status.Conditions) == 0 {
			list = append(list, r)
		}
	}
	return list
}

// sign answers the open requests.
func (w *signingWorld) sign() {
	w.t.Helper()
	for _, r := range w.open() {
		proof, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		if err == nil {
			err = proof.CheckSignature()
		}
		if err != nil {
			w.t.Fatal(err)
		}
		from := time.Now().Truncate(time.Second)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: from.Add(2 * time.Hour),
		}, w.ca, proof.PublicKey, w.key)
		if err != nil {
			w.t.Fatal(err)
		}
		leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"note": "dropped"}, Bytes: der})
		w.answer(r.Name, certificatesv1.PodCertificateRequestStatus{
			Conditions:       []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed"}},
			CertificateChain: "the leaf:\n" + string(leaf),
			NotBefore:        new(metav1.NewTime(from)), NotAfter: new(metav1.NewTime(from.Add(2 * time.Hour))), BeginRefreshAt: new(metav1.NewTime(from.Add(90 * time.Minute))),
		})
	}
}

func (w *signingWorld) answer(name string, status certificatesv1.PodCertificateRequestStatus) {
	apitest.Edit(w.server, ns, name, func(r *certificatesv1.PodCertificateRequest) { r.Status = status })
}

// created returns the number of requests that were made.
func (w *signingWorld) created() int {
	return len(w.server.Requests(apitest.Match{Verb: "create", Resource: "podcertificaterequests"}))
}

func podWith(source corev1.VolumeProjection) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid"},
		Spec: corev1.PodSpec{ServiceAccountName: "default", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}}}}},
	}
}

func certificateSource(keyType string) corev1.VolumeProjection {
	return corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName: signer, KeyType: keyType, CredentialBundlePath: "bundle.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
		MaxExpirationSeconds: new(int32(7200)), UserAnnotations: map[string]string{"example.com/a": "b"},
	}}
}

func TestAVolumeHasACertificateForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t)
		for keyType, fits := range map[string]func(any) bool{
			"ECDSAP256": func(key any) bool { k, ok := key.(*ecdsa.PrivateKey); return ok && k.Curve == elliptic.P256() },
			"ECDSAP384": func(key any) bool { k, ok := key.(*ecdsa.PrivateKey); return ok && k.Curve == elliptic.P384() },
			"ECDSAP521": func(key any) bool { k, ok := key.(*ecdsa.PrivateKey); return ok && k.Curve == elliptic.P521() },
			"ED25519":   func(key any) bool { _, ok := key.(ed25519.PrivateKey); return ok },
		} {
			p := w.pod(podWith(certificateSource(keyType)))
			go func() {
				time.Sleep(3 * time.Second)
				w.sign()
			}()
			files, err := p.Volume(t.Context(), "v")
			if err != nil {
				t.Fatal(err)
			}
			bundle := files["bundle.pem"]
			pair, err := tls.X509KeyPair(bundle.Data, bundle.Data)
			if err != nil {
				t.Fatalf("%s: %v", keyType, err)
			}
			if !fits(pair.PrivateKey) {
				t.Errorf("%s: the key is a %T", keyType, pair.PrivateKey)
			}
			if string(files["key.pem"].Data)+string(files["chain.pem"].Data) != string(bundle.Data) {
				t.Errorf("the files are %s, %s and %s", files["key.pem"].Data, files["chain.pem"].Data, bundle.Data)
			}
			if text := string(bundle.Data); strings.Contains(text, "leaf") || strings.Contains(text, "dropped") {
				t.Errorf("text between the certificates is left: %s", text)
			}
			if !bundle.Expires.Equal(pair.Leaf.NotAfter) || !bundle.Renew.Equal(pair.Leaf.NotBefore.Add(90*time.Minute)) {
				t.Errorf("a certificate for %v to %v expires %v and is renewed %v", pair.Leaf.NotBefore, pair.Leaf.NotAfter, bundle.Expires, bundle.Renew)
			}
		}
		if w.created() != 4 {
			t.Errorf("%d requests", w.created())
		}
	})
}

func TestARequestNamesPodAccountAndNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t)
		p := w.pod(podWith(certificateSource("ED25519")))
		if _, err := p.Volume(t.Context(), "v"); err == nil {
			t.Fatal("no signer, and a certificate")
		}
		got := w.open()[0]
		want := certificatesv1.PodCertificateRequestSpec{
			SignerName: signer, PodName: "p", PodUID: p.pod.UID, ServiceAccountName: "default", ServiceAccountUID: "account-uid", NodeName: "n1", NodeUID: "node-uid",
			MaxExpirationSeconds: new(int32(7200)), UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"}, StubPKCS10Request: got.Spec.StubPKCS10Request,
		}
		if diff := cmp.Diff(want, got.Spec); diff != "" {
			t.Error(diff)
		}
		if got.GenerateName != "req-p-" {
			t.Errorf("it is named %s", got.GenerateName)
		}
		if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != p.pod.UID {
			t.Errorf("owners %v", got.OwnerReferences)
		}
	})
}

// TestARequestThatCantBeMadeWaits lets each request that precedes a certificate fail.
func TestARequestThatCantBeMadeWaits(t *testing.T) {
	for resource, verb := range map[string]string{"serviceaccounts": "get", "nodes": "get", "podcertificaterequests": "create"} {
		w := newSigningWorld(t)
		w.server.Inject(apitest.Fault{Match: apitest.Match{Resource: resource, Verb: verb}, Status: statuserr.InternalError("broken")})
		if _, err := w.pod(podWith(certificateSource("ED25519"))).Volume(t.Context(), "v"); err == nil || !CanWait(err) || !strings.Contains(err.Error(), "PodCertificateRequest") || !strings.Contains(err.Error(), "broken") {
			t.Errorf("%s: %v", resource, err)
		}
		if resource != "podcertificaterequests" && w.created() > 0 {
			t.Errorf("%s can't be read, and a certificate is asked for", resource)
		}
	}
	w := newSigningWorld(t)
	if _, err := w.pod(podWith(certificateSource("DSA"))).Volume(t.Context(), "v"); err == nil || w.created() > 0 {
		t.Errorf("a key of an unknown type: %v, %d requests", err, w.created())
	}
}

// TestACertificateHasTheFilesThatAreNamed leaves two of three paths out.
func TestACertificateHasTheFilesThatAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t)
		source := certificateSource("ED25519")
		source.PodCertificate.KeyPath, source.PodCertificate.CertificateChainPath = "", ""
		p := w.pod(podWith(source))
		go func() {
			time.Sleep(time.Second / 2)
			w.sign()
		}()
		if files, err := p.Volume(t.Context(), "v"); err != nil || len(files) != 1 || len(files["bundle.pem"].Data) == 0 {
			t.Errorf("%v, %v", files, err)
		}
	})
}

// A call that gives up does not leave its request behind for nothing.
func TestTheNextCallWaitsForTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t)
		pod := podWith(certificateSource("ED25519"))
		first := w.pod(pod)
		start := time.Now()
		_, err := first.Volume(t.Context(), "v")
		if err == nil || !CanWait(err) || time.Since(start) != DefaultCallTimeout {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		w.sign()
		if _, err := w.resolver.Pod(first.pod).Volume(t.Context(), "v"); err != nil {
			t.Errorf("once it is issued: %v", err)
		}
		if w.created() != 1 {
			t.Errorf("%d requests, want 1", w.created())
		}
		go func() {
			time.Sleep(time.Second / 2)
			w.sign()
		}()
		if _, err := first.Volume(t.Context(), "v"); err != nil || w.created() != 2 {
			t.Errorf("a renewal: %v, %d requests, want 2", err, w.created())
		}
	})
}

func TestARefusalIsReportedAndTheNextCallAsksAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *signingWorld, request string)
		want   string
	}{
		"denied": {func(w *signingWorld, request string) {
			w.answer(request, certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{
				{Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "try ECDSAP256"}}})
		}, "Denied: UnsupportedKeyType: try ECDSAP256"},
		"issued without a certificate": {func(w *signingWorld, request string) {
			w.answer(request, certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{
				{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed"}}})
		}, "no certificate"},
		"issued without an end": {func(w *signingWorld, request string) {
			w.answer(request, certificatesv1.PodCertificateRequestStatus{CertificateChain: anchor("a"), BeginRefreshAt: new(metav1.Now()), Conditions: []metav1.Condition{
				{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed"}}})
		}, "no certificate"},
		"issued without a renewal": {func(w *signingWorld, request string) {
			w.answer(request, certificatesv1.PodCertificateRequestStatus{CertificateChain: anchor("a"), NotAfter: new(metav1.Now()), Conditions: []metav1.Condition{
				{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed"}}})
		}, "no certificate"},
		"deleted": {func(w *signingWorld, request string) {
			apitest.Remove[*certificatesv1.PodCertificateRequest](w.server, ns, request)
		}, "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSigningWorld(t)
				p := w.pod(podWith(certificateSource("ED25519")))
				go func() {
					time.Sleep(time.Second / 2)
					tc.change(w, w.open()[0].Name)
				}()
				_, err := p.Volume(t.Context(), "v")
				if err == nil || !strings.Contains(err.Error(), tc.want) || !CanWait(err) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				go func() {
					time.Sleep(time.Second / 2)
					w.sign()
				}()
				if _, err := p.Volume(t.Context(), "v"); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

func TestRequestsThatAreNeverAnsweredAreForgotten(t *testing.T) {
	var r requests
	now := time.Now()
	r.put(projection{volume: "old"}, &certificateRequest{made: now.Add(-forgetCertificate - time.Second)})
	r.put(projection{volume: "new"}, &certificateRequest{made: now})
	if r.take(projection{volume: "old"}) != nil || r.take(projection{volume: "new"}) == nil || r.take(projection{volume: "new"}) != nil {
		t.Error("an old request is kept, or a new one is not, or is had twice")
	}
}

func TestCertificatesNeedTheirClients(t *testing.T) {
	w := newWorld(t, nil)
	for _, source := range []corev1.VolumeProjection{certificateSource("ED25519"), {ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}} {
		if _, err := w.pod(podWith(source)).Volume(t.Context(), "v"); err == nil || CanWait(err) || !strings.Contains(err.Error(), "not supported on this node") {
			t.Errorf("%v", err)
		}
	}
	core := w.server.Client(apitest.User{})
	_, err := New(Config{ConfigMaps: core.CoreV1(), Secrets: core.CoreV1(), Certificates: core.CertificatesV1()})
	if err == nil || !strings.Contains(err.Error(), "ServiceAccounts") || !strings.Contains(err.Error(), "Nodes") {
		t.Errorf("New: %v", err)
	}
}

// anchor returns a PEM block that stands for a certificate.
func anchor(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func bundle(name, signer, text string, labels map[string]string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
}

func TestTrustBundles(t *testing.T) {
	live := map[string]string{"stage": "live"}
	w := newSigningWorld(t,
		bundle("single", "", "# a comment\n"+anchor("b")+anchor("a")+anchor("b"), nil),
		bundle("one", signer, anchor("2")+anchor("1"), live),
		bundle("two", signer, anchor("3")+anchor("2"), live),
		bundle("test", signer, anchor("4"), map[string]string{"stage": "test"}),
		bundle("other", "example.com/other", anchor("5"), live),
	)
	for name, tc := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   string
		err    error
	}{
		"by name":                  {corev1.ClusterTrustBundleProjection{Name: new("single")}, anchor("a") + anchor("b"), nil},
		"by signer and labels":     {corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{MatchLabels: live}}, anchor("1") + anchor("2") + anchor("3"), nil},
		"all of a signer":          {corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{}}, anchor("1") + anchor("2") + anchor("3") + anchor("4"), nil},
		"without a selector":       {corev1.ClusterTrustBundleProjection{SignerName: new(signer)}, "", ErrMissing},
		"a name before a signer":   {corev1.ClusterTrustBundleProjection{Name: new("single"), SignerName: new(signer)}, anchor("a") + anchor("b"), nil},
		"missing, not optional":    {corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(false)}, "", ErrMissing},
		"missing":                  {corev1.ClusterTrustBundleProjection{Name: new("none")}, "", ErrMissing},
		"missing and optional":     {corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(true)}, "", nil},
		"no such signer, optional": {corev1.ClusterTrustBundleProjection{SignerName: new("example.com/none"), LabelSelector: &metav1.LabelSelector{}, Optional: new(true)}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.source.Path = "ca.pem"
			files, err := w.pod(podWith(corev1.VolumeProjection{ClusterTrustBundle: &tc.source})).Volume(t.Context(), "v")
			if !errors.Is(err, tc.err) || err != nil && !CanWait(err) {
				t.Fatalf("%v, want %v", err, tc.err)
			}
			file, ok := files["ca.pem"]
			if ok != (err == nil) || string(file.Data) != tc.want {
				t.Errorf("%q, want %q", file.Data, tc.want)
			}
		})
	}
}

func TestTrustThatNoBundleCanHave(t *testing.T) {
	w := newSigningWorld(t)
	for name, tc := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   string
		wait   bool
	}{
		"nothing is named": {corev1.ClusterTrustBundleProjection{Optional: new(true)}, "ClusterTrustBundle : neither a name nor a signer", false},
		"a broken selector": {corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "stage", Operator: "Near"}}}, Optional: new(true)}, "ClusterTrustBundle " + signer + `: "Near" is not a valid`, true},
		"a signer without bundles": {corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{}}, "ClusterTrustBundle " + signer + `: missing: no bundle of this signer has labels ""`, true},
	} {
		_, err := w.pod(podWith(corev1.VolumeProjection{ClusterTrustBundle: &tc.source})).Volume(t.Context(), "v")
		if err == nil || !strings.Contains(err.Error(), tc.want) || CanWait(err) != tc.wait {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

// TestKeysOfCertificates makes a key of each type of the API.
func TestKeysOfCertificates(t *testing.T) {
	for kind, bits := range map[string]int{"RSA3072": 3072, "RSA4096": 4096} {
		key, err := newKey(kind)
		if k, ok := key.(*rsa.PrivateKey); err != nil || !ok || k.N.BitLen() != bits {
			t.Errorf("%s: %T, %v", kind, key, err)
		}
	}
	if _, err := newKey("DSA"); err == nil {
		t.Error("a key of an unknown type")
	}
}

func TestATrustBundleThatIsMadeLaterIsFound(t *testing.T) {
	w := newSigningWorld(t)
	for _, source := range []corev1.ClusterTrustBundleProjection{
		{Path: "ca.pem", Name: new("late")}, {Path: "ca.pem", SignerName: new(signer), LabelSelector: &metav1.LabelSelector{}},
	} {
		p := w.pod(podWith(corev1.VolumeProjection{ClusterTrustBundle: &source}))
		if _, err := p.Volume(t.Context(), "v"); !errors.Is(err, ErrMissing) {
			t.Errorf("before: %v", err)
		}
		late := bundle("late", signer, anchor("1"), nil)
		w.server.Put(late)
		if files, err := p.Volume(t.Context(), "v"); err != nil || string(files["ca.pem"].Data) != anchor("1") {
			t.Errorf("after: %v, %v", files, err)
		}
		apitest.Remove[*certificatesv1.ClusterTrustBundle](w.server, "", late.Name)
	}
}

func TestTokensAreRenewedInTime(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct{ expires, asked, want time.Duration }{
		"after 80 %":                   {30 * time.Minute, 30 * time.Minute, 24 * time.Minute},
		"sooner if it was cut":         {10 * time.Minute, 30 * time.Minute, 8 * time.Minute},
		"not later than was asked for": {time.Hour, 30 * time.Minute, 24 * time.Minute},
		"80 % of 30 hours are a day":   {30 * time.Hour, 30 * time.Hour, 24 * time.Hour},
		"after a day at the latest":    {720 * time.Hour, 720 * time.Hour, 24 * time.Hour},
	} {
		if got := renewal(now.Add(tc.expires), now, tc.asked).Sub(now); got != tc.want {
			t.Errorf("%s: after %v, want %v", name, got, tc.want)
		}
	}
}
