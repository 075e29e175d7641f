// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/nodeapi"
)

// logs is a backend with one capability.
type logs struct{}

func (logs) Logs(_ context.Context, c nodeapi.Container, _ nodeapi.LogOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("hello from " + c.String())), nil
}

// known stands for the authentication by the API server.
var known = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "apiserver"}}, r.Header.Get("Authorization") != "", nil
})

// anything stands for the authorization by the API server.
var anything = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
})

// request sends a request and prints the answer.
func request(server *nodeapi.Server, path, token string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
}

// A Server is an http.Handler. What its backend can't do is named.
func ExampleServer() {
	server, err := nodeapi.New(nodeapi.Config{
		NodeName: "node-1", Backend: logs{}, Authenticator: known, Authorizer: anything,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	request(server, "/containerLogs/default/web/main", "")
	request(server, "/containerLogs/default/web/main", "token")
	request(server, "/containerLogs/default/web/main?tailLines=-1", "token")
	request(server, "/stats/summary", "token")
	// Output:
	// 401 unauthorized: this request has no client certificate or bearer token that the node accepts
	// 200 hello from default/web/main
	// 422 tailLines: Invalid value: -1: must be greater than or equal to 0
	// 501 this node does not support stats: its backend does not implement nodeapi.StatsSource
}

// stats is a backend for kubectl top.
type stats struct{}

func (stats) StatsSummary(context.Context) (*statsv1alpha1.Summary, error) {
	seconds := uint64(90e9)
	return &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{CPU: &statsv1alpha1.CPUStats{UsageCoreNanoSeconds: &seconds}}}, nil
}

// A StatsSource is enough for metrics-server.
func ExampleStatsSource() {
	server, err := nodeapi.New(nodeapi.Config{
		NodeName: "node-1", Backend: stats{}, Authenticator: known, Authorizer: anything,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	request(server, "/metrics/resource", "token")
	// Output:
	// 200 # HELP node_cpu_usage_seconds_total Cumulative CPU time of the node in core-seconds
	// # TYPE node_cpu_usage_seconds_total counter
	// node_cpu_usage_seconds_total 90
	// # HELP scrape_error 1 if there was an error while getting container metrics, 0 otherwise
	// # TYPE scrape_error gauge
	// scrape_error 0
	// # HELP resource_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
	// # TYPE resource_scrape_error gauge
	// resource_scrape_error 0
}
