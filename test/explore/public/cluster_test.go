// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore/cluster"
)

// view describes the workloads of a server without names that are generated, hashes and times.
func view(s *apitest.Server) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, d := range apitest.List[*appsv1.Deployment](s, "default") {
		st := d.Status
		var conditions []string
		for _, c := range st.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		slices.Sort(conditions)
		add("deployment %s: %d of %d, %d replicas, %d updated, %d ready, %d available, %d unavailable, %v",
			d.Name, st.ObservedGeneration, d.Generation, st.Replicas, st.UpdatedReplicas, st.ReadyReplicas, st.AvailableReplicas, st.UnavailableReplicas, conditions)
	}
	for _, rs := range apitest.List[*appsv1.ReplicaSet](s, "default") {
		st := rs.Status
		add("replicaset %s of %v: observed %v, %d, %d replicas, %d labeled, %d ready, %d available", rs.Spec.Template.Spec.Containers[0].Image,
			owners(rs), st.ObservedGeneration == rs.Generation, *rs.Spec.Replicas, st.Replicas, st.FullyLabeledReplicas, st.ReadyReplicas, st.AvailableReplicas)
	}
	for _, set := range apitest.List[*appsv1.StatefulSet](s, "default") {
		st := set.Status
		add("statefulset %s: %d of %d, %d replicas, %d updated, %d current, %d ready, %d available, one revision %v",
			set.Name, st.ObservedGeneration, set.Generation, st.Replicas, st.UpdatedReplicas, st.CurrentReplicas, st.ReadyReplicas, st.AvailableReplicas, st.CurrentRevision == st.UpdateRevision)
	}
	for _, j := range apitest.List[*batchv1.Job](s, "default") {
		st := j.Status
		var conditions []string
		for _, c := range st.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
		slices.Sort(conditions)
		add("job %s: started %v, completed %v, %d active, %d succeeded, %d ready, %d terminating, %v", j.Name,
			st.StartTime != nil, st.CompletionTime != nil, st.Active, st.Succeeded, *st.Ready, *st.Terminating, conditions)
	}
	for _, p := range apitest.List[*corev1.Pod](s, "default") {
		name := p.Name
		if p.GenerateName != "" {
			name = "*"
		}
		var labels, volumes []string
		for k, v := range p.Labels {
			if strings.HasSuffix(k, "hash") {
				v = "*"
			}
			labels = append(labels, k+"="+v)
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				volumes = append(volumes, v.Name+"="+v.PersistentVolumeClaim.ClaimName)
			}
		}
		slices.Sort(labels)
		add("pod %s of %v: %s, %s, host %s, subdomain %s, %v, %v", name, owners(p), p.Spec.Containers[0].Image, p.Status.Phase, p.Spec.Hostname, p.Spec.Subdomain, labels, volumes)
	}
	for _, c := range apitest.List[*corev1.PersistentVolumeClaim](s, "default") {
		add("claim %s %v", c.Name, c.Labels)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func owners(m metav1.Object) (out []string) {
	for _, r := range m.GetOwnerReferences() {
		out = append(out, fmt.Sprintf("%s controller %v blocks %v", r.Kind, *r.Controller, *r.BlockOwnerDeletion))
	}
	return out
}

// views runs the steps with a program, and returns the workloads a minute after each.
func views(t *testing.T, run func(ctx context.Context, s *apitest.Server) error, steps []func(s *apitest.Server)) (views []string) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			if err := run(ctx, s); err != nil {
				t.Error(err)
			}
		})
		for _, step := range steps {
			step(s)
			time.Sleep(time.Minute)
			synctest.Wait()
			views = append(views, view(s))
		}
		stop()
		done.Wait()
		time.Sleep(time.Minute)
	})
	return views
}

