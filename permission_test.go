// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/resourceslice"
)

// A missing permission is reported with the manifest that grants it.
func TestAMissingPermissionIsReportedWithItsManifest(t *testing.T) {
	type runner interface{ Run(context.Context) error }
	type tell = func(context.Context, error, string)
	for manifest, make := range map[string]func(kubernetes.Interface, tell) (runner, error){
		"lease": func(client kubernetes.Interface, tell tell) (runner, error) {
			return lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: "n1", Owner: lease.NoOwner, ErrorHandler: tell})
		},
		"nodestatus": func(client kubernetes.Interface, tell tell) (runner, error) {
			return nodestatus.New(nodestatus.Config{Client: client.CoreV1(), NodeName: "n1", ErrorHandler: tell})
		},
		"podsync": func(client kubernetes.Interface, tell tell) (runner, error) {
			return podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: "n1", ErrorHandler: tell,
				Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect()})
		},
		"election": func(client kubernetes.Interface, tell tell) (runner, error) {
			return election.New(election.Config{Client: client.CoordinationV1(), Lease: types.NamespacedName{Namespace: "default", Name: "l"},
				Self: election.Peer{Identity: "a"}, Lead: func(context.Context, election.Term) error { return nil }, ErrorHandler: tell})
		},
		"election-controller": func(client kubernetes.Interface, tell tell) (runner, error) {
			return coordinator.New(coordinator.Config{Client: client.CoordinationV1(), Candidates: client.CoordinationV1beta1(), ErrorHandler: tell})
		},
		"resourceslice": func(client kubernetes.Interface, tell tell) (runner, error) {
			c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1",
				Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1"), ErrorHandler: tell})
			if err != nil {
				return nil, err
			}
			return c, c.Set(resourceslice.PoolID{Driver: "d.example.com", Name: "n1"}, resourceslice.Pool{Devices: []resourcev1.Device{{Name: "a"}}})
		},
	} {
		t.Run(manifest, func(t *testing.T) {
			if _, err := os.Stat("examples/rbac/" + manifest + ".yaml"); err != nil {
				t.Error(err)
			}
			synctest.Test(t, func(t *testing.T) {
				server := apitest.New(apitest.Options{})
				server.Inject(apitest.Fault{Status: statuserr.Forbidden("things", "one", "no role")})
				var mu sync.Mutex
				named := 0
				c, err := make(server.Client(apitest.User{}), func(_ context.Context, err error, _ string) {
					mu.Lock()
					defer mu.Unlock()
					if strings.Contains(err.Error(), "examples/rbac/"+manifest+".yaml") {
						named++
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if named == 0 {
					t.Error("no error names the manifest")
				}
			})
		})
	}
	t.Run("node-condition", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server := apitest.New(apitest.Options{})
			server.Inject(apitest.Fault{Status: statuserr.Forbidden("nodes", "n1", "no role")})
			reporter, err := kube.NewReporter(server.Client(apitest.User{}).CoreV1(), "n1", "ConfigOK")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Minute)
			defer cancel()
			reporter.StatusChanged(configcheckpoint.Status{})
			if err := reporter.Run(ctx); err != nil || !strings.Contains(log.String(), "examples/rbac/node-condition.yaml") {
				t.Errorf("Run = %v and logs %s", err, &log)
			}
		})
	})
	t.Run("configcheckpoint", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server := apitest.New(apitest.Options{})
			server.Inject(apitest.Fault{Status: statuserr.Forbidden("configmaps", "settings", "no role")})
			source, err := kube.ConfigMap(server.Client(apitest.User{}).CoreV1(), "default", "settings", "config")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, err := range source.Payloads(ctx) {
				if err == nil || !strings.Contains(err.Error(), "examples/rbac/configcheckpoint.yaml") {
					t.Errorf("%v", err)
				}
				return
			}
			t.Error("the source reports no error")
		})
	})
	t.Run("podenv", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server := apitest.New(apitest.Options{})
			server.Inject(apitest.Fault{Status: statuserr.Forbidden("things", "one", "no role")})
			core := server.Client(apitest.User{}).CoreV1()
			resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core, Services: core, ServiceAccounts: core})
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: corev1.PodSpec{
				EnableServiceLinks: new(false),
				Containers: []corev1.Container{{Name: "main", EnvFrom: []corev1.EnvFromSource{
					{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
				}}},
			}}
			_, err = resolver.Pod(pod).Container(t.Context(), "main", podenv.Addresses{})
			if err == nil || !strings.Contains(err.Error(), "examples/rbac/podenv.yaml") {
				t.Errorf("%v", err)
			}
		})
	})
}
