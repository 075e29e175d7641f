// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/apitest/explore/cluster"
)

// web is the Deployment of an operator that keeps one for each ConfigMap "web".
func web(owner *corev1.ConfigMap) *appsv1.Deployment {
	labels := map[string]string{"app": owner.Name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: owner.Name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: owner.Data["image"]}}}},
		},
	}
}

func operate(ctx context.Context, client kubernetes.Interface) error {
	owner, err := client.CoreV1().ConfigMaps("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || owner.DeletionTimestamp != nil {
		return err
	}
	deployments := client.AppsV1().Deployments("default")
	d, err := deployments.Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		_, err = deployments.Create(ctx, web(owner), metav1.CreateOptions{})
		return err
	}
	if d.Spec.Template.Spec.Containers[0].Image == owner.Data["image"] {
		return nil
	}
	d.Spec.Template.Spec.Containers[0].Image = owner.Data["image"]
	_, err = deployments.Update(ctx, d, metav1.UpdateOptions{})
	return err
}

// TestExplore explores an operator whose steps depend on what the cluster does.
func TestExplore(t *testing.T) {
	cfg := explore.Config{}
	if testing.Short() {
		cfg.Sample = 30
	}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		rolled := func(image string) func() bool {
			return func() bool {
				d := apitest.Get[*appsv1.Deployment](w.Server, "default", "web")
				pods := apitest.List[*corev1.Pod](w.Server, "default")
				for _, p := range pods {
					if p.Spec.Containers[0].Image != image {
						return false
					}
				}
				return d != nil && d.Status.ObservedGeneration == d.Generation && d.Status.ReadyReplicas == 2 && len(pods) == 2
			}
		}
		image := func(image string) func() error {
			return func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Data: map[string]string{"image": image}})
				return nil
			}
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "operator", Run: func(ctx context.Context, p *explore.Process) error {
				client, err := kubernetes.NewForConfig(p.Config)
				for err == nil && ctx.Err() == nil {
					_ = operate(ctx, client) // again in five seconds
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Second):
					}
				}
				return err
			}}, cluster.Controllers(w)},
			Steps: []explore.Step{
				{Name: "install", Do: image("i:1"), Until: rolled("i:1")},
				{Name: "upgrade", Do: image("i:2"), Until: rolled("i:2")},
			},
		}
	})
}

// A namespace gets what each has, and pods that are deleted come back.
func TestRun(t *testing.T) {
	apitest.Bubble(t, apitest.Options{Namespaces: []string{"agents"}}, func(t *testing.T, s *apitest.Server) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- cluster.Run(ctx, s, s.Config(apitest.User{})) }()
		d := web(s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Data: map[string]string{"image": "i:1"}}).(*corev1.ConfigMap))
		d.Namespace = "default"
		d.Spec.Template.Name = "web" // some operators set it; it is ignored
		s.Put(d)
		ready := func() error {
			time.Sleep(10 * time.Second)
			pods := apitest.List[*corev1.Pod](s, "")
			if len(pods) != 2 || pods[0].Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%d pods: %v", len(pods), pods)
			}
			// The same address, or the ends of runs with other generated names would differ.
			if a, b := pods[0].Status.PodIPs, pods[1].Status.PodIPs; len(a) != 1 || a[0].IP != pods[0].Status.PodIP || !reflect.DeepEqual(a, b) {
				return fmt.Errorf("the addresses are %v and %v", a, b)
			}
			return nil
		}
		if err := ready(); err != nil {
			t.Error(err)
		}
		if apitest.Get[*corev1.ServiceAccount](s, "agents", "default") == nil || apitest.Get[*corev1.ConfigMap](s, "agents", "kube-root-ca.crt") == nil {
			t.Error("the namespace is incomplete")
		}
		if err := s.Client(apitest.User{}).CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := ready(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A Job that is suspended while it runs loses its active pods, and gets others when it goes on.
func TestSuspendedJob(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- cluster.Run(ctx, s, s.Config(apitest.User{})) }()
		labels := map[string]string{"app": "a"}
		s.Put(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: batchv1.JobSpec{
			Parallelism: new(int32(2)), Completions: new(int32(3)), ManualSelector: new(true), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			}},
		}})
		suspend := func(on bool) {
			apitest.Edit(s, "default", "a", func(j *batchv1.Job) { j.Spec.Suspend = &on })
		}
		// is waits, and compares the Job: its pods, those of them that succeeded, whether it has
		// started, and its conditions.
		is := func(wait time.Duration, want string) {
			t.Helper()
			time.Sleep(wait)
			j := apitest.Get[*batchv1.Job](s, "default", "a")
			got := fmt.Sprintf("%d pods, %d active, %d succeeded, started %v", len(apitest.List[*corev1.Pod](s, "default")), j.Status.Active, j.Status.Succeeded, j.Status.StartTime != nil)
			for _, c := range j.Status.Conditions {
				got += fmt.Sprintf(", %s=%s %s", c.Type, c.Status, c.Reason)
			}
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		is(15*time.Second, "3 pods, 1 active, 2 succeeded, started true")
		suspend(true)
		is(5*time.Second, "2 pods, 0 active, 2 succeeded, started false, Suspended=True JobSuspended")
		is(time.Minute, "2 pods, 0 active, 2 succeeded, started false, Suspended=True JobSuspended")
		suspend(false)
		is(5*time.Second, "3 pods, 1 active, 2 succeeded, started true, Suspended=False JobResumed")
		is(time.Minute, "3 pods, 0 active, 3 succeeded, started true, Suspended=False JobResumed, SuccessCriteriaMet=True CompletionsReached, Complete=True CompletionsReached")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
