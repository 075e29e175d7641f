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
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

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
	case "hold":
		hold()
		return nil
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

// anyUser authenticates every request.
var anyUser = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "bench"}}, true, nil
})

// servers returns the servers to compare.
func servers(b *testing.B) map[string]http.Handler {
	ours, err := nodeapi.New(nodeapi.Config{NodeName: "n1", Backend: backend{}, Authenticator: anyUser, Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()})
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

// contenders are the names of the servers, in the order of the first round.
var contenders = []string{"kubewright", "virtual-kubelet"}

// each measures the servers in turns, after one round that is not measured. One
// after the other would not do: the first of two equal contenders, which grows the
// heap and comes first to everything, was up to twice as slow.
func each(b *testing.B, bytes int64, run func(b *testing.B, address string)) {
	type sum struct{ wall, cpu time.Duration }
	sums, addresses := map[string]*sum{}, map[string]string{}
	for name, handler := range servers(b) {
		server := httptest.NewUnstartedServer(handler)
		server.StartTLS()
		defer server.Close()
		sums[name], addresses[name] = &sum{}, server.URL
		run(b, server.URL)
	}
	order, rounds := slices.Clone(contenders), 0
	for b.Loop() {
		for _, name := range order {
			cpu, began := cpuTime(b), time.Now()
			run(b, addresses[name])
			sums[name].wall += time.Since(began)
			sums[name].cpu += cpuTime(b) - cpu
		}
		slices.Reverse(order)
		rounds++
	}
	for name, sum := range sums {
		b.ReportMetric(float64(bytes)*float64(rounds)/1e6/sum.wall.Seconds(), name+"-MB/s")
		b.ReportMetric(sum.cpu.Seconds()*1e3/float64(rounds), name+"-cpu-ms/op")
	}
}

// cpuTime returns the CPU time of this process, which has the servers and the
// clients. It depends less than wall time on the other work of the machine.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
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
