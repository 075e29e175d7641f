// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
)

// The kinds of the core group that need few rules.

var namespaces = &kind{
	name: "Namespace", resource: "namespaces", views: []view{{gv: corev1.SchemeGroupVersion}},
	status: true, subresources: []subresource{{name: "finalize", updateOnly: true}},
	validName: apivalidation.ValidateNamespaceName, unconditional: true, returnsDeleted: true, noCollection: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		switch ns := obj.(*corev1.Namespace); path {
		case "status.phase":
			return string(ns.Status.Phase), true
		case "name":
			return ns.Name, true
		}
		return "", false
	},
	defaults: func(obj runtime.Object) {
		ns := obj.(*corev1.Namespace)
		if ns.Labels[corev1.LabelMetadataName] != ns.Name {
			ns.Labels = maps.Clone(ns.Labels)
			if ns.Labels == nil {
				ns.Labels = map[string]string{}
			}
			ns.Labels[corev1.LabelMetadataName] = ns.Name
		}
		if ns.Status.Phase == "" {
			ns.Status.Phase = corev1.NamespaceActive
		}
	},
	onCreate: func(_ *write, obj runtime.Object) {
		ns := obj.(*corev1.Namespace)
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		ns, o := obj.(*corev1.Namespace), old.(*corev1.Namespace)
		if w.r.Subresource != "finalize" {
			ns.Spec.Finalizers = o.Spec.Finalizers
		}
		if w.r.Subresource != "status" {
			ns.Status = o.Status
		}
	},
	// A namespace that is deleted stays Terminating until it is empty: see
	// Server.empty.
	onDelete: func(obj runtime.Object) (keep, changed bool) {
		ns := obj.(*corev1.Namespace)
		if len(ns.Spec.Finalizers) == 0 || ns.DeletionTimestamp != nil {
			return len(ns.Spec.Finalizers) > 0, false
		}
		now := metav1.Now().Rfc3339Copy()
		ns.DeletionTimestamp = &now
		ns.Status.Phase = corev1.NamespaceTerminating
		return true, true
	},
}

// fixed is why a field of an immutable object may not change.
const fixed = "field is immutable when `immutable` is set"

var configMaps = &kind{
	name: "ConfigMap", resource: "configmaps", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true,
	validate: func(_ *write, obj, old runtime.Object) (errs field.ErrorList) {
		cm := obj.(*corev1.ConfigMap)
		size := 0
		for k, v := range cm.Data {
			errs = append(errs, validateDataKey(k, field.NewPath("data").Key(k))...)
			if _, twice := cm.BinaryData[k]; twice {
				errs = append(errs, field.Invalid(field.NewPath("data").Key(k), k, "duplicate of key present in binaryData"))
			}
			size += len(v)
		}
		for k, v := range cm.BinaryData {
			errs = append(errs, validateDataKey(k, field.NewPath("binaryData").Key(k))...)
			size += len(v)
		}
		if size > corev1.MaxSecretSize {
			errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
		}
		if old == nil {
			return errs
		}
		if o := old.(*corev1.ConfigMap); o.Immutable != nil && *o.Immutable {
			if cm.Immutable == nil || !*cm.Immutable {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), fixed))
			}
			if !equality.Semantic.DeepEqual(cm.Data, o.Data) {
				errs = append(errs, field.Forbidden(field.NewPath("data"), fixed))
			}
			if !equality.Semantic.DeepEqual(cm.BinaryData, o.BinaryData) {
				errs = append(errs, field.Forbidden(field.NewPath("binaryData"), fixed))
			}
		}
		return errs
	},
}

func validateDataKey(k string, path *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsConfigMapKey(k) {
		errs = append(errs, field.Invalid(path, k, msg))
	}
	return errs
}

