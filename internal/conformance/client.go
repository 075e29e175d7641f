// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
)

// Server is the API server of a case.
type Server struct {
	// Config returns a client configuration for a user: the zero User, a
	// node user or any other. Required.
	Config func(apitest.User) *rest.Config
	// Grant creates the ClusterRoles, Roles and bindings of a manifest.
	// Required.
	Grant func(manifest string)
	// Forget discards the server's history of its objects. Required.
	Forget func()
}

// scenario is a named case.
type scenario struct {
	name string
	run  func(c *C)
}

// C is a running test case.
type C struct {
	*testing.T
	Name string // of the case
	NS   string // the case's own namespace, after a call of namespace

	older bool // the codes in the cases are those of the newest version

	server  Server
	clients map[string]*http.Client
	out     strings.Builder
	norm    normalizer
}

// newC returns the state of a case; shared as in normalizer.
func newC(t *testing.T, name string, server Server, shared bool) *C {
	return &C{T: t, Name: name, NS: "c-" + name, server: server, clients: map[string]*http.Client{}, norm: newNormalizer(shared)}
}

// namespace creates a namespace for the case.
func (c *C) namespace() {
	c.Helper()
	c.quiet("POST", "/api/v1/namespaces", object{"metadata": object{"name": c.NS}}, 201)
}

// decoder decodes the API's kinds and objects that consist of metadata only.
var decoder = func() runtime.Decoder {
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), metav1.AddMetaToScheme(s)); err != nil {
		panic(err)
	}
	return serializer.NewCodecFactory(s).UniversalDeserializer()
}()

// object is a JSON object.
type object = map[string]any

// req is one request of a case. The defaults are the admin user, GET and JSON.
type req struct {
	As     apitest.User
	Method string
	Path   string // {NS} is replaced by the case's namespace
	Query  string // key=value&key=value, not yet escaped
	Body   any    // an object, a runtime.Object, or a []byte or string that is sent unchanged
	Type   string // Content-Type
	Accept string
	Code   int // expected

	quiet bool
}

// answer is the response to a req.
type answer struct {
	c      *C
	Code   int
	Header http.Header
	Raw    []byte
	Body   object // decoded, if it is JSON or protobuf
}

func (c *C) client(u apitest.User) (*http.Client, *rest.Config) {
	c.Helper()
	cfg := c.server.Config(u)
	if cl, ok := c.clients[u.Name]; ok {
		return cl, cfg
	}
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		c.Fatal(err)
	}
	c.clients[u.Name] = cl
	return cl, cfg
}

// clientset returns a real client-go clientset.
func (c *C) clientset(u apitest.User) *kubernetes.Clientset {
	c.Helper()
	cs, err := kubernetes.NewForConfig(c.server.Config(u))
	if err != nil {
		c.Fatal(err)
	}
	return cs
}

func (c *C) expand(s string) string { return strings.ReplaceAll(s, "{NS}", c.NS) }

// open sends a request and returns the response without reading its body.
func (c *C) open(ctx context.Context, r req) *http.Response {
	c.Helper()
	cl, cfg := c.client(r.As)
	if r.Method == "" {
		r.Method = "GET"
	}
	u := strings.TrimSuffix(cfg.Host, "/") + c.expand(r.Path)
	if r.Query != "" {
		u += "?" + escape(c.expand(r.Query))
	}
	var body io.Reader
	switch b := r.Body.(type) {
	case nil:
	case []byte:
		body = bytes.NewReader(b)
	case string:
		body = strings.NewReader(b)
	case runtime.Object:
		var buf bytes.Buffer
		media := r.Type
		if media == "" {
			media = runtime.ContentTypeJSON
		}
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
		if err := info.Serializer.Encode(b, &buf); err != nil {
			c.Fatal(err)
		}
		body = &buf
	default:
		enc, err := json.Marshal(b)
		if err != nil {
			c.Fatal(err)
		}
		body = strings.NewReader(c.expand(string(enc)))
	}
	hr, err := http.NewRequestWithContext(ctx, r.Method, u, body)
	if err != nil {
		c.Fatal(err)
	}
	if r.Type == "" && r.Body != nil {
		r.Type = runtime.ContentTypeJSON
	}
	if r.Type != "" {
		hr.Header.Set("Content-Type", r.Type)
	}
	if r.Accept == "" {
		r.Accept = runtime.ContentTypeJSON
	}
	hr.Header.Set("Accept", r.Accept)
	hr.Header.Set("User-Agent", "conformance")
	resp, err := cl.Do(hr)
	if err != nil {
		c.Fatalf("%s %s: %v", r.Method, u, err)
	}
	if !r.quiet {
		as := r.As.Name
		if as == "" {
			as = "admin"
		}
		line := "> " + r.Method + " " + c.expand(r.Path)
		if r.Query != "" {
			line += "?" + c.norm.text(c.expand(r.Query))
		}
		if r.Type != "" && r.Type != runtime.ContentTypeJSON {
			line += " [" + r.Type + "]"
		}
		if r.Accept != runtime.ContentTypeJSON {
			line += " (accepts " + r.Accept + ")"
		}
		fmt.Fprintf(&c.out, "%s as %s\n", line, as)
	}
	return resp
}

