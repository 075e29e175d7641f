// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package side

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/vkadapter"
)

// execute runs a command through SPDY, as API servers do, and returns its output and error.
func execute(ctx context.Context, config *rest.Config, u *url.URL, stdin string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
	if err != nil {
		return err.Error()
	}
	var out, errOut bytes.Buffer
	opts := remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}
	if stdin != "" {
		opts.Stdin = strings.NewReader(stdin)
	}
	if err := executor.StreamWithContext(ctx, opts); err != nil {
		return out.String() + errOut.String() + "error: " + err.Error()
	}
	return out.String() + errOut.String()
}

// A Question is a request to the HTTP server of a node, and the answers of both sides.
type Question struct {
	// Path is that of a GET, or, if it begins with /exec or /attach, of a stream with Stdin.
	Path, Stdin string
	Kubewright  string
	// VirtualKubelet is the answer of virtual-kubelet if it is another one: for a method that the
	// provider lacks it has "not implemented" or "not found".
	VirtualKubelet string
}

// NoMethod is what a node of vkadapter answers if its provider lacks a method.
func NoMethod(name string) string {
	return fmt.Sprintf("an error on the server (%q) has prevented the request from succeeding", "the provider has no method "+name)
}

// NoMetrics are the metrics of a node of vkadapter whose provider has none.
const NoMetrics = `# HELP scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE scrape_error gauge
scrape_error 1
# HELP resource_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 1
`

// Created is when the pod of Answers was created.
var Created = metav1.Date(2026, time.November, 29, 0, 0, 0, 0, time.UTC)

// Answers sends the questions to the HTTPS server of a node of vkadapter, and to the handler
// of virtual-kubelet's package node/api on the same provider. There is a pod web.
func Answers(t *testing.T, port *Port, questions []Question) {
	backend := httptest.NewServer(port.Cloud)
	t.Cleanup(backend.Close)
	for name, value := range port.Env(backend.URL) {
		t.Setenv(name, value)
	}
	process, err := port.New()
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.New(apitest.Options{})
	pod := newPod("web")
	pod.UID, pod.CreationTimestamp = "uid-web", Created
	s.Put(pod)
	ours, provider := serve(t, s, process)
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return apitest.Get[*corev1.Pod](s, "default", "web").Status.Phase == corev1.PodRunning, nil
	})
	if err != nil {
		t.Fatalf("the pod does not run: %v", err)
	}
	handlers := api.PodHandlerConfig{GetContainerLogs: provider.GetContainerLogs, RunInContainer: provider.RunInContainer}
	if p, ok := provider.(attacher); ok {
		handlers.AttachToContainer = p.AttachToContainer
	}
	if p, ok := provider.(measurer); ok {
		handlers.GetStatsSummary, handlers.GetMetricsResource = p.GetStatsSummary, p.GetMetricsResource
	}
	theirs := httptest.NewServer(api.PodHandler(handlers, false))
	t.Cleanup(theirs.Close)

	for _, q := range questions {
		t.Run(strings.ReplaceAll(strings.TrimPrefix(q.Path, "/"), "/", " "), func(t *testing.T) {
			if got := answer(t, ours, q); got != q.Kubewright {
				t.Errorf("vkadapter answers %q, want %q", got, q.Kubewright)
			}
			want := q.VirtualKubelet
			if want == "" {
				want = q.Kubewright
			}
			if got := answer(t, theirs.URL, q); got != want {
				t.Errorf("virtual-kubelet answers %q, want %q", got, want)
			}
		})
	}
}

// An answerer is a provider with logs and exec.
type answerer interface {
	GetContainerLogs(ctx context.Context, namespace, pod, container string, opts api.ContainerLogOpts) (io.ReadCloser, error)
	RunInContainer(ctx context.Context, namespace, pod, container string, cmd []string, attach api.AttachIO) error
}

// An attacher is a provider with attach, and a measurer one with stats and metrics.
type (
	attacher interface {
		AttachToContainer(ctx context.Context, namespace, pod, container string, attach api.AttachIO) error
	}
	measurer interface {
		GetStatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error)
		GetMetricsResource(ctx context.Context) ([]*dto.MetricFamily, error)
	}
)

// serve runs a node of vkadapter until the test ends. It returns the URL of its server.
func serve(t *testing.T, s *apitest.Server, process Process) (server string, provider answerer) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server = "https://" + listener.Addr().String() // Run closes the listener
	run, err := newNode(Kubewright, s.Client(apitest.User{}), func(pc nodeutil.ProviderConfig) node.PodLifecycleHandler {
		p := process(pc)
		provider = p.(answerer)
		return p
	}, vkadapter.NodeConfig{
		InternalIP: "127.0.0.1", Listener: listener, LockDir: t.TempDir(),
		Server: func(cfg *nodeapi.Config) {
			cfg.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "test"}}, true, nil
			})
			cfg.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the node ended with %v", err)
		}
	})
	return server, provider
}

func answer(t *testing.T, server string, q Question) string {
	if strings.HasPrefix(q.Path, "/exec/") || strings.HasPrefix(q.Path, "/attach/") {
		u, err := url.Parse(server + q.Path)
		if err != nil {
			t.Fatal(err)
		}
		query := u.Query()
		query.Set("output", "1")
		query.Set("error", "1")
		if q.Stdin != "" {
			query.Set("input", "1")
		}
		u.RawQuery = query.Encode()
		return execute(t.Context(), &rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{Insecure: strings.HasPrefix(server, "https")}}, u, q.Stdin)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := client.Get(server + q.Path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}
