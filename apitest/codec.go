// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	jsonMedia     = runtime.ContentTypeJSON
	protobufMedia = runtime.ContentTypeProtobuf
)

// media is one of the encodings the server speaks. YAML is left out: no client
// library sends it.
type media struct {
	runtime.Serializer
	strict runtime.Serializer
	name   string
	proto  bool
}

var (
	jsonCodec  = newMedia(jsonMedia)
	protoCodec = newMedia(protobufMedia)
)

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
	if k.dynamic && k.stored() == crdGroupVersion {
		return untyped{k.stored().WithKind(k.name)}
	}
	if k.dynamic {
		return unstructured.UnstructuredJSONScheme
	}
	return m.decoder(strict)
}

// untyped decodes objects of a kind that has no Go type here and has one on the
// real server, so that a body need not name it.
type untyped struct{ kind schema.GroupVersionKind }

// Decode implements runtime.Decoder.
func (u untyped) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, err
	}
	obj := &unstructured.Unstructured{Object: m}
	if m == nil {
		obj.Object = map[string]any{}
	}
	got := obj.GroupVersionKind()
	if got.Empty() {
		obj.SetGroupVersionKind(u.kind)
		got = u.kind
	}
	return obj, &got, nil
}

// mediaOf strips the parameters of a content type.
func mediaOf(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(m)
}

// mediaFor is the codec for a content type; JSON unless it says protobuf.
func mediaFor(contentType string) *media {
	if mediaOf(contentType) == protobufMedia {
		return protoCodec
	}
	return jsonCodec
}

// accepted is what a client's Accept header settled on.
type accepted struct {
	*media
	// partial is set for PartialObjectMetadata and its list.
	partial bool
}

// negotiate picks the first acceptable clause of an Accept header, as the API
// server does; clauses that ask for a Table are passed over. ok is false if
// nothing in it can be served (406).
func negotiate(accept string) (a accepted, ok bool) {
	if accept == "" {
		return accepted{media: jsonCodec}, true
	}
	for clause := range strings.SplitSeq(accept, ",") {
		a := accepted{}
		switch mediaOf(clause) {
		case jsonMedia, "*/*", "application/*":
			a.media = jsonCodec
		case protobufMedia:
			a.media = protoCodec
		default:
			continue
		}
		as := ""
		for param := range strings.SplitSeq(clause, ";") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(param), "as="); ok {
				as = v
			}
		}
		switch as {
		case "":
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			a.partial = true
		default:
			continue
		}
		return a, true
	}
	return accepted{}, false
}

// withoutProtobuf drops the clauses of an Accept header that a dynamic kind
// can't serve.
func withoutProtobuf(accept string) string {
	var out []string
	for clause := range strings.SplitSeq(accept, ",") {
		if mediaOf(clause) != protobufMedia {
			out = append(out, clause)
		}
	}
	if len(out) == 0 {
		return "none/none"
	}
	return strings.Join(out, ",")
}

// encode is Encode into fresh bytes. obj must carry its group, version and
// kind.
func (m *media) encode(obj runtime.Object) []byte {
	var b bytes.Buffer
	if err := m.Encode(obj, &b); err != nil {
		// Everything the server encodes it has itself decoded or made.
		panic("apitest: " + err.Error())
	}
	return b.Bytes()
}

// shallow copies the struct behind an API object, sharing everything it
// points to. Stored objects are immutable, so sharing is safe as long as the
// copy's own fields alone are set.
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
