// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/kubeconfig"
)

// newHTTPClient returns a client that authenticates with the certificate in creds. It keeps no connections, because
// servers are killed, paused and restarted.
func newHTTPClient(creds kubeconfig.Credentials) (*http.Client, error) {
	cert, err := tls.X509KeyPair(creds.Cert, creds.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(creds.CA)
	return &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
		},
	}, nil
}

// readyPeriod is the time between two readiness checks of a component.
const readyPeriod = 25 * time.Millisecond

// readyPath is the readiness endpoint of each component.
var readyPath = map[string]string{
	Etcd:              "/health",
	APIServer:         "/readyz",
	ControllerManager: "/healthz",
	Scheduler:         "/readyz",
}

// Pods can be created once defaultServiceAccount exists.
const defaultServiceAccount = "/api/v1/namespaces/default/serviceaccounts/default"

// WaitReady waits until every component reports that it is ready and, if there is a controller manager, the default
// ServiceAccount exists.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, name := range c.options.running() {
		if err := c.waitReady(ctx, name); err != nil {
			return err
		}
	}
	if slices.Contains(c.options.Without, ControllerManager) {
		return nil
	}
	err := c.poll(ctx, APIServer, defaultServiceAccount)
	if err != nil {
		return fmt.Errorf("the default ServiceAccount: %w\n%s", err, c.logTail(ControllerManager))
	}
	return nil
}

// waitReady waits until component is ready, or its process has ended, or ctx is done.
func (c *Cluster) waitReady(ctx context.Context, component string) error {
	if err := c.poll(ctx, component, readyPath[componentOf(component)]); err != nil {
		return fmt.Errorf("%s is not ready: %w\n%s", component, err, c.logTail(component))
	}
	return nil
}

// poll requests path from component until the answer is 200.
func (c *Cluster) poll(ctx context.Context, component, path string) error {
	ticker := time.NewTicker(readyPeriod)
	defer ticker.Stop()
	for {
		_, err := c.get(ctx, c.layout.url(component)+path)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer: %w", context.Cause(ctx), err)
		case <-c.exited(component):
			return errors.New("it ended")
		case <-ticker.C:
		}
	}
}

// exited returns the channel that is closed when component's process ends.
func (c *Cluster) exited(component string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[c.options.process(component)]; p != nil {
		return p.Exited()
	}
	return nil
}

// get returns the body of a 200 answer; any other answer is an error.
func (c *Cluster) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return c.do(req)
}

func (c *Cluster) do(req *http.Request) ([]byte, error) {
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, &statusError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", req.Method, req.URL.Path, resp.Status, strings.TrimSpace(string(body)))}
	}
	return body, nil
}

// statusError is an answer other than 2xx.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// tailLines is the number of lines of a component's log that an error shows.
const tailLines = 20

// logTail returns the end of component's log.
func (c *Cluster) logTail(component string) string {
	data, err := os.ReadFile(c.LogFile(component))
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Sprintf("--- end of %s's log ---\n%s\n---", component, bytes.Join(lines, []byte("\n")))
}
