// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Hello shows a working node on a machine that has only Go. Package apitest
// serves the API on a loopback port; examples/kubelet joins it as a node, runs
// a pod as a process, and serves its log. Hello prints each step as it happens.
//
// `make hello` builds examples/kubelet and runs this program.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kubewright/kubewright/apitest"
)

const (
	nodeName = "hello"
	podName  = "hello"
	// patience bounds each step. A step takes a few seconds, except the second
	// renewal of the Lease, which follows the first after ten seconds.
	patience = time.Minute
)

func main() {
	kubelet := flag.String("kubelet", "bin/kubelet", "`path` of examples/kubelet")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubelet, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// administrator has a name, because a node refuses a certificate without one.
var administrator = apitest.User{Name: "kubernetes-admin", Groups: []string{"system:masters"}}

// A show is one run of the program.
type show struct {
	out    io.Writer
	begin  time.Time
	client kubernetes.Interface
	admin  tls.Certificate
}

// say prints a line with the time since the start.
func (s *show) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%5.1fs  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, kubelet string, out io.Writer) (err error) {
	fmt.Fprintln(out, "A node joins an API server in memory, runs a pod and serves its log. This takes about ten seconds.")
	s := &show{out: out, begin: time.Now()}
	dir, err := os.MkdirTemp("", "kubewright-hello-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	ca, err := newAuthority()
	if err != nil {
		return err
	}
	url, shutdown, err := serve(ca)
	if err != nil {
		return err
	}
	defer shutdown()
	admin, err := s.connect(ca, url)
	if err != nil {
		return err
	}
	s.say("the API server listens on %s", url)

	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig, ca, url, apitest.NodeUser(nodeName)); err != nil {
		return err
	}
	caFile := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(caFile, ca.pem(), 0o600); err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(admin); err != nil {
		return err
	}
	n, err := startNode(kubelet, "--kubeconfig="+kubeconfig, "--client-ca-file="+caFile,
		"--node-name="+nodeName, "--node-credentials", "--register-taint=false", "--port=0", "--min-free-disk=0", "--root-dir="+filepath.Join(dir, "node"))
	if err != nil {
		return err
	}
	played := s.play(n.whileItRuns(ctx))
	if ctx.Err() != nil {
		played = nil // interrupted, not failed
	}
	// A pod outlives its kubelet, so it goes first, after an error or Ctrl-C too.
	removed := s.removePod(n.whileItRuns(context.WithoutCancel(ctx)))
	if err := errors.Join(played, removed, n.stop()); err != nil {
		return fmt.Errorf("%w\nthe last output of examples/kubelet:\n%s", err, n.output.Bytes()[max(0, n.output.Len()-2000):])
	}
	s.say("the node has ended cleanly")
	return context.Cause(ctx)
}

// play runs the steps.
func (s *show) play(ctx context.Context) error {
	node, err := await(ctx, s, s.client.CoreV1().Nodes().Watch, nodeName, func(n *corev1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("the Node to be Ready: %w", err)
	}
	s.say("Node %s is Ready", node.Name)

	var first metav1.MicroTime
	leases := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := await(ctx, s, leases.Watch, nodeName, func(l *coordinationv1.Lease) bool { return l.Spec.RenewTime != nil })
	if err != nil {
		return fmt.Errorf("the Lease to be held: %w", err)
	}
	first = *lease.Spec.RenewTime
	s.say("Lease %s is held by %s", lease.Name, *lease.Spec.HolderIdentity)

	pods := s.client.CoreV1().Pods(metav1.NamespaceDefault)
	pod, err := pods.Create(ctx, helloPod(), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s.say("Pod %s is created, bound to the node", pod.Name)
	pod, err = await(ctx, s, pods.Watch, pod.Name, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if err != nil {
		return fmt.Errorf("the pod to run: %w", err)
	}
	s.say("Pod %s is Running, as a process of this machine", pod.Name)

	if err := s.printLog(ctx, node, pod); err != nil {
		return fmt.Errorf("the log of the pod: %w", err)
	}
	lease, err = await(ctx, s, leases.Watch, nodeName, func(l *coordinationv1.Lease) bool {
		return l.Spec.RenewTime != nil && l.Spec.RenewTime.After(first.Time)
	})
	if err != nil {
		return fmt.Errorf("the Lease to be renewed: %w", err)
	}
	s.say("Lease %s is renewed, %.0f s after its last renewal", lease.Name, lease.Spec.RenewTime.Sub(first.Time).Seconds())
	return nil
}

// removePod deletes the pod, if there is one, and waits until it no longer exists.
func (s *show) removePod(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, podName, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	s.say("Pod %s is being deleted", podName)
	if err := s.awaitGone(ctx, podName); err != nil {
		return fmt.Errorf("the pod to go: %w", err)
	}
	s.say("Pod %s is gone, and so is its process", podName)
	return nil
}

func helloPod() *corev1.Pod {
	grace := int64(2)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.PodSpec{
			NodeName:                      nodeName,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name:  "hello",
				Image: "none", // examples/kubelet runs the command on this machine
				// The API's expansion turns each pair of dollar signs into a
				// single one.
				Command: []string{"/bin/sh", "-c", "echo hello from process $$$$; trap 'exit 0' TERM; while :; do sleep 0.1; done"},
			}},
		},
	}
}

