// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// interval is the virtual time between two looks at the objects.
const interval = time.Second

// jobPodRuns is the virtual time after which a Pod of a Job succeeds.
const jobPodRuns = 10 * time.Second

// Controllers returns a program that does the work of kube-controller-manager and of a
// kubelet. No fault hits it.
func Controllers(w *explore.World) explore.Program {
	return explore.Program{Name: "cluster", Undisturbed: true, Run: func(ctx context.Context, p *explore.Process) error {
		return Run(ctx, w.Server, p.Config)
	}}
}

// Run does the same in any test, until ctx is done. It reads the objects of s directly, and
// writes with clients of cfg. It returns an error if a write is refused for another reason than
// that an object has changed or is gone.
func Run(ctx context.Context, s *apitest.Server, cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	c := &cluster{Interface: client, s: s}
	var version string
	var changed time.Time
	for ctx.Err() == nil {
		if now := s.ResourceVersion(); now != version {
			version, changed = now, time.Now()
		}
		// What a round does depends on the objects, and on how long a pod of a Job has run.
		if time.Since(changed) <= jobPodRuns+interval {
			if err := c.round(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			s.CollectGarbage()
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
	return nil
}

// passes reports whether the next round may succeed, because another client was faster.
func passes(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err)
}

// cluster reads objects directly from the server, and writes with a client.
type cluster struct {
	kubernetes.Interface
	s *apitest.Server
}

// round does the work of one moment.
func (c *cluster) round(ctx context.Context) error {
	for _, step := range []func(context.Context) error{c.namespaces, c.deployments, c.replicaSets, c.statefulSets, c.jobs, c.pods} {
		if err := step(ctx); err != nil && !passes(err) {
			return err
		}
	}
	return nil
}

// namespaces creates what each namespace has.
func (c *cluster) namespaces(ctx context.Context) error {
	for _, ns := range apitest.List[*corev1.Namespace](c.s, "") {
		if ns.DeletionTimestamp != nil {
			continue
		}
		if apitest.Get[*corev1.ServiceAccount](c.s, ns.Name, "default") == nil {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			if _, err := c.CoreV1().ServiceAccounts(ns.Name).Create(ctx, account, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		if apitest.Get[*corev1.ConfigMap](c.s, ns.Name, "kube-root-ca.crt") == nil {
			ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "a certificate of explore"}}
			if _, err := c.CoreV1().ConfigMaps(ns.Name).Create(ctx, ca, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// podIP is the address of every pod. Different ones would depend on generated names and on the
// order of pods, and so differ between runs that end alike.
const podIP = "10.0.0.1"

// pods does what a kubelet does. Pods need no node.
func (c *cluster) pods(ctx context.Context) error {
	for _, pod := range apitest.List[*corev1.Pod](c.s, "") {
		if err := c.pod(ctx, pod); err != nil && !passes(err) {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return nil
}

func (c *cluster) pod(ctx context.Context, pod *corev1.Pod) error {
	owner := metav1.GetControllerOf(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		now := int64(0)
		return c.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case finished(pod):
		return nil
	case pod.Status.Phase != corev1.PodRunning:
		now := metav1.Now()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
		pod.Status.PodIP, pod.Status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
	case owner != nil && owner.Kind == "Job" && pod.Status.StartTime != nil && time.Since(pod.Status.StartTime.Time) >= jobPodRuns:
		pod.Status.Phase, pod.Status.Conditions = corev1.PodSucceeded, nil
	default:
		return nil
	}
	_, err := c.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podsOf returns the pods that an object controls, sorted by name: those that stay, and those
// that are being deleted.
func (c *cluster) podsOf(owner metav1.Object) (pods, going []*corev1.Pod) {
	for _, pod := range apitest.List[*corev1.Pod](c.s, owner.GetNamespace()) {
		switch {
		case !metav1.IsControlledBy(pod, owner):
		case pod.DeletionTimestamp != nil:
			going = append(going, pod)
		default:
			pods = append(pods, pod)
		}
	}
	return pods, going
}

// newPod returns a pod of a template, whose name is ignored.
func newPod(template *corev1.PodTemplateSpec, owner *metav1.OwnerReference) *corev1.Pod {
	t := template.DeepCopy()
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers, OwnerReferences: []metav1.OwnerReference{*owner},
	}, Spec: t.Spec}
}

func (c *cluster) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return c.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
}

// hash names a template. Real hashes are others.
func hash(template *corev1.PodTemplateSpec) (string, error) {
	b, err := json.Marshal(template)
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	_, _ = h.Write(b)
	return fmt.Sprintf("%x", h.Sum32()), nil
}

// labeled returns a copy of m with one more label.
func labeled(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func number(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// ordinal returns the number at the end of the name of a pod of a StatefulSet, or -1.
func ordinal(set, pod string) int {
	rest, ok := strings.CutPrefix(pod, set+"-")
	n := -1
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil || !ok || fmt.Sprint(n) != rest {
		return -1
	}
	return n
}
