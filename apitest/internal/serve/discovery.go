// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/version"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/rules"
)

// discover serves the paths that are not resources.
func (c *Call) discover() (*Answer, error) {
	if c.r.Method != http.MethodGet {
		get := *c.r
		get.Method = http.MethodGet
		if _, err := (&Call{s: c.s, r: &get, ctx: c.ctx, accept: c.accept}).discover(); err != nil {
			return nil, err
		}
		return nil, methodNotAllowed()
	}
	if c.accept.Partial {
		return nil, notAcceptable()
	}
	path := strings.TrimSuffix(c.r.Path, "/")
	aggregated := strings.Contains(c.r.Accept, "as=APIGroupDiscoveryList") && strings.Contains(c.r.Accept, "v=v2;")
	switch path {
	case "":
		return c.rootPaths()
	case "/healthz", "/livez", "/readyz":
		return &Answer{Code: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: []byte("ok")}, nil
	case "/api", "/apis":
		if aggregated {
			return c.aggregated(path == "/api")
		}
		if path == "/api" {
			return c.made(&metav1.APIVersions{
				TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"},
				ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
			})
		}
		return c.groups()
	}
	var gv schema.GroupVersion
	if v, ok := strings.CutPrefix(path, "/api/"); ok {
		gv.Version = v
	} else if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		group, v, versioned := strings.Cut(rest, "/")
		if !versioned {
			return c.group(group)
		}
		gv = schema.GroupVersion{Group: group, Version: v}
	}
	return c.resources(gv)
}

// rootPaths lists the paths of groups and versions.
func (c *Call) rootPaths() (*Answer, error) {
	paths := []string{"/api", "/apis"}
	for _, gvs := range c.s.versions() {
		root := "/api"
		if gvs[0].Group != "" {
			root = "/apis"
			paths = append(paths, "/apis/"+gvs[0].Group)
		}
		for _, gv := range gvs {
			paths = append(paths, root+"/"+gv.String())
		}
	}
	paths = append(paths, "/healthz", "/livez", "/readyz", "/version")
	slices.Sort(paths)
	body, err := json.Marshal(metav1.RootPaths{Paths: paths})
	return &Answer{Code: http.StatusOK, ContentType: codec.JSONType, Body: body}, err
}

// made returns an answer whose body is an object that is not stored.
func (c *Call) made(obj runtime.Object) (*Answer, error) {
	return &Answer{Code: http.StatusOK, ContentType: c.accept.Name, Body: c.accept.Bytes(obj)}, nil
}

// version serves /version, which has JSON only, whatever the parameters of an
// Accept header say.
func (c *Call) version() (*Answer, error) {
	accepts := func(clause string) bool {
		return codec.MediaOf(clause) == codec.JSONType || codec.MediaOf(clause) == "*/*"
	}
	switch {
	case c.r.Method != http.MethodGet:
		return nil, methodNotAllowed()
	case c.r.Accept != "" && !slices.ContainsFunc(strings.Split(c.r.Accept, ","), accepts):
		return nil, notAcceptable()
	}
	git := c.s.Version
	major, rest, _ := strings.Cut(strings.TrimPrefix(git, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	body, err := json.Marshal(version.Info{Major: major, Minor: minor, GitVersion: git, GoVersion: "go1.26", Compiler: "gc", Platform: "linux/amd64"})
	if err != nil {
		return nil, err
	}
	return &Answer{Code: http.StatusOK, ContentType: codec.JSONType, Body: body}, nil
}

// versions are the served group versions: groups in a fixed order, in each the
// preferred version first.
func (s *Server) versions() [][]schema.GroupVersion {
	var out [][]schema.GroupVersion
	for _, k := range s.kinds() {
		for _, v := range k.Views {
			if !s.serves(v.GV) {
				continue
			}
			i := slices.IndexFunc(out, func(g []schema.GroupVersion) bool { return g[0].Group == v.GV.Group })
			switch {
			case i < 0:
				out = append(out, []schema.GroupVersion{v.GV})
			case !slices.Contains(out[i], v.GV):
				out[i] = append(out[i], v.GV)
			}
		}
	}
	return out
}

func apiGroup(gvs []schema.GroupVersion) metav1.APIGroup {
	g := metav1.APIGroup{Name: gvs[0].Group}
	for _, gv := range gvs {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

func (c *Call) groups() (*Answer, error) {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	for _, gvs := range c.s.versions() {
		if gvs[0].Group != "" {
			list.Groups = append(list.Groups, apiGroup(gvs))
		}
	}
	return c.made(list)
}

func (c *Call) group(name string) (*Answer, error) {
	for _, gvs := range c.s.versions() {
		if gvs[0].Group == name && name != "" {
			g := apiGroup(gvs)
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return c.made(&g)
		}
	}
	return nil, errNoPath
}

func (c *Call) resources(gv schema.GroupVersion) (*Answer, error) {
	if !c.s.serves(gv) {
		return nil, errNoPath
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	for _, k := range c.kindsIn(gv) {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: k.Resource, SingularName: strings.ToLower(k.Name), Namespaced: k.Namespaced, Kind: k.Name, Verbs: k.Verbs()})
		for _, sub := range k.AllSubresources() {
			r := metav1.APIResource{Name: k.Resource + "/" + sub.Name, Namespaced: k.Namespaced, Kind: k.Name, Verbs: sub.Verbs()}
			if sub.GVK.Kind != "" {
				r.Kind = sub.GVK.Kind
				if sub.GVK.Group != "" {
					r.Group, r.Version = sub.GVK.Group, sub.GVK.Version
				}
			}
			list.APIResources = append(list.APIResources, r)
		}
	}
	return c.made(list)
}

// kindsIn are the kinds of one group version by the names of their resources.
func (c *Call) kindsIn(gv schema.GroupVersion) (out []*rules.Kind) {
	for _, k := range c.s.kinds() {
		if slices.ContainsFunc(k.Views, func(v rules.View) bool { return v.GV == gv }) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b *rules.Kind) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// aggregated is all of discovery in one document, for /api or for /apis.
func (c *Call) aggregated(legacy bool) (*Answer, error) {
	list := apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items:    []apidiscovery.APIGroupDiscovery{},
	}
	for _, gvs := range c.s.versions() {
		if (gvs[0].Group == "") != legacy {
			continue
		}
		g := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gvs[0].Group}}
		for _, gv := range gvs {
			v := apidiscovery.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
			for _, k := range c.kindsIn(gv) {
				v.Resources = append(v.Resources, discovered(k, gv))
			}
			g.Versions = append(g.Versions, v)
		}
		list.Items = append(list.Items, g)
	}
	body, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return &Answer{Code: http.StatusOK, ContentType: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", Body: body}, nil
}

func discovered(k *rules.Kind, gv schema.GroupVersion) apidiscovery.APIResourceDiscovery {
	r := apidiscovery.APIResourceDiscovery{
		Resource: k.Resource, SingularResource: strings.ToLower(k.Name), Verbs: k.Verbs(), Scope: apidiscovery.ScopeCluster,
		ResponseKind: &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: k.Name},
	}
	if k.Namespaced {
		r.Scope = apidiscovery.ScopeNamespace
	}
	for _, sub := range k.AllSubresources() {
		gvk := metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: k.Name}
		if sub.GVK.Kind != "" {
			gvk = metav1.GroupVersionKind(sub.GVK)
		}
		r.Subresources = append(r.Subresources, apidiscovery.APISubresourceDiscovery{Subresource: sub.Name, ResponseKind: &gvk, Verbs: sub.Verbs()})
	}
	return r
}
