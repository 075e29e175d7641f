// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Command apitest serves an API server in memory on a port, and writes a kubeconfig for
// it: for trying programs, for clients in other languages, and for kubectl. It keeps
// nothing when it ends, and authenticates nobody.
//
//	go run github.com/kubewright/kubewright/apitest/cmd/apitest --load pods.yaml --fault '503 @ update leases kube-node-lease/n1'
//	kubectl --kubeconfig apitest.kubeconfig get pods
//
// A fault is a line of package apitest/explore with one of the faults 409, 429, 500, 503,
// reset, slow and lost answer. Its place has no program, because the server can't tell
// programs apart.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "apitest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var load, lines []string
	flags := flag.NewFlagSet("apitest", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "`address` to listen on; port 0 picks a free one")
	kubeconfig := flags.String("kubeconfig", "apitest.kubeconfig", "`file` to write the kubeconfig to")
	version := flags.String("version", "", "`version` of Kubernetes to serve, such as v1.36.3")
	flags.Func("load", "`file` of manifests, in YAML, to create; may be repeated", func(s string) error { load = append(load, s); return nil })
	flags.Func("fault", "`plan` line of a fault; may be repeated", func(s string) error { lines = append(lines, s); return nil })
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	s := apitest.New(apitest.Options{Version: *version})
	for _, file := range load {
		if err := create(ctx, s, file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, line := range lines { // after the manifests, which they are not about
		if err := inject(s, line); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(*kubeconfig, "http://"+l.Addr().String()); err != nil {
		return errors.Join(err, l.Close())
	}
	fmt.Fprintf(out, "serving on http://%s; try kubectl --kubeconfig %s get namespaces\n", l.Addr(), *kubeconfig)
	server := &http.Server{Handler: s.Handler(apitest.User{}), ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() }) // watches never end by themselves
	defer stopped()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// create creates the objects of a file in their order, as a client with all permissions.
// An object without a namespace is created in default.
func create(ctx context.Context, s *apitest.Server, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	cfg := s.Config(apitest.User{})
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.Client(apitest.User{}).Discovery()))
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for docs := yaml.NewYAMLReader(bufio.NewReader(f)); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			return err
		}
		if len(obj.Object) == 0 {
			continue // comments
		}
		gvk := obj.GroupVersionKind()
		m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) { // a definition may have been created since
			mapper.Reset()
			m, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		}
		if err != nil {
			return err
		}
		resources := dynamic.ResourceInterface(client.Resource(m.Resource))
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			if obj.GetNamespace() == "" {
				obj.SetNamespace(metav1.NamespaceDefault)
			}
			resources = client.Resource(m.Resource).Namespace(obj.GetNamespace())
		}
		made, err := resources.Create(ctx, obj, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if status, ok := obj.Object["status"]; ok { // a creation drops it
			made.Object["status"] = status
			if _, err := resources.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
}

// faults are the faults that a server can have by itself.
var faults = map[string]apitest.Fault{
	"409":         {Status: apierrors.NewConflict(schema.GroupResource{}, "", errors.New("injected"))},
	"429":         {Status: apierrors.NewTooManyRequests("injected", 1)},
	"500":         {Status: apierrors.NewInternalError(errors.New("injected"))},
	"503":         {Status: apierrors.NewServiceUnavailable("injected")},
	"reset":       {Err: apitest.ErrConnReset},
	"slow":        {Latency: 5 * time.Second},
	"lost answer": {LoseResponse: true},
}

// inject injects the faults of a plan line.
func inject(s *apitest.Server, line string) error {
	p, err := plan.Parse(line)
	if err != nil {
		return err
	}
	for _, h := range p {
		f, ok := faults[h.Fault]
		if !ok {
			return fmt.Errorf("fault %q: a server can't have it by itself", h.Fault)
		}
		if h.Place.Program != "" {
			return fmt.Errorf("fault %q: the server can't tell programs apart: leave out %q", h, h.Place.Program)
		}
		f.Name = h.String()
		f.Match.Func = func(r apitest.Request) bool {
			at := plan.OfRequest(&http.Request{Method: r.Method, URL: &url.URL{Path: r.Path, RawQuery: r.Query}}, r.Body)
			return at.Verb == h.Place.Verb && at.Target == h.Place.Target
		}
		if h.Place.Number > 0 {
			f.Skip, f.Times = h.Place.Number-1, 1
		}
		s.Inject(f)
	}
	return nil
}

func writeKubeconfig(file, server string) error {
	const name = "apitest"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, file)
}
