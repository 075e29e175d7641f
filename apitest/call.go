// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

// call is a request being served.
type call struct {
	s     *Server
	r     *Request
	ctx   context.Context
	query url.Values

	accept   accepted
	kind     *kind
	view     int
	warnings []string
	served   []func(Request) // of the faults
}

// answer is a response: a complete body, or a stream.
type answer struct {
	code        int
	contentType string
	body        []byte
	stream      io.ReadCloser
	retryAfter  int32
	warnings    []string
}

// serve returns the answer to the request.
func (c *call) serve() *answer {
	a, err := c.dispatch()
	if err != nil {
		a = c.failure(err)
	} else {
		a.warnings = c.warnings
	}
	for _, f := range c.served {
		r := *c.r
		r.Code = a.code
		f(r)
	}
	return a
}

// maxBody is the size of a request's body, in bytes, that the server reads.
const maxBody = 3 << 20

// maxStored is the size of a request, in bytes, that etcd accepts.
const maxStored = 3 << 19

// maxMessage is the size of a request that the API server sends to etcd at all.
const maxMessage = 2 << 20

// checkSize returns an error if an object can't be stored because of its size.
func checkSize(obj runtime.Object) error {
	o, ok := obj.(interface{ Size() int })
	if !ok {
		return nil // an object without a Go type: at most as large as a request
	}
	const aroundIt = 200 // the key, and the rest of the request
	if size := o.Size() + aroundIt; size > maxMessage {
		return fmt.Errorf("rpc error: code = ResourceExhausted desc = trying to send message larger than max (%d vs. %d)", size, maxMessage)
	} else if size > maxStored {
		return errors.New("etcdserver: request is too large")
	}
	return nil
}

func (c *call) dispatch() (*answer, error) {
	var ok bool
	if strings.TrimSuffix(c.r.Path, "/") == "/version" {
		return c.version()
	}
	if c.accept, ok = negotiate(c.r.Accept); !ok {
		return nil, notAcceptable()
	}
	if d := c.query.Get("timeout"); d != "" && c.r.Verb != "watch" {
		if _, err := time.ParseDuration(d); err != nil {
			return nil, apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
	}
	if c.r.Resource == "" {
		return c.discover()
	}
	gv := schema.GroupVersion{Group: c.r.Group, Version: c.r.Version}
	if review := reviews(gv, c.r.Resource); review != nil {
		return c.review(review)
	}
	c.kind, c.view = c.s.lookup(gv, c.r.Resource)
	if c.kind == nil || !c.s.serves(gv) {
		return nil, c.s.unknown(gv, c.r.Resource)
	}
	if c.kind.dynamic && c.accept.proto && !c.accept.partial {
		if c.accept, ok = negotiate(withoutProtobuf(c.r.Accept)); !ok {
			return nil, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
				"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf")
		}
	}
	if err := c.s.authorize(c); err != nil {
		return nil, err
	}
	if w := c.kind.views[c.view].deprecation(c.kind, c.s.minor); w != "" {
		c.warnings = append(c.warnings, w)
	}
	switch {
	case c.r.nested && !c.kind.namespaced, !c.r.nested && c.kind.namespaced && c.r.named:
		return nil, notFound("")
	case c.r.Method == http.MethodHead, !c.r.nested && c.kind.namespaced && c.r.Verb != "list" && c.r.Verb != "watch":
		return nil, methodNotAllowed()
	case !c.accept.serves(c.r.Verb):
		return nil, notAcceptable()
	}
	if c.r.Subresource != "" {
		sub, ok := c.kind.subresource(c.r.Subresource)
		if !ok {
			return nil, notFound("")
		}
		if sub.create != nil {
			return c.special(sub)
		}
		if !slices.Contains(sub.verbs(), c.r.Verb) {
			return nil, methodNotAllowed()
		}
	}
	if len(c.r.Body) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	switch c.r.Verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		return c.create()
	case "update":
		return c.update()
	case "patch":
		return c.patch()
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	}
	return nil, methodNotAllowed()
}