var serviceAccounts = &kind{
	name: "ServiceAccount", resource: "serviceaccounts", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.ValidateServiceAccountName, unconditional: true, returnsDeleted: true,
	subresources: []subresource{{name: "token", create: requestToken, gvk: authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")}},
}

var services = &kind{
	name: "Service", resource: "services", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, status: true, validName: apivalidation.NameIsDNS1035Label, unconditional: true, createOnUpdate: true, returnsDeleted: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		switch s := obj.(*corev1.Service); path {
		case "spec.clusterIP":
			return s.Spec.ClusterIP, true
		case "spec.type":
			return string(s.Spec.Type), true
		}
		return "", false
	},
	defaults: func(obj runtime.Object) {
		s := obj.(*corev1.Service)
		if s.Spec.Type == "" {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		}
		if s.Spec.SessionAffinity == "" {
			s.Spec.SessionAffinity = corev1.ServiceAffinityNone
		}
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.Protocol == "" {
				p.Protocol = corev1.ProtocolTCP
			}
			if p := &s.Spec.Ports[i]; p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
				p.TargetPort.IntVal = p.Port
			}
		}
	},
	onCreate: func(_ *write, obj runtime.Object) { obj.(*corev1.Service).Status = corev1.ServiceStatus{} },
	onUpdate: func(w *write, obj, old runtime.Object) {
		s, o := obj.(*corev1.Service), old.(*corev1.Service)
		if w.r.Subresource == "status" {
			s.Spec = o.Spec
		} else {
			s.Status = o.Status
		}
	},
}

