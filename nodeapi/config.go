// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"iter"
	"net"
	"net/http"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/nodeapi/internal/optional"
)

// Defaults of Config.
const (
	// DefaultName is the default of Config.Name.
	DefaultName = "nodeapi"
	// DefaultAddress is the default of Config.Address: all addresses, and the port
	// that an API server dials if a Node does not report one.
	DefaultAddress = ":10250"
	// DefaultStreamIdleTimeout is the default of Config.StreamIdleTimeout, the
	// kubelet's.
	DefaultStreamIdleTimeout = 4 * time.Hour
	// DefaultStreamCreationTimeout is the default of Config.StreamCreationTimeout,
	// the kubelet's.
	DefaultStreamCreationTimeout = 30 * time.Second
	// DefaultCallTimeout is the default of Config.CallTimeout.
	DefaultCallTimeout = 10 * time.Second
	// DefaultShutdownTimeout is the default of Config.ShutdownTimeout.
	DefaultShutdownTimeout = 5 * time.Second
)

// MaxStreams limits the open exec, attach, run, port-forward and log requests of a
// Server, and the connections that are forwarded. One pod may have a quarter of them, one
// namespace a third, one user three quarters. A user with a client certificate, such as the
// API server, has no share of its own. More requests are answered with 429.
const MaxStreams = 1000

// Config is the configuration of a Server.
type Config struct {
	// NodeName is the name of the Node that permissions are checked for.
	// Required.
	NodeName string
	// Backend implements some of LogSource, Executor, Attacher, PortForwarder,
	// StatsSource and MetricsSource. A request that needs another one of them is answered
	// with 501. New rejects a method with the name of one of theirs and another signature.
	// Required.
	Backend any
	// Client is used for TokenReviews and SubjectAccessReviews, for the CA bundle
	// of client certificates unless ClientCAFile or ClientCA is set, and for
	// CertificateSigningRequests if Certificate.Dir is set. It is the whole
	// interface because package util/certificate of client-go needs it.
	// Required, unless Authenticator and Authorizer are set and Certificate.Dir is
	// not.
	Client kubernetes.Interface

	// Name appears in logs. Default: DefaultName.
	Name string
	// Address is the TCP address that Run listens on. Default: DefaultAddress.
	Address string
	// Listener is used by Run instead of Address if it is set. Run closes it.
	Listener net.Listener
	// Pods yields the pods of the node, with their UIDs, containers and statuses.
	// Requests for other pods and containers are answered with 404. If Pods is nil, the
	// backend decides which pods exist, and /pods and /runningpods/ are answered with 501.
	// If a request has no UID and several pods have its name, the newest pod is used.
	// The pods are not modified. Pods may be called by several goroutines.
	Pods iter.Seq[*corev1.Pod]
	// Checks are the checks of /healthz, /livez and /readyz, each with its name. The
	// controllers of this library implement Check.
	Checks []Check
	// Metrics serves /metrics if it is set.
	Metrics http.Handler
	// ProbeMetrics serves /metrics/probes if it is set. The chart kube-prometheus-stack
	// reads it (kubelet.serviceMonitor.probes).
	ProbeMetrics http.Handler
	// Configz, if it is set, returns a value that /configz serves as JSON. It must
	// remove secrets from that value. It is called for each request, for several at the same
	// time, and must answer from memory. An error or a panic is answered with 500. Sonobuoy
	// collects the value from each node (sonobuoy#465).
	Configz func() (any, error)
	// Pprof serves /debug/pprof, which shows the command line and the memory of
	// the process. Clients need the permission nodes/proxy. OpenShift's must-gather collects
	// profiles of each node there, and liqo's virtual kubelet has a flag for them (liqo#320).
	Pprof bool

	// Certificate configures the serving certificate of Run. By default the certificate
	// is self-signed.
	Certificate Certificate
	// ClientCAFile is the path of a PEM file with the CAs of client certificates.
	// If it is needed, it is read again at most once a minute. If neither ClientCAFile
	// nor ClientCA is set, the CAs are read from the ConfigMap
	// extension-apiserver-authentication in kube-system. A node's own credentials
	// (system:node:NAME) may not read that ConfigMap.
	ClientCAFile string
	// ClientCA is a PEM bundle with the CAs of client certificates.
	ClientCA []byte
	// Authenticator replaces client certificates and TokenReviews if it is set, as the Auth
	// of virtual-kubelet's nodeutil can. Supernetes replaces them in clusters whose web
	// console sends no credentials.
	Authenticator authenticator.Request
	// Authorizer replaces SubjectAccessReviews if it is set. See Authenticator.
	Authorizer authorizer.Authorizer

	// StreamIdleTimeout closes exec, attach and port-forward connections without
	// traffic. The kubelet has it as streamingConnectionIdleTimeout. Default:
	// DefaultStreamIdleTimeout.
	StreamIdleTimeout time.Duration
	// StreamCreationTimeout is the time that a client has to create the streams of a
	// connection. virtual-kubelet's nodeutil has a field of that name, and
	// k8s-runpod-controller sets both. Default:
	// DefaultStreamCreationTimeout.
	StreamCreationTimeout time.Duration
	// CallTimeout is the deadline of each API request and of each call of StatsSource and
	// MetricsSource. Default: DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout is the time for open requests to end after Run's context is
	// done. After that their connections are closed. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// ErrorHandler is called with errors that the Server recovers from. It may be called by
	// several goroutines at a time, and must not block.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks are called when something happens.
	Hooks Hooks
}

