// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
)

var leases = &Kind{
	Name: "Lease", Resource: "leases", Views: []View{{GV: coordinationv1.SchemeGroupVersion}},
	Namespaced: true, validName: apivalidation.NameIsDNSSubdomain, CreateOnUpdate: true,
	OnCreate: func(w *Write, obj runtime.Object) {
		if l := obj.(*coordinationv1.Lease); !w.On("CoordinatedLeaderElection") {
			l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
		}
	},
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		if w.On("CoordinatedLeaderElection") {
			return
		}
		// A gated field stays only if the stored object has it.
		l, o := obj.(*coordinationv1.Lease), old.(*coordinationv1.Lease)
		if o.Spec.Strategy == nil {
			l.Spec.Strategy = nil
		}
		if o.Spec.PreferredHolder == nil {
			l.Spec.PreferredHolder = nil
		}
	},
	validate: func(_ *Write, obj, _ runtime.Object) (errs field.ErrorList) {
		spec, path := &obj.(*coordinationv1.Lease).Spec, field.NewPath("spec")
		if d := spec.LeaseDurationSeconds; d != nil && *d <= 0 {
			errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
		}
		if n := spec.LeaseTransitions; n != nil && *n < 0 {
			errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
		}
		if spec.Strategy != nil {
			errs = append(errs, validateStrategy(*spec.Strategy, path.Child("strategy"))...)
		}
		if h := spec.PreferredHolder; h != nil && *h != "" && (spec.Strategy == nil || *spec.Strategy == "") {
			errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
		}
		return errs
	},
}

var leaseCandidates = &Kind{
	Name: "LeaseCandidate", Resource: "leasecandidates", Views: []View{{GV: coordinationv1beta1.SchemeGroupVersion, deprecated: 36, removed: 39}},
	Namespaced: true, CreateOnUpdate: true,
	validName: func(name string, _ bool) []string { return utilvalidation.IsConfigMapKey(name) },
	validate:  validateLeaseCandidate,
}

func validateLeaseCandidate(_ *Write, obj, old runtime.Object) (errs field.ErrorList) {
	spec, path := &obj.(*coordinationv1beta1.LeaseCandidate).Spec, field.NewPath("spec")
	if spec.LeaseName == "" {
		errs = append(errs, field.Required(path.Child("leaseName"), ""))
	}
	// A version that can't be read counts as the lowest.
	semantic := func(name, value string) *version.Version {
		v, err := version.ParseSemantic(value)
		if err == nil && !strings.HasPrefix(value, "v") {
			return v
		}
		if value != "" {
			errs = append(errs, field.Invalid(path.Child(name), value, "must be a valid semantic version"))
		}
		return version.MustParseSemantic("0.0.0")
	}
	emulation := semantic("emulationVersion", spec.EmulationVersion)
	if spec.BinaryVersion == "" {
		errs = append(errs, field.Required(path.Child("binaryVersion"), ""))
	}
	binary := semantic("binaryVersion", spec.BinaryVersion)
	if spec.BinaryVersion != "" && spec.EmulationVersion != "" && binary.LessThan(emulation) {
		errs = append(errs, field.Invalid(path.Child("binaryVersion"), spec.BinaryVersion, "must be greater than or equal to `emulationVersion`"))
	}
	switch spec.Strategy {
	case "":
		errs = append(errs, field.Required(path.Child("strategy"), ""))
	case coordinationv1.OldestEmulationVersion:
		if emulation.EqualTo(version.MustParseSemantic("0.0.0")) {
			errs = append(errs, field.Required(path.Child("emulationVersion"), "must be specified when `strategy` is 'OldestEmulationVersion'"))
		}
	default:
		errs = append(errs, validateStrategy(spec.Strategy, path.Child("strategy"))...)
	}
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(spec.LeaseName, old.(*coordinationv1beta1.LeaseCandidate).Spec.LeaseName, path.Child("leaseName"))...)
	}
	return errs
}

// validateStrategy requires the strategy that Kubernetes defines, or a name with
// a domain.
func validateStrategy(s coordinationv1.CoordinatedLeaseStrategy, path *field.Path) (errs field.ErrorList) {
	path = path.Child("strategy") // the server names it twice
	if !strings.Contains(string(s), "/") {
		if s != coordinationv1.OldestEmulationVersion {
			errs = append(errs, field.NotSupported(path, s, []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}))
		}
		return errs
	}
	for _, msg := range utilvalidation.IsQualifiedName(string(s)) {
		errs = append(errs, field.Invalid(path, s, msg))
	}
	return errs
}
