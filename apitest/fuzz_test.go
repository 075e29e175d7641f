// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/conformance"
)

// The fuzz tests send requests that no client library sends. The seeds are the
// corpus of internal/conformance, of which the real server's status codes are
// recorded. The tests of conformance compare these codes. The fuzz tests check
// statements about all requests.

const (
	fuzzMaps    = "/api/v1/namespaces/default/configmaps"
	fuzzWidgets = "/apis/corpus.example.com/v1/namespaces/default/widgets"
)

// fuzzServer is a server with the objects of the corpus in the namespace default.
type fuzzServer struct {
	*testing.T
	*apitest.Server
	transport http.RoundTripper
}

func newFuzzServer(t *testing.T) *fuzzServer {
	s := apitest.New(apitest.Options{})
	f := &fuzzServer{t, s, s.Config(apitest.User{}).Transport}
	conformance.CorpusSeed(func(r conformance.Request) {
		if resp := f.send(inDefault(r)); resp.code != http.StatusCreated {
			t.Fatal(r, resp)
		}
	})
	return f
}

// inDefault returns a request of the corpus for the namespace default.
func inDefault(r conformance.Request) conformance.Request {
	r.Path = strings.ReplaceAll(r.Path, "{NS}", "default")
	return r
}

// seeds returns the requests of the corpus that use one of the methods, or a tenth of
// them.
func seeds(tenth bool, methods ...string) (out []conformance.Request) {
	for i, r := range conformance.Corpus() {
		if slices.Contains(methods, r.Method) && (!tenth || i%10 == 0) {
			out = append(out, inDefault(r))
		}
	}
	return out
}

// response is a complete response. Its code is 0 if the request can't be sent.
type response struct {
	code        int
	contentType string
	body        []byte
}

func (r response) String() string { return fmt.Sprintf("%d %s %q", r.code, r.contentType, r.body) }

// open sends a request, and returns nil if its URL is none.
func (f *fuzzServer) open(r conformance.Request) *http.Response {
	f.Helper()
	if r.Accept == "" {
		r.Accept = "application/json"
	}
	req := &http.Request{
		Method: r.Method, URL: &url.URL{Scheme: "http", Host: "h", Path: r.Path, RawQuery: r.Query},
		Header: http.Header{"Content-Type": {r.Type}, "Accept": {r.Accept}}, Body: io.NopCloser(strings.NewReader(r.Body)), ContentLength: int64(len(r.Body)),
	}
	resp, err := f.transport.RoundTrip(req.WithContext(f.Context()))
	if err != nil {
		if f.Context().Err() == nil && !strings.Contains(err.Error(), "URL escape") && !strings.Contains(err.Error(), "semicolon") {
			f.Fatalf("%s: %v", r, err)
		}
		return nil
	}
	return resp
}

