// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Call is a request being served.
type Call struct {
	s     *Server
	r     *request.Request
	ctx   context.Context
	query url.Values

	accept   codec.Accepted
	kind     *rules.Kind
	view     int
	warnings []string
	// Served is called with the answered request before the client gets the answer.
	Served []func(*request.Request)
}

// Answer is a response: a complete body, or a stream.
type Answer struct {
	Code        int
	ContentType string
	Body        []byte
	Stream      io.ReadCloser
	RetryAfter  int32
	Warnings    []string
}

// Call returns the call for a request.
func (s *Server) Call(ctx context.Context, r *request.Request, query url.Values) *Call {
	return &Call{s: s, r: r, ctx: ctx, query: query}
}

// Late returns a copy of the call that goes on when its client has given up.
func (c *Call) Late() *Call {
	late, r := *c, *c.r
	late.ctx, late.r = context.WithoutCancel(c.ctx), &r
	return &late
}

func (c *Call) resource() schema.GroupResource { return c.kind.GroupResource(c.view) }

// table returns the objects of the kind. The store must be locked.
func (c *Call) table() *store.Table { return c.s.Store.Table(c.kind) }

// key returns the key of the object that the path of the request names.
func (c *Call) key() store.Key {
	k := store.Key{Name: c.r.Name}
	if c.kind.Namespaced {
		k.Namespace = c.r.Namespace
	}
	return k
}

// errNoPath is the answer to a path in a group that the server does not serve in
// any version. The real server sends plain text instead of a Status.
var errNoPath = errors.New("404 page not found")

// unknown returns the answer to a path of an unknown resource. Its Status has no
// details, so a client can distinguish it from the 404 of a missing object.
func (s *Server) unknown(gv schema.GroupVersion, resource string) error {
	known := false // whether the group has kinds
	for _, k := range s.kinds() {
		for _, v := range k.Views {
			if v.GV.Group != gv.Group {
				continue
			}
			known = true
			if s.serves(v.GV) {
				return notFound(fmt.Sprintf(" (apitest has no %s in %s: %s)", resource, gv, howToRegister))
			}
		}
	}
	if known {
		return errNoPath
	}
	// The real server answers in plain text, which client-go does not show.
	return notFound(fmt.Sprintf(" (apitest has no group %s: %s)", gv.Group, howToRegister))
}

// statusError returns an error answer with an HTTP code, a reason and a message.
func statusError(code int, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

func notFound(why string) error {
	e := statusError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource"+why)
	e.ErrStatus.Details = &metav1.StatusDetails{}
	return e
}

func notAcceptable() error {
	e := statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch")
	e.ErrStatus.Details = &metav1.StatusDetails{}
	return e
}

func methodNotAllowed() error {
	e := statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	e.ErrStatus.Details = &metav1.StatusDetails{}
	return e
}

// Failure returns the answer to an error.
func (c *Call) Failure(err error) *Answer {
	if err == errNoPath {
		return &Answer{Code: http.StatusNotFound, ContentType: "text/plain; charset=utf-8", Body: []byte("404 page not found\n")}
	}
	var se apierrors.APIStatus
	var status metav1.Status
	if errors.As(err, &se) {
		status = se.Status()
	} else {
		status = metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	}
	m := c.accept.Media
	if m == nil {
		if a, ok := codec.Negotiate(c.r.Accept); ok {
			m = a.Media
		} else {
			m = codec.JSON
		}
	}
	a := &Answer{Code: int(status.Code), ContentType: m.Name, Body: encodeStatus(m, status), Warnings: c.warnings}
	if d := status.Details; d != nil && (a.Code == http.StatusTooManyRequests || a.Code >= 500) {
		a.RetryAfter = d.RetryAfterSeconds
	}
	return a
}

func encodeStatus(m *codec.Media, status metav1.Status) []byte {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return m.Bytes(&status)
}

// object returns an answer whose body is an object.
func (c *Call) object(code int, it *store.Item) (*Answer, error) {
	return &Answer{Code: code, ContentType: c.accept.Name, Body: it.Encoded(c.kind, c.view, c.accept)}, nil
}

// decode decodes the body as the kind in the path and converts it to the stored
// version.
func (c *Call) decode() (runtime.Object, error) {
	gvk := c.kind.Views[c.view].GV.WithKind(c.kind.Name)
	obj, err := c.decodeAs(gvk)
	if err != nil {
		return nil, err
	}
	return c.kind.ConvertFrom(obj, c.view), nil
}

// decodeAs decodes the body as an object of kind want. A body without a kind has
// kind want.
func (c *Call) decodeAs(want schema.GroupVersionKind) (runtime.Object, error) {
	m := codec.BodyMedia(c.r.ContentType)
	if m == nil {
		return nil, unsupportedBody("application/json, application/yaml, application/vnd.kubernetes.protobuf")
	}
	validation := c.query.Get("fieldValidation")
	dec := m.Decoder(!m.Proto && validation != metav1.FieldValidationIgnore)
	if want == c.kind.Views[c.view].GV.WithKind(c.kind.Name) {
		if c.kind.Dynamic && m.Proto {
			return nil, unsupportedBody("application/json, application/yaml")
		}
		dec = c.kind.Decoder(c.view, m, !m.Proto && validation != metav1.FieldValidationIgnore)
	}
	obj, got, err := dec.Decode(c.r.Body, &want, nil)
	if err != nil {
		strict, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || obj == nil || validation == metav1.FieldValidationStrict {
			return nil, decodeError(want, got, err, c.r.Body)
		}
		for _, e := range strict.Errors() {
			c.warnings = append(c.warnings, e.Error())
		}
	}
	if *got != want {
		if got.Kind != want.Kind {
			internal, _, _ := strings.Cut(want.Group, ".")
			if internal == "" {
				internal = "core"
			}
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: converting (%s.%s) to (%s.%s): unknown conversion",
				got.Kind, got.Version, want.Kind, got.Version, got.Kind, internal, want.Kind))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			got.GroupVersion(), want.GroupVersion()))
	}
	return obj, nil
}

func unsupportedBody(accepted string) error {
	return statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+accepted)
}

func decodeError(want schema.GroupVersionKind, got *schema.GroupVersionKind, err error, body []byte) error {
	if got != nil && got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%d bytes)", want.Kind, err, len(body)))
}

// BodyName returns the name in the body of a create, for the journal and for
// Match.Name. It returns "" if the body can't be decoded.
func (s *Server) BodyName(r *request.Request) string {
	k, v := s.lookup(schema.GroupVersion{Group: r.Group, Version: r.Version}, r.Resource)
	if k == nil || r.Subresource != "" {
		return ""
	}
	gvk := k.Views[v].GV.WithKind(k.Name)
	obj, _, err := k.Decoder(v, codec.MediaFor(r.ContentType), false).Decode(r.Body, &gvk, nil)
	if err != nil {
		return ""
	}
	if m, err := meta.Accessor(obj); err == nil {
		return m.GetName()
	}
	return ""
}
