// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/examples/composetest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
	}
}

// TestCompare prints the runs a minute.
func TestCompare(t *testing.T) {
	inMemory := exploreAll(t)
	if os.Getenv("KUBEWRIGHT_EXPLORE_CHILD") != "" {
		return // a process of the exploration
	}
	t.Logf("apitest/explore: %.0f runs a minute", inMemory)
	if !harness.Enabled() {
		t.Log("control plane: left out without KUBEWRIGHT_E2E=1")
		return
	}
	real := restartAll(t)
	t.Logf("control plane: %.1f runs a minute, %.0f times fewer", real, inMemory/real)
}

// exploreAll tries all plans of the scenario and returns the runs a minute.
func exploreAll(t *testing.T) float64 {
	report := explore.Find(t, explore.Config{}, func(w *explore.World) explore.Scenario {
		backend := podsynctest.NewBackend(podsynctest.Options{})
		get := func(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.Server, "default", name) }
		return explore.Scenario{
			Programs: []explore.Program{{Name: "node", Run: func(ctx context.Context, p *explore.Process) error {
				provider := backend.Connect()
				p.OnCrash(provider.Crash)
				return composetest.Run(ctx, p.Config, "n1", provider)
			}}},
			Steps: []explore.Step{
				{Name: "create pods", Do: func() error {
					for _, name := range []string{"p1", "p2", "p3"} {
						w.Server.Put(pod(name))
					}
					return nil
				}, Until: func() bool {
					for _, name := range []string{"p1", "p2", "p3"} {
						if p := get(name); p == nil || p.Status.Phase != corev1.PodRunning {
							return false
						}
					}
					return true
				}},
				{Name: "p2 ends", Do: func() error {
					if p := get("p2"); p != nil {
						backend.Exit(p.UID, 0)
					}
					return nil
				}, Until: func() bool { p := get("p2"); return p != nil && p.Status.Phase == corev1.PodSucceeded }},
				{Name: "delete p1", Do: func() error {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_ = w.Server.Client(apitest.User{}).CoreV1().Pods("default").Delete(ctx, "p1", metav1.DeleteOptions{})
					return nil
				}, Until: func() bool { return get("p1") == nil }},
			},
		}
	})
	// A finding is run again, so it would count more than once.
	t.Logf("apitest/explore: %d plans in %v, %d findings", report.Plans, report.Took.Round(time.Millisecond), len(report.Findings))
	return float64(report.Plans) / report.Took.Minutes()
}

// stopper cancels the program when its n-th write has been answered.
type stopper struct {
	next   http.RoundTripper
	left   atomic.Int64
	cancel context.CancelFunc
}

// RoundTrip implements http.RoundTripper.
func (s *stopper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if req.Method != http.MethodGet && s.left.Add(-1) == 0 {
		s.cancel()
	}
	return resp, err
}

// restartAll runs the scenario on a control plane, once for each of the first writes, and
// returns the runs a minute.
func restartAll(t *testing.T) float64 {
	c := harness.Start(t, harness.Options{Without: []string{harness.ControllerManager, harness.Scheduler}})
	client := kubernetes.NewForConfigOrDie(c.AdminConfig())
	begin := time.Now()
	const runs = 10
	for write := range runs {
		restart(t, c.AdminConfig(), client, int64(write)+1)
	}
	return runs / time.Since(begin).Minutes()
}

// restart runs the scenario, with a program that is started again after one of its writes.
func restart(t *testing.T, cfg *rest.Config, client kubernetes.Interface, write int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	backend := podsynctest.NewBackend(podsynctest.Options{})
	first, stop := context.WithCancel(ctx)
	defer stop()
	stopped := rest.CopyConfig(cfg)
	stopped.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s := &stopper{next: next, cancel: stop}
		s.left.Store(write)
		return s
	})
	ended := make(chan error, 1)
	go func() {
		err := composetest.Run(first, stopped, "n1", backend.Connect())
		if err == nil {
			err = composetest.Run(ctx, cfg, "n1", backend.Connect())
		}
		ended <- err
	}()
	pods := client.CoreV1().Pods("default")
	until := func(name string, ok func(*corev1.Pod) bool) {
		t.Helper()
		for {
			p, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				p = nil
			}
			if ok(p) {
				return
			}
			select {
			case err := <-ended:
				t.Fatalf("the program returned: %v", err)
			case <-ctx.Done():
				t.Fatalf("write %d: pod %s: %v", write, name, ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == phase }
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, name := range []string{"p1", "p2", "p3"} {
		if _, err := pods.Create(ctx, pod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"p1", "p2", "p3"} {
		until(name, phase(corev1.PodRunning))
	}
	p2, err := pods.Get(ctx, "p2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	backend.Exit(p2.UID, 0)
	until("p2", phase(corev1.PodSucceeded))
	if err := pods.Delete(ctx, "p1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("p1", func(p *corev1.Pod) bool { return p == nil })
	cancel()
	<-ended
	// The next run begins as this one did.
	for _, name := range []string{"p2", "p3"} {
		_ = pods.Delete(t.Context(), name, now)
	}
	_ = client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{})
	_ = client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), "n1", metav1.DeleteOptions{})
}
