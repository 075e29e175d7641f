// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"
)

// clientConfig returns the configuration of the clients: the one in --kubeconfig, or
// with --bootstrap-kubeconfig one with a client certificate of the cluster. The
// certificate is rotated until rotate is done.
func (o *options) clientConfig(ctx, rotate context.Context, stdout io.Writer) (*rest.Config, error) {
	if o.bootstrapKubeconfig == "" {
		return o.Config()
	}
	bootstrap, err := clientcmd.BuildConfigFromFlags("", o.bootstrapKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	bootstrap = rest.AddUserAgent(bootstrap, "kubewright-examples/"+o.Name())
	cfg, err := join(ctx, rotate, bootstrap, o.nodeName, o.certDir, stdout)
	if err != nil {
		return nil, fmt.Errorf("client certificate of node %q: %w", o.nodeName, err)
	}
	return cfg, nil
}

// join returns a configuration with a client certificate for the node, which it
// requests with the credentials of bootstrap unless dir has one that is valid. It
// waits until the certificate is issued or ctx is done.
func join(ctx, rotate context.Context, bootstrap *rest.Config, nodeName, dir string, stdout io.Writer) (*rest.Config, error) {
	files, err := certificate.NewFileStoreWithLogger(klog.FromContext(rotate).V(4), "kubelet-client", dir, dir, "", "")
	if err != nil {
		return nil, err
	}
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext)
	cfg := rest.AnonymousClientConfig(bootstrap)
	cfg.Dial = dialer.DialContext
	// One file has both. client-go reads it again when it opens a connection.
	cfg.CertFile, cfg.KeyFile = files.CurrentPath(), files.CurrentPath()

	issued := sync.OnceValues(func() (*kubernetes.Clientset, error) { return kubernetes.NewForConfig(cfg) })
	subject := pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}
	manager, err := certificate.NewManager(&certificate.Config{
		// Without a certificate, or with one that has expired, the token must do.
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return kubernetes.NewForConfig(bootstrap)
			}
			return issued()
		},
		Template:         &x509.CertificateRequest{Subject: subject},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: certificateStore{files, dialer},
		Name:             "kubelet-client",
		Ctx:              &rotate,
	})
	if err != nil {
		return nil, err
	}
	if current := manager.Current(); current != nil && current.Leaf.Subject.CommonName != subject.CommonName {
		return nil, fmt.Errorf("%s is the certificate of %q", files.CurrentPath(), current.Leaf.Subject.CommonName)
	}
	if manager.Current() == nil {
		fmt.Fprintf(stdout, "node %s: requesting a client certificate\n", nodeName)
	}
	manager.Start()
	return cfg, wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		return manager.Current() != nil, nil
	})
}

// A certificateStore keeps the client certificate in a file. It closes the
// connections of the previous certificate when there is a new one: the API server
// refuses requests on them once that certificate has expired.
type certificateStore struct {
	certificate.FileStore
	dialer *connrotation.Dialer
}

// Update implements certificate.Store.
func (s certificateStore) Update(cert, key []byte) (*tls.Certificate, error) {
	current, err := s.FileStore.Update(cert, key)
	if err == nil {
		s.dialer.CloseAll()
	}
	return current, err
}
