// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
)

// pollCertificate is the time between two looks at a request for a certificate.
const pollCertificate = time.Second

// certificate adds the key and the certificate chain of a PodCertificateProjection
// (KEP-4317). Each call asks for a new certificate, unless an earlier request for the
// same source has no answer yet, or a refresh finds one that needs no renewal.
func (f *filler) certificate(ctx context.Context, source int, s *corev1.PodCertificateProjection) {
	cfg := &f.p.resolver.cfg
	if cfg.Certificates == nil {
		f.fail(&SourceError{Err: errors.New("certificates are not supported on this node")})
		return
	}
	kept := objectKey{kindCertificate, f.p.pod.Namespace, fmt.Sprintf("%s/%d", f.volume, source)}
	if last, known := f.p.memory.recall(kept); known && f.p.refresh {
		if c := last.object.(*keptCertificate); !c.isDue(time.Now()) {
			f.addCertificate(s, c)
			return
		}
	}
	id := projection{f.p.pod.UID, f.volume, source}
	r, err := f.p.resolver.requests.take(id), error(nil)
	if r == nil {
		if r, err = f.request(ctx, s); err != nil {
			f.fail(&SourceError{Kind: "PodCertificateRequest", Namespace: f.p.pod.Namespace, Wait: true, Err: err})
			return
		}
	}
	answer, err := f.answer(ctx, r)
	failed := &SourceError{Kind: "PodCertificateRequest", Namespace: f.p.pod.Namespace, Name: r.name, Wait: true}
	switch {
	case errors.Is(err, ErrMissing): // the next call makes another one
		failed.Err = err
	case err != nil:
		f.p.resolver.requests.put(id, r)
		failed.Err = err
	default: // a signer that has refused may be configured otherwise one day
		var c *keptCertificate
		if c, failed.Err = issued(r, answer); failed.Err == nil {
			f.p.memory.keep(kept, &held{c})
			f.addCertificate(s, c)
		}
	}
	if failed.Err != nil {
		f.fail(failed)
	}
}

// request makes a key and a PodCertificateRequest for it.
func (f *filler) request(ctx context.Context, s *corev1.PodCertificateProjection) (*certificateRequest, error) {
	cfg, pod := &f.p.resolver.cfg, f.p.pod
	ctx, cancel := context.WithTimeout(ctx, cfg.CallTimeout)
	defer cancel()
	account, err := cfg.ServiceAccounts.ServiceAccounts(pod.Namespace).Get(ctx, accountOf(pod), metav1.GetOptions{})
	account, err = apierr.Answer(account, err, accountOf(pod))
	if err != nil {
		return nil, err
	}
	node, err := cfg.Nodes.Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	node, err = apierr.Answer(node, err, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	key, err := newKey(s.KeyType)
	if err != nil {
		return nil, err
	}
	// An empty request: it only proves that its sender has the key.
	proof, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	made, err := cfg.Certificates.PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    "req-" + pod.Name[:min(len(pod.Name), 40)] + "-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: s.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: s.MaxExpirationSeconds,
			StubPKCS10Request: proof, UnverifiedUserAnnotations: s.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &certificateRequest{name: made.Name, key: key, made: time.Now()}, nil
}

// answer waits for the signer, as long as one call may take.
func (f *filler) answer(ctx context.Context, r *certificateRequest) (*certificatesv1.PodCertificateRequestStatus, error) {
	cfg := &f.p.resolver.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.CallTimeout)
	defer cancel()
	for {
		// Not a GET: to a node it answers 403 for a request that is gone, and for one
		// that its authorizer has not seen yet.
		list, err := cfg.Certificates.PodCertificateRequests(f.p.pod.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.Set{"metadata.name": r.name, "spec.nodeName": f.p.pod.Spec.NodeName}.String(),
		})
		switch {
		case err != nil:
			return nil, err
		case list.ResourceVersion == "":
			return nil, apierr.ErrAnswer
		case len(list.Items) == 0:
			return nil, ErrMissing
		case len(list.Items[0].Status.Conditions) > 0:
			return &list.Items[0].Status, nil
		}
		select {
		case <-time.After(pollCertificate):
		case <-ctx.Done():
			return nil, errors.New("the signer has not issued the certificate yet")
		}
	}
}

