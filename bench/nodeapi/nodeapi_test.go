// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/kubewright/kubewright/nodeapi"
)

// execute and lines are the backend of both servers: a command that discards or
// produces data, and a log whose lines arrive one at a time, as from a container
// runtime.
func execute(command []string, in io.Reader, out io.Writer) error {
	switch command[0] {
	case "discard":
		_, err := io.Copy(io.Discard, in)
		return err
	case "produce":
		_, err := io.CopyN(out, zeros{}, streamSize)
		return err
	}
	return errors.New("unknown command")
}

const (
	streamSize = 32 << 20
	logLines   = 50_000
	logLine    = "2026-01-02T03:04:05.678901234Z a line of a log of some length, as programs print them, and a bit more\n"
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// lines returns one line for each Read.
type lines struct{ left int }

func (l *lines) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	l.left--
	return copy(p, logLine), nil
}

type backend struct{}

func (backend) Logs(context.Context, nodeapi.Container, nodeapi.LogOptions) (io.ReadCloser, error) {
	return io.NopCloser(&lines{logLines}), nil
}

func (backend) Exec(_ context.Context, _ nodeapi.Container, command []string, s nodeapi.Streams) error {
	return execute(command, s.Stdin, s.Stdout)
}

// anybody authenticates every request.
var anybody = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "bench"}}, true, nil
})

// servers returns the servers to compare.
func servers(b *testing.B) map[string]http.Handler {
	ours, err := nodeapi.New(nodeapi.Config{NodeName: "n1", Backend: backend{}, Authenticator: anybody, Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()})
	if err != nil {
		b.Fatal(err)
	}
	theirs := vkapi.PodHandler(vkapi.PodHandlerConfig{
		RunInContainer: func(_ context.Context, _, _, _ string, command []string, a vkapi.AttachIO) error {
			return execute(command, a.Stdin(), a.Stdout())
		},
		GetContainerLogs: func(context.Context, string, string, string, vkapi.ContainerLogOpts) (io.ReadCloser, error) {
			return io.NopCloser(&lines{logLines}), nil
		},
	}, false)
	return map[string]http.Handler{"kubewright": ours, "virtual-kubelet": theirs}
}

// each runs a benchmark against each server.
func each(b *testing.B, bytes int64, run func(b *testing.B, address string)) {
	for _, name := range []string{"kubewright", "virtual-kubelet"} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewUnstartedServer(servers(b)[name])
			server.StartTLS()
			defer server.Close()
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				run(b, server.URL)
			}
		})
	}
}

func exec(b *testing.B, address, query string, opts remotecommand.StreamOptions) {
	u, err := url.Parse(address + "/exec/default/web/main?" + query)
	if err != nil {
		b.Fatal(err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: address, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, http.MethodPost, u)
	if err != nil {
		b.Fatal(err)
	}
	if err := executor.StreamWithContext(b.Context(), opts); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkExecInput(b *testing.B) {
	each(b, streamSize, func(b *testing.B, address string) {
		exec(b, address, "command=discard&input=1&output=1", remotecommand.StreamOptions{Stdin: io.LimitReader(zeros{}, streamSize), Stdout: io.Discard})
	})
}

func BenchmarkExecOutput(b *testing.B) {
	each(b, streamSize, func(b *testing.B, address string) {
		exec(b, address, "command=produce&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	})
}

// BenchmarkLogFollow follows one log with 1 and with 10 clients.
func BenchmarkLogFollow(b *testing.B) {
	for _, clients := range []int{1, 10} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			each(b, int64(clients*logLines*len(logLine)), func(b *testing.B, address string) {
				client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
				defer client.CloseIdleConnections()
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						resp, err := client.Get(address + "/containerLogs/default/web/main?follow=true")
						if err != nil {
							b.Error(err)
							return
						}
						defer func() { _ = resp.Body.Close() }()
						n := 0
						for scanner := bufio.NewScanner(resp.Body); scanner.Scan(); {
							n++
						}
						if n != logLines {
							b.Errorf("%d lines", n)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}
