// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/cert"
)

// newAuthenticator returns the authenticator for client certificates and bearer
// tokens. It rejects anonymous requests. report is called if the client CA can't be
// loaded.
func newAuthenticator(cfg *Config, report func(context.Context, error, string)) authenticator.Request {
	cas := &cached[*x509.CertPool]{maxAge: time.Minute, load: clientCA(cfg)}
	certificates := x509request.NewDynamic(func() (x509.VerifyOptions, bool) {
		opts := x509request.DefaultVerifyOptions()
		var err error
		opts.Roots, err = cas.get()
		return opts, err == nil
	}, x509request.CommonNameUserConversion)
	return group.NewAuthenticatedGroupAdder(union.New(
		withLoad{cas, certificates, report},
		bearertoken.New(newTokens(cfg)),
	))
}

// The credentials of an uncheckedError.
const (
	bearerToken       = "bearer token"
	clientCertificate = "client certificate"
)

// An uncheckedError is the error of a credential that could not be checked: it may
// be valid.
type uncheckedError struct {
	credential string
	err        error
}

func (e *uncheckedError) Error() string { return e.err.Error() }
func (e *uncheckedError) Unwrap() error { return e.err }

// findUnchecked returns the first uncheckedError in err, or nil. An Aggregate does
// not have the method Unwrap.
func findUnchecked(err error) *uncheckedError {
	if all, ok := err.(utilerrors.Aggregate); ok { //nolint:errorlint // it is not wrapped
		for _, one := range all.Errors() {
			if found := findUnchecked(one); found != nil {
				return found
			}
		}
		return nil
	}
	found, _ := errors.AsType[*uncheckedError](err)
	return found
}

// clientCA returns the function that loads the CA bundle of client certificates.
func clientCA(cfg *Config) func(context.Context) (*x509.CertPool, error) {
	file, client, timeout := cfg.ClientCAFile, cfg.Client, cfg.CallTimeout
	read := func(ctx context.Context) ([]byte, error) { return os.ReadFile(file) }
	if len(cfg.ClientCA) > 0 {
		bundle := slices.Clone(cfg.ClientCA)
		read = func(context.Context) ([]byte, error) { return bundle, nil }
	} else if file == "" {
		read = func(ctx context.Context) ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
			if err != nil {
				return nil, fmt.Errorf("neither ClientCAFile nor ClientCA is set: %w", withManifest(err))
			}
			return []byte(cm.Data["client-ca-file"]), nil
		}
	}
	return func(ctx context.Context) (*x509.CertPool, error) {
		pem, err := read(ctx)
		if err != nil {
			return nil, fmt.Errorf("load the CA of client certificates: %w", err)
		}
		pool, err := cert.NewPoolFromBytes(pem)
		if err != nil {
			return nil, fmt.Errorf("the CA of client certificates: %w", err)
		}
		return pool, nil
	}
}

// withManifest adds to an error that says that a permission is missing the name of the file that
// grants it. Errors of the API server are for ErrorHandler only: no caller sees them.
func withManifest(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w (examples/rbac/nodeapi.yaml of Kubewright grants a ServiceAccount what is needed)", err)
}

// withLoad loads the client CA before a certificate is checked.
type withLoad struct {
	cas    *cached[*x509.CertPool]
	next   authenticator.Request
	report func(context.Context, error, string)
}

func (a withLoad) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if err := a.cas.refresh(r.Context()); err != nil {
			a.report(r.Context(), err, "Client certificates are checked with the previous CA, or not at all if there was none")
		}
		if _, err := a.cas.get(); err != nil {
			return nil, false, &uncheckedError{clientCertificate, err}
		}
	}
	return a.next.AuthenticateRequest(r)
}

