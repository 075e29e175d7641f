// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"
)

// certificateAge is the time for which a certificate file is not read again.
const certificateAge = 10 * time.Second

// selfSignedAge is the time for which a self-signed certificate is used. It is
// valid for much longer.
const selfSignedAge = 30 * 24 * time.Hour

// certificate returns the TLS configuration of Run, and the function that ends
// the rotation of certificates.
func (s *Server) certificate(ctx context.Context) (*tls.Config, func(), error) {
	var (
		c    = s.cfg.Certificate
		stop = func() {}
		// current returns a certificate if there is one that is not self-signed.
		current = func(context.Context) *tls.Certificate { return nil }
	)
	switch {
	case c.CertFile != "":
		pair := &cached[*tls.Certificate]{maxAge: certificateAge, load: func(context.Context) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}}
		if err := pair.refresh(ctx); err != nil {
			return nil, nil, fmt.Errorf("nodeapi: load the serving certificate: %w", err)
		}
		current = func(ctx context.Context) *tls.Certificate {
			if err := pair.refresh(ctx); err != nil {
				s.report(ctx, err, "The serving certificate can't be read again; the previous one stays in use")
			}
			certificate, _ := pair.get()
			return certificate
		}
	case c.Dir != "":
		renewal := &renewal{make: func() (certificate.Manager, error) { return s.rotation(ctx) }}
		if err := renewal.begin(); err != nil {
			return nil, nil, fmt.Errorf("nodeapi: serving certificates of the signer %s: %w", certificatesv1.KubeletServingSignerName, err)
		}
		following, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			renewal.follow(following, func(err error) {
				s.report(ctx, err, "The next serving certificate can't be requested; the previous one stays in use")
			})
		}()
		stop = func() {
			cancel()
			<-ended
		}
		current = func(context.Context) *tls.Certificate { return renewal.current() }
	}
	self := &cached[*tls.Certificate]{maxAge: selfSignedAge, load: s.selfSigned}
	// serving returns the certificate for a new connection.
	serving := func() (*tls.Certificate, error) {
		if certificate := current(ctx); certificate != nil {
			s.certificateUsed(ctx, certificate, false)
			return certificate, nil
		}
		err := self.refresh(ctx)
		if certificate, _ := self.get(); certificate != nil {
			if err != nil {
				s.report(ctx, err, "No new self-signed certificate; the previous one stays in use")
			}
			s.certificateUsed(ctx, certificate, true)
			return certificate, nil
		}
		return nil, fmt.Errorf("nodeapi: self-signed certificate: %w", err)
	}
	// Called here, so that the log line comes with the start and not with a client.
	if _, err := serving(); err != nil {
		stop()
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		ClientAuth:     tls.RequestClientCert, // the authenticator verifies it
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving() },
	}, stop, nil
}

// certificateUsed calls Hooks.Certificate if the certificate is another one than that of
// the connection before.
func (s *Server) certificateUsed(ctx context.Context, c *tls.Certificate, selfSigned bool) {
	der := string(c.Certificate[0]) // files are read again and again, so the pointer says nothing
	if s.cfg.Hooks.Certificate == nil || s.lastCertificate.Swap(der) == der {
		return
	}
	leaf := c.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			s.report(ctx, err, "The serving certificate can't be decoded")
			return
		}
	}
	s.call(ctx, func() { s.cfg.Hooks.Certificate(CertificateUsed{NotAfter: leaf.NotAfter, SelfSigned: selfSigned}) })
}

// A renewal has the manager that renews a certificate. The manager waits for the time of the
// next certificate with a timer. A timer stands still while the machine is suspended, and
// does not follow a clock that is set. So if the time has passed by the clock, another
// manager takes its place, once for each certificate: one that was stopped keeps its
// goroutine until its timer fires.
type renewal struct {
	make func() (certificate.Manager, error)

	mu      sync.Mutex
	manager certificate.Manager

	// Only follow uses these.
	last    time.Time // when the latest certificate must be renewed
	isTimed bool      // the manager may wait for that with its timer
}

// begin starts a manager in place of the present one.
func (r *renewal) begin() error {
	next, err := r.make()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.manager != nil {
		r.manager.Stop()
	}
	r.manager = next
	next.Start()
	return nil
}

// follow looks at the clock until ctx is done, and then stops the manager.
func (r *renewal) follow(ctx context.Context, failed func(error)) {
	look := time.NewTicker(time.Minute)
	defer look.Stop()
	for {
		if err := r.look(time.Now()); err != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			r.manager.Stop()
			return
		case <-look.C:
		}
	}
}

// look starts another manager if the present one is late.
func (r *renewal) look(now time.Time) error {
	if c := r.current(); c != nil {
		life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
		// The manager begins after 70 to 90 % of the life, and at once if that is over.
		if last := c.Leaf.NotAfter.Add(-life / 10); !last.Equal(r.last) {
			r.last, r.isTimed = last, now.Before(last)
		}
	}
	if !r.isTimed || now.Before(r.last) {
		return nil
	}
	if err := r.begin(); err != nil {
		return err
	}
	r.isTimed = false
	return nil
}

// current returns the certificate if there is one that has not expired.
func (r *renewal) current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manager.Current()
}

// rotation returns the manager of certificates of the kubelet-serving signer.
func (s *Server) rotation(ctx context.Context) (certificate.Manager, error) {
	var (
		logger = klog.FromContext(ctx)
		client = s.cfg.Client
		dir    = s.cfg.Certificate.Dir
	)
	store, err := certificate.NewFileStoreWithLogger(logger.V(4), "nodeapi-server", dir, dir, "", "")
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + s.cfg.NodeName, Organization: []string{"system:nodes"}}}
	template.IPAddresses, template.DNSNames = s.hosts()
	return certificate.NewManager(&certificate.Config{
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		GetTemplate:      func() *x509.CertificateRequest { return template },
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        certificate.DefaultKubeletServingGetUsages,
		CertificateStore: store,
		Name:             s.cfg.Name,
		Ctx:              &ctx,
	})
}

func (s *Server) hosts() (ips []net.IP, names []string) {
	for _, host := range s.cfg.Certificate.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return ips, names
}

func (s *Server) selfSigned(ctx context.Context) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.cfg.NodeName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * selfSignedAge),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	template.IPAddresses, template.DNSNames = s.hosts()
	template.DNSNames = append(template.DNSNames, s.cfg.NodeName)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pair := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	why := "neither Certificate.CertFile nor Certificate.Dir is set"
	if s.cfg.Certificate.Dir != "" {
		why = "the signer has not issued a certificate yet; check that its CertificateSigningRequest is approved"
	}
	klog.FromContext(ctx).Info("Serving with a self-signed certificate: kubectl logs and exec work only if the API server does not verify certificates of nodes (--kubelet-certificate-authority is not set), and metrics-server needs --kubelet-insecure-tls", "why", why)
	return pair, nil
}
