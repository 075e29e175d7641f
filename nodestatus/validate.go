// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// maxFunctions is how many setters, and how many health checks, there may be:
// a node has a bit for each.
const maxFunctions = 64

// complete copies what cfg points to, fills in defaults and returns all the
// problems at once.
func complete(cfg *Config) error {
	var problems field.ErrorList
	if cfg.Client == nil {
		problems = append(problems, field.Required(field.NewPath("Client"), "a typed client such as clientset.CoreV1()"))
	}
	if cfg.NodeName != "" {
		for _, problem := range validation.IsDNS1123Subdomain(cfg.NodeName) {
			problems = append(problems, field.Invalid(field.NewPath("NodeName"), cfg.NodeName, problem))
		}
	}
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	problems = append(problems, completeTimes(cfg)...)
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultWorkers, 1)...)
	problems = append(problems, checkFunctions(cfg)...)
	problems = append(problems, checkPolicies(cfg)...)

	cfg.Setters = slices.Clone(cfg.Setters)
	cfg.HealthChecks = slices.Clone(cfg.HealthChecks)
	cfg.FormerConditions = slices.Clone(cfg.FormerConditions)
	cfg.Template = cfg.Template.DeepCopy()
	if cfg.Template == nil {
		cfg.Template = &corev1.Node{}
	}
	problems = append(problems, checkTemplate(cfg)...)
	return lifecycle.InvalidConfig("nodestatus", problems)
}

func completeTimes(cfg *Config) field.ErrorList {
	var problems field.ErrorList
	for _, d := range []struct {
		name         string
		value        *time.Duration
		def, minimum time.Duration
	}{
		{"SyncInterval", &cfg.SyncInterval, DefaultSyncInterval, minGap},
		{"ReportInterval", &cfg.ReportInterval, max(DefaultReportInterval, cfg.SyncInterval), minGap},
		{"SetterTimeout", &cfg.SetterTimeout, DefaultSetterTimeout, time.Millisecond},
		{"GracePeriod", &cfg.GracePeriod, DefaultGracePeriod, time.Second},
		{"CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, time.Millisecond},
		{"ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, time.Millisecond},
	} {
		problems = append(problems, lifecycle.DefaultDuration(d.name, d.value, d.def, d.minimum)...)
	}
	if cfg.SyncInterval >= minGap && cfg.ReportInterval >= minGap && cfg.ReportInterval < cfg.SyncInterval {
		problems = append(problems, field.Invalid(field.NewPath("ReportInterval"), cfg.ReportInterval.String(),
			fmt.Sprintf("must be at least SyncInterval, which is %v", cfg.SyncInterval)))
	}
	return problems
}

func checkFunctions(cfg *Config) field.ErrorList {
	var problems field.ErrorList
	for i, setter := range cfg.Setters {
		if setter == nil {
			problems = append(problems, field.Required(field.NewPath("Setters").Index(i), "must not be nil"))
		}
	}
	for i, check := range cfg.HealthChecks {
		if check == nil {
			problems = append(problems, field.Required(field.NewPath("HealthChecks").Index(i), "must not be nil"))
		}
	}
	if n := len(cfg.Setters); n > maxFunctions {
		problems = append(problems, field.TooMany(field.NewPath("Setters"), n, maxFunctions))
	}
	if n := len(cfg.HealthChecks); n > maxFunctions {
		problems = append(problems, field.TooMany(field.NewPath("HealthChecks"), n, maxFunctions))
	}
	for i, kind := range cfg.FormerConditions {
		if kind == "" {
			problems = append(problems, field.Required(field.NewPath("FormerConditions").Index(i), "a type of condition"))
		}
	}
	return problems
}

func checkPolicies(cfg *Config) field.ErrorList {
	var problems field.ErrorList
	for _, p := range []struct {
		name   string
		policy fmt.Stringer
	}{{"OnDeleted", cfg.OnDeleted}, {"OnReplaced", cfg.OnReplaced}, {"OnShutdown", cfg.OnShutdown}} {
		if p.policy.String() == "Invalid" {
			problems = append(problems, field.Invalid(field.NewPath(p.name), fmt.Sprintf("%d", p.policy), "is none of the constants"))
		}
	}
	if cfg.NodeCredentials && cfg.OnShutdown == ShutdownUnregister {
		problems = append(problems, field.Forbidden(field.NewPath("OnShutdown"),
			"ShutdownUnregister needs credentials other than a node's, which may not delete its Node: leave NodeCredentials unset, or use ShutdownNotReady"))
	}
	return problems
}

func checkTemplate(cfg *Config) field.ErrorList {
	template, path := cfg.Template, field.NewPath("Template")
	var problems field.ErrorList
	if template.Name != "" && template.Name != cfg.NodeName {
		problems = append(problems, field.Invalid(path.Child("Name"), template.Name, "must be empty or NodeName"))
	}
	if template.GenerateName != "" {
		problems = append(problems, field.Forbidden(path.Child("GenerateName"), "a node must know its name"))
	}
	problems = append(problems, metav1validation.ValidateLabels(template.Labels, path.Child("Labels"))...)
	problems = append(problems, apivalidation.ValidateAnnotations(template.Annotations, path.Child("Annotations"))...)
	if keys := forbiddenLabels(template.Labels); cfg.NodeCredentials && len(keys) > 0 {
		problems = append(problems, field.Forbidden(path.Child("Labels"),
			fmt.Sprintf("node credentials may not set %s (NodeRestriction); see MayLabel", strings.Join(keys, ", "))))
	}
	//lint:ignore SA1019 NodeRestriction still refuses it
	if cfg.NodeCredentials && template.Spec.ConfigSource != nil {
		problems = append(problems, field.Forbidden(path.Child("Spec", "ConfigSource"), "node credentials may not set it (NodeRestriction)"))
	}
	for i, taint := range template.Spec.Taints {
		at := path.Child("Spec", "Taints").Index(i)
		for _, problem := range validation.IsQualifiedName(taint.Key) {
			problems = append(problems, field.Invalid(at.Child("Key"), taint.Key, problem))
		}
		switch taint.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			problems = append(problems, field.NotSupported(at.Child("Effect"), taint.Effect,
				[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
	}
	if err := checkConditions(template.Status.Conditions); err != nil {
		problems = append(problems, field.Invalid(path.Child("Status", "Conditions"), len(template.Status.Conditions), err.Error()))
	}
	return problems
}
