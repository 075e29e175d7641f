// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// An environment prepares pods for the provider, and records events about them.
type environment struct {
	client   corev1client.CoreV1Interface // with resolver
	resolver *podenv.Resolver             // may be nil
	events   events.EventRecorder         // may be nil
}

// prepare returns the pod that the provider is handed: with values for variables, as from
// virtual-kubelet, if Config.Client is set. Variables that hold the pod's address stay as
// they are, because it has none yet. A missing reference is an event with
// virtual-kubelet's reason, and a missing mandatory one is an error.
func (e environment) prepare(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	resolved := pod.DeepCopy()
	if e.resolver == nil {
		return resolved, nil
	}
	source, there := e.resolver.Pod(pod), inquiry{environment: e, namespace: pod.Namespace, known: map[sourceName]bool{}}
	var errs []error
	for _, list := range [][]corev1.Container{resolved.Spec.InitContainers, resolved.Spec.Containers} {
		for i := range list {
			c := &list[i]
			env, err := source.Container(ctx, c.Name, podenv.Addresses{})
			if err == nil {
				err = e.reportOptional(ctx, pod, c, &env, &there)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			late := slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool {
				_, is := slices.BinarySearch(env.Late, v.Name)
				return !is
			})
			c.Env, c.EnvFrom = make([]corev1.EnvVar, 0, len(env.Vars)+len(late)), nil
			for _, v := range env.Vars {
				c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: v.Value})
			}
			c.Env = append(c.Env, late...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, e.reportMandatory(ctx, pod, err, &there))
	}
	return resolved, nil
}

// reportMandatory makes an event for each reference that err names.
func (e environment) reportMandatory(ctx context.Context, pod *corev1.Pod, err error, there *inquiry) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range joined.Unwrap() {
			errs = append(errs, e.reportMandatory(ctx, pod, err, there))
		}
		return errors.Join(errs...)
	}
	var source *podenv.SourceError
	if !errors.As(err, &source) || source.Kind != "ConfigMap" && source.Kind != "Secret" {
		return nil
	}
	reason := "FailedToReadMandatory" + source.Kind
	if errors.Is(source.Err, podenv.ErrMissing) {
		exists, err := there.has(ctx, source.Kind, source.Name)
		switch {
		case err != nil:
			return err
		case exists:
			reason = "Mandatory" + source.Kind + "KeyNotFound"
		default:
			reason = "Mandatory" + source.Kind + "NotFound"
		}
	}
	e.missing(pod, reason, source.Error())
	return nil
}

// reportOptional makes an event for each optional reference of a container that is
// missing.
func (e environment) reportOptional(ctx context.Context, pod *corev1.Pod, c *corev1.Container, env *podenv.Environment, there *inquiry) error {
	optional := func(o *bool) bool { return o != nil && *o }
	defined := make(map[string]bool, len(env.Vars))
	for i := range env.Vars {
		defined[env.Vars[i].Name] = true
	}
	for _, v := range c.Env {
		if v.ValueFrom == nil || defined[v.Name] {
			continue
		}
		kind, name, key := "", "", ""
		if ref := v.ValueFrom.ConfigMapKeyRef; ref != nil && optional(ref.Optional) {
			kind, name, key = "ConfigMap", ref.Name, ref.Key
		} else if ref := v.ValueFrom.SecretKeyRef; ref != nil && optional(ref.Optional) {
			kind, name, key = "Secret", ref.Name, ref.Key
		} else {
			continue
		}
		exists, err := there.has(ctx, kind, name)
		switch {
		case err != nil:
			return err
		case exists:
			e.missing(pod, "Optional"+kind+"KeyNotFound", "variable "+v.Name+" is left out: "+kind+" "+name+" has no key "+key)
		default:
			e.missing(pod, "Optional"+kind+"NotFound", "variable "+v.Name+" is left out: there is no "+kind+" "+name)
		}
	}
	for _, from := range c.EnvFrom {
		kind, name := "", ""
		if ref := from.ConfigMapRef; ref != nil && optional(ref.Optional) {
			kind, name = "ConfigMap", ref.Name
		} else if ref := from.SecretRef; ref != nil && optional(ref.Optional) {
			kind, name = "Secret", ref.Name
		} else {
			continue
		}
		if exists, err := there.has(ctx, kind, name); err != nil {
			return err
		} else if !exists {
			e.missing(pod, "Optional"+kind+"NotFound", "its variables are left out: there is no "+kind+" "+name)
		}
	}
	return nil
}

// An inquiry asks about the ConfigMaps and Secrets of a namespace once while a pod is prepared: the
// pod may name one thousands of times.
type inquiry struct {
	environment
	namespace string
	known     map[sourceName]bool
}

type sourceName struct{ kind, name string }

// has reports whether an object exists.
func (q *inquiry) has(ctx context.Context, kind, name string) (bool, error) {
	if exists, ok := q.known[sourceName{kind, name}]; ok {
		return exists, nil
	}
	exists, err := q.exists(ctx, kind, q.namespace, name)
	if err == nil {
		q.known[sourceName{kind, name}] = exists
	}
	return exists, err
}

// exists reports whether an object exists.
func (e environment) exists(ctx context.Context, kind, namespace, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, podenv.DefaultCallTimeout)
	defer cancel()
	var err error
	if kind == "Secret" {
		_, err = e.client.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	} else {
		_, err = e.client.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (e environment) missing(pod *corev1.Pod, reason, note string) {
	e.event(pod, corev1.EventTypeWarning, reason, "ResolveEnvironment", note)
}

// event records an event about pod.
func (e environment) event(pod *corev1.Pod, kind, reason, action, note string) {
	if e.events != nil {
		e.events.Eventf(pod, nil, kind, reason, action, "%s", report.Note(note))
	}
}