var leases = &kind{
	name: "Lease", resource: "leases", views: []view{{gv: coordinationv1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, createOnUpdate: true,
	onCreate: func(w *write, obj runtime.Object) {
		if l := obj.(*coordinationv1.Lease); !w.gate(CoordinatedLeaderElection) {
			l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
		}
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		if w.gate(CoordinatedLeaderElection) {
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
	validate: func(_ *write, obj, _ runtime.Object) (errs field.ErrorList) {
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

var leaseCandidates = &kind{
	name: "LeaseCandidate", resource: "leasecandidates", views: []view{{gv: coordinationv1beta1.SchemeGroupVersion, deprecated: 36, removed: 39}},
	namespaced: true, createOnUpdate: true,
	validName: func(name string, _ bool) []string { return utilvalidation.IsConfigMapKey(name) },
	validate:  validateLeaseCandidate,
}

func validateLeaseCandidate(_ *write, obj, old runtime.Object) (errs field.ErrorList) {
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

// events is one kind in two groups. The group events.k8s.io has other field names
// than the core group, and stricter rules.
var events = &kind{
	name: "Event", resource: "events",
	views: []view{
		{gv: corev1.SchemeGroupVersion},
		{gv: eventsv1.SchemeGroupVersion, toStored: eventToStored, fromStored: eventFromStored, labels: map[string]string{
			"reason": "reason", "type": "type", "reportingController": "reportingComponent",
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
			"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
			"regarding.resourceVersion": "involvedObject.resourceVersion", "regarding.fieldPath": "involvedObject.fieldPath",
		}},
	},
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, createOnUpdate: true, unconditional: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		e := obj.(*corev1.Event)
		source := e.Source.Component
		if source == "" {
			source = e.ReportingController
		}
		v, ok := map[string]string{
			"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.namespace": e.InvolvedObject.Namespace,
			"involvedObject.name": e.InvolvedObject.Name, "involvedObject.uid": string(e.InvolvedObject.UID),
			"involvedObject.apiVersion": e.InvolvedObject.APIVersion, "involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
			"involvedObject.fieldPath": e.InvolvedObject.FieldPath, "reason": e.Reason, "reportingComponent": e.ReportingController,
			"source": source, "type": e.Type,
		}[path]
		return v, ok
	},
	validate: validateEvent,
}

func eventToStored(obj runtime.Object) runtime.Object {
	in := obj.(*eventsv1.Event)
	out := &corev1.Event{
		ObjectMeta: in.ObjectMeta, InvolvedObject: in.Regarding, Reason: in.Reason, Message: in.Note, Source: in.DeprecatedSource,
		FirstTimestamp: in.DeprecatedFirstTimestamp, LastTimestamp: in.DeprecatedLastTimestamp, Count: in.DeprecatedCount, Type: in.Type,
		EventTime: in.EventTime, Action: in.Action, Related: in.Related, ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return out
}

func eventFromStored(obj runtime.Object) runtime.Object {
	in := obj.(*corev1.Event)
	out := &eventsv1.Event{
		ObjectMeta: in.ObjectMeta, Regarding: in.InvolvedObject, Reason: in.Reason, Note: in.Message, DeprecatedSource: in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp, DeprecatedLastTimestamp: in.LastTimestamp, DeprecatedCount: in.Count, Type: in.Type,
		EventTime: in.EventTime, Action: in.Action, Related: in.Related, ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return out
}

// validateEvent has the rules of old events, of new ones, which have an
// eventTime, and those that only the events.k8s.io group adds.
func validateEvent(w *write, obj, old runtime.Object) (errs field.ErrorList) {
	e := obj.(*corev1.Event)
	strict := w.kind.views[w.view].gv.Group == eventsv1.GroupName
	involved := field.NewPath("involvedObject", "namespace")
	if e.EventTime.IsZero() {
		want := e.InvolvedObject.Namespace
		if want == "" {
			want = metav1.NamespaceDefault
		}
		if e.Namespace != want {
			errs = append(errs, field.Invalid(involved, e.InvolvedObject.Namespace, "does not match event.namespace"))
		}
	} else {
		if e.InvolvedObject.Namespace == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			errs = append(errs, field.Invalid(involved, e.InvolvedObject.Namespace, "does not match event.namespace"))
		}
		controller := "reportingController"
		if !strict {
			controller = "reportingComponent" // its name in the core group
		}
		errs = append(errs, requireText(controller, e.ReportingController, 0)...)
		for _, msg := range utilvalidation.IsQualifiedName(e.ReportingController) {
			errs = append(errs, field.Invalid(field.NewPath(controller), e.ReportingController, msg))
		}
		errs = append(errs, requireText("reportingInstance", e.ReportingInstance, 128)...)
		errs = append(errs, requireText("action", e.Action, 128)...)
		errs = append(errs, requireText("reason", e.Reason, 128)...)
		if len(e.Message) > 1024 {
			errs = append(errs, tooLong("message", 1024))
		}
	}
	if !strict {
		return errs
	}
	if old != nil {
		o := old.(*corev1.Event)
		for _, f := range []struct {
			path   string
			is, be any
		}{
			{"involvedObject", e.InvolvedObject, o.InvolvedObject},
			{"reason", e.Reason, o.Reason},
			{"message", e.Message, o.Message},
			{"source", e.Source, o.Source},
			{"type", e.Type, o.Type},
			{"eventTime", e.EventTime.UnixMicro(), o.EventTime.UnixMicro()},
			{"action", e.Action, o.Action},
			{"related", e.Related, o.Related},
			{"reportingController", e.ReportingController, o.ReportingController},
			{"reportingInstance", e.ReportingInstance, o.ReportingInstance},
		} {
			errs = append(errs, apivalidation.ValidateImmutableField(f.is, f.be, field.NewPath(f.path))...)
		}
		if e.Series == nil || o.Series != nil && e.Series.Count == o.Series.Count && e.Series.LastObservedTime.Equal(&o.Series.LastObservedTime) {
			return errs
		}
	} else {
		if e.EventTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
		}
		if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
			errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
		}
		if !e.FirstTimestamp.IsZero() || !e.LastTimestamp.IsZero() || e.Count != 0 || e.Source != (corev1.EventSource{}) {
			errs = append(errs, field.Invalid(field.NewPath("firstTimestamp"), "", "needs to be unset"))
		}
	}
	if e.Series != nil {
		if e.Series.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
		}
		if e.Series.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
		}
	}
	return errs
}

func requireText(path, value string, limit int) (errs field.ErrorList) {
	if value == "" {
		errs = append(errs, field.Required(field.NewPath(path), ""))
	}
	if limit > 0 && len(value) > limit {
		errs = append(errs, tooLong(path, limit))
	}
	return errs
}

func tooLong(path string, limit int) *field.Error {
	return field.Invalid(field.NewPath(path), "", fmt.Sprintf("can have at most %v characters", limit))
}

var nodes = &kind{
	name: "Node", resource: "nodes", views: []view{{gv: corev1.SchemeGroupVersion}},
	status: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		if path == "spec.unschedulable" {
			return strconv.FormatBool(obj.(*corev1.Node).Spec.Unschedulable), true
		}
		return "", false
	},
	defaults: func(obj runtime.Object) {
		// Allocatable defaults to capacity.
		if n := obj.(*corev1.Node); n.Status.Allocatable == nil && n.Status.Capacity != nil {
			n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		}
	},
	onCreate: func(w *write, obj runtime.Object) {
		n := obj.(*corev1.Node)
		n.Spec.ConfigSource, n.Status.Config = nil, nil
		if !w.gate(NodeDeclaredFeatures) {
			n.Status.DeclaredFeatures = nil
		}
		// The admission plugin TaintNodesByCondition.
		taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			n.Spec.Taints = append(n.Spec.Taints, taint)
		}
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		n, o := obj.(*corev1.Node), old.(*corev1.Node)
		if w.r.Subresource == "status" {
			n.Spec = o.Spec
		} else {
			n.Status = o.Status
		}
		if o.Spec.ConfigSource == nil {
			n.Spec.ConfigSource = nil
		}
		if o.Status.Config == nil {
			n.Status.Config = nil
		}
		if !w.gate(NodeDeclaredFeatures) && o.Status.DeclaredFeatures == nil {
			n.Status.DeclaredFeatures = nil
		}
	},
	validate: validateNode,
}

func validateNode(w *write, obj, old runtime.Object) (errs field.ErrorList) {
	n := obj.(*corev1.Node)
	errs = append(errs, validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))...)
	errs = append(errs, validateDeclaredFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))...)
	if old == nil {
		return errs
	}
	// The real server checks only updates: a creation may repeat an address.
	for i, a := range n.Status.Addresses {
		if slices.Contains(n.Status.Addresses[:i], a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), internalAddress{a.Type, a.Address}))
		}
	}
	o, spec := old.(*corev1.Node), field.NewPath("spec")
	if len(o.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, o.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if was, is := o.Spec.ProviderID, n.Spec.ProviderID; was != "" && is == "" {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be cleared once set"))
	} else if was != "" && is != was {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be modified once set"))
	}
	if n.Spec.DoNotUseExternalID != o.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

// internalAddress is an address in the internal type of the real server, which
// error messages quote.
type internalAddress struct {
	Type    corev1.NodeAddressType
	Address string
}

// declaredFeature is the form of the name of a declared feature.
var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// validateDeclaredFeatures requires names of that form, sorted and unique.
func validateDeclaredFeatures(names []string, path *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		switch {
		case len(name) > utilvalidation.DNS1123SubdomainMaxLength:
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", name, utilvalidation.DNS1123SubdomainMaxLength)))
		case !declaredFeature.MatchString(name):
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", name)))
		}
		switch {
		case i == 0:
		case name == names[i-1]:
			errs = append(errs, field.Duplicate(path.Index(i), name))
		case name < names[i-1]:
			errs = append(errs, field.Invalid(path.Index(i), name, "list must be sorted alphabetically"))
		}
	}
	return errs
}

// internalTaint is a taint in the internal type of the real server, which error
// messages quote.
type internalTaint struct {
	Key, Value string
	Effect     corev1.TaintEffect
	TimeAdded  *metav1.Time
}

// requireOneOf returns an error if value is empty or none of the allowed ones.
func requireOneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(allowed, value):
		return field.ErrorList{field.NotSupported(path, value, allowed)}
	}
	return nil
}

func validateTaints(taints []corev1.Taint, path *field.Path) (errs field.ErrorList) {
	for i, t := range taints {
		p := path.Index(i)
		if t.Key == "" {
			errs = append(errs, field.Required(p.Child("key"), ""))
		}
		errs = append(errs, requireOneOf(p.Child("effect"), t.Effect,
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		if slices.ContainsFunc(taints[:i], func(o corev1.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			e := field.Duplicate(p, internalTaint{t.Key, t.Value, t.Effect, t.TimeAdded})
			e.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, e)
		}
	}
	return errs
}
