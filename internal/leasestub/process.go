// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package leasestub

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// latencyEnv makes a test binary run as the server. Its value is the delay of
// each request.
const latencyEnv = "KUBEWRIGHT_LEASESTUB_LATENCY"

// ServeChild runs the server if Start started this process, and returns true
// after the server has ended. TestMain of a package with benchmarks begins with
//
//	if leasestub.ServeChild() {
//		return
//	}
func ServeChild() bool {
	latency, err := time.ParseDuration(os.Getenv(latencyEnv))
	if err != nil {
		return false
	}
	s := start(latency)
	fmt.Println(s.http.URL)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends for any reason
	return true
}

// Server is a server in another process. Create it with Start.
type Server struct {
	url    string
	client *http.Client
	tb     testing.TB
}

// Start starts a server that delays each request by latency. It ends with the
// test or benchmark.
func Start(tb testing.TB, latency time.Duration) *Server {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), latencyEnv+"="+latency.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		tb.Fatalf("the server did not start: %v; does TestMain call ServeChild?", err)
	}
	return &Server{
		url: strings.TrimSpace(url),
		tb:  tb,
		client: &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true, // otherwise counted as one of the client's connections
		}},
	}
}

// Config returns a client configuration for the server, without a rate limit.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// SetDown makes the server answer every request with 503, or serve again.
func (s *Server) SetDown(down bool) {
	if down {
		s.control("down")
		return
	}
	s.control("up")
}

// Reset sets all counts to zero.
func (s *Server) Reset() { s.control("reset") }

// Counts returns the statistics since the last Reset.
func (s *Server) Counts() Counts { return s.control("counts") }

func (s *Server) control(what string) (counts Counts) {
	s.tb.Helper()
	resp, err := s.client.Get(s.url + controlPath + what)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&counts); err != nil {
		s.tb.Fatal(err)
	}
	return counts
}
