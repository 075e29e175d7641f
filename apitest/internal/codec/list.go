// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A list is put together from its elements, each encoded once, because a test server
// spends most of its time on encoding the same objects for many readers.

// Element returns the encoding of obj without what surrounds the object of a response.
func (m *Media) Element(obj runtime.Object) []byte {
	if !m.Proto { // of a list in YAML too, which is converted as a whole
		return bytes.TrimSuffix(JSON.Bytes(obj), []byte("\n"))
	}
	b, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		panic("apitest: " + err.Error()) // the server decoded or created obj itself
	}
	return b
}

// EncodeElements returns the encoding of a list.
func (m *Media) EncodeElements(gvk schema.GroupVersionKind, lm metav1.ListMeta, elements [][]byte) []byte {
	if m.Proto {
		return encodeProtoList(gvk, lm, elements)
	}
	size := 256
	for _, e := range elements {
		size += len(e) + 1
	}
	b := bytes.NewBuffer(make([]byte, 0, size))
	b.WriteString(`{"kind":"` + gvk.Kind + `","apiVersion":"` + gvk.GroupVersion().String() + `","metadata":`)
	head, err := json.Marshal(lm)
	if err != nil {
		panic("apitest: " + err.Error())
	}
	b.Write(head)
	b.WriteString(`,"items":[`)
	b.Write(bytes.Join(elements, []byte{','}))
	b.WriteString("]}\n")
	if m == YAML {
		return m.Bytes(&runtime.Unknown{ContentType: JSONType, Raw: b.Bytes()})
	}
	return b.Bytes()
}

// encodeProtoList encodes a list as every list of the API is: field 1 is its metadata,
// field 2 the elements.
func encodeProtoList(gvk schema.GroupVersionKind, lm metav1.ListMeta, elements [][]byte) []byte {
	head, err := lm.Marshal()
	if err != nil {
		panic("apitest: " + err.Error())
	}
	size := len(head) + 16
	for _, e := range elements {
		size += len(e) + 6
	}
	list := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}}
	list.Raw = appendField(make([]byte, 0, size), 1, head)
	for _, e := range elements {
		list.Raw = appendField(list.Raw, 2, e)
	}
	return Protobuf.Bytes(&list)
}

// appendField appends a length-delimited field of a protobuf message.
func appendField(b []byte, number uint64, value []byte) []byte {
	const lengthDelimited = 2
	b = binary.AppendUvarint(b, number<<3|lengthDelimited)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}