func escape(q string) string {
	v := url.Values{}
	for pair := range strings.SplitSeq(q, "&") {
		k, val, _ := strings.Cut(pair, "=")
		v.Add(k, val)
	}
	return v.Encode()
}

// do sends a request, checks the status code, and writes both into the
// transcript.
func (c *C) do(r req) *answer {
	c.Helper()
	resp := c.open(c.Context(), r)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	a := &answer{c: c, Code: resp.StatusCode, Header: resp.Header, Raw: raw}
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch media {
	case runtime.ContentTypeJSON:
		if err := json.Unmarshal(raw, &a.Body); err != nil {
			c.Fatalf("%s %s: %v in %q", r.Method, r.Path, err, raw)
		}
	case runtime.ContentTypeProtobuf:
		obj, _, err := decoder.Decode(raw, nil, nil)
		if err != nil {
			c.Fatal(err)
		}
		a.Body = toMap(c, obj)
	}
	if r.Code != 0 && r.Code != a.Code && !c.older {
		c.Errorf("%s %s: %d, want %d: %s", r.Method, c.expand(r.Path), a.Code, r.Code, raw)
	}
	if r.quiet {
		return a
	}
	fmt.Fprintf(&c.out, "< %d %s\n", a.Code, media)
	for _, w := range resp.Header.Values("Warning") {
		if strings.HasPrefix(w, `299 - "apitest: `) {
			continue // advice for the author of a test
		}
		fmt.Fprintf(&c.out, "! %s\n", w)
	}
	if ra := resp.Header.Get("Retry-After"); ra != "" {
		fmt.Fprintf(&c.out, "! Retry-After: %s\n", ra)
	}
	if a.Body != nil {
		c.print(a.Body)
	} else {
		fmt.Fprintf(&c.out, "  %q\n", raw)
	}
	return a
}

func toMap(c *C, obj runtime.Object) object {
	b, err := json.Marshal(obj)
	if err != nil {
		c.Fatal(err)
	}
	m := object{}
	if err := json.Unmarshal(b, &m); err != nil {
		c.Fatal(err)
	}
	return m
}

// print writes a normalized object into the transcript, one line for each
// top-level field.
func (c *C) print(m object) {
	m = c.norm.value("", m).(object)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b := &bytes.Buffer{}
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(m[k]); err != nil {
			c.Fatal(err)
		}
		fmt.Fprintf(&c.out, "  %s: %s", k, b)
	}
}

// note writes a line into the transcript.
func (c *C) note(format string, args ...any) {
	fmt.Fprintf(&c.out, "# "+format+"\n", args...)
}

// quiet sends a preparatory request and does not write it into the transcript.
func (c *C) quiet(method, path string, body any, code int) *answer {
	c.Helper()
	return c.do(req{Method: method, Path: path, Body: body, Code: code, quiet: true})
}

func (c *C) get(path string, code int) *answer {
	c.Helper()
	return c.do(req{Path: path, Code: code})
}

func (c *C) post(path string, body any, code int) *answer {
	c.Helper()
	return c.do(req{Method: "POST", Path: path, Body: body, Code: code})
}

func (c *C) put(path string, body any, code int) *answer {
	c.Helper()
	return c.do(req{Method: "PUT", Path: path, Body: body, Code: code})
}

// The media types of patches.
const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	jsonPatch      = "application/json-patch+json"
)

func (c *C) patch(path, media string, body any, code int) *answer {
	c.Helper()
	return c.do(req{Method: "PATCH", Path: path, Type: media, Body: body, Code: code})
}

func (c *C) delete(path string, opts any, code int) *answer {
	c.Helper()
	return c.do(req{Method: "DELETE", Path: path, Body: opts, Code: code})
}

// str returns a field of the answer as text.
func (a *answer) str(path ...string) string {
	a.c.Helper()
	return str(a.Body, path...)
}

func str(m object, path ...string) string {
	var v any = m
	for _, p := range path {
		o, _ := v.(object)
		v = o[p]
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// uid and rv return the UID and resourceVersion of the answer's object.
func (a *answer) uid() string { return a.str("metadata", "uid") }
func (a *answer) rv() string  { return a.str("metadata", "resourceVersion") }

// with returns a changed copy of the answer's object.
func (a *answer) with(change func(m object)) object {
	b, err := json.Marshal(a.Body)
	if err != nil {
		a.c.Fatal(err)
	}
	m := object{}
	if err := json.Unmarshal(b, &m); err != nil {
		a.c.Fatal(err)
	}
	change(m)
	return m
}

// in returns a nested object and creates it if it is missing.
func in(m object, path ...string) object {
	for _, p := range path {
		next, ok := m[p].(object)
		if !ok {
			next = object{}
			m[p] = next
		}
		m = next
	}
	return m
}
