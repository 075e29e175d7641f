// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

func (c *cluster) deployments(ctx context.Context) error {
	for _, d := range apitest.List[*appsv1.Deployment](c.s, "") {
		if d.DeletionTimestamp == nil {
			if err := c.deployment(ctx, d); err != nil && !passes(err) {
				return fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
			}
		}
	}
	return nil
}

func (c *cluster) deployment(ctx context.Context, d *appsv1.Deployment) error {
	want, err := hash(&d.Spec.Template)
	if err != nil {
		return err
	}
	var newest *appsv1.ReplicaSet
	var old []*appsv1.ReplicaSet
	for _, rs := range apitest.List[*appsv1.ReplicaSet](c.s, d.Namespace) {
		switch {
		case !metav1.IsControlledBy(rs, d):
		case rs.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == want:
			newest = rs
		default:
			old = append(old, rs)
		}
	}
	sets := c.AppsV1().ReplicaSets(d.Namespace)
	replicas := int32(number(d.Spec.Replicas))
	if newest == nil {
		template := d.Spec.Template.DeepCopy()
		template.Labels = labeled(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey, want)
		selector := d.Spec.Selector.DeepCopy()
		if selector == nil {
			selector = &metav1.LabelSelector{}
		}
		selector.MatchLabels = labeled(selector.MatchLabels, appsv1.DefaultDeploymentUniqueLabelKey, want)
		newest, err = sets.Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{
				Name: d.Name + "-" + want, Labels: template.Labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
			},
			Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: *template},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	if *newest.Spec.Replicas != replicas {
		newest.Spec.Replicas = &replicas
		if newest, err = sets.Update(ctx, newest, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	status := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: newest.Status.Replicas, UpdatedReplicas: newest.Status.Replicas, ReadyReplicas: newest.Status.ReadyReplicas}
	for _, rs := range old {
		if newest.Status.ReadyReplicas >= replicas && *rs.Spec.Replicas != 0 {
			rs.Spec.Replicas = new(int32)
			if rs, err = sets.Update(ctx, rs, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		status.Replicas += rs.Status.Replicas
		status.ReadyReplicas += rs.Status.ReadyReplicas
	}
	status.AvailableReplicas = status.ReadyReplicas
	status.UnavailableReplicas = max(0, replicas-status.AvailableReplicas)
	done := status.UpdatedReplicas == replicas && status.Replicas == replicas && status.AvailableReplicas == replicas
	status.Conditions = []appsv1.DeploymentCondition{
		deploymentCondition(d, appsv1.DeploymentAvailable, status.AvailableReplicas >= replicas, "MinimumReplicasAvailable", "MinimumReplicasUnavailable"),
		deploymentCondition(d, appsv1.DeploymentProgressing, true, reason(done, "NewReplicaSetAvailable", "ReplicaSetUpdated"), ""),
	}
	if equality.Semantic.DeepEqual(status, d.Status) {
		return nil
	}
	d.Status = status
	_, err = c.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	return err
}

func reason(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

// deploymentCondition returns a condition with the times of d if nothing has changed.
func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType, ok bool, yes, no string) appsv1.DeploymentCondition {
	now := metav1.Now().Rfc3339Copy()
	c := appsv1.DeploymentCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason(ok, yes, no), LastUpdateTime: now, LastTransitionTime: now}
	if ok {
		c.Status = corev1.ConditionTrue
	}
	for _, was := range d.Status.Conditions {
		if was.Type == kind && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
			if was.Reason == c.Reason {
				c.LastUpdateTime = was.LastUpdateTime
			}
		}
	}
	return c
}

func (c *cluster) replicaSets(ctx context.Context) error {
	for _, rs := range apitest.List[*appsv1.ReplicaSet](c.s, "") {
		if rs.DeletionTimestamp == nil {
			if err := c.replicaSet(ctx, rs); err != nil && !passes(err) {
				return fmt.Errorf("replicaset %s/%s: %w", rs.Namespace, rs.Name, err)
			}
		}
	}
	return nil
}

func (c *cluster) replicaSet(ctx context.Context, rs *appsv1.ReplicaSet) error {
	pods, _ := c.podsOf(rs)
	status := appsv1.ReplicaSetStatus{ObservedGeneration: rs.Generation}
	for i, pod := range pods {
		if i >= number(rs.Spec.Replicas) {
			if err := c.deletePod(ctx, pod); err != nil {
				return err
			}
			continue
		}
		status.Replicas++
		if ready(pod) {
			status.ReadyReplicas++
		}
	}
	owner := metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	for range number(rs.Spec.Replicas) - len(pods) {
		pod := newPod(&rs.Spec.Template, owner)
		pod.GenerateName = rs.Name + "-"
		if _, err := c.CoreV1().Pods(rs.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		status.Replicas++
	}
	status.FullyLabeledReplicas, status.AvailableReplicas = status.Replicas, status.ReadyReplicas
	if equality.Semantic.DeepEqual(status, rs.Status) {
		return nil
	}
	rs.Status = status
	_, err := c.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
	return err
}

func (c *cluster) statefulSets(ctx context.Context) error {
	for _, set := range apitest.List[*appsv1.StatefulSet](c.s, "") {
		if set.DeletionTimestamp == nil {
			if err := c.statefulSet(ctx, set); err != nil && !passes(err) {
				return fmt.Errorf("statefulset %s/%s: %w", set.Namespace, set.Name, err)
			}
		}
	}
	return nil
}

// statefulSet does at most one thing to the pods at a time.
func (c *cluster) statefulSet(ctx context.Context, set *appsv1.StatefulSet) error {
	revision, err := hash(&set.Spec.Template)
	if err != nil {
		return err
	}
	revision = set.Name + "-" + revision
	pods, going := c.podsOf(set)
	byOrdinal := map[int]*corev1.Pod{}
	status := appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, UpdateRevision: revision, CurrentRevision: set.Status.CurrentRevision, CollisionCount: new(int32)}
	last := -1
	for _, pod := range pods {
		n := ordinal(set.Name, pod.Name)
		byOrdinal[n], last = pod, max(last, n)
		status.Replicas++
		if ready(pod) {
			status.ReadyReplicas++
		}
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == revision {
			status.UpdatedReplicas++
		}
	}
	replicas := number(set.Spec.Replicas)
	if status.CurrentRevision == "" || int(status.UpdatedReplicas) == len(pods) && len(going) == 0 && len(pods) == replicas {
		status.CurrentRevision = revision
	}
	status.AvailableReplicas = status.ReadyReplicas
	status.CurrentReplicas = status.Replicas
	if status.CurrentRevision != revision {
		status.CurrentReplicas -= status.UpdatedReplicas
	}
	if !equality.Semantic.DeepEqual(status, set.Status) {
		set.Status = status
		if _, err := c.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if len(going) > 0 {
		return nil
	}
	for n := range replicas {
		switch pod := byOrdinal[n]; {
		case pod == nil:
			return c.createMember(ctx, set, n, revision)
		case !ready(pod):
			return nil
		}
	}
	if last >= replicas {
		return c.deletePod(ctx, byOrdinal[last])
	}
	for n := replicas - 1; n >= 0; n-- {
		if byOrdinal[n].Labels[appsv1.ControllerRevisionHashLabelKey] != revision {
			return c.deletePod(ctx, byOrdinal[n])
		}
	}
	return nil
}

// createMember creates pod n of a StatefulSet, after its claims.
func (c *cluster) createMember(ctx context.Context, set *appsv1.StatefulSet, n int, revision string) error {
	pod := newPod(&set.Spec.Template, metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet")))
	pod.Name, pod.GenerateName = fmt.Sprintf("%s-%d", set.Name, n), set.Name+"-"
	pod.Labels = labeled(pod.Labels, appsv1.ControllerRevisionHashLabelKey, revision)
	pod.Labels[appsv1.StatefulSetPodNameLabel], pod.Labels[appsv1.PodIndexLabel] = pod.Name, fmt.Sprint(n)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	for _, t := range set.Spec.VolumeClaimTemplates {
		claim := t.DeepCopy()
		claim.Name = t.Name + "-" + pod.Name
		if set.Spec.Selector != nil {
			for k, v := range set.Spec.Selector.MatchLabels {
				claim.Labels = labeled(claim.Labels, k, v)
			}
		}
		if apitest.Get[*corev1.PersistentVolumeClaim](c.s, set.Namespace, claim.Name) == nil {
			if _, err := c.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	_, err := c.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (c *cluster) jobs(ctx context.Context) error {
	for _, job := range apitest.List[*batchv1.Job](c.s, "") {
		if job.DeletionTimestamp == nil && job.Status.CompletionTime == nil {
			if err := c.job(ctx, job); err != nil && !passes(err) {
				return fmt.Errorf("job %s/%s: %w", job.Namespace, job.Name, err)
			}
		}
	}
	return nil
}

func (c *cluster) job(ctx context.Context, job *batchv1.Job) error {
	pods, _ := c.podsOf(job)
	now := metav1.Now().Rfc3339Copy()
	suspended := job.Spec.Suspend != nil && *job.Spec.Suspend
	status := batchv1.JobStatus{StartTime: job.Status.StartTime, Conditions: job.Status.Conditions, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}, Terminating: new(int32), Ready: new(int32)}
	if status.StartTime == nil && !suspended {
		status.StartTime = &now
	}
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded {
			status.Succeeded++
		}
	}
	completions := int32(number(job.Spec.Completions))
	want := min(int32(number(job.Spec.Parallelism)), completions-status.Succeeded)
	if suspended {
		want = 0
	}
	for _, pod := range pods {
		switch {
		case finished(pod):
		case status.Active >= want:
			if err := c.deletePod(ctx, pod); err != nil {
				return err
			}
		default:
			status.Active++
			if ready(pod) {
				*status.Ready++
			}
		}
	}
	switch {
	case status.Succeeded >= completions && status.Active == 0:
		status.CompletionTime = &now
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			status.Conditions = append(status.Conditions, batchv1.JobCondition{
				Type: kind, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now, Reason: "CompletionsReached", Message: "Reached expected number of succeeded pods",
			})
		}
	case suspended:
		if setSuspended(&status, corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			status.StartTime = nil
		}
	default:
		if setSuspended(&status, corev1.ConditionFalse, "JobResumed", "Job resumed") {
			status.StartTime = &now
		}
	}
	owner := metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))
	for range want - status.Active {
		pod := newPod(&job.Spec.Template, owner)
		pod.GenerateName = job.Name + "-"
		if _, err := c.CoreV1().Pods(job.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		status.Active++
	}
	if equality.Semantic.DeepEqual(status, job.Status) {
		return nil
	}
	job.Status = status
	_, err := c.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, job, metav1.UpdateOptions{})
	return err
}

// setSuspended sets the condition Suspended, and reports whether it has changed. A Job that was
// never suspended does not have it.
func setSuspended(status *batchv1.JobStatus, to corev1.ConditionStatus, reason, message string) bool {
	at := slices.IndexFunc(status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	if at < 0 && to == corev1.ConditionFalse || at >= 0 && status.Conditions[at].Status == to {
		return false
	}
	now := metav1.Now().Rfc3339Copy()
	c := batchv1.JobCondition{Type: batchv1.JobSuspended, Status: to, LastProbeTime: now, LastTransitionTime: now, Reason: reason, Message: message}
	status.Conditions = slices.Clone(status.Conditions)
	if at < 0 {
		status.Conditions = append(status.Conditions, c)
	} else {
		status.Conditions[at] = c
	}
	return true
}
