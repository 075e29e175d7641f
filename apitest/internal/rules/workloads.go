// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// workloads are the kinds that operators own. A program that compares what it wants with what is
// stored meets their defaults, and one that changes a selector is refused.
var workloads = map[schema.GroupKind]struct {
	defaults func(obj runtime.Object)
	validate func(w *Write, obj, old runtime.Object) field.ErrorList
}{
	{Group: "apps", Kind: "Deployment"}:        {defaultDeployment, validateDeployment},
	{Group: "apps", Kind: "ReplicaSet"}:        {defaultReplicaSet, validateReplicaSet},
	{Group: "apps", Kind: "StatefulSet"}:       {defaultStatefulSet, validateStatefulSet},
	{Group: "apps", Kind: "DaemonSet"}:         {defaultDaemonSet, validateDaemonSet},
	{Group: "batch", Kind: "Job"}:              {defaultJob, validateJob},
	{Group: "batch", Kind: "CronJob"}:          {defaultCronJob, nil},
	{Group: "", Kind: "PersistentVolumeClaim"}: {defaultVolumeClaim, nil},
	{Group: "", Kind: "ReplicationController"}: {defaultReplicationController, nil},
}

// or sets a field that is not set.
func or[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

// orText sets a text that is empty.
func orText[T ~string](p *T, value T) {
	if *p == "" {
		*p = value
	}
}

func defaultDeployment(obj runtime.Object) {
	s := &obj.(*appsv1.Deployment).Spec
	or(&s.Replicas, 1)
	orText(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		or(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		or(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		or(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	or(&s.RevisionHistoryLimit, 10)
	or(&s.ProgressDeadlineSeconds, 600)
	defaultPodSpec(&s.Template.Spec)
}

func defaultReplicaSet(obj runtime.Object) {
	s := &obj.(*appsv1.ReplicaSet).Spec
	or(&s.Replicas, 1)
	defaultPodSpec(&s.Template.Spec)
}

func defaultReplicationController(obj runtime.Object) {
	s := &obj.(*corev1.ReplicationController).Spec
	or(&s.Replicas, 1)
	if s.Template != nil {
		defaultPodSpec(&s.Template.Spec)
	}
}

func defaultStatefulSet(obj runtime.Object) {
	s := &obj.(*appsv1.StatefulSet).Spec
	or(&s.Replicas, 1)
	orText(&s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	orText(&s.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		or(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		or(&s.UpdateStrategy.RollingUpdate.Partition, 0)
	}
	or(&s.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	orText(&s.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	orText(&s.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	or(&s.RevisionHistoryLimit, 10)
	for i := range s.VolumeClaimTemplates {
		claim := &s.VolumeClaimTemplates[i]
		claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
		defaultVolumeClaim(claim)
	}
	defaultPodSpec(&s.Template.Spec)
}

func defaultDaemonSet(obj runtime.Object) {
	s := &obj.(*appsv1.DaemonSet).Spec
	orText(&s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		or(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		or(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		or(&s.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	or(&s.RevisionHistoryLimit, 10)
	defaultPodSpec(&s.Template.Spec)
}

func defaultJob(obj runtime.Object) {
	job := obj.(*batchv1.Job)
	s := &job.Spec
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = ptr.To[int32](1)
	}
	or(&s.Parallelism, 1)
	limit := int32(6)
	if s.BackoffLimitPerIndex != nil {
		limit = math.MaxInt32
	}
	or(&s.BackoffLimit, limit)
	or(&s.CompletionMode, batchv1.NonIndexedCompletion)
	or(&s.Suspend, false)
	or(&s.ManualSelector, false)
	replace := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replace = batchv1.Failed
	}
	or(&s.PodReplacementPolicy, replace)
	if len(job.Labels) == 0 {
		job.Labels = s.Template.Labels // the same map
	}
	defaultPodSpec(&s.Template.Spec)
}

// prepareWorkload sets what does not depend on the fields of a write alone; old is nil on create.
func prepareWorkload(w *Write, obj, old runtime.Object) {
	switch o := obj.(type) {
	case *appsv1.StatefulSet:
		replaceOne(w, &o.Spec)
	case *appsv1.DaemonSet:
		was, _ := old.(*appsv1.DaemonSet)
		countTemplates(o, was)
	case *batchv1.Job:
		if old == nil {
			selectPodsOf(o)
		}
	}
}

// selectPodsOf sets the selector of a new Job, and the labels of its pods.
func selectPodsOf(job *batchv1.Job) {
	s := &job.Spec
	if ptr.Deref(s.ManualSelector, false) {
		return
	}
	add := map[string]string{
		batchv1.JobNameLabel: job.Name, batchv1.ControllerUidLabel: string(job.UID),
		"job-name": job.Name, "controller-uid": string(job.UID),
	}
	if s.Template.Labels == nil {
		s.Template.Labels = map[string]string{}
	}
	maps.Copy(s.Template.Labels, add) // of the Job too, if they are its labels by default
	if s.Selector == nil {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)}}
	}
}

func defaultCronJob(obj runtime.Object) {
	s := &obj.(*batchv1.CronJob).Spec
	orText(&s.ConcurrencyPolicy, batchv1.AllowConcurrent)
	or(&s.Suspend, false)
	or(&s.SuccessfulJobsHistoryLimit, 3)
	or(&s.FailedJobsHistoryLimit, 1)
	defaultPodSpec(&s.JobTemplate.Spec.Template.Spec)
}

func defaultVolumeClaim(obj runtime.Object) {
	claim := obj.(*corev1.PersistentVolumeClaim)
	or(&claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	orText(&claim.Status.Phase, corev1.ClaimPending)
}

var spec = field.NewPath("spec")

// validateSelected checks a selector and the template of the pods that it must select.
func validateSelected(selector *metav1.LabelSelector, template *corev1.PodTemplateSpec, kind string) (errs field.ErrorList) {
	at := spec.Child("selector")
	switch {
	case selector == nil:
		errs = append(errs, field.Required(at, ""))
	case len(selector.MatchLabels)+len(selector.MatchExpressions) == 0:
		errs = append(errs, field.Invalid(at, selector, "empty selector is invalid for "+kind))
	}
	if s, err := metav1.LabelSelectorAsSelector(selector); err == nil && !s.Empty() && !s.Matches(labels.Set(template.Labels)) {
		errs = append(errs, field.Invalid(spec.Child("template", "metadata", "labels"), template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, validatePodSpec(&template.Spec, spec.Child("template", "spec"))...)
	if p := template.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(spec.Child("template", "spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	return errs
}

// fixedSelector checks that an update keeps the selector.
func fixedSelector(selector, old *metav1.LabelSelector) field.ErrorList {
	return apivalidation.ValidateImmutableField(selector, old, spec.Child("selector"))
}

// selecting returns the validation of a kind that has a selector and a template, which of returns.
func selecting[T runtime.Object](kind string, of func(T) (*metav1.LabelSelector, *corev1.PodTemplateSpec)) func(*Write, runtime.Object, runtime.Object) field.ErrorList {
	return func(_ *Write, obj, old runtime.Object) field.ErrorList {
		selector, template := of(obj.(T))
		errs := validateSelected(selector, template, kind)
		if old != nil {
			was, _ := of(old.(T))
			errs = append(errs, fixedSelector(selector, was)...)
		}
		return errs
	}
}

var (
	validateDeployment = selecting("deployment", func(d *appsv1.Deployment) (*metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return d.Spec.Selector, &d.Spec.Template
	})
	validateReplicaSet = selecting("replicaset", func(r *appsv1.ReplicaSet) (*metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return r.Spec.Selector, &r.Spec.Template
	})
	validateDaemonSet = selecting("daemonset", func(d *appsv1.DaemonSet) (*metav1.LabelSelector, *corev1.PodTemplateSpec) {
		return d.Spec.Selector, &d.Spec.Template
	})
)

// templateGeneration is an annotation that counts the changes of a DaemonSet's template.
const templateGeneration = "deprecated.daemonset.template.generation"

// countTemplates sets the annotation on create, if old is nil, and on update.
func countTemplates(d, old *appsv1.DaemonSet) {
	n := int64(1)
	if old != nil {
		n, _ = strconv.ParseInt(old.Annotations[templateGeneration], 10, 64)
		if !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
			n++
		}
	}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, templateGeneration, strconv.FormatInt(n, 10))
}

// replaceOne sets how many pods of a StatefulSet may be unavailable during an update.
func replaceOne(w *Write, s *appsv1.StatefulSetSpec) {
	if u := s.UpdateStrategy.RollingUpdate; u != nil && w.Minor >= 35 {
		or(&u.MaxUnavailable, intstr.FromInt32(1))
	}
}

// validateStatefulSet has the messages of 1.37. Older servers have one for all fields.
func validateStatefulSet(_ *Write, obj, old runtime.Object) field.ErrorList {
	s := &obj.(*appsv1.StatefulSet).Spec
	errs := validateSelected(s.Selector, withClaims(s), "statefulset")
	if old == nil {
		return errs
	}
	was := &old.(*appsv1.StatefulSet).Spec
	errs = append(errs, apivalidation.ValidateImmutableField(s.ServiceName, was.ServiceName, spec.Child("serviceName"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.PodManagementPolicy, was.PodManagementPolicy, spec.Child("podManagementPolicy"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.VolumeClaimTemplates, was.VolumeClaimTemplates, spec.Child("volumeClaimTemplates"))...)
	return append(errs, fixedSelector(s.Selector, was.Selector)...)
}

// withClaims returns the template with the volumes of its claims, which containers may mount.
func withClaims(s *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	template := s.Template
	template.Spec.Volumes = slices.Clone(template.Spec.Volumes)
	named := sets.New[string]()
	for _, v := range template.Spec.Volumes {
		named.Insert(v.Name)
	}
	for _, claim := range s.VolumeClaimTemplates {
		if named.Has(claim.Name) {
			continue // the volume of a pod is that of its claim
		}
		named.Insert(claim.Name)
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	return &template
}

func validateJob(_ *Write, obj, old runtime.Object) field.ErrorList {
	s := &obj.(*batchv1.Job).Spec
	errs := validatePodSpec(&s.Template.Spec, spec.Child("template", "spec"))
	if p := s.Template.Spec.RestartPolicy; p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever {
		errs = append(errs, field.NotSupported(spec.Child("template", "spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	if old == nil {
		return errs
	}
	was := &old.(*batchv1.Job).Spec
	if ptr.Deref(s.CompletionMode, "") != batchv1.IndexedCompletion { // an indexed Job may be scaled
		errs = append(errs, apivalidation.ValidateImmutableField(s.Completions, was.Completions, spec.Child("completions"))...)
	}
	errs = append(errs, fixedSelector(s.Selector, was.Selector)...)
	if !ptr.Deref(was.Suspend, false) { // a suspended Job may change its template before it starts
		errs = append(errs, apivalidation.ValidateImmutableField(s.Template, was.Template, spec.Child("template"))...)
	}
	errs = append(errs, apivalidation.ValidateImmutableField(s.CompletionMode, was.CompletionMode, spec.Child("completionMode"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.PodFailurePolicy, was.PodFailurePolicy, spec.Child("podFailurePolicy"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.BackoffLimitPerIndex, was.BackoffLimitPerIndex, spec.Child("backoffLimitPerIndex"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.ManagedBy, was.ManagedBy, spec.Child("managedBy"))...)
}
