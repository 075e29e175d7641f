// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest"
)

// BenchmarkRead gets one of a thousand pods, and lists them all. fake is the clientset of
// client-go, which copies objects instead of encoding them.
func BenchmarkRead(b *testing.B) {
	pods := make([]runtime.Object, 1000)
	for i := range pods {
		p := podOn(fmt.Sprintf("p%d", i), "n")
		p.Labels = map[string]string{"app": "web", "group": fmt.Sprint(i % 10)}
		pods[i] = p
	}
	for _, c := range []struct {
		name string
		make func() kubernetes.Interface
	}{
		{"json", func() kubernetes.Interface { return serving(pods, runtime.ContentTypeJSON) }},
		{"protobuf", func() kubernetes.Interface { return serving(pods, runtime.ContentTypeProtobuf) }},
		{"fake", func() kubernetes.Interface { return fake.NewSimpleClientset(pods...) }},
	} {
		client := c.make().CoreV1().Pods("default")
		ctx := context.Background()
		b.Run("get/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Get(ctx, "p7", metav1.GetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("list/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l, err := client.List(ctx, metav1.ListOptions{})
				if err != nil || len(l.Items) != len(pods) {
					b.Fatal(err)
				}
			}
		})
	}
}

func serving(objects []runtime.Object, contentType string) kubernetes.Interface {
	s := apitest.New(apitest.Options{})
	for _, o := range objects {
		s.Put(o.(*corev1.Pod))
	}
	cfg := s.Config(apitest.User{})
	cfg.ContentType = contentType
	return kubernetes.NewForConfigOrDie(cfg)
}

// TestListEncodings requires that the encodings of a list say the same, which each puts
// together from the encodings of its elements, and that a change reaches all of them.
func TestListEncodings(t *testing.T) {
	s := apitest.New(apitest.Options{})
	for _, name := range []string{"a", "b"} {
		p := podOn(name, "n")
		p.Annotations = map[string]string{"html": "<&>", "text": "\n\"é"}
		s.Put(p)
	}
	for range 2 {
		var first *corev1.PodList
		for _, accept := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf} {
			raw, err := s.Client(apitest.User{}).CoreV1().RESTClient().Get().Namespace("default").Resource("pods").Param("limit", "1").SetHeader("Accept", accept).Do(t.Context()).Raw()
			must(t, err)
			obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
			must(t, err)
			list, ok := obj.(*corev1.PodList)
			if !ok || *gvk != corev1.SchemeGroupVersion.WithKind("PodList") || len(list.Items) != 1 || list.Continue == "" || list.RemainingItemCount == nil || list.Items[0].Kind != "" {
				t.Fatalf("%s: %v of %v", accept, obj, gvk)
			}
			if first == nil {
				first = list
			}
			if d := cmp.Diff(first, list, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s differs from JSON (-):\n%s", accept, d)
			}
			if want := apitest.Get[*corev1.Pod](s, "default", "a").ResourceVersion; list.Items[0].ResourceVersion != want {
				t.Errorf("%s: resourceVersion %s, want %s", accept, list.Items[0].ResourceVersion, want)
			}
		}
		apitest.Edit(s, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"l": "v"} })
	}
}
