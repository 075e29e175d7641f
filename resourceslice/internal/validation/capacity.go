// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"math"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxValidValues is the limit of requestPolicy.validValues, which the API
// types state but don't export.
const maxValidValues = 10

// validateCapacity checks the request policy of a capacity.
func validateCapacity(c *resourcev1.DeviceCapacity, shared bool, path *field.Path) field.ErrorList {
	policy := c.RequestPolicy
	path = path.Child("requestPolicy")
	switch {
	case policy == nil:
		return nil
	case !shared:
		return field.ErrorList{field.Forbidden(path, "needs allowMultipleAllocations")}
	case len(policy.ValidValues) > 0 && policy.ValidRange != nil:
		return field.ErrorList{field.Forbidden(path, "must not have both validValues and validRange")}
	case len(policy.ValidValues) == 0 && policy.ValidRange == nil:
		return nil
	case policy.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "validValues and validRange need it")}
	case policy.ValidRange != nil:
		return validateRange(policy.Default, policy.ValidRange, c.Value, path)
	}
	return validateValidValues(policy, c.Value, path.Child("validValues"))
}

func validateValidValues(policy *resourcev1.CapacityRequestPolicy, capacity resource.Quantity, path *field.Path) field.ErrorList {
	values := policy.ValidValues
	if len(values) > maxValidValues {
		return field.ErrorList{field.TooMany(path, len(values), maxValidValues)}
	}
	var problems field.ErrorList
	for i, v := range values {
		if i > 0 && values[i-1].Cmp(v) > 0 {
			problems = append(problems, field.Invalid(path.Index(i), v.String(), "must be in ascending order"))
		}
		if i > 0 && values[i-1].Cmp(v) == 0 {
			problems = append(problems, field.Duplicate(path.Index(i), v.String()))
		}
		if v.Cmp(capacity) > 0 {
			problems = append(problems, field.Invalid(path.Index(i), v.String(), "must not be more than the capacity"))
		}
	}
	if !slices.ContainsFunc(values, func(v resource.Quantity) bool { return v.Cmp(*policy.Default) == 0 }) {
		problems = append(problems, field.Invalid(path, policy.Default.String(), "must have the default among them"))
	}
	return problems
}

func validateRange(def *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, capacity resource.Quantity, path *field.Path) field.ErrorList {
	in := path.Child("validRange")
	if r.Min == nil {
		return field.ErrorList{field.Required(in.Child("min"), "")}
	}
	var problems field.ErrorList
	atMost := func(name string, q, limit *resource.Quantity, message string) {
		if q != nil && limit != nil && q.Cmp(*limit) > 0 {
			problems = append(problems, field.Invalid(in.Child(name), q.String(), message))
		}
	}
	atMost("min", r.Min, &capacity, "must not be more than the capacity")
	atMost("min", r.Min, def, "must not be more than the default")
	atMost("min", r.Min, r.Max, "must not be more than max")
	atMost("max", r.Max, &capacity, "must not be more than the capacity")
	if r.Max != nil {
		atMost("default", def, r.Max, "must not be more than max")
	}
	if r.Step == nil {
		return problems
	}
	if r.Step.Sign() <= 0 {
		return append(problems, field.Invalid(in.Child("step"), r.Step.String(), "must be positive"))
	}
	next := r.Min.DeepCopy()
	next.Add(*r.Step)
	atMost("step", &next, &capacity, "min and one step must not be more than the capacity")
	return append(problems, validateSteps(def, r, in)...)
}

// validateSteps checks that the default and max can be reached. The API server
// counts in whole units, or in thousandths where the feature gate
// DRAFractionalCapacityRange is on and anything is fractional. What one of the
// two takes is for the API server to decide.
func validateSteps(def *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, in *field.Path) field.ErrorList {
	for _, q := range []*resource.Quantity{def, r.Min, r.Max, r.Step} {
		if q != nil && (q.Sign() < 0 || q.CmpInt64(math.MaxInt64) > 0) {
			return field.ErrorList{field.Invalid(in, q.String(), "must be between 0 and 9223372036854775807 where there is a step")}
		}
	}
	var problems field.ErrorList
	for _, q := range []*resource.Quantity{def, r.Max} {
		if q != nil && !reaches(q, r, (*resource.Quantity).Value) && !reaches(q, r, (*resource.Quantity).MilliValue) {
			problems = append(problems, field.Invalid(in.Child("step"), q.String(), "must be min and a whole number of steps"))
		}
	}
	return problems
}

// reaches reports whether q is min and a whole number of steps, in some unit.
func reaches(q *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, unit func(*resource.Quantity) int64) bool {
	step := unit(r.Step)
	return step > 0 && (unit(q)-unit(r.Min))%step == 0
}