// issued returns the certificate of an answer, or why there is none.
func issued(r *certificateRequest, answer *certificatesv1.PodCertificateRequestStatus) (*keptCertificate, error) {
	for _, c := range answer.Conditions {
		if c.Type != certificatesv1.PodCertificateRequestConditionTypeIssued {
			return nil, fmt.Errorf("%s: %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(r.key)
	if err != nil {
		return nil, err
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	chain := []byte(strings.Join(certificatesIn(answer.CertificateChain), ""))
	if len(chain) == 0 || answer.NotAfter == nil || answer.BeginRefreshAt == nil {
		return nil, errors.New("the signer has issued no certificate")
	}
	return &keptCertificate{key, chain, answer.NotAfter.Time, answer.BeginRefreshAt.Time, time.Now().Round(0)}, nil
}

// addCertificate adds the files of a certificate.
func (f *filler) addCertificate(s *corev1.PodCertificateProjection, c *keptCertificate) {
	for path, data := range map[string][]byte{
		s.CredentialBundlePath: slices.Concat(c.key, c.chain), s.KeyPath: bytes.Clone(c.key), s.CertificateChainPath: bytes.Clone(c.chain),
	} {
		if path != "" {
			f.addToken(path, File{Data: data, Expires: c.expires, Renew: c.renew})
		}
	}
}

// newKey makes a private key of one of the API's types.
func newKey(kind string) (crypto.Signer, error) {
	switch kind {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("the key type %q is not supported here", kind)
}

// certificatesIn returns the certificates of a PEM text, each without its headers.
func certificatesIn(text string) (list []string) {
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" { // the API accepts no other
			list = append(list, string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})))
		}
	}
	return list
}

// trust adds the trust anchors of a ClusterTrustBundleProjection (KEP-3257): the
// certificates of one bundle, or of all bundles of a signer that match a selector,
// each once. The file is empty if there are none and the projection is optional.
func (f *filler) trust(ctx context.Context, s *corev1.ClusterTrustBundleProjection) {
	if f.p.resolver.cfg.Certificates == nil {
		f.fail(&SourceError{Err: errors.New("trust bundles are not supported on this node")})
		return
	}
	missing := &SourceError{Kind: "ClusterTrustBundle", Wait: true}
	var anchors []string
	switch {
	case s.Name != nil:
		missing.Name = *s.Name
		var bundle *certificatesv1.ClusterTrustBundle
		if bundle, missing.Err = f.trustBundle(ctx, *s.Name); missing.Err == nil {
			anchors = []string{bundle.Spec.TrustBundle}
		}
	case s.SignerName != nil:
		missing.Name = *s.SignerName
		anchors, missing.Err = f.signerBundles(ctx, *s.SignerName, s.LabelSelector)
	default:
		missing.Wait, missing.Err = false, errors.New("neither a name nor a signer")
	}
	if missing.Err != nil && !(errors.Is(missing.Err, ErrMissing) && s.Optional != nil && *s.Optional) {
		f.fail(missing)
		return
	}
	var blocks []string
	for _, text := range anchors {
		blocks = append(blocks, certificatesIn(text)...)
	}
	slices.Sort(blocks)
	f.add(s.Path, []byte(strings.Join(slices.Compact(blocks), "")), nil)
}

// signerBundles returns the bundles of a signer that match a selector.
func (f *filler) signerBundles(ctx context.Context, signer string, selector *metav1.LabelSelector) (anchors []string, err error) {
	matching, err := metav1.LabelSelectorAsSelector(selector) // none, if there is no selector
	if err != nil {
		return nil, err
	}
	if _, selectable := matching.Requirements(); selectable {
		list, err := f.trustBundles(ctx, matching.String())
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if list.Items[i].Spec.SignerName == signer {
				anchors = append(anchors, list.Items[i].Spec.TrustBundle)
			}
		}
	}
	if len(anchors) == 0 {
		f.lacks("ClusterTrustBundleList", matching.String())
		return nil, fmt.Errorf("%w: no bundle of this signer has labels %q", ErrMissing, matching)
	}
	return anchors, nil
}