func (c *call) resource() schema.GroupResource { return c.kind.groupResource(c.view) }

// table returns the objects of the kind. store.mu must be held.
func (c *call) table() *table { return c.s.store.table(c.kind) }

// key returns the key of the object that the path of the request names.
func (c *call) key() key {
	k := key{name: c.r.Name}
	if c.kind.namespaced {
		k.namespace = c.r.Namespace
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
		for _, v := range k.views {
			if v.gv.Group != gv.Group {
				continue
			}
			known = true
			if s.serves(v.gv) {
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

// failure returns the answer to an error.
func (c *call) failure(err error) *answer {
	if err == errNoPath {
		return &answer{code: http.StatusNotFound, contentType: "text/plain; charset=utf-8", body: []byte("404 page not found\n")}
	}
	var se apierrors.APIStatus
	var status metav1.Status
	if errors.As(err, &se) {
		status = se.Status()
	} else {
		status = metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	}
	m := c.accept.media
	if m == nil {
		if a, ok := negotiate(c.r.Accept); ok {
			m = a.media
		} else {
			m = jsonCodec
		}
	}
	a := &answer{code: int(status.Code), contentType: m.name, body: encodeStatus(m, status), warnings: c.warnings}
	if d := status.Details; d != nil && (a.code == http.StatusTooManyRequests || a.code >= 500) {
		a.retryAfter = d.RetryAfterSeconds
	}
	return a
}

func encodeStatus(m *media, status metav1.Status) []byte {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return m.encode(&status)
}

// object returns an answer whose body is an object.
func (c *call) object(code int, it *item) (*answer, error) {
	return &answer{code: code, contentType: c.accept.name, body: it.encoded(c.kind, c.view, c.accept)}, nil
}

// decode decodes the body as the kind in the path and converts it to the stored
// version.
func (c *call) decode() (runtime.Object, error) {
	gvk := c.kind.views[c.view].gv.WithKind(c.kind.name)
	obj, err := c.decodeAs(gvk)
	if err != nil {
		return nil, err
	}
	return c.kind.convertFrom(obj, c.view), nil
}

// decodeAs decodes the body as an object of kind want. A body without a kind has
// kind want.
func (c *call) decodeAs(want schema.GroupVersionKind) (runtime.Object, error) {
	m := bodyMedia(c.r.ContentType)
	if m == nil {
		return nil, unsupportedBody("application/json, application/yaml, application/vnd.kubernetes.protobuf")
	}
	validation := c.query.Get("fieldValidation")
	dec := m.decoder(!m.proto && validation != metav1.FieldValidationIgnore)
	if want == c.kind.views[c.view].gv.WithKind(c.kind.name) {
		if c.kind.dynamic && m.proto {
			return nil, unsupportedBody("application/json, application/yaml")
		}
		dec = c.kind.decoder(m, !m.proto && validation != metav1.FieldValidationIgnore)
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

// bodyName returns the name in the body of a create, for the journal and for
// Match.Name. It returns "" if the body can't be decoded.
func (s *Server) bodyName(r *Request) string {
	k, v := s.lookup(schema.GroupVersion{Group: r.Group, Version: r.Version}, r.Resource)
	if k == nil || r.Subresource != "" {
		return ""
	}
	gvk := k.views[v].gv.WithKind(k.name)
	obj, _, err := k.decoder(mediaFor(r.ContentType), false).Decode(r.Body, &gvk, nil)
	if err != nil {
		return ""
	}
	if m, err := meta.Accessor(obj); err == nil {
		return m.GetName()
	}
	return ""
}

// responseBody is a complete body.
type responseBody struct{ bytes.Reader }

func newBody(b []byte) *responseBody {
	rb := &responseBody{}
	rb.Reset(b)
	return rb
}

func (*responseBody) Close() error { return nil }

const (
	jsonMedia     = runtime.ContentTypeJSON
	protobufMedia = runtime.ContentTypeProtobuf
)

// media is an encoding.
type media struct {
	runtime.Serializer
	strict runtime.Serializer
	name   string
	proto  bool
}

var (
	jsonCodec  = newMedia(jsonMedia)
	yamlCodec  = newMedia(runtime.ContentTypeYAML)
	protoCodec = newMedia(protobufMedia)
)

// bodyMedia returns the encoding of a body, JSON by default, or nil if the server
// does not support the content type.
func bodyMedia(contentType string) *media {
	if contentType == "" {
		return jsonCodec
	}
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil
	}
	for _, m := range []*media{jsonCodec, yamlCodec, protoCodec} {
		if m.name == name {
			return m
		}
	}
	return nil
}

func newMedia(name string) *media {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), name)
	return &media{Serializer: info.Serializer, strict: info.StrictSerializer, name: name, proto: name == protobufMedia}
}

// decoder returns the decoder of the encoding; a strict one reports fields that
// are unknown or there twice.
func (m *media) decoder(strict bool) runtime.Decoder {
	if strict {
		return m.strict
	}
	return m.Serializer
}

// decoder returns the decoder for bodies of the kind.
func (k *kind) decoder(m *media, strict bool) runtime.Decoder {
	if k.dynamic {
		return untyped{kind: k.stored().WithKind(k.name), definition: k.stored() == crdGroupVersion, yaml: m == yamlCodec, strict: strict}
	}
	return m.decoder(strict)
}

// untyped decodes objects of a kind that has no Go type here.
type untyped struct {
	kind         schema.GroupVersionKind
	definition   bool // the kind has a type on the real server, so a body need not name it
	yaml, strict bool
}

// Decode implements runtime.Decoder.
func (u untyped) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	_, got, err := serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, nil, runtime.NewScheme(),
		serializerjson.SerializerOptions{Yaml: u.yaml, Strict: u.strict}).Decode(data, nil, obj)
	strict, isStrict := runtime.AsStrictDecodingError(err)
	if obj.Object == nil {
		obj.Object = map[string]any{}
	}
	if err != nil && !isStrict && !(u.definition && runtime.IsMissingKind(err)) {
		return nil, got, err
	}
	if u.definition && obj.GroupVersionKind().Empty() {
		obj.SetGroupVersionKind(u.kind)
	} else if obj.GetAPIVersion() == "" {
		return nil, got, runtime.NewMissingVersionErr(string(data))
	}
	gvk := obj.GroupVersionKind()
	if u.definition {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &definitionTypes{}); err != nil {
			return nil, &gvk, err
		}
	}
	var all []error
	if isStrict {
		all = strict.Errors()
	}
	unknown, err := coerceMeta(obj, u.strict)
	if err != nil {
		return nil, &gvk, err
	}
	if all = append(all, unknown...); len(all) > 0 {
		return obj, &gvk, runtime.NewStrictDecodingError(all)
	}
	return obj, &gvk, nil
}

