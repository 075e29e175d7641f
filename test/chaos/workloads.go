// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels of the pods.
const (
	appLabel   = "app"
	crashLabel = "crashes" // it crashes on its own, so that it is restarted
)

// The scripts of containers write their start and their exit code to a file
// that is not on the kubelet's disk. The file is opened with O_APPEND and each
// line is one write, so lines are complete and in order.
const (
	// service runs until it gets SIGTERM.
	service = `trap 'echo end $POD $C 0 >> $OUT; exit 0' TERM; echo start $POD $C >> $OUT; while :; do sleep 1000 & wait; done`
	// stubborn ignores SIGTERM.
	stubborn = `trap '' TERM; echo start $POD $C >> $OUT; while :; do sleep 1000 & wait; done`
	// flaky ends three times, and keeps running after the fourth start.
	flaky = `n=$(grep -c "^start $POD $C" $OUT); if [ $n -ge 3 ]; then ` + service + `; fi; echo start $POD $C >> $OUT; sleep 0.3; echo end $POD $C 1 >> $OUT; exit 1`
)

// task ends on its own with an exit code.
func task(seconds float64, code int) string {
	return fmt.Sprintf(`echo start $POD $C >> $OUT; sleep %.1f; echo end $POD $C %d >> $OUT; exit %d`, seconds, code, code)
}

// workloads creates objects for the node.
type workloads struct{ node, namespace, out string }

func (w workloads) container(name, script string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "none", Command: []string{"sh", "-c", script},
		Env: []corev1.EnvVar{
			{Name: "OUT", Value: w.out}, {Name: "C", Value: name},
			{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
		},
	}
}

// template returns a pod that runs a script.
func (w workloads) template(app string, policy corev1.RestartPolicy, script string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Labels: map[string]string{appLabel: app}},
		Spec: corev1.PodSpec{
			RestartPolicy:                 policy,
			NodeSelector:                  map[string]string{corev1.LabelHostname: w.node},
			Tolerations:                   []corev1.Toleration{{Key: "kubewright.dev/host-processes", Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(10)),
			Containers:                    []corev1.Container{w.container("c", script)},
		},
	}
}

// web is a Deployment of services with init containers.
func (w workloads) web() *appsv1.Deployment {
	d := w.deployment("web", 3, service)
	d.Spec.Template.Spec.InitContainers = []corev1.Container{w.container("init", task(0.1, 0))}
	return d
}

// stubborn is a Deployment whose pods have to be killed.
func (w workloads) stubborn() *appsv1.Deployment {
	d := w.deployment("stubborn", 1, stubborn)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(2))
	return d
}

// flaky is a Deployment whose containers crash.
func (w workloads) flaky() *appsv1.Deployment {
	d := w.deployment("flaky", 1, flaky)
	d.Spec.Template.Labels[crashLabel] = "yes"
	return d
}

func (w workloads) deployment(name string, replicas int32, script string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: name}},
			Template: w.template(name, corev1.RestartPolicyAlways, script),
		},
	}
}

func (w workloads) agent() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: "agent"}},
			Template: w.template("agent", corev1.RestartPolicyAlways, service),
		},
	}
}

// job is a Job that fails if the exit code of one of its pods is lost.
func (w workloads) job(name string, pods int32, seconds float64) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: batchv1.JobSpec{
			Completions: &pods, Parallelism: &pods, BackoffLimit: new(int32(0)),
			Template: w.template("job", corev1.RestartPolicyNever, task(seconds, 0)),
		},
	}
}

// once is a pod that runs once.
func (w workloads) once(name string, seconds float64, code int) *corev1.Pod {
	t := w.template("once", corev1.RestartPolicyNever, task(seconds, code))
	t.Name = name
	return &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
}

// pinned is a pod with an exclusive CPU.
func (w workloads) pinned(name string, seconds float64) *corev1.Pod {
	p := w.once(name, seconds, 0)
	p.Labels[appLabel] = "pinned"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "cpu", ResourceClaimTemplateName: new(oneCPU)}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "cpu"}}
	return p
}

// cpuDriver is the name of the kubelet's CPU driver and of the class of its
// devices.
const cpuDriver = "cpu.kubewright.dev"

// oneCPU is the name of the ResourceClaimTemplate.
const oneCPU = "one-cpu"

func (w workloads) deviceClass() *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: cpuDriver}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + cpuDriver + `"`}}},
	}}
}

func (w workloads) claimTemplate() *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: oneCPU},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "cpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: cpuDriver}}},
		}}},
	}
}

// settingsName and settingsKey are the name and the key of the ConfigMap with
// the kubelet's settings.
const (
	settingsNamespace = "kubewright"
	settingsName      = "kubelet"
	settingsKey       = "settings.yaml"
)

// roundLabel is a Node label that the settings set.
const roundLabel = "round"

// goodSettings returns valid settings.
func goodSettings(round string) string {
	return "syncInterval: 1s\norphanDelay: 1s\nbackoffInitial: 500ms\nbackoffMax: 2s\nlabels: {" + roundLabel + ": " + round + "}\n"
}

// Invalid settings, and settings that make the kubelet end.
const (
	invalidSettings = "maxPods: -1\n"
	fatalSettings   = "syncInterval: 1s\norphanDelay: 1s\nlabels: {node-role.kubernetes.io/king: \"yes\"}\n"
)
