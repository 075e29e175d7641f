// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest"
)

// Request is a request that no client library sends in this form.
type Request struct {
	Method string
	Path   string // {NS} stands for the namespace
	Query  string // raw
	Type   string // Content-Type; empty means none
	Accept string // empty means application/json
	Body   string
}

func (r Request) String() string {
	s := r.Method + " " + r.Path
	if r.Query != "" {
		s += "?" + r.Query
	}
	if r.Type != "" {
		s += " [" + r.Type + "]"
	}
	if r.Accept != "" {
		s += " (accepts " + r.Accept + ")"
	}
	if len(r.Body) > 200 {
		return s + fmt.Sprintf(" %q... %d bytes", r.Body[:80], len(r.Body))
	}
	if r.Body != "" {
		s += fmt.Sprintf(" %q", r.Body)
	}
	return s
}

const (
	corpusMaps    = "/api/v1/namespaces/{NS}/configmaps"
	corpusWidgets = "/apis/corpus.example.com/v1/namespaces/{NS}/widgets"
	definitions   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// Corpus objects: the requests of the corpus expect them, each unchanged.
var corpusObjects = []struct{ path, name, body string }{
	{corpusMaps, "a", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"l":"v"}},"data":{"k":"v"}}`},
	{corpusWidgets, "a", `{"apiVersion":"corpus.example.com/v1","kind":"Widget","metadata":{"name":"a","labels":{"l":"v"}},"spec":{"list":["x","y"],"n":1}}`},
}

const corpusDefinition = `{"metadata":{"name":"widgets.corpus.example.com"},"spec":{"group":"corpus.example.com","scope":"Namespaced",
	"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},
	"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// CorpusSeed calls send with the requests that create the objects of the corpus.
func CorpusSeed(send func(Request)) {
	send(Request{Method: "POST", Path: definitions, Type: "application/json", Body: corpusDefinition})
	for _, o := range corpusObjects {
		send(Request{Method: "POST", Path: o.path, Type: "application/json", Body: o.body})
	}
}

// Corpus returns the requests of which the status codes are recorded. They are
// seeds of the fuzz tests of apitest too.
func Corpus() (all []Request) {
	get := func(path string, queries ...string) {
		for _, q := range queries {
			all = append(all, Request{Method: "GET", Path: path, Query: q})
		}
	}
	send := func(method, path, query, media string, bodies ...string) {
		for _, b := range bodies {
			all = append(all, Request{Method: method, Path: path, Query: query, Type: media, Body: b})
		}
	}
	const jsonType, yamlType, applyType = "application/json", "application/yaml", "application/apply-patch+yaml"
	long := strings.Repeat("x", 64)

	for _, s := range []string{
		"l", "!l", "! l", "l=v", "l==v", "l!=v", "l in (v,w)", "l notin (v)", "l in ()", "l in (,)", "l in v", "l in (v", "l in v)", "l,", ",l", ",", "l=v,l!=w",
		"l>1", "l<1", "l>x", "l>", "l=", "=v", "l=v=w", "a b", "L/l=v", "-l", "l=-", "é", "l=é", long, "l=" + long, "x/y/z", "!l=v", "(l)", "l;m", "l&m", "in", "in in (in)",
		"notin notin (notin)", "l=v in (w)", "/l", "l/", "example.com/l=v", "example.com/=v", "l\n=v", "l=\x00", "l in (v)(w)", "l==", "l!=", "l!v", "l in (v) , m", "!", "!!l",
	} {
		get(corpusMaps, "labelSelector="+url.QueryEscape(s))
	}
	for _, s := range []string{
		"metadata.name=a", "metadata.name==a", "metadata.name!=a", "metadata.name", "metadata.name=", "=a", "metadata.name=a,metadata.name=b", "metadata.name=a,", ",", ",,",
		"metadata.namespace=x", "metadata.labels.l=v", "metadata.name>a", `metadata.name=a\,b`, `metadata.name=a\`, `metadata.name=\x`, "metadata.name in (a)", "spec.nodeName=x",
		"a=b=c", "metadata.name=a=b", "metadata.name=\x00", "Metadata.Name=a", " metadata.name = a ", "!metadata.name",
	} {
		get(corpusMaps, "fieldSelector="+url.QueryEscape(s))
	}
	get(corpusMaps,
		"limit=-1", "limit=0", "limit=1", "limit=abc", "limit=9223372036854775808", "limit=1.5", "limit=", "limit=1&limit=abc", "limit=abc&limit=1", "limit=0x1", "limit=+1",
		"continue=abc", "continue=!!", "continue=e30", "continue=abc&resourceVersion=1", "continue=abc&resourceVersion=0", "continue=bnVsbA",
		"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYVx1MDAwMCJ9", "continue=eyJydiI6Ii0xIn0", "limit=1&continue=",
		"resourceVersion=-1", "resourceVersion=abc", "resourceVersion=0", "resourceVersion=1", "resourceVersion=01", "resourceVersion=1.0", "resourceVersion=18446744073709551616",
		"resourceVersion=", "resourceVersion=0&limit=1", "resourceVersionMatch=Exact", "resourceVersionMatch=Exact&resourceVersion=0", "resourceVersionMatch=Exact&resourceVersion=abc",
		"resourceVersionMatch=Foo&resourceVersion=1", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=NotOlderThan&resourceVersion=1", "resourceVersionMatch=NotOlderThan&resourceVersion=0",
		"resourceVersionMatch=Exact&resourceVersion=1&continue=abc", "resourceVersionMatch=",
		"timeoutSeconds=abc", "timeoutSeconds=-1", "timeoutSeconds=0", "timeoutSeconds=", "timeoutSeconds=9223372036854775807",
		"sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=abc", "allowWatchBookmarks=abc", "allowWatchBookmarks=true", "pretty=true", "pretty=abc", "unknown=1",
		"%zz", "%", "limit=%zz", "limit=1;continue=a", "&&", "=", "=1", "watch=0", "watch=False", "watch=false", "watch=FALSE&limit=1", "fieldManager=x", "dryRun=All")
	get(corpusMaps+"/a", "resourceVersion=abc", "resourceVersion=-1", "resourceVersion=0", "limit=abc", "watch=0", "labelSelector=%3D", "fieldSelector=metadata.name%3Db", "unknown=1")
	const watch = "watch=1&timeoutSeconds=1"
	get(corpusMaps, watch, "timeoutSeconds=1&watch=true", "timeoutSeconds=1&watch=", "timeoutSeconds=1&watch=abc", "timeoutSeconds=1&watch=T", "timeoutSeconds=1&watch=0&watch=1",
		"timeoutSeconds=1&watch=1&watch=0", "watch=1&timeoutSeconds=abc", "watch=1&timeoutSeconds=1.5",
		watch+"&resourceVersion=abc", watch+"&resourceVersion=-1", watch+"&resourceVersion=18446744073709551616", watch+"&resourceVersion=0", watch+"&resourceVersion=",
		watch+"&resourceVersionMatch=Exact", watch+"&resourceVersionMatch=NotOlderThan", watch+"&resourceVersion=1&resourceVersionMatch=Exact", watch+"&resourceVersion=0&resourceVersionMatch=NotOlderThan",
		watch+"&sendInitialEvents=true", watch+"&sendInitialEvents=false", watch+"&sendInitialEvents=abc", watch+"&sendInitialEvents=", watch+"&sendInitialEvents=true&resourceVersionMatch=Exact",
		watch+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", watch+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=abc",
		watch+"&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", watch+"&allowWatchBookmarks=abc", watch+"&allowWatchBookmarks=", watch+"&continue=abc", watch+"&limit=1", watch+"&limit=-1",
		watch+"&limit=abc", watch+"&labelSelector=%3D", watch+"&labelSelector=l%3Dv", watch+"&fieldSelector=metadata.name", watch+"&fieldSelector=metadata.name%3Da", watch+"&fieldSelector=x%3Da")
	get(corpusWidgets, "limit=abc", "limit=1", "labelSelector=%3D", "fieldSelector=spec.n%3D1", "continue=abc", "resourceVersion=abc", watch, watch+"&resourceVersion=abc", watch+"&sendInitialEvents=true")

	for _, p := range []string{
		"/", "/api", "/api/", "/api/v1", "/api/v1/", "/api/v2", "/api/v2/pods", "/apis", "/apis/", "/apis/x", "/apis/apps", "/apis/apps/", "/apis/apps/v9", "/apis/apps/v1/x", "/foo", "/healthz", "/livez", "/readyz",
		"/version", "/version/", corpusMaps + "/", corpusMaps + "/a/", corpusMaps + "/a/status", corpusMaps + "/a/b/c/d", corpusMaps + "/absent", corpusMaps + "/A", corpusMaps + "/-", corpusMaps + "/a%2Fb", corpusMaps + "/%00",
		"/api/v1/namespaces/absent/configmaps", "/api/v1/namespaces/absent", "/api/v1/namespaces/{NS}/", "/api/v1/namespaces/{NS}/x", "/api/v1/namespaces/{NS}/namespaces", "/api/v1/namespaces/{NS}/nodes",
		"/api/v1/nodes/", "/api/v1/namespaces/{NS}/status", "/api/v1/namespaces/{NS}/finalize", "/api/v1/configmaps/a", "/apis//v1/configmaps", "/api/v1/configmap", "/api/v1/ConfigMaps",
		corpusWidgets + "/a/status", corpusWidgets + "/a/scale", corpusWidgets + "/a/x", "/apis/corpus.example.com", "/apis/corpus.example.com/v1", "/apis/corpus.example.com/v2/widgets",
	} {
		get(p, "")
	}
	send("POST", "/version", "", jsonType, "")
	send("POST", "/api/v1", "", jsonType, "{}")
	send("POST", corpusMaps+"/a", "", jsonType, "{}")
	send("POST", "/api/v1/configmaps", "", jsonType, `{"metadata":{"name":"b"}}`)
	send("PUT", corpusMaps, "", jsonType, `{"metadata":{"name":"a"}}`)
	send("PATCH", corpusMaps, "", mergePatch, `{}`)
	send("DELETE", "/api/v1/configmaps", "", "", "")
	send("DELETE", corpusMaps+"/absent", "", "", "")
	send("HEAD", corpusMaps+"/a", "", "", "")
	send("OPTIONS", corpusMaps+"/a", "", "", "")
	send("FOO", corpusMaps+"/a", "", "", "")
	send("POST", corpusMaps+"/a/status", "", jsonType, `{}`)
	send("PUT", corpusMaps+"/a/status", "", jsonType, `{"metadata":{"name":"a"}}`)
	send("PATCH", corpusWidgets+"/a/scale", "", mergePatch, `{}`)

	deep := strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000)
	bodies := []string{
		"", " ", "null", "[]", "1", `"x"`, "{", "{}", "}", `{"metadata":null}`, `{"metadata":[]}`, `{"metadata":{"name":"b"}}`, `{"metadata":{"name":null}}`, `{"metadata":{"name":1}}`, `{"metadata":{"name":"b","labels":[]}}`,
		`{"metadata":{"name":"b","labels":{"a":1}}}`, `{"metadata":{"name":"b","labels":{"a":null}}}`, `{"metadata":{"name":"b","labels":{"-":"x"}}}`, `{"metadata":{"name":"b"},"data":null}`,
		`{"metadata":{"name":"b"},"data":[]}`, `{"metadata":{"name":"b"},"data":{"k":1}}`, `{"metadata":{"name":"b"},"data":{"k":null}}`, `{"metadata":{"name":"b"},"x":1}`, `{"metadata":{"name":"b","x":1}}`,
		`{"metadata":{"name":"b","name":"c"}}`, `{"metadata":{"name":"b"}} x`, `{"metadata":{"name":"b"}}{}`, "\ufeff" + `{"metadata":{"name":"b"}}`, "{\"metadata\":{\"name\":\"b\",\"annotations\":{\"a\":\"\xff\"}}}",
		deep, `{"metadata":{"name":"b","generation":1e999}}`, `{"metadata":{"name":"b","generation":1.5}}`, `{"metadata":{"name":"b","generation":"1"}}`, `{"metadata":{"name":"b","generation":-1}}`, `{"metadata":{"name":"b","deletionGracePeriodSeconds":-1}}`,
		`{"kind":"Node","metadata":{"name":"b"}}`, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"b"}}`, `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"b"}}`, `{"apiVersion":"v1","metadata":{"name":"b"}}`,
		`{"kind":"ConfigMap","metadata":{"name":"b"}}`, `{"kind":"configmap","apiVersion":"v1","metadata":{"name":"b"}}`, `{"kind":1}`, `{"apiVersion":1}`, `{"apiVersion":"a/b/c","kind":"ConfigMap"}`, `{"kind":"","apiVersion":""}`,
		`{"Metadata":{"name":"b"}}`, `{"metadata":{"Name":"b"}}`, `{"metadata":{"name":"b","namespace":"z"}}`, `{"metadata":{"name":"b","uid":"u"}}`, `{"metadata":{"name":"b","creationTimestamp":"x"}}`,
		`{"metadata":{"name":"b","creationTimestamp":"2020-01-01T00:00:00Z"}}`, `{"metadata":{"name":"b","deletionTimestamp":"2020-01-01T00:00:00Z"}}`, `{"metadata":{"name":"b","resourceVersion":"1"}}`, `{"metadata":{"name":"b","resourceVersion":"x"}}`,
		`{"metadata":{"name":"b","resourceVersion":"0"}}`, `{"metadata":{"name":"b","resourceVersion":1}}`, `{"metadata":{"generateName":"b-"}}`, `{"metadata":{"generateName":"B_"}}`, `{"metadata":{"name":"a"}}`, `{"metadata":{"name":"B"}}`, `{"metadata":{"name":"b/c"}}`, `{"metadata":{"name":""}}`,
		`{"metadata":{"name":"b","finalizers":["x"]}}`, `{"metadata":{"name":"b","finalizers":[1]}}`, `{"metadata":{"name":"b","finalizers":"x"}}`, `{"metadata":{"name":"b","ownerReferences":[{}]}}`, `{"metadata":{"name":"b","ownerReferences":{}}}`,
		`{"metadata":{"name":"b","ownerReferences":[null]}}`, `{"metadata":{"name":"b","managedFields":[{}]}}`, `{"metadata":{"name":"b","managedFields":[{"operation":"x"}]}}`, `{"metadata":{"name":"b","managedFields":[{"fieldsType":"FieldsV1","fieldsV1":1}]}}`,
		`{"metadata":{"name":"b","managedFields":[{"operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":1}}]}}`, `{"metadata":{"name":"b","managedFields":"x"}}`,
		`{"metadata":{"name":"b"},"immutable":"yes"}`, `{"metadata":{"name":"b"},"binaryData":{"k":"!"}}`, `{"metadata":{"name":"b"},"binaryData":{"k":"aGk="}}`, `{"metadata":{"name":"b"},"data":{"/":"x"}}`, `{"metadata":{"name":"b","annotations":{"a b":"x"}}}`,
		"// x\n{}", "{'metadata':{}}", `{"metadata":{"name":"b",}}`, `{"metadata":{"name":"\ud800"}}`, "metadata: {name: b}", "\x00", "k8s\x00",
	}
	widget := `"apiVersion":"corpus.example.com/v1","kind":"Widget",`
	for _, b := range bodies {
		send("POST", corpusMaps, "", jsonType, b)
	}
	for _, b := range bodies {
		send("POST", corpusWidgets, "", jsonType, b)
		if strings.HasPrefix(b, `{"metadata":`) {
			send("POST", corpusWidgets, "", jsonType, "{"+widget+b[1:])
		}
	}
	for _, b := range bodies {
		send("PUT", corpusMaps+"/a", "", jsonType, strings.Replace(b, `"name":"b"`, `"name":"a"`, 1))
	}
	for _, v := range []string{"Strict", "Warn", "Ignore", "", "strict", "x"} {
		send("POST", corpusMaps, "fieldValidation="+v, jsonType, `{"metadata":{"name":"b"}}`, `{"metadata":{"name":"b"},"x":1}`, `{"metadata":{"name":"b","name":"b"}}`, `{"Metadata":{"name":"b"}}`)
		send("PATCH", corpusMaps+"/a", "fieldValidation="+v, mergePatch, `{"x":1}`, `{"data":{"k":"w","k":"x"}}`)
		send("PATCH", corpusMaps+"/a", "fieldManager=m&fieldValidation="+v, applyType, `{"apiVersion":"v1","kind":"ConfigMap","x":1}`, "apiVersion: v1\nkind: ConfigMap\ndata: {k: x}\ndata: {k: y}")
		send("POST", corpusWidgets, "fieldValidation="+v, jsonType, "{"+widget+`"metadata":{"name":"b","x":1}}`, "{"+widget+`"metadata":{"name":"b"},"x":1,"x":2}`)
	}
	for _, q := range []string{
		"dryRun=All", "dryRun=", "dryRun=Some", "dryRun=All&dryRun=All", "dryRun=all", "fieldManager=" + long + long, "fieldManager=" + long + long + "x", "fieldManager=%00", "fieldManager=%C3%A9", "fieldManager=",
		"force=true", "force=abc", "force=", "timeout=1s", "timeout=abc", "timeout=-1s", "pretty=true", "fieldManager=a&fieldManager=b", "unknown=1", "%zz",
	} {
		send("POST", corpusMaps, q, jsonType, `{"metadata":{"name":"b"}}`)
		send("PUT", corpusMaps+"/a", q, jsonType, `{"metadata":{"name":"a"}}`)
		send("PATCH", corpusMaps+"/a", q, mergePatch, `{"data":{"k":"w"}}`)
		send("PATCH", corpusMaps+"/a", q, applyType, `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}}`)
		send("DELETE", corpusMaps+"/a", q, "", "")
	}
	for _, media := range []string{"application/json; charset=utf-8", "APPLICATION/JSON", "text/plain", "", "application/json;;", "application/json;", "application/json, application/yaml", "application/x-www-form-urlencoded", "application/xml", "*/*", "application/*", "/", ";", "application/merge-patch+json"} {
		send("POST", corpusMaps, "", media, `{"metadata":{"name":"b"}}`)
		send("PUT", corpusMaps+"/a", "", media, `{"metadata":{"name":"a"}}`)
		send("PATCH", corpusMaps+"/a", "", media, `{"data":{"k":"w"}}`)
		send("DELETE", corpusMaps+"/a", "", media, `{}`)
		send("POST", corpusWidgets, "", media, "{"+widget+`"metadata":{"name":"b"}}`)
	}
	for _, media := range []string{"application/merge-patch+json; charset=utf-8", "Application/merge-patch+json", "application/json-patch", "application/apply-patch", "application/strategic-merge-patch"} {
		send("PATCH", corpusMaps+"/a", "", media, `{}`)
	}
	for _, accept := range []string{
		"*/*", "text/html", "text/html, */*", "text/*", "application/*", "application/yaml", "application/json;q=0", "application/json;q=0.5,application/yaml;q=0.9", "foo", "application/json;as=Foo;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v9",
		"application/json;as=PartialObjectMetadata;g=x;v=v1", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata", "application/json;stream=watch", ",", ";", "APPLICATION/JSON",
		"application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf;stream=watch",
	} {
		for _, p := range []string{corpusMaps, corpusMaps + "/a", corpusWidgets + "/a", "/api/v1", "/version"} {
			all = append(all, Request{Method: "GET", Path: p, Accept: accept})
		}
		all = append(all, Request{Method: "GET", Path: corpusMaps, Query: watch, Accept: accept})
	}
	for _, b := range []string{
		"", "metadata: {name: b}", "metadata:\n  name: b\ndata:\n  k: v\n", "metadata: {name: b}\n---\nmetadata: {name: c}", "---\nmetadata: {name: b}", "metadata: {name: b", "\tmetadata: {}", "x: &a [*a]", "a: &a {k: v}\nmetadata: {name: b}\ndata: *a",
		"metadata: {name: b}\ndata: {k: 1}", "metadata: {name: b}\ndata: {k: yes}", "metadata: {name: b}\ndata: {k: ~}", "metadata: {name: b}\nmetadata: {name: c}", "- a", "a", "null", `{"metadata":{"name":"b"}}`, "%YAML 9.9\n---\nmetadata: {name: b}", "? [a]\n: b", "1: 2", "metadata: {name: !!binary YQ==}", "\x00",
		"kind: Node\napiVersion: v1\nmetadata: {name: b}", "metadata: {name: b}\nx: 1",
	} {
		send("POST", corpusMaps, "", yamlType, b)
		send("POST", corpusWidgets, "", yamlType, b, "apiVersion: corpus.example.com/v1\nkind: Widget\n"+b)
	}
	encoded := protobufOf(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": "v"}})
	other := protobufOf(&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	untyped := protobufOf(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	for _, b := range []string{encoded, other, untyped, encoded + "x", encoded + "\x00", "k8s\x00", "k8s", "", encoded[4:], encoded[:len(encoded)/2], encoded[:len(encoded)-1], "k8s\x00" + strings.Repeat("\xff", 20), `{"metadata":{"name":"b"}}`} {
		send("POST", corpusMaps, "", runtime.ContentTypeProtobuf, b)
		send("DELETE", corpusMaps+"/a", "", runtime.ContentTypeProtobuf, b)
	}

	objects := []string{
		"", "null", "[]", "1", `"x"`, "{", "{}", `{"metadata":null}`, `{"metadata":[]}`, `{"metadata":{}}`, `{"metadata":{"name":"z"}}`, `{"metadata":{"name":null}}`, `{"metadata":{"namespace":"z"}}`, `{"metadata":{"namespace":null}}`,
		`{"metadata":{"uid":"x"}}`, `{"metadata":{"uid":null}}`, `{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"resourceVersion":"x"}}`, `{"metadata":{"resourceVersion":null}}`, `{"metadata":{"resourceVersion":1}}`, `{"metadata":{"creationTimestamp":null}}`, `{"metadata":{"creationTimestamp":"x"}}`,
		`{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"}}`, `{"metadata":{"generation":5}}`, `{"metadata":{"managedFields":null}}`, `{"metadata":{"managedFields":[{}]}}`, `{"metadata":{"managedFields":[{"operation":"x"}]}}`,
		`{"metadata":{"labels":null}}`, `{"metadata":{"labels":{"l":null}}}`, `{"metadata":{"labels":{"l":{}}}}`, `{"metadata":{"labels":{"-":"x"}}}`, `{"metadata":{"labels":[]}}`, `{"metadata":{"finalizers":["x"]}}`, `{"metadata":{"finalizers":[null]}}`, `{"metadata":{"ownerReferences":[{}]}}`, `{"metadata":{"ownerReferences":["x"]}}`,
		`{"metadata":{"ownerReferences":{"uid":"u"}}}`, `{"metadata":{"ownerReferences":[{"name":"x"}]}}`, `{"data":null}`, `{"data":[]}`, `{"data":{"k":1}}`, `{"data":{"k":null}}`, `{"data":{"k":"w"}}`, `{"data":{"/":"w"}}`, `{"data":"x"}`, `{"x":1}`, `{"kind":"Node"}`, `{"kind":null}`, `{"kind":1}`, `{"apiVersion":"v2"}`, `{"apiVersion":null}`,
		`{"apiVersion":"a/b/c"}`, `{} {}`, `{}x`, `{"data":{"k":"w","k":"x"}}`, `{"data":{"k":"\ud800"}}`, "{\"data\":{\"k\":\"\xff\"}}", `{"immutable":true}`, `{"immutable":"x"}`, `{"binaryData":{"b":"!"}}`, `{"binaryData":{"k":"aGk="}}`, deep, "data: {k: w}",
	}
	for _, b := range objects {
		send("PATCH", corpusMaps+"/a", "", mergePatch, b)
		send("PATCH", corpusWidgets+"/a", "", mergePatch, b)
		send("PATCH", corpusMaps+"/a", "", strategicPatch, b)
	}
	send("PATCH", corpusMaps+"/a", "", strategicPatch,
		`{"$patch":"replace"}`, `{"$patch":"delete"}`, `{"$patch":"merge"}`, `{"$patch":"foo"}`, `{"$patch":1}`, `{"$patch":null}`, `{"$retainKeys":["data"]}`, `{"$retainKeys":"x"}`, `{"$retainKeys":[1]}`, `{"data":{"$patch":"replace","x":"y"}}`, `{"data":{"$patch":"delete"}}`,
		`{"data":{"$retainKeys":["k"],"k":"w"}}`, `{"data":{"$retainKeys":["z"],"k":"w"}}`, `{"metadata":{"finalizers":[{"$patch":"replace"}]}}`, `{"metadata":{"$setElementOrder/finalizers":["x/y"]}}`, `{"metadata":{"$setElementOrder/finalizers":"x"}}`, `{"metadata":{"$setElementOrder/finalizers":[],"finalizers":["x/y"]}}`,
		`{"metadata":{"$setElementOrder/ownerReferences":[{"uid":"u"}]}}`, `{"metadata":{"$setElementOrder/ownerReferences":[{}]}}`, `{"metadata":{"$setElementOrder/ownerReferences":["x"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":"x"}}`,
		`{"metadata":{"$deleteFromPrimitiveList/x":["x/y"]}}`, `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"u"}]}}`, `{"metadata":{"ownerReferences":[{"$patch":"delete"}]}}`, `{"metadata":{"ownerReferences":[{"$patch":"replace"}]}}`, `{"metadata":{"ownerReferences":[{"$patch":"foo","uid":"u"}]}}`,
		`{"metadata":{"ownerReferences":[{"uid":1}]}}`, `{"metadata":{"ownerReferences":[null]}}`, `{"metadata":{"ownerReferences":[[]]}}`, `{"metadata":{"labels":{"$patch":"replace"}}}`, `{"$setElementOrder/x":[]}`, `{"$deleteFromPrimitiveList/data":["k"]}`, `{"$unknown":1}`, `{"metadata":{"$retainKeys":["name"]}}`)
	operations := []string{
		"", "null", "{}", "[]", "[", "1", "[{}]", "[1]", "[null]", "[[]]", `[{"op":"foo","path":"/data"}]`, `[{"op":"add"}]`, `[{"op":"add","path":"/data/x"}]`, `[{"op":"add","path":"/data/x","value":null}]`, `[{"op":"add","path":"data/x","value":"y"}]`, `[{"op":"add","path":"","value":{}}]`,
		`[{"op":"add","path":"","value":null}]`, `[{"op":"add","path":"/","value":"x"}]`, `[{"op":"add","path":"/data/x","value":"y"}]`, `[{"op":"add","path":"/data/x","value":1}]`, `[{"op":"add","path":"/data/x/y","value":"z"}]`, `[{"op":"add","path":"/absent/x","value":"z"}]`, `[{"op":"add","path":"/data/k","value":"w"}]`,
		`[{"op":"remove","path":"/data/k"}]`, `[{"op":"remove","path":"/data/absent"}]`, `[{"op":"remove","path":"/absent"}]`, `[{"op":"remove","path":""}]`, `[{"op":"remove","path":"/"}]`, `[{"op":"remove","path":"/metadata"}]`, `[{"op":"remove","path":"/metadata/name"}]`, `[{"op":"remove","path":"/kind"}]`,
		`[{"op":"replace","path":"/data/k","value":"w"}]`, `[{"op":"replace","path":"/data/absent","value":"w"}]`, `[{"op":"replace","path":"/absent","value":"w"}]`, `[{"op":"replace","path":"","value":{}}]`, `[{"op":"replace","path":"/data/k"}]`, `[{"op":"replace","path":"/data","value":null}]`, `[{"op":"replace","path":"/data","value":[]}]`,
		`[{"op":"test","path":"/data/k","value":"v"}]`, `[{"op":"test","path":"/data/k","value":"w"}]`, `[{"op":"test","path":"/data/absent","value":null}]`, `[{"op":"test","path":"/data/absent"}]`, `[{"op":"test","path":"/absent/x","value":null}]`, `[{"op":"test","path":"/data/absent","value":"x"}]`, `[{"op":"test","path":"","value":{}}]`, `[{"op":"test","path":"/data/k"}]`, `[{"op":"test","path":"/data","value":{"k":"v"}}]`,
		`[{"op":"copy","from":"/data/k","path":"/data/x"}]`, `[{"op":"copy","from":"/data/absent","path":"/data/x"}]`, `[{"op":"copy","path":"/data/x"}]`, `[{"op":"copy","from":"","path":"/data/x"}]`, `[{"op":"copy","from":"/data/k","path":"/absent/x"}]`, `[{"op":"copy","from":"data","path":"/data/x"}]`,
		`[{"op":"move","from":"/data/k","path":"/data/x"}]`, `[{"op":"move","from":"/data","path":"/data/x"}]`, `[{"op":"move","from":"/data/k","path":"/data/k"}]`, `[{"op":"move","from":"/data/absent","path":"/data/x"}]`, `[{"op":"move","from":"/metadata/labels","path":"/metadata/annotations"}]`, `[{"op":"move","path":"/data/x"}]`,
		`[{"op":"add","path":"/data/~1","value":"x"}]`, `[{"op":"add","path":"/data/~","value":"x"}]`, `[{"op":"add","path":"/data/~2","value":"x"}]`, `[{"op":"add","path":"/data/a~0b","value":"x"}]`, `[{"op":"add","path":"/metadata/labels/l/x","value":"y"}]`, `[{"op":"add","path":"/metadata/labels/-","value":"y"}]`,
		`[{"op":1,"path":"/data"}]`, `[{"op":"add","path":1,"value":"x"}]`, `[{"Op":"add","Path":"/data/x","Value":"y"}]`, `[{"op":"add","path":"/data/x","value":"y","extra":1}]`, `[{"op":"ADD","path":"/data/x","value":"y"}]`, `[{"op":"add","op":"remove","path":"/data/k","value":"y"}]`, `[{"op":"add","path":"/data/x","value":"y"}] x`,
		`[{"op":"add","path":"/metadata/managedFields","value":[]}]`, `[{"op":"test","path":"/data/k","value":"v"},{"op":"remove","path":"/data/k"},{"op":"test","path":"/data/k","value":null}]`, `[{"op":"remove","path":"/data"},{"op":"add","path":"/data/x","value":"y"}]`,
		"[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/data/k","value":"v"},`, 10001), ",") + "]",
	}
	for _, b := range operations {
		send("PATCH", corpusMaps+"/a", "", jsonPatch, b)
	}
	for _, path := range []string{"0", "1", "2", "3", "-", "-1", "-2", "-3", "01", "+1", "x", "", "1.0", "9223372036854775808", "0/x"} {
		for _, op := range []string{"add", "remove", "replace", "test"} {
			send("PATCH", corpusWidgets+"/a", "", jsonPatch, fmt.Sprintf(`[{"op":%q,"path":"/spec/list/%s","value":"x"}]`, op, path))
		}
		send("PATCH", corpusWidgets+"/a", "", jsonPatch, fmt.Sprintf(`[{"op":"copy","from":"/spec/list/%s","path":"/spec/list/-"}]`, path), fmt.Sprintf(`[{"op":"move","from":"/spec/list/%s","path":"/spec/list/0"}]`, path))
	}
	head := "apiVersion: v1\nkind: ConfigMap\n"
	applies := []string{
		"", "null", "[]", "x", "1", "{}", "{", "kind: ConfigMap", "apiVersion: v1", "apiVersion: v1\nkind: Node", "apiVersion: v2\nkind: ConfigMap", "apiVersion: a/b/c\nkind: ConfigMap", "apiVersion: 1\nkind: ConfigMap", head, head + "metadata: {name: z}", head + "metadata: {name: a}", head + "metadata: {name: 1}", head + "metadata: {name: null}",
		head + "metadata: null", head + "metadata: []", head + "metadata: x", head + "metadata: {namespace: z}", head + "data: {k: w}", head + "data: {m: w}", head + "data: {m: 1}", head + "data: {m: null}", head + "data: null", head + "data: []", head + "data: x", head + "x: 1", head + "metadata: {x: 1}", head + "data: {m: a}\ndata: {m: b}",
		head + "---\n" + head, "---\n" + head, head + "metadata: {uid: x}", head + "metadata: {resourceVersion: \"1\"}", head + "metadata: {resourceVersion: x}", head + "metadata: {managedFields: []}", head + "metadata: {managedFields: [{}]}", head + "metadata: {managedFields: null}", head + "metadata: {labels: {l: w}}", head + "metadata: {labels: {m: w}}", head + "metadata: {labels: {m: 1}}", head + "metadata: {labels: {\"-\": w}}",
		head + "metadata: {finalizers: [x]}", head + "metadata: {finalizers: [x/y, x/y]}", head + "metadata: {finalizers: [null]}", head + "metadata: {finalizers: x}", head + "metadata: {ownerReferences: [{}]}", head + "metadata: {ownerReferences: [{uid: u}]}", head + "metadata: {ownerReferences: [{uid: u}, {uid: u}]}", head + "metadata: {creationTimestamp: x}", head + "metadata: {creationTimestamp: null}",
		head + "metadata: {generateName: x-}", head + "metadata: {deletionTimestamp: \"2020-01-01T00:00:00Z\"}", head + "data: &a {m: *a}", head + "x: &a {m: n}\ndata: *a", "\t" + head, head + "data: {m: \"\\ud800\"}", head + "binaryData: {m: \"!\"}", head + "binaryData: {m: aGk=}", head + "immutable: x", head + "immutable: true", `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}}`, `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}} x`, head + "1: 2", head + "? [a]\n: b", "\x00", head + "data: {m: .nan}", head + "data: {m: 2020-01-01}",
	}
	for _, b := range applies {
		send("PATCH", corpusMaps+"/a", "fieldManager=m", applyType, b)
		send("PATCH", corpusMaps+"/a", "fieldManager=m&force=true", applyType, b)
		send("PATCH", corpusMaps+"/b", "fieldManager=m", applyType, b)
		w := strings.Replace(b, head, "apiVersion: corpus.example.com/v1\nkind: Widget\n", 1)
		send("PATCH", corpusWidgets+"/a", "fieldManager=m", applyType, w, strings.Replace(w, "data:", "spec:", 1))
	}
	for _, q := range []string{"fieldManager=m&force=1", "fieldManager=m&force=abc", "fieldManager=m&force=", "fieldManager=m&force=false", "fieldManager=m&force=FALSE", "fieldManager=m&force=0"} {
		send("PATCH", corpusMaps+"/a", q, applyType, head+"data: {k: w}")
	}
	for _, q := range []string{
		"gracePeriodSeconds=-1", "gracePeriodSeconds=abc", "gracePeriodSeconds=", "gracePeriodSeconds=0", "gracePeriodSeconds=9223372036854775808", "propagationPolicy=Foo", "propagationPolicy=", "propagationPolicy=Background",
		"orphanDependents=abc", "orphanDependents=true&propagationPolicy=Background", "orphanDependents=false", "dryRun=All", "dryRun=Some", "preconditions=x", "resourceVersion=1", "uid=x", "ignoreStoreReadErrorWithClusterBreakingPotential=true", "ignoreStoreReadErrorWithClusterBreakingPotential=abc",
	} {
		send("DELETE", corpusMaps+"/a", q, "", "")
		send("DELETE", corpusMaps, q+"&labelSelector=l%3Dnone", "", "")
	}
	for _, b := range []string{
		"{}", "null", "[]", "1", "{", "x", `{"kind":"Node","apiVersion":"v1"}`, `{"kind":"DeleteOptions","apiVersion":"v1"}`, `{"kind":"DeleteOptions","apiVersion":"apps/v1"}`, `{"kind":"DeleteOptions","apiVersion":"x/v1"}`, `{"kind":"DeleteOptions","apiVersion":"v9"}`, `{"kind":"DeleteOptions"}`, `{"apiVersion":"v1"}`, `{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}`,
		`{"preconditions":{"uid":"x"}}`, `{"preconditions":{"resourceVersion":"1"}}`, `{"preconditions":{"uid":1}}`, `{"preconditions":null}`, `{"preconditions":[]}`, `{"gracePeriodSeconds":"1"}`, `{"gracePeriodSeconds":1.5}`, `{"gracePeriodSeconds":-1}`, `{"propagationPolicy":"Foo"}`, `{"propagationPolicy":1}`, `{"orphanDependents":true,"propagationPolicy":"Background"}`,
		`{"dryRun":["All"]}`, `{"dryRun":["Some"]}`, `{"dryRun":"All"}`, `{"dryRun":[]}`, `{"x":1}`, `{} {}`, `{"gracePeriodSeconds":1,"gracePeriodSeconds":2}`, " ", "kind: DeleteOptions",
	} {
		send("DELETE", corpusMaps+"/a", "", jsonType, b)
		send("DELETE", corpusMaps, "labelSelector=l%3Dnone", jsonType, b)
		send("DELETE", corpusWidgets+"/a", "", jsonType, b)
	}
	send("DELETE", corpusMaps, "labelSelector=%3D", "", "")
	send("DELETE", corpusMaps, "fieldSelector=x%3Dy", "", "")
	send("DELETE", corpusMaps, "limit=abc&labelSelector=l%3Dnone", "", "")
	send("DELETE", corpusMaps, "resourceVersion=abc&labelSelector=l%3Dnone", "", "")

	definition := func(old, new string) string {
		return strings.Replace(strings.ReplaceAll(corpusDefinition, "widgets", "gadgets"), old, new, 1)
	}
	for _, b := range []string{
		"{}", `{"spec":[]}`, `{"spec":{"versions":[1]}}`, definition(`"scope":"Namespaced"`, `"scope":"x"`), definition(`"group":"corpus.example.com",`, ""), definition(`"storage":true`, `"storage":false`), definition(`"versions":[`, `"versions":[{"name":"v1","served":true,"storage":true},`),
		definition("gadgets.corpus", "other.corpus"), definition(`"kind":"Widget"`, `"kind":1`), definition(`"served":true`, `"served":"x"`), definition(`"names":{`, `"names":{"shortNames":"x",`), definition(`"name":"v1"`, `"name":"V1"`), definition(`"plural":"gadgets"`, `"plural":"G"`), definition(`"schema":{`, `"x":{`),
	} {
		send("POST", definitions, "dryRun=All", jsonType, b)
	}
	return all
}

func protobufOf(obj runtime.Object) string {
	var buf bytes.Buffer
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if err := info.Serializer.Encode(obj, &buf); err != nil {
		panic(err)
	}
	return buf.String()
}

// corpus is the name of the case.
const corpus = "corpus"

var corpusCases = []scenario{
	{corpus, func(c *C) {
		c.namespace()
		CorpusSeed(func(r Request) { c.raw(r) })
		c.settleKind(corpusWidgets)
		c.restoreCorpus(false) // the widget was refused if it came too early
		for _, r := range Corpus() {
			code := c.raw(r)
			if r.Method != "GET" && code < 300 {
				c.restoreCorpus(strings.Contains(r.Body, "finalizers") || strings.Contains(r.Query+r.Body, "rphan"))
			}
			fmt.Fprintf(&c.out, "> %s\n< %d\n", r, code)
		}
		c.quiet("DELETE", definitions+"/widgets.corpus.example.com", nil, 200)
	}},
}

// restoreCorpus deletes the objects of the namespace and creates those that the
// requests of the corpus expect. If finalizers is set, the objects may have some.
func (c *C) restoreCorpus(finalizers bool) {
	c.Helper()
	for _, o := range corpusObjects {
		for _, name := range []string{"a", "b"} {
			if finalizers {
				c.raw(Request{Method: "PATCH", Path: o.path + "/" + name, Type: mergePatch, Body: `{"metadata":{"finalizers":null}}`})
			}
		}
		c.raw(Request{Method: "DELETE", Path: o.path, Query: "propagationPolicy=Background"})
		if code := c.raw(Request{Method: "POST", Path: o.path, Type: "application/json", Body: o.body}); code != 201 {
			c.Fatalf("%s %s: %d", o.path, o.name, code)
		}
	}
}

// raw sends a request as it is and returns the status code. 0 means that the
// client could not send the request.
func (c *C) raw(r Request) int {
	c.Helper()
	cl, cfg := c.client(apitest.User{})
	hr, err := http.NewRequestWithContext(c.Context(), r.Method, strings.TrimSuffix(cfg.Host, "/")+c.expand(r.Path), strings.NewReader(r.Body))
	if err != nil {
		c.Fatal(err)
	}
	hr.URL.RawQuery = r.Query
	if r.Type != "" {
		hr.Header.Set("Content-Type", r.Type)
	}
	hr.Header.Set("Accept", r.Accept)
	if r.Accept == "" {
		hr.Header.Set("Accept", "application/json")
	}
	hr.Header.Set("User-Agent", "conformance")
	resp, err := cl.Do(hr)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if !strings.Contains(r.Query, "watch") {
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is reused
	}
	return resp.StatusCode
}

// known are the requests of the corpus that apitest answers with another code.
var known = []Request{
	// Fields that are there twice in a merge patch are not detected.
	{Method: "PATCH", Path: corpusMaps + "/a", Query: "fieldValidation=Strict", Type: mergePatch, Body: `{"data":{"k":"w","k":"x"}}`},
	// Malformed managedFields are rejected; the real server drops them.
	{Method: "PUT", Path: corpusMaps + "/a", Type: "application/json", Body: `{"metadata":{"name":"a","managedFields":[{"fieldsType":"FieldsV1","fieldsV1":1}]}}`},
	// The representation of the answer.
	{Method: "GET", Path: corpusWidgets + "/a", Accept: "application/*"},
	{Method: "GET", Path: corpusWidgets + "/a", Accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
	// A patch of the type of the object.
	{Method: "PATCH", Path: corpusMaps + "/a", Type: strategicPatch, Body: `{"kind":1}`},
	{Method: "PATCH", Path: corpusMaps + "/a", Type: mergePatch, Body: `{"apiVersion":null}`},
	{Method: "PATCH", Path: corpusWidgets + "/a", Type: mergePatch, Body: `{"apiVersion":null}`},
	// Text after the document of an apply is rejected; the real server ignores it.
	{Method: "PATCH", Path: corpusMaps + "/a", Query: "fieldManager=m", Type: "application/apply-patch+yaml", Body: `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}} x`},
	{Method: "PATCH", Path: corpusMaps + "/a", Query: "fieldManager=m&force=true", Type: "application/apply-patch+yaml", Body: `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}} x`},
	// A CustomResourceDefinition needs no schema.
	{Method: "POST", Path: definitions, Query: "dryRun=All", Type: "application/json", Body: strings.Replace(strings.ReplaceAll(corpusDefinition, "widgets", "gadgets"), `"schema":{`, `"x":{`, 1)},
}

// knownOnly are those of one version.
var knownOnly = map[string][]Request{
	// Deletions of objects that can't be read.
	"v1.37.2": {
		{Method: "DELETE", Path: corpusMaps + "/a", Query: "ignoreStoreReadErrorWithClusterBreakingPotential=true"},
		{Method: "DELETE", Path: corpusMaps + "/a", Query: "ignoreStoreReadErrorWithClusterBreakingPotential=abc"},
		{Method: "DELETE", Path: corpusMaps, Query: "ignoreStoreReadErrorWithClusterBreakingPotential=true&labelSelector=l%3Dnone"},
		{Method: "DELETE", Path: corpusMaps, Query: "ignoreStoreReadErrorWithClusterBreakingPotential=abc&labelSelector=l%3Dnone"},
	},
	// The handler of the real server panics, and there is no answer.
	"v1.34.4": {{Method: "PATCH", Path: corpusMaps + "/a", Type: jsonPatch, Body: `[{"op":"test","path":"/data/absent"}]`}},
}

// withoutKnown returns the transcript of the corpus with the real server's codes
// for the requests in known. It is an error if the codes do not differ.
func withoutKnown(t *testing.T, version, want, got string) string {
	t.Helper()
	requests := map[string]bool{}
	for _, r := range slices.Concat(known, knownOnly[version]) {
		requests["> "+r.String()] = true
	}
	wanted, lines := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wanted), len(lines)) {
		if i == 0 || !requests[lines[i-1]] || lines[i-1] != wanted[i-1] {
			continue
		}
		if lines[i] == wanted[i] {
			t.Errorf("%s has the code of the real server: remove it from known", lines[i-1])
		}
		lines[i] = wanted[i]
	}
	return strings.Join(lines, "\n")
}