// coerceMeta replaces the metadata of an object without a Go type by the fields
// that ObjectMeta has. It returns an error if a field has the wrong type, and with
// strict the fields that ObjectMeta does not have.
func coerceMeta(obj *unstructured.Unstructured, strict bool) (unknown []error, err error) {
	sent, ok := obj.Object["metadata"]
	if !ok || sent == nil {
		delete(obj.Object, "metadata")
		return nil, nil
	}
	m, ok := sent.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("metadata: Invalid value: %T: must be an object", sent)
	}
	var typed metav1.ObjectMeta
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, &typed, strict)
	if se, ok := runtime.AsStrictDecodingError(err); ok {
		unknown = se.Errors()
	} else if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	obj.Object["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
	return unknown, err
}

// mediaOf strips the parameters of a content type.
func mediaOf(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(m)
}

// mediaFor returns the encoding of a body, JSON if the content type is unknown.
func mediaFor(contentType string) *media {
	if m := bodyMedia(contentType); m != nil {
		return m
	}
	return jsonCodec
}

// accepted is the representation that an Accept header selects.
type accepted struct {
	*media
	// partial is set for PartialObjectMetadata and its list, and list for the
	// list.
	partial, list bool
}

// negotiate picks the acceptable clause of an Accept header that has the highest
// q, and of those the first. It accepts no clause that asks for a Table. ok is
// false if no clause is acceptable (406).
func negotiate(accept string) (a accepted, ok bool) {
	if accept == "" {
		return accepted{media: jsonCodec}, true
	}
	best := -1.0
	for clause := range strings.SplitSeq(accept, ",") {
		a2, q, ok2 := parseClause(clause)
		if ok2 && q > best {
			a, best, ok = a2, q, true
		}
	}
	return a, ok
}