// serve serves an in-memory API server on loopback. A client's certificate
// names its user.
func serve(ca *authority) (url string, shutdown func(), err error) {
	certPEM, keyPEM, err := ca.issue(apitest.User{Name: "kube-apiserver"})
	if err != nil {
		return "", nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen on loopback: %w", err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	api := apitest.New(apitest.Options{})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			subject := r.TLS.PeerCertificates[0].Subject
			api.Handler(apitest.User{Name: subject.CommonName, Groups: subject.Organization}).ServeHTTP(w, r)
		}),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		},
		ReadHeaderTimeout: patience,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }() // its error is ErrServerClosed
	return "https://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// connect returns the client configuration of an administrator.
func (s *show) connect(ca *authority, url string) (*rest.Config, error) {
	certPEM, keyPEM, err := ca.issue(administrator)
	if err != nil {
		return nil, err
	}
	if s.admin, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return nil, err
	}
	return &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem(), CertData: certPEM, KeyData: keyPEM}}, nil
}

func writeKubeconfig(path string, ca *authority, url string, user apitest.User) error {
	certPEM, keyPEM, err := ca.issue(user)
	if err != nil {
		return err
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"hello": {Server: url, CertificateAuthorityData: ca.pem()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"hello": {ClientCertificateData: certPEM, ClientKeyData: keyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"hello": {Cluster: "hello", AuthInfo: "hello"}},
		CurrentContext: "hello",
	}, path)
}

// A node is a process of examples/kubelet.
type node struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan struct{}
	err    error // how it ended, once exited is closed
}

func startNode(kubelet string, args ...string) (*node, error) {
	n := &node{cmd: exec.Command(kubelet, args...), exited: make(chan struct{})}
	n.cmd.Stdout, n.cmd.Stderr = &n.output, &n.output
	// Ctrl-C reaches all processes of the terminal's group, and the node must still
	// stop its pod after it.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	n.cmd.WaitDelay = patience
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start examples/kubelet: %w (`make hello` builds it)", err)
	}
	go func() {
		defer close(n.exited)
		if err := n.cmd.Wait(); err != nil {
			n.err = fmt.Errorf("examples/kubelet: %w", err)
		}
	}()
	return n, nil
}

// whileItRuns returns a context that ends with the node.
func (n *node) whileItRuns(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-n.exited:
		case <-ctx.Done():
		}
	}()
	return ctx
}

// stop ends the node and returns the error that it ended with.
func (n *node) stop() error {
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // an error means that the process has ended
	<-n.exited
	return n.err
}

// await returns the object called name as soon as done reports true.
func await[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, s *show, open func(context.Context, metav1.ListOptions) (watch.Interface, error), name string, done func(P) bool) (P, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := open(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, err
	}
	event, err := watchtools.UntilWithoutRetry(ctx, w, func(e watch.Event) (bool, error) {
		object, ok := e.Object.(P)
		return ok && e.Type != watch.Deleted && done(object), nil
	})
	if err != nil {
		return nil, err
	}
	return event.Object.(P), nil
}

// awaitGone returns once the pod no longer exists.
func (s *show) awaitGone(ctx context.Context, name string) error {
	pods := s.client.CoreV1().Pods(metav1.NamespaceDefault)
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return err
	}
	if _, err := pods.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		w.Stop()
		return nil
	}
	_, err = watchtools.UntilWithoutRetry(ctx, w, func(e watch.Event) (bool, error) { return e.Type == watch.Deleted, nil })
	return err
}

// printLog reads the log of the pod from the node, as the API server does for
// `kubectl logs`.
func (s *show) printLog(ctx context.Context, node *corev1.Node, pod *corev1.Pod) error {
	var address string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
		}
	}
	url := "https://" + net.JoinHostPort(address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))) +
		"/containerLogs/" + pod.Namespace + "/" + pod.Name + "/" + pod.Spec.Containers[0].Name
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?follow=true&limitBytes=200", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{s.admin},
		// The node signed its certificate itself, because no cluster approves
		// one here.
		InsecureSkipVerify: true,
	}}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(line))
	}
	if err != nil {
		return err
	}
	s.say("GET %s", url)
	s.say("  %s", strings.TrimSpace(line))
	return nil
}
