// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
)

// A target is what probes and hooks have to know of a run. It may be used from
// any goroutine.
type target struct {
	spec *corev1.Container
	env  []string // nil: that of the process
	pid  int
	dir  string // for what is run in the container
	work string // its working directory
	host string
}

func (c *container) target() target {
	return target{c.Container, c.env, c.status.Running.PID, c.dir, c.workingDir(), c.pod.provider.cfg.HostIP}
}

// hook runs a lifecycle hook.
func (t *target) hook(ctx context.Context, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return t.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return t.get(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		return t.dial(ctx, h.TCPSocket)
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("a hook of an unknown kind")
}

// probe runs a probe once.
func (t *target) probe(ctx context.Context, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(p.TimeoutSeconds, 1))
	defer cancel()
	switch {
	case p.Exec != nil:
		return t.exec(ctx, p.Exec.Command)
	case p.HTTPGet != nil:
		return t.get(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		return t.dial(ctx, p.TCPSocket)
	}
	return errors.New("a probe of an unknown kind")
}

// poll runs a probe again and again, as long as goOn wants it when the verdict
// has changed. It returns the last verdict, or false when ctx is done.
func (t *target) poll(ctx context.Context, p *corev1.Probe, goOn func(ok bool) bool) bool {
	wait := seconds(p.InitialDelaySeconds, 0)
	var n tally
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
		err := t.probe(ctx, p)
		if ctx.Err() != nil {
			return false
		}
		if n.add(err == nil, p) && !goOn(err == nil) {
			return err == nil
		}
		wait = seconds(p.PeriodSeconds, 10)
	}
}

// A tally counts equal results of a probe in a row.
type tally struct {
	ok    bool
	count int32
}

// add reports whether the threshold is reached with this result.
func (t *tally) add(ok bool, p *corev1.Probe) bool {
	if ok != t.ok {
		t.ok, t.count = ok, 0
	}
	t.count++
	threshold := p.FailureThreshold
	if ok {
		threshold = p.SuccessThreshold
	}
	if threshold <= 0 { // not defaulted by an API server
		threshold = map[bool]int32{true: 1, false: 3}[ok]
	}
	return t.count == threshold
}

func seconds(n, byDefault int32) time.Duration {
	if n <= 0 {
		n = byDefault
	}
	return time.Duration(n) * time.Second
}

// exec runs a command with the environment of the container.
func (t *target) exec(ctx context.Context, command []string) error {
	env := t.env
	if env == nil {
		var err error
		if env, err = shim.Environ(ctx, t.pid); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(t.dir, execPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	run, err := shim.Start(dir, shim.Command{
		Args:  command,
		Env:   env,
		Dir:   t.work,
		Log:   filepath.Join(dir, "log"),
		Bound: true,
	})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = run.Stop(time.Now()) })()
	// Until nothing of it is left, however long ctx has been done.
	if err := run.Follow(context.WithoutCancel(ctx), func() {}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	status, err := shim.Read(dir)
	switch {
	case err != nil:
		return err
	case status.Exit == nil:
		return errors.New("the command was not started")
	case status.Exit.Code != 0:
		return fmt.Errorf("exit code %d: %s%s", status.Exit.Code, status.Exit.Message, tail(filepath.Join(dir, "log"), 1024))
	}
	return nil
}

// execPrefix begins the names of the folders of what is run in a container.
const execPrefix = "exec-"

func (t *target) get(ctx context.Context, g *corev1.HTTPGetAction) error {
	address, err := t.address(g.Host, g.Port)
	if err != nil {
		return err
	}
	scheme := "http"
	if g.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/"+strings.TrimPrefix(g.Path, "/"), nil)
	if err != nil {
		return err
	}
	for _, h := range g.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			request.Host = h.Value
		}
	}
	client := http.Client{Transport: &http.Transport{
		// A probe asks whether somebody answers, not who: as a kubelet does.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return nil
}

func (t *target) dial(ctx context.Context, s *corev1.TCPSocketAction) error {
	address, err := t.address(s.Host, s.Port)
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// address joins a host, by default that of the pod, and a port, which may be
// named in the container.
func (t *target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = t.host
	}
	number := port.IntVal
	if port.Type == intstr.String {
		for _, p := range t.spec.Ports {
			if p.Name == port.StrVal {
				number = p.ContainerPort
			}
		}
	}
	if number == 0 {
		return "", fmt.Errorf("the container has no port %s", port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number))), nil
}