// send sends a request and checks that the response is one of an API server.
func (f *fuzzServer) send(r conformance.Request) response {
	f.Helper()
	resp := f.open(r)
	if resp == nil {
		return response{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatalf("%s: %v", r, err)
	}
	out := response{resp.StatusCode, resp.Header.Get("Content-Type"), body}
	if out.code < 200 || out.code > 599 {
		f.Fatalf("%s: %s", r, out)
	}
	if out.contentType == "application/json" && resp.ContentLength >= 0 && !json.Valid(body) {
		f.Fatalf("%s: the answer is no JSON: %s", r, out)
	}
	return out
}

// get returns an object as it is stored, or nil.
func (f *fuzzServer) get(path string) []byte {
	f.Helper()
	if r := f.send(conformance.Request{Method: "GET", Path: path}); r.code == http.StatusOK {
		return r.body
	}
	return nil
}

// metaIn returns the metadata of an encoded object.
func (f *fuzzServer) metaIn(object []byte) metav1.ObjectMeta {
	f.Helper()
	var m metav1.PartialObjectMetadata
	if err := json.Unmarshal(object, &m); err != nil {
		f.Fatalf("%v in %q", err, object)
	}
	return m.ObjectMeta
}

// checkUnchangedBy sends the stored object back with PUT, which must change
// nothing.
func (f *fuzzServer) checkUnchangedBy(path string) {
	f.Helper()
	was := f.get(path)
	resp := f.send(conformance.Request{Method: "PUT", Path: path, Type: "application/json", Body: string(was)})
	if now := f.get(path); resp.code != http.StatusOK || !bytes.Equal(now, was) {
		f.Fatalf("a PUT of the stored object: %s\nbefore %q\nafter  %q", resp, was, now)
	}
}

// checkWrite checks a write of an object: one that fails changes nothing, and one
// that succeeds keeps the identity of the object and returns the stored object.
func (f *fuzzServer) checkWrite(path string, was []byte, resp response) {
	f.Helper()
	now := f.get(path)
	if resp.code >= 300 || resp.code == 0 {
		if !bytes.Equal(was, now) {
			f.Fatalf("a failed write changed the object: %s\nbefore %q\nafter  %q", resp, was, now)
		}
		return
	}
	if !bytes.Equal(bytes.TrimSpace(now), bytes.TrimSpace(resp.body)) {
		f.Fatalf("the answer is not what is stored:\nanswer %q\nstored %q", resp.body, now)
	}
	m := f.metaIn(now)
	if was != nil {
		o := f.metaIn(was)
		if m.UID != o.UID || m.Name != o.Name || m.Namespace != o.Namespace || !m.CreationTimestamp.Equal(&o.CreationTimestamp) {
			f.Fatalf("the identity of the object changed:\nbefore %q\nafter  %q", was, now)
		}
		if bytes.Equal(was, now) != (m.ResourceVersion == o.ResourceVersion) {
			f.Fatalf("a resourceVersion is not of one state:\nbefore %q\nafter  %q", was, now)
		}
	}
	if m.UID == "" || m.ResourceVersion == "" || m.Name == "" || m.CreationTimestamp.IsZero() {
		f.Fatalf("metadata is missing: %q", now)
	}
	f.checkUnchangedBy(path)
}

// FuzzRequests sends anything.
func FuzzRequests(f *testing.F) {
	for _, r := range seeds(testing.Short(), "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "FOO") {
		f.Add(r.Method, r.Path, r.Query, r.Type, r.Accept, r.Body)
	}
	f.Add("POST", "/apis/apps/v1/namespaces/default/deployments", "", "application/json", "", `{"metadata":{"name":"d"},"spec":{"replicas":1}}`)
	f.Add("PATCH", "/api/v1/nodes/n/status", "fieldValidation=Strict", "application/strategic-merge-patch+json", "", `{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`)
	f.Add("PATCH", "/api/v1/nodes/n/status", "fieldManager=m", "application/apply-patch+yaml", "", `{"apiVersion":"v1","kind":"Node","status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	f.Add("POST", "/api/v1/namespaces/default/pods/p/eviction", "", "application/json", "", `{"metadata":{"name":"p"}}`)
	f.Add("POST", "/api/v1/namespaces/default/pods/p/binding", "", "application/json", "", `{"target":{"name":"n"}}`)
	f.Add("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "", "application/json", "", `{"spec":{"audiences":["a"]}}`)
	f.Add("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", "application/json", "", `{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}`)
	f.Add("POST", "/apis/resource.k8s.io/v1/resourceslices", "", "application/json", "", `{"metadata":{"name":"s"},"spec":{"driver":"d.example.com","nodeName":"n","pool":{"name":"p","resourceSliceCount":1},"devices":[{"name":"d"}]}}`)
	f.Fuzz(func(t *testing.T, method, path, query, contentType, accept, body string) {
		synctest.Test(t, func(t *testing.T) {
			f := newFuzzServer(t)
			f.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			f.Put(podOn("p", "n"))
			f.send(conformance.Request{Method: method, Path: path, Query: query, Type: contentType, Accept: accept, Body: body})
			if n := apitest.Get[*corev1.Node](f.Server, "", "n"); n != nil && (n.UID == "" || n.Name != "n") {
				t.Errorf("the node is broken: %+v", n.ObjectMeta)
			}
		})
	})
}

// FuzzSelectors lists and watches with selectors. The result must be that of
// apimachinery's selectors.
func FuzzSelectors(f *testing.F) {
	for _, r := range seeds(testing.Short(), "GET") {
		if q, err := url.ParseQuery(r.Query); err == nil && (q.Has("labelSelector") || q.Has("fieldSelector")) {
			f.Add(q.Get("labelSelector"), q.Get("fieldSelector"))
		}
	}
	f.Fuzz(func(t *testing.T, label, field string) {
		synctest.Test(t, func(t *testing.T) {
			f := newFuzzServer(t)
			for i := range 4 {
				f.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Namespace: "default", Labels: map[string]string{"l": fmt.Sprint(i), "m": "v"}}})
			}
			var want []string
			byLabel, err1 := labels.Parse(label)
			byField, err2 := fields.ParseSelector(field)
			valid := err1 == nil && err2 == nil
			if valid {
				for _, r := range byField.Requirements() {
					valid = valid && (r.Field == "metadata.name" || r.Field == "metadata.namespace")
				}
				for _, m := range apitest.List[*corev1.ConfigMap](f.Server, "default") {
					if byLabel.Matches(labels.Set(m.Labels)) && byField.Matches(fields.Set{"metadata.name": m.Name, "metadata.namespace": m.Namespace}) {
						want = append(want, m.Name)
					}
				}
			}
			query := url.Values{"labelSelector": {label}, "fieldSelector": {field}}
			resp := f.send(conformance.Request{Method: "GET", Path: fuzzMaps, Query: query.Encode()})
			if !valid {
				if resp.code != http.StatusBadRequest {
					t.Fatalf("%v %v: %s", err1, err2, resp)
				}
				return
			}
			var list corev1.ConfigMapList
			if err := json.Unmarshal(resp.body, &list); err != nil {
				t.Fatal(err, resp)
			}
			var listed []string
			for _, m := range list.Items {
				listed = append(listed, m.Name)
			}
			if !slices.Equal(listed, want) {
				t.Errorf("listed %v, want %v", listed, want)
			}
			query.Set("watch", "1")
			query.Set("timeoutSeconds", "1")
			var watched []string
			for _, e := range f.events(conformance.Request{Method: "GET", Path: fuzzMaps, Query: query.Encode()}) {
				watched = append(watched, f.metaIn(e.Object.Raw).Name)
			}
			if !slices.Equal(watched, want) {
				t.Errorf("watched %v, want %v", watched, want)
			}
		})
	})
}

// events reads a watch to its end, which comes after at most half an hour.
func (f *fuzzServer) events(r conformance.Request) (out []metav1.WatchEvent) {
	f.Helper()
	resp := f.open(r)
	if resp == nil {
		return nil
	}
	defer resp.Body.Close()
	began := time.Now()
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return out
		}
		var e metav1.WatchEvent
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			f.Fatalf("%s: %v in %q", r, err, line)
		}
		if d := time.Since(began); d > time.Hour {
			f.Fatalf("%s: still open after %v", r, d)
		}
		out = append(out, e)
	}
}

// FuzzQueries sends reads and writes with any query. The pages of a list have
// each object once.
func FuzzQueries(f *testing.F) {
	for _, r := range seeds(testing.Short(), "GET", "POST", "PUT", "PATCH", "DELETE") {
		if r.Query != "" {
			f.Add(r.Query)
		}
	}
	f.Fuzz(func(t *testing.T, query string) {
		synctest.Test(t, func(t *testing.T) {
			f := newFuzzServer(t)
			for i := range 4 {
				f.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Namespace: "default"}})
			}
			f.pages(query)
			for _, w := range []conformance.Request{
				{Method: "POST", Type: "application/json", Body: `{"metadata":{"name":"b"}}`},
				{Method: "PUT", Type: "application/json", Body: `{"metadata":{"name":"a"},"data":{"k":"w"}}`},
				{Method: "PATCH", Type: "application/merge-patch+json", Body: `{"data":{"k":"w"}}`},
				{Method: "PATCH", Type: "application/apply-patch+yaml", Body: `{"apiVersion":"v1","kind":"ConfigMap","data":{"m":"w"}}`},
				{Method: "DELETE"},
			} {
				w.Path, w.Query = fuzzMaps, query
				if w.Method != "POST" {
					w.Path += "/a"
				}
				was := f.get(fuzzMaps + "/a")
				resp := f.send(w)
				dry := false
				if q, err := url.ParseQuery(query); err == nil {
					dry = len(q["dryRun"]) > 0
				}
				if (dry || resp.code >= 300) && !bytes.Equal(was, f.get(fuzzMaps+"/a")) {
					t.Errorf("%s changed the object: %s", w, resp)
				}
			}
		})
	})
}

// pages follows the continue tokens of a list to its end.
func (f *fuzzServer) pages(query string) {
	f.Helper()
	q, err := url.ParseQuery(query)
	if err != nil || q.Has("watch") {
		return
	}
	resp := f.send(conformance.Request{Method: "GET", Path: fuzzMaps, Query: query})
	seen := map[string]bool{}
	first := q.Get("continue") == ""
	for n := 0; resp.code == http.StatusOK; n++ {
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal(resp.body, &list); err != nil {
			f.Fatal(err, resp)
		}
		for _, o := range list.Items {
			if seen[o.Name] {
				f.Fatalf("%s: %s is on two pages", query, o.Name)
			}
			seen[o.Name] = true
		}
		if list.Continue == "" {
			if first && q.Get("labelSelector") == "" && q.Get("fieldSelector") == "" && len(seen) != 5 {
				f.Fatalf("%s: %d objects, want 5: %s", query, len(seen), resp)
			}
			return
		}
		if n > 5 {
			f.Fatalf("%s: more than five pages", query)
		}
		next := url.Values{"limit": q["limit"], "labelSelector": q["labelSelector"], "fieldSelector": q["fieldSelector"], "continue": {list.Continue}}
		resp = f.send(conformance.Request{Method: "GET", Path: fuzzMaps, Query: next.Encode()})
		if resp.code != http.StatusOK {
			f.Fatalf("%s: the next page: %s", query, resp)
		}
	}
}

// FuzzWatches opens watches with any query while objects change. Events are in
// order, and the watch ends.
func FuzzWatches(f *testing.F) {
	for _, r := range seeds(testing.Short(), "GET") {
		if strings.Contains(r.Query, "watch") {
			f.Add(r.Query)
		}
	}
	f.Add("watch=1&resourceVersion=101&labelSelector=l%3Dv&allowWatchBookmarks=true")
	f.Fuzz(func(t *testing.T, query string) {
		synctest.Test(t, func(t *testing.T) {
			f := newFuzzServer(t)
			time.AfterFunc(100*time.Millisecond, func() {
				apitest.Edit(f.Server, "default", "a", func(m *corev1.ConfigMap) { m.Labels = map[string]string{"l": "w"} })
				apitest.Edit(f.Server, "default", "a", func(m *corev1.ConfigMap) { m.Labels = map[string]string{"l": "v"} })
				apitest.Remove[*corev1.ConfigMap](f.Server, "default", "a")
			})
			r := conformance.Request{Method: "GET", Path: fuzzMaps, Query: query}
			resp := f.open(r)
			if resp == nil {
				return
			}
			resp.Body.Close()
			if resp.ContentLength >= 0 {
				return // no watch
			}
			last := uint64(0)
			for _, e := range f.events(r) {
				if e.Type == "ERROR" {
					return
				}
				m := f.metaIn(e.Object.Raw)
				rv, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
				if err != nil || rv < last {
					t.Fatalf("%s: %s after %d: %v", query, e.Object.Raw, last, err)
				}
				if e.Type != "ADDED" { // the initial objects are in the order of their names
					last = rv
				}
			}
		})
	})
}

// FuzzPatches sends patches of the three kinds to a typed object and to a custom
// resource.
func FuzzPatches(f *testing.F) {
	media := []string{"application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json"}
	for _, r := range seeds(testing.Short(), "PATCH") {
		if i := slices.Index(media, r.Type); i >= 0 && r.Query == "" {
			f.Add(uint8(i), r.Body)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, body string) {
		f := newFuzzServer(t)
		for _, path := range []string{fuzzMaps + "/a", fuzzWidgets + "/a", fuzzWidgets + "/a/status"} {
			was := f.get(path)
			resp := f.send(conformance.Request{Method: "PATCH", Path: path, Type: media[int(kind)%len(media)], Body: body})
			f.checkWrite(path, was, resp)
		}
	})
}

// FuzzApply sends server-side applies. An apply that is repeated changes
// nothing.
func FuzzApply(f *testing.F) {
	for _, r := range seeds(testing.Short(), "PATCH") {
		if r.Type == "application/apply-patch+yaml" {
			f.Add(r.Body, true)
			f.Add(r.Body, false)
		}
	}
	f.Fuzz(func(t *testing.T, body string, force bool) {
		f := newFuzzServer(t)
		for _, path := range []string{fuzzMaps + "/a", fuzzMaps + "/b", fuzzWidgets + "/a", fuzzWidgets + "/b", fuzzWidgets + "/a/status"} {
			r := conformance.Request{Method: "PATCH", Path: path, Query: fmt.Sprintf("fieldManager=m&force=%t", force), Type: "application/apply-patch+yaml", Body: body}
			was := f.get(path)
			resp := f.send(r)
			f.checkWrite(path, was, resp)
			if resp.code >= 300 {
				continue
			}
			stored := f.get(path)
			if again := f.send(r); again.code == http.StatusOK && !bytes.Equal(stored, f.get(path)) {
				t.Fatalf("%s: the second apply changed the object:\nbefore %q\nafter  %q", r, stored, again.body)
			}
		}
	})
}

// FuzzBodies creates objects from JSON, YAML and protobuf. An object that was
// created can be read in both encodings, and replaced by itself.
func FuzzBodies(f *testing.F) {
	media := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"}
	for _, r := range seeds(testing.Short(), "POST") {
		if i := slices.Index(media, r.Type); i >= 0 && (r.Path == fuzzMaps || r.Path == fuzzWidgets) {
			f.Add(uint8(i), r.Body)
		}
	}
	f.Add(uint8(0), `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}],"tolerations":[{"operator":"Exists"}]}}`)
	f.Add(uint8(0), `{"metadata":{"name":"l"},"spec":{"holderIdentity":"h","leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.000000Z"}}`)
	decoder := scheme.Codecs.UniversalDeserializer()
	f.Fuzz(func(t *testing.T, kind uint8, body string) {
		f := newFuzzServer(t)
		for _, path := range []string{fuzzMaps, fuzzWidgets, "/api/v1/namespaces/default/pods", "/apis/coordination.k8s.io/v1/namespaces/default/leases", "/apis/apps/v1/namespaces/default/deployments"} {
			resp := f.send(conformance.Request{Method: "POST", Path: path, Type: media[int(kind)%len(media)], Body: body})
			if resp.code != http.StatusCreated {
				continue
			}
			at := path + "/" + f.metaIn(resp.body).Name
			f.checkWrite(at, nil, resp)
			if path == fuzzWidgets {
				continue // not in protobuf
			}
			inJSON, _, err1 := decoder.Decode(f.get(at), nil, nil)
			inProto, _, err2 := decoder.Decode(f.send(conformance.Request{Method: "GET", Path: at, Accept: runtime.ContentTypeProtobuf}).body, nil, nil)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			a, err1 := json.Marshal(inJSON)
			b, err2 := json.Marshal(inProto)
			if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
				t.Fatalf("%v %v\nJSON:     %s\nprotobuf: %s", err1, err2, a, b)
			}
		}
	})
}

// FuzzDefinitions creates CustomResourceDefinitions and then an object of the
// kind.
func FuzzDefinitions(f *testing.F) {
	for _, r := range seeds(testing.Short(), "POST") {
		if strings.HasSuffix(r.Path, "customresourcedefinitions") {
			f.Add(r.Body)
		}
	}
	conformance.CorpusSeed(func(r conformance.Request) {
		if strings.HasSuffix(r.Path, "customresourcedefinitions") {
			f.Add(strings.ReplaceAll(r.Body, "idget", "adget"))
		}
	})
	f.Fuzz(func(t *testing.T, body string) {
		f := newFuzzServer(t)
		const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		resp := f.send(conformance.Request{Method: "POST", Path: path, Type: "application/json", Body: body})
		if resp.code != http.StatusCreated {
			return
		}
		f.checkWrite(path+"/"+f.metaIn(resp.body).Name, nil, resp)
		for _, gv := range f.servedBy(resp.body) {
			path, object := gv.path, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"o"}}`, gv.apiVersion, gv.kind)
			if resp := f.send(conformance.Request{Method: "GET", Path: path}); resp.code != http.StatusOK {
				t.Fatalf("GET %s: %s", path, resp)
			}
			resp := f.send(conformance.Request{Method: "POST", Path: path, Type: "application/json", Body: object})
			if resp.code != http.StatusCreated {
				t.Fatalf("POST %s %s: %s", path, object, resp)
			}
			f.checkWrite(path+"/o", nil, resp)
			f.send(conformance.Request{Method: "DELETE", Path: path + "/o"})
		}
	})
}