// A Check is a named health check, as in k8s.io/apiserver/pkg/server/healthz. It is called
// for each request, for several at the same time.
type Check interface {
	// Name is the last path element of the check.
	Name() string
	// Check returns nil if the part of the program is healthy.
	Check(*http.Request) error
}

// Certificate configures the serving certificate. If CertFile and KeyFile are set, they
// are used. Otherwise, if Dir is set, a signer issues the certificate. Until the signer has
// issued one, and if nothing is set, the certificate is self-signed. Clients that verify
// certificates reject it.
type Certificate struct {
	// CertFile and KeyFile are the paths of PEM files. They are read again when
	// they change.
	CertFile, KeyFile string
	// Dir is the directory for certificates of the signer
	// kubernetes.io/kubelet-serving. The Server requests a new one before the old one
	// expires, also if the machine was suspended or its clock was set. Client must have
	// the credentials of the node, and the cluster must have an approver for these
	// requests.
	Dir string
	// Hosts are the IP addresses and DNS names of the node for requested and
	// self-signed certificates. Required with Dir.
	Hosts []string
}

// isNil reports whether v is nil, or an interface that holds a nil pointer, as after an
// error of a constructor that was ignored.
func isNil(v any) bool {
	return v == nil || reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil()
}

// complete returns a copy of cfg with defaults, and its problems.
func complete(cfg Config) (Config, field.ErrorList) {
	var problems field.ErrorList
	required := func(name string, missing bool, why string) {
		if missing {
			problems = append(problems, field.Required(field.NewPath(name), why))
		}
	}
	required("NodeName", cfg.NodeName == "", "")
	if cfg.NodeName != "" {
		for _, msg := range validation.IsDNS1123Subdomain(cfg.NodeName) {
			problems = append(problems, field.Invalid(field.NewPath("NodeName"), cfg.NodeName, msg))
		}
	}
	required("Backend", isNil(cfg.Backend), "it serves the logs and commands")
	for _, problem := range optional.Check("Backend", cfg.Backend, optionalMethods) {
		problems = append(problems, problem.(*field.Error))
	}
	if isNil(cfg.Client) {
		cfg.Client = nil
		required("Client", cfg.Authenticator == nil, "unless Authenticator is set")
		required("Client", cfg.Authorizer == nil, "unless Authorizer is set")
		required("Client", cfg.Certificate.Dir != "", "with Certificate.Dir")
	}
	c := cfg.Certificate
	required("Certificate.KeyFile", c.CertFile != "" && c.KeyFile == "", "with CertFile")
	required("Certificate.CertFile", c.CertFile == "" && c.KeyFile != "", "with KeyFile")
	required("Certificate.Hosts", c.Dir != "" && len(c.Hosts) == 0, "with Dir: the signer refuses requests without any")
	for i, host := range c.Hosts {
		if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
			problems = append(problems, field.Invalid(field.NewPath("Certificate.Hosts").Index(i), host, "must be an IP address or a DNS name"))
		}
	}
	if len(cfg.ClientCA) > 0 && cfg.ClientCAFile != "" {
		problems = append(problems, field.Forbidden(field.NewPath("ClientCA"), "ClientCAFile is set too"))
	}
	seen := map[string]bool{"ping": true}
	for i, check := range cfg.Checks {
		at := field.NewPath("Checks").Index(i)
		switch {
		case check == nil:
			problems = append(problems, field.Required(at, ""))
		case seen[check.Name()]:
			problems = append(problems, field.Duplicate(at, check.Name()))
		default:
			seen[check.Name()] = true
		}
	}
	for _, d := range []struct {
		name string
		at   *time.Duration
		def  time.Duration
	}{
		{"StreamIdleTimeout", &cfg.StreamIdleTimeout, DefaultStreamIdleTimeout},
		{"StreamCreationTimeout", &cfg.StreamCreationTimeout, DefaultStreamCreationTimeout},
		{"CallTimeout", &cfg.CallTimeout, DefaultCallTimeout},
		{"ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout},
	} {
		if *d.at == 0 {
			*d.at = d.def
		}
		if *d.at < 0 {
			problems = append(problems, field.Invalid(field.NewPath(d.name), d.at.String(), "must not be negative"))
		}
	}
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	if cfg.Address == "" {
		cfg.Address = DefaultAddress
	}
	cfg.Checks = slices.Clone(cfg.Checks)
	cfg.Certificate.Hosts = slices.Clone(cfg.Certificate.Hosts)
	return cfg, problems
}
