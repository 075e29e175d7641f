// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// A churn changes pods as users and controllers do. The seed determines the
// sequence of its steps; the pods that exist determine which pod a step
// changes.
type churn struct {
	client kubernetes.Interface
	make   workloads
	record *recorder
	series *rand.Rand // chooses the steps
	random *rand.Rand // random source of a step, so that a step does not depend on the results of earlier ones

	count  map[string]int // successful steps, by kind
	failed map[string]int // steps that the API rejected, by kind
	serial int
	jobs   []string // created and not deleted
	rounds int
}

// A step is one kind of change.
type step struct {
	what   string
	weight int
	do     func(context.Context) error
}

// minGap and maxGap bound the pause between steps.
const minGap, maxGap = 100 * time.Millisecond, 900 * time.Millisecond

func (c *churn) steps() []step {
	return []step{
		{"Deployment scaled", 12, func(ctx context.Context) error { return c.scale(ctx, "web", c.random.IntN(7)) }},
		{"Deployment scaled (stubborn)", 4, func(ctx context.Context) error { return c.scale(ctx, "stubborn", c.random.IntN(3)) }},
		{"Deployment rolled", 6, func(ctx context.Context) error {
			return c.roll(ctx, "deployments", []string{"web", "flaky"}[c.random.IntN(2)])
		}},
		{"DaemonSet rolled", 3, func(ctx context.Context) error { return c.roll(ctx, "daemonsets", "agent") }},
		{"pod deleted", 14, func(ctx context.Context) error { return c.delete(ctx, false) }},
		{"pod deleted without grace", 6, func(ctx context.Context) error { return c.delete(ctx, true) }},
		{"pod evicted", 6, c.evict},
		{"Job created", 10, c.createJob},
		{"Job deleted", 7, c.deleteJob},
		{"pod created", 14, c.createPod},
		{"pod with a CPU of its own created", 5, c.createPinned},
		{"settings changed: good ones", 2, c.goodSettings},
		{"settings changed: not valid", 1, func(ctx context.Context) error { return c.configure(ctx, invalidSettings) }},
		{"settings changed: they take the kubelet down", 1, func(ctx context.Context) error { return c.configure(ctx, fatalSettings) }},
	}
}

// run takes steps until ctx is done. The last step may have been sent without
// an answer.
func (c *churn) run(ctx context.Context) {
	steps := c.steps()
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for ctx.Err() == nil {
		n := c.series.IntN(total)
		i := slices.IndexFunc(steps, func(s step) bool { n -= s.weight; return n < 0 })
		gap := minGap + time.Duration(c.series.Int64N(int64(maxGap-minGap)))
		c.random = rand.New(rand.NewPCG(c.series.Uint64(), 0))
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		err := steps[i].do(call)
		cancel()
		switch {
		case err == errNothing:
		case err != nil && !apierrors.IsNotFound(err):
			c.failed[steps[i].what]++
		default:
			c.count[steps[i].what]++
		}
		sleep(ctx, gap)
	}
}

// errNothing reports that no object is suitable for the step.
var errNothing = errors.New("no suitable object")

func (c *churn) patch(ctx context.Context, resource, name, patch string) error {
	return c.client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(c.make.namespace).Resource(resource).Name(name).
		Body([]byte(patch)).Do(ctx).Error()
}

func (c *churn) scale(ctx context.Context, name string, replicas int) error {
	return c.patch(ctx, "deployments", name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (c *churn) roll(ctx context.Context, resource, name string) error {
	c.serial++
	return c.patch(ctx, resource, name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"round":"%d"}}}}}`, c.serial))
}

// any returns a pod of one of the apps that is not being deleted.
func (c *churn) any(apps ...string) *corev1.Pod {
	pods := slices.DeleteFunc(c.record.pods(), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.Contains(apps, p.Labels[appLabel])
	})
	if len(pods) == 0 {
		return nil
	}
	return pods[c.random.IntN(len(pods))]
}

// delete deletes a pod, but not a pod of a Job, because a Job may legitimately
// run its pod twice.
func (c *churn) delete(ctx context.Context, force bool) error {
	pod := c.any("web", "stubborn", "flaky", "agent", "once", "once", "pinned")
	if pod == nil {
		return errNothing
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	if force {
		options.GracePeriodSeconds = new(int64(0))
		c.record.force(pod.UID)
	}
	c.record.note(pod.UID, "churn: deleted, force=%t", force)
	return c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
}

func (c *churn) evict(ctx context.Context) error {
	pod := c.any("web", "stubborn", "flaky")
	if pod == nil {
		return errNothing
	}
	c.record.note(pod.UID, "churn: evicted")
	return c.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
}

// duration returns the duration of a command that ends on its own.
func (c *churn) duration() float64 { return 0.1 + 4*c.random.Float64() }

// maxJobs is the maximum number of Jobs at a time.
const maxJobs = 10

func (c *churn) createJob(ctx context.Context) error {
	c.serial++
	name, pods, takes := fmt.Sprint("job-", c.serial), int32(1+c.random.IntN(3)), c.duration()
	if len(c.jobs) >= maxJobs {
		return c.deleteJob(ctx)
	}
	c.jobs = append(c.jobs, name) // even without an answer
	_, err := c.client.BatchV1().Jobs(c.make.namespace).Create(ctx, c.make.job(name, pods, takes), metav1.CreateOptions{})
	return err
}

func (c *churn) deleteJob(ctx context.Context) error {
	if len(c.jobs) == 0 {
		return errNothing
	}
	i := c.random.IntN(len(c.jobs))
	name := c.jobs[i]
	err := c.client.BatchV1().Jobs(c.make.namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if err == nil || apierrors.IsNotFound(err) {
		c.jobs = slices.Delete(c.jobs, i, i+1)
	}
	return err
}

// maxPods is the maximum number of pods without a controller at a time.
const maxPods = 15

// cleanUp deletes a terminated pod if there are many.
func (c *churn) cleanUp(ctx context.Context) error {
	n := 0
	var over *corev1.Pod
	for _, p := range c.record.pods() {
		if a := p.Labels[appLabel]; a != "once" && a != "pinned" {
			continue
		}
		n++
		if terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			over = p
		}
	}
	if n < maxPods || over == nil {
		return nil
	}
	return c.client.CoreV1().Pods(over.Namespace).Delete(ctx, over.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(over.UID))})
}

func (c *churn) createPod(ctx context.Context) error {
	c.serial++
	pod := c.make.once(fmt.Sprint("once-", c.serial), c.duration(), c.random.IntN(3))
	if err := c.cleanUp(ctx); err != nil {
		return err
	}
	_, err := c.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (c *churn) createPinned(ctx context.Context) error {
	c.serial++
	pod := c.make.pinned(fmt.Sprint("pinned-", c.serial), c.duration()/2)
	if err := c.cleanUp(ctx); err != nil {
		return err
	}
	_, err := c.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (c *churn) goodSettings(ctx context.Context) error {
	c.rounds++
	return c.configure(ctx, goodSettings(fmt.Sprint("r", c.rounds)))
}

// configure writes the kubelet's settings.
func (c *churn) configure(ctx context.Context, text string) error {
	api := c.client.CoreV1().ConfigMaps(settingsNamespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: settingsName}, Data: map[string]string{settingsKey: text}}
	_, err := api.Update(ctx, cm, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, cm, metav1.CreateOptions{})
	}
	return err
}
