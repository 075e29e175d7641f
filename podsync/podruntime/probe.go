// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A target is the run that probes and hooks are about. It may be used from any
// goroutine.
type target struct {
	execer Execer
	grpc   GRPCProber
	id     ContainerID
	spec   *corev1.Container
	host   string // the address of the pod
	panics *panics
}

// A warning is the success of a probe that has something to say.
type warning struct{ message string }

func (w *warning) Error() string { return w.message }

// errUnknown says that the result of a probe is not known: it counts neither as
// success nor as failure.
var errUnknown = errors.New("unknown")

// hook calls a lifecycle hook.
func (t *target) hook(ctx context.Context, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return t.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		// A hook succeeds with any response, whatever its status, as the kubelet's.
		_, _, err := t.send(ctx, h.HTTPGet)
		if g := h.HTTPGet; g.Scheme == corev1.URISchemeHTTPS && err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
			// Hooks have ignored the scheme for years, and pods rely on it. The second
			// request is not encrypted, so it has no credentials.
			plain := *g
			plain.Scheme = corev1.URISchemeHTTP
			plain.HTTPHeaders = slices.DeleteFunc(slices.Clone(g.HTTPHeaders), func(h corev1.HTTPHeader) bool {
				return http.CanonicalHeaderKey(h.Name) == "Authorization"
			})
			_, _, err = t.send(ctx, &plain)
		}
		return err
	case h.TCPSocket != nil:
		return t.dial(ctx, h.TCPSocket)
	case h.Sleep != nil:
		select {
		case <-time.After(limited(h.Sleep.Seconds)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the hook has no action that is supported")
}

// probe runs a probe once. The error is nil or a *warning after a success, and wraps
// errUnknown if the result is not known, that is, if the container was not asked. A new kind
// of probe also needs its line in unsupported (admit.go). The state machine sees results only.
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
	case p.GRPC != nil:
		service := ""
		if p.GRPC.Service != nil {
			service = *p.GRPC.Service
		}
		return t.panics.contain(ctx, "Config.GRPC", func() error {
			if t.host == "" {
				return errNoAddress
			}
			return t.grpc.ProbeGRPC(ctx, net.JoinHostPort(t.host, strconv.Itoa(int(p.GRPC.Port))), service)
		})
	}
	return errors.New("the probe has no action that is supported")
}

// poll runs a probe again and again, until goOn returns false for a verdict that
// has changed. It returns the last verdict, or false if ctx is done.
func (t *target) poll(ctx context.Context, p *corev1.Probe, startedAt time.Time, report func(error), goOn func(ok bool) bool) bool {
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	next := time.After(max(time.Until(within(startedAt.Add(delay), time.Now(), delay)), 0))
	var ticks *time.Ticker
	var n tally
	for {
		select {
		case <-next:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // also if both were ready
			return false
		}
		if ticks == nil { // they go on while a probe hangs, as the kubelet's
			ticks = time.NewTicker(seconds(p.PeriodSeconds, 10))
			defer ticks.Stop()
			next = ticks.C
		}
		err := t.probe(ctx, p)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			report(err)
		}
		if errors.Is(err, errUnknown) {
			continue
		}
		ok := err == nil || errors.As(err, new(*warning))
		if n.add(ok, p) && !goOn(ok) {
			return ok
		}
	}
}

// A tally counts equal results of a probe in a row.
type tally struct {
	ok    bool
	count int32
}

// add reports whether this result reaches the threshold.
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

// maxOutput is the number of bytes of a probe's output that a message has.
const maxOutput = 1024

func (t *target) exec(ctx context.Context, command []string) error {
	result, err := t.execer.Exec(ctx, t.id, command)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("command %q: %w", command, ctx.Err())
	case err != nil:
		return fmt.Errorf("command %q: %w: %w", command, errUnknown, err)
	case result.ExitCode != 0:
		output := result.Output[max(len(result.Output)-maxOutput, 0):]
		return fmt.Errorf("exit code %d: %s", result.ExitCode, strings.ToValidUTF8(string(output), "\uFFFD"))
	}
	return nil
}

// maxRedirects is the number of redirects that an HTTP probe or hook follows.
const maxRedirects = 10

// sameHost is the redirect policy of probes and hooks: a server that sends them to
// another host has answered.
func sameHost(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// get probes with a GET request.
func (t *target) get(ctx context.Context, g *corev1.HTTPGetAction) error {
	code, body, err := t.send(ctx, g)
	switch {
	case err != nil:
		return err
	case code >= 300 && code < 400:
		return &warning{fmt.Sprintf("Probe terminated redirects, Response body: %s", strings.ToValidUTF8(string(body), "\uFFFD"))}
	case code < 200 || code >= 400:
		return fmt.Errorf("HTTP probe failed with statuscode: %d", code)
	}
	return nil
}

// send sends a GET request and returns the status and the first bytes of the body
// of the response. The error wraps errUnknown if there is no request to send.
func (t *target) send(ctx context.Context, g *corev1.HTTPGetAction) (code int, body []byte, err error) {
	address, err := t.address(g.Host, g.Port)
	if err != nil {
		return 0, nil, err
	}
	target, err := url.Parse(g.Path)
	if err != nil { // it is sent as it is
		target = &url.URL{Path: g.Path}
	}
	target.Scheme, target.Host = strings.ToLower(string(g.Scheme)), address
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	if !strings.HasPrefix(target.Path, "/") {
		target.Path = "/" + target.Path
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errUnknown, err)
	}
	request.Header.Set("User-Agent", "kube-probe/kubewright")
	request.Header.Set("Accept", "*/*")
	named := map[string]bool{}
	for _, h := range g.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			request.Host = h.Value
			continue
		}
		if name := http.CanonicalHeaderKey(h.Name); !named[name] { // it replaces a default
			named[name] = true
			request.Header.Del(name)
		}
		if h.Value == "" && http.CanonicalHeaderKey(h.Name) == "Accept" {
			continue // an empty Accept leaves the header out
		}
		request.Header.Add(h.Name, h.Value)
	}
	client := http.Client{CheckRedirect: sameHost, Transport: &http.Transport{
		// A probe asks whether a server answers, not which one, as the kubelet's.
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	body, _ = io.ReadAll(io.LimitReader(response.Body, maxOutput))
	_ = response.Body.Close()
	return response.StatusCode, body, nil
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

// errNoAddress is the error of probes while the pod has no address: the node's is not asked instead.
var errNoAddress = fmt.Errorf("%w: the pod has no address", errUnknown)

// address joins a host, by default that of the pod, and a port, which may be
// named in the container. The error wraps errUnknown: nothing has been probed.
func (t *target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		if host = t.host; host == "" {
			return "", errNoAddress
		}
	}
	number := port.IntVal
	if port.Type == intstr.String {
		number = 0
		for _, p := range t.spec.Ports {
			if p.Name == port.StrVal {
				number = p.ContainerPort
			}
		}
		if n, err := strconv.Atoi(port.StrVal); err == nil && number == 0 {
			number = int32(n)
		}
	}
	if number <= 0 || number > 65535 {
		return "", fmt.Errorf("%w: the container has no port %s", errUnknown, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number))), nil
}
