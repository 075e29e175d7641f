// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// announce creates a ConfigMap with a generated name, once, and remembers that in the
// Namespace. It has a bug: a crash between its two writes.
func announce(ctx context.Context, cfg *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(cfg).CoreV1()
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		ns, err := client.Namespaces().Get(ctx, "default", metav1.GetOptions{})
		if err != nil || ns.Annotations["announced"] != "" {
			continue
		}
		note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "note-"}}
		if _, err := client.ConfigMaps("default").Create(ctx, note, metav1.CreateOptions{}); err != nil {
			continue
		}
		metav1.SetMetaDataAnnotation(&ns.ObjectMeta, "announced", "true")
		_, _ = client.Namespaces().Update(ctx, ns, metav1.UpdateOptions{}) // again in a second
	}
	return nil
}

// A crash between two writes leaves a second object behind. A test would call
// explore.Run(t, explore.Config{}, …), which fails with the findings.
func Example() {
	inTest(func(t *testing.T) {
		report := explore.Find(t, explore.Config{InProcess: true}, func(w *explore.World) explore.Scenario {
			return explore.Scenario{
				Programs: []explore.Program{{Name: "announcer", Run: func(ctx context.Context, p *explore.Process) error {
					return announce(ctx, p.Config)
				}}},
				Steps: []explore.Step{{Name: "announced", Until: func() bool {
					return apitest.Get[*corev1.Namespace](w.Server, "", "default").Annotations["announced"] == "true"
				}}},
			}
		})
		for _, f := range report.Findings {
			if f.Plan == "crash after @ announcer: create configmaps default/note-* #1" {
				fmt.Println(f.Plan)
				fmt.Println(f.Problem)
			}
		}
	})
	// Output:
	// crash after @ announcer: create configmaps default/note-* #1
	// the end differs from the reference:
	// ConfigMap default/note-* (2 of them): exists, but not in the reference
}