// served is a version of a custom resource.
type served struct{ path, apiVersion, kind string }

// servedBy returns the versions that a definition serves.
func (f *fuzzServer) servedBy(definition []byte) (out []served) {
	f.Helper()
	var d struct {
		Spec struct {
			Group, Scope string
			Names        struct{ Plural, Kind string }
			Versions     []struct {
				Name   string
				Served bool
			}
		}
	}
	if err := json.Unmarshal(definition, &d); err != nil {
		f.Fatal(err)
	}
	for _, v := range d.Spec.Versions {
		path := "/apis/" + d.Spec.Group + "/" + v.Name + "/"
		if d.Spec.Scope == "Namespaced" {
			path += "namespaces/default/"
		}
		if v.Served {
			out = append(out, served{path + d.Spec.Names.Plural, d.Spec.Group + "/" + v.Name, d.Spec.Names.Kind})
		}
	}
	return out
}

// FuzzRBAC reads manifests of permissions and asks the authorizer.
func FuzzRBAC(f *testing.F) {
	f.Add("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules:\n- {apiGroups: ['*'], resources: [pods, pods/*], verbs: [get], resourceNames: [a]}\n- {nonResourceURLs: [/healthz*], verbs: ['*']}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\nroleRef: {kind: ClusterRole, name: r}\nsubjects: [{kind: User, name: u}, {kind: ServiceAccount, namespace: n, name: s}, {kind: Group, name: g}]")
	f.Add("kind: Role\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: r, namespace: default}\nrules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]\n---\nkind: RoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: r, namespace: default}\nroleRef: {kind: Role, name: r}\nsubjects: [{kind: User, name: u}]")
	for _, b := range []string{"", "---", "kind: ClusterRole", "kind: List\napiVersion: v1\nitems: [{kind: ClusterRole, apiVersion: rbac.authorization.k8s.io/v1}]", "rules: x", "- a", "\x00", "{", "kind: Pod\napiVersion: v1"} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, manifest string) {
		rbac, err := apitest.RBACFrom([]byte(manifest))
		if err != nil {
			return
		}
		s := apitest.New(apitest.Options{Authorizer: rbac})
		for _, u := range []apitest.User{{Name: "u"}, {Name: "v", Groups: []string{"g"}}, apitest.ServiceAccountUser("n", "s")} {
			for _, path := range []string{fuzzMaps, "/api/v1/namespaces/default/pods/a", "/healthz"} {
				resp, err := s.Config(u).Transport.RoundTrip((&http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "h", Path: path}, Header: http.Header{}}).WithContext(context.Background()))
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != 200 && resp.StatusCode != 403 && resp.StatusCode != 404 {
					t.Fatalf("%s: %d", path, resp.StatusCode)
				}
			}
		}
	})
}