// TestClusterEndsAsKubernetes compares the stand-ins of package cluster with the controllers of
// Kubernetes: after each step, the workloads are the same.
func TestClusterEndsAsKubernetes(t *testing.T) {
	deployment := func(f func(*appsv1.Deployment)) func(*apitest.Server) {
		return func(s *apitest.Server) {
			apitest.Edit(s, "default", "a", f)
		}
	}
	set := func(f func(*appsv1.StatefulSet)) func(*apitest.Server) {
		return func(s *apitest.Server) { apitest.Edit(s, "default", "a", f) }
	}
	job := func(f func(*batchv1.Job)) func(*apitest.Server) {
		return func(s *apitest.Server) { apitest.Edit(s, "default", "a", f) }
	}
	for name, c := range map[string]struct {
		start func(context.Context, kubernetes.Interface, informers.SharedInformerFactory) ([]worker, error)
		steps []func(*apitest.Server)
	}{
		"Deployment": {newDeployment, []func(*apitest.Server){
			func(s *apitest.Server) {
				s.Put(&appsv1.Deployment{ObjectMeta: named("a"), Spec: appsv1.DeploymentSpec{
					Replicas: ptr[int32](3), Selector: selector, Template: template(corev1.RestartPolicyAlways), RevisionHistoryLimit: ptr[int32](10), ProgressDeadlineSeconds: ptr[int32](600),
					Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr(intstr.FromInt32(0)), MaxSurge: ptr(intstr.FromInt32(1))}},
				}})
			},
			deployment(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "i:2" }),
			deployment(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr[int32](1) }),
			deployment(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "i:1" }),
			func(s *apitest.Server) { apitest.Remove[*appsv1.Deployment](s, "default", "a") },
		}},
		"StatefulSet": {newStatefulSet, []func(*apitest.Server){
			func(s *apitest.Server) {
				s.Put(&appsv1.StatefulSet{ObjectMeta: named("a"), Spec: appsv1.StatefulSetSpec{
					Replicas: ptr[int32](3), Selector: selector, Template: template(corev1.RestartPolicyAlways), ServiceName: "a", RevisionHistoryLimit: ptr[int32](10),
					PodManagementPolicy:  appsv1.OrderedReadyPodManagement,
					UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr[int32](0)}},
					VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}},
				}})
			},
			set(func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "i:2" }),
			set(func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr[int32](1) }),
			set(func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr[int32](2) }),
			func(s *apitest.Server) { apitest.Remove[*appsv1.StatefulSet](s, "default", "a") },
		}},
		"Job": {newJob, []func(*apitest.Server){
			func(s *apitest.Server) {
				s.Put(&batchv1.Job{ObjectMeta: named("a"), Spec: batchv1.JobSpec{
					Parallelism: ptr[int32](2), Completions: ptr[int32](3), BackoffLimit: ptr[int32](6), CompletionMode: ptr(batchv1.NonIndexedCompletion), Suspend: ptr(false),
					PodReplacementPolicy: ptr(batchv1.TerminatingOrFailed), ManualSelector: ptr(true), Selector: selector, Template: template(corev1.RestartPolicyNever),
				}})
			},
			job(func(j *batchv1.Job) { j.Spec.Suspend = ptr(true) }), // it is complete
			func(s *apitest.Server) {
				apitest.Remove[*batchv1.Job](s, "default", "a")
				s.Put(&batchv1.Job{ObjectMeta: named("a"), Spec: batchv1.JobSpec{
					Parallelism: ptr[int32](3), Completions: ptr[int32](6), Suspend: ptr(true), ManualSelector: ptr(true), Selector: selector, Template: template(corev1.RestartPolicyNever),
				}})
			},
			func(s *apitest.Server) { // suspended again while pods run
				job(func(j *batchv1.Job) { j.Spec.Suspend = ptr(false) })(s)
				time.Sleep(15 * time.Second)
				job(func(j *batchv1.Job) { j.Spec.Suspend = ptr(true) })(s)
			},
			func(s *apitest.Server) { // and with fewer pods at a time
				job(func(j *batchv1.Job) { j.Spec.Suspend = ptr(false) })(s)
				time.Sleep(5 * time.Second)
				job(func(j *batchv1.Job) { j.Spec.Parallelism = ptr[int32](1) })(s)
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			real := views(t, func(ctx context.Context, s *apitest.Server) error {
				var kubelet sync.WaitGroup
				kubelet.Go(func() { _ = serveAll(ctx, s, s.Config(apitest.User{})) })
				defer kubelet.Wait()
				return manage(ctx, s.Config(apitest.User{}), c.start)
			}, c.steps)
			ours := views(t, func(ctx context.Context, s *apitest.Server) error {
				return cluster.Run(ctx, s, s.Config(apitest.User{}))
			}, c.steps)
			for i := range real {
				if real[i] != ours[i] {
					t.Errorf("after step %d: the controllers of Kubernetes:\n%s\nthe stand-ins:\n%s", i, real[i], ours[i])
				}
			}
		})
	}
}
