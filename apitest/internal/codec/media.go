// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"maps"
	"mime"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	JSONType     = runtime.ContentTypeJSON
	ProtobufType = runtime.ContentTypeProtobuf
)

// Media is an encoding.
type Media struct {
	runtime.Serializer
	strict runtime.Serializer
	Name   string
	Proto  bool
}

var (
	JSON     = newMedia(JSONType)
	YAML     = newMedia(runtime.ContentTypeYAML)
	Protobuf = newMedia(ProtobufType)
)

// BodyMedia returns the encoding of a body, JSON by default, or nil if the server
// does not support the content type.
func BodyMedia(contentType string) *Media {
	if contentType == "" {
		return JSON
	}
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil
	}
	for _, m := range []*Media{JSON, YAML, Protobuf} {
		if m.Name == name {
			return m
		}
	}
	return nil
}

func newMedia(name string) *Media {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), name)
	return &Media{Serializer: info.Serializer, strict: info.StrictSerializer, Name: name, Proto: name == ProtobufType}
}

// Decoder returns the decoder of the encoding; a strict one reports fields that
// are unknown or there twice.
func (m *Media) Decoder(strict bool) runtime.Decoder {
	if strict {
		return m.strict
	}
	return m.Serializer
}

// MediaOf strips the parameters of a content type.
func MediaOf(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(m)
}

// MediaFor returns the encoding of a body, JSON if the content type is unknown.
func MediaFor(contentType string) *Media {
	if m := BodyMedia(contentType); m != nil {
		return m
	}
	return JSON
}

// Accepted is the representation that an Accept header selects.
type Accepted struct {
	*Media
	// Partial is set for PartialObjectMetadata and its list, and list for the
	// list.
	Partial, list bool
}

// Negotiate picks the acceptable clause of an Accept header that has the highest
// q, and of those the first. It accepts no clause that asks for a Table. ok is
// false if no clause is acceptable (406).
func Negotiate(accept string) (a Accepted, ok bool) {
	if accept == "" {
		return Accepted{Media: JSON}, true
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
func parseClause(clause string) (a Accepted, q float64, ok bool) {
	switch MediaOf(clause) {
	case JSONType, "*/*":
		a.Media = JSON
	case runtime.ContentTypeYAML:
		a.Media = YAML
	case ProtobufType:
		a.Media = Protobuf
	default:
		return a, 0, false
	}
	q = 1
	var as, group, version string
	for param := range strings.SplitSeq(clause, ";") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(param), "="); name {
		case "q":
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				q = n
			}
		case "as":
			as = value
		case "g":
			group = value
		case "v":
			version = value
		}
	}
	switch as {
	case "":
		return a, q, true
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		a.Partial, a.list = true, strings.HasSuffix(as, "List")
		return a, q, group == metav1.GroupName && (version == "v1" || version == "v1beta1")
	}
	return a, 0, false
}

// Serves reports whether a verb can be answered in the representation.
func (a Accepted) Serves(verb string) bool {
	switch {
	case verb == "watch":
		return a.Media != YAML
	case a.Partial:
		return a.list == (verb == "list" || verb == "deletecollection")
	}
	return true
}

// WithoutProtobuf drops the clauses of an Accept header that a dynamic kind
// can't serve.
func WithoutProtobuf(accept string) string {
	var out []string
	for clause := range strings.SplitSeq(accept, ",") {
		if a, _, ok := parseClause(clause); !ok || !a.Proto || a.Partial {
			out = append(out, clause)
		}
	}
	if len(out) == 0 {
		return "none/none"
	}
	return strings.Join(out, ",")
}

// Bytes returns the encoding of obj, which must carry its group, version and
// kind.
func (m *Media) Bytes(obj runtime.Object) []byte {
	var b bytes.Buffer
	if err := m.Serializer.Encode(obj, &b); err != nil {
		// The server decoded or created obj itself.
		panic("apitest: " + err.Error())
	}
	return b.Bytes()
}

// Shallow copies the struct behind an API object, sharing everything it
// points to. Stored objects are immutable, so sharing is safe if the caller only
// assigns to fields of the copy.
func Shallow(obj runtime.Object) runtime.Object {
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

// MetaOf returns the metadata of a kind that is known to have some.
func MetaOf(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic("apitest: " + err.Error())
	}
	return m
}

// MetaV1 is the version of the types that describe objects.
var MetaV1 = schema.GroupVersion{Group: metav1.GroupName, Version: "v1"}

// NoGVK is the kind of an element of a list.
var NoGVK schema.GroupVersionKind

// PartialOf reduces an object to its metadata.
func PartialOf(obj runtime.Object) *metav1.PartialObjectMetadata {
	p := meta.AsPartialObjectMetadata(MetaOf(obj))
	p.SetGroupVersionKind(MetaV1.WithKind("PartialObjectMetadata"))
	return p
}