// authenticate returns the user of a request, or an error with status 401, or 503
// if a credential could not be checked.
func (s *Server) authenticate(r *http.Request) (user.Info, error) {
	response, ok, err := s.authenticator.AuthenticateRequest(r)
	if failed := findUnchecked(err); failed != nil {
		if failed.credential == bearerToken { // withLoad has reported the others
			s.report(r.Context(), failed, "Bearer tokens could not be checked")
		}
		sentence := "the node could not check the " + failed.credential + " of this request"
		if failed.credential == clientCertificate {
			sentence += ", because the CA of client certificates can't be loaded: see ClientCAFile and ClientCA of nodeapi.Config, or --client-ca-file of the node"
		}
		return nil, &statusError{http.StatusServiceUnavailable, sentence}
	}
	if err != nil {
		s.log(r).V(4).Info("Authentication failed", "err", err)
	}
	if err != nil || !ok {
		return nil, &statusError{http.StatusUnauthorized, "unauthorized: this request has no client certificate or bearer token that the node accepts"}
	}
	return response.User, nil
}

// attributes returns the permissions that allow a request, each alone.
func attributes(nodeName string, u user.Info, method, urlPath string, e endpoint) (all []authorizer.AttributesRecord) {
	rule := rules[e]
	verb := map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
	if rule.create || verb == "" {
		verb = "create" // an unknown method is refused with the stronger permission
	}
	for _, subresource := range []string{rule.subresource, "proxy"} {
		if subresource != "" && (subresource != "proxy" || !rule.alone) {
			all = append(all, authorizer.AttributesRecord{
				User: u, Verb: verb, APIVersion: "v1", Resource: "nodes", Subresource: subresource, Name: nodeName,
				ResourceRequest: true, Path: urlPath,
			})
		}
	}
	return all
}

// authorize returns an error with status 403 unless u may send the request.
func (s *Server) authorize(r *http.Request, u user.Info, e endpoint) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.CallTimeout)
	defer cancel()
	var (
		wanted []string
		errs   []error
	)
	for _, attrs := range attributes(s.cfg.NodeName, u, r.Method, r.URL.Path, e) {
		decision, _, err := s.authorizer.Authorize(ctx, attrs)
		if err == nil && decision == authorizer.DecisionAllow {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
		wanted = append(wanted, attrs.Verb+" nodes/"+attrs.Subresource)
	}
	if err := errors.Join(errs...); err != nil {
		s.report(r.Context(), err, "Permissions could not be checked")
		return &statusError{http.StatusServiceUnavailable, "the node could not check the permissions of this request"}
	}
	return &statusError{http.StatusForbidden, fmt.Sprintf("forbidden: user %q may not %s of node %q", u.GetName(), strings.Join(wanted, " or "), s.cfg.NodeName)}
}

// cached keeps a value that is loaded when it is first needed, and again when it
// is needed and older than maxAge. A failed load keeps the previous value and is
// not repeated for retryAfter.
type cached[T any] struct {
	maxAge time.Duration
	load   func(context.Context) (T, error)

	mu      sync.Mutex // held while the first value is loaded
	value   T
	have    bool
	err     error // of the last load
	next    time.Time
	loading bool
}

const retryAfter = 5 * time.Second

// refresh loads the value if it is due. Concurrent callers wait for the first
// value and otherwise go on with the previous one. It returns the error of its
// own load only, so that each failure is reported once.
func (c *cached[T]) refresh(ctx context.Context) error {
	c.mu.Lock()
	if c.loading || time.Now().Before(c.next) {
		c.mu.Unlock()
		return nil
	}
	c.loading = true
	had := c.have
	if had {
		c.mu.Unlock()
	}
	var value T
	err := guard(func() (err error) { // of the client, which the program may have wrapped
		value, err = c.load(context.WithoutCancel(ctx)) // the value is for all requests
		return err
	})
	if had {
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	c.loading, c.err = false, err
	if err != nil {
		c.next = time.Now().Add(min(c.maxAge, retryAfter))
		return err
	}
	c.value, c.have, c.next = value, true, time.Now().Add(c.maxAge)
	return nil
}

// get returns the newest value that was loaded, or the error of the last load if none
// has succeeded. refresh must have returned once.
func (c *cached[T]) get() (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have {
		return c.value, nil
	}
	return c.value, c.err
}