// parseClause reads one clause of an Accept header.
func parseClause(clause string) (a accepted, q float64, ok bool) {
	switch mediaOf(clause) {
	case jsonMedia, "*/*":
		a.media = jsonCodec
	case runtime.ContentTypeYAML:
		a.media = yamlCodec
	case protobufMedia:
		a.media = protoCodec
	default:
		return a, 0, false
	}
	q = 1
	params := map[string]string{}
	for param := range strings.SplitSeq(clause, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(param), "=")
		params[k] = v
	}
	if v, err := strconv.ParseFloat(params["q"], 64); err == nil {
		q = v
	}
	switch params["as"] {
	case "":
		return a, q, true
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		a.partial, a.list = true, strings.HasSuffix(params["as"], "List")
		return a, q, params["g"] == metav1.GroupName && (params["v"] == "v1" || params["v"] == "v1beta1")
	}
	return a, 0, false
}

// serves reports whether a verb can be answered in the representation.
func (a accepted) serves(verb string) bool {
	switch {
	case verb == "watch":
		return a.media != yamlCodec
	case a.partial:
		return a.list == (verb == "list" || verb == "deletecollection")
	}
	return true
}

// withoutProtobuf drops the clauses of an Accept header that a dynamic kind
// can't serve.
func withoutProtobuf(accept string) string {
	var out []string
	for clause := range strings.SplitSeq(accept, ",") {
		if a, _, ok := parseClause(clause); !ok || !a.proto || a.partial {
			out = append(out, clause)
		}
	}
	if len(out) == 0 {
		return "none/none"
	}
	return strings.Join(out, ",")
}

// encode returns the encoding of obj, which must carry its group, version and
// kind.
func (m *media) encode(obj runtime.Object) []byte {
	var b bytes.Buffer
	if err := m.Encode(obj, &b); err != nil {
		// The server decoded or created obj itself.
		panic("apitest: " + err.Error())
	}
	return b.Bytes()
}

// shallow copies the struct behind an API object, sharing everything it
// points to. Stored objects are immutable, so sharing is safe if the caller only
// assigns to fields of the copy.
func shallow(obj runtime.Object) runtime.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		m := maps.Clone(u.Object)
		if md, ok := m["metadata"].(map[string]any); ok {
			m["metadata"] = maps.Clone(md)
		}
		return &unstructured.Unstructured{Object: m}
	}
	v := reflect.ValueOf(obj).Elem()
	c := reflect.New(v.Type())
	c.Elem().Set(v)
	return c.Interface().(runtime.Object)
}

// metaOf returns the metadata of a kind that is known to have some.
func metaOf(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic("apitest: " + err.Error())
	}
	return m
}

var metaV1 = schema.GroupVersion{Group: metav1.GroupName, Version: "v1"}

// partialOf reduces an object to its metadata.
func partialOf(obj runtime.Object) *metav1.PartialObjectMetadata {
	p := meta.AsPartialObjectMetadata(metaOf(obj))
	p.SetGroupVersionKind(metaV1.WithKind("PartialObjectMetadata"))
	return p
}
