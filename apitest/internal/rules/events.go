// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// events is one kind in two groups. The group events.k8s.io has other field names
// than the core group, and stricter rules.
var events = &Kind{
	Name: "Event", Resource: "events",
	Views: []View{
		{GV: corev1.SchemeGroupVersion},
		{GV: eventsv1.SchemeGroupVersion, toStored: eventToStored, fromStored: eventFromStored, Labels: map[string]string{
			"reason": "reason", "type": "type", "reportingController": "reportingComponent",
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
			"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
			"regarding.resourceVersion": "involvedObject.resourceVersion", "regarding.fieldPath": "involvedObject.fieldPath",
		}},
	},
	Namespaced: true, validName: apivalidation.NameIsDNSSubdomain, CreateOnUpdate: true, Unconditional: true,
	Fields: func(obj runtime.Object, path string) (string, bool) {
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
func validateEvent(w *Write, obj, old runtime.Object) (errs field.ErrorList) {
	e := obj.(*corev1.Event)
	strict := w.Group == eventsv1.GroupName
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
