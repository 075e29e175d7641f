// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// typical is a running pod of two containers and the report that makes it so.
func typical() (*corev1.Pod, Update) {
	pod := testPod("Always app sidecar")
	pod.UID = "0c1b7b0e-5d5f-4f6e-9f43-6f2f3d4f5a6b"
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(t0)}}}
	u := Update{Observed: testStatus("app=ready sidecar=ready"), Generation: 1, Now: t1}
	u.Observed.PodIP, u.Observed.HostIP = "10.0.0.7", "192.168.0.1"
	for i := range u.Observed.ContainerStatuses {
		cs := &u.Observed.ContainerStatuses[i]
		cs.ContainerID = "containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
		cs.ImageID = "registry.example.com/app@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	}
	return pod, u
}

// BenchmarkNext is one report of a typical pod, from Pending to Running.
func BenchmarkNext(b *testing.B) {
	pod, u := typical()
	b.ReportAllocs()
	for b.Loop() {
		Next(pod, u)
	}
}

// BenchmarkPatch writes the difference that BenchmarkNext makes.
func BenchmarkPatch(b *testing.B) {
	pod, u := typical()
	next, _ := Next(pod, u)
	b.ReportMetric(float64(len(Patch(pod, &next))), "wire-bytes")
	b.ReportAllocs()
	for b.Loop() {
		Patch(pod, &next)
	}
}

// BenchmarkUnchanged measures a report that changes nothing, as most do.
func BenchmarkUnchanged(b *testing.B) {
	pod, u := typical()
	pod.Status, _ = Next(pod, u)
	b.ReportAllocs()
	for b.Loop() {
		next, _ := Next(pod, u)
		if Patch(pod, &next) != nil {
			b.Fatal("a patch")
		}
	}
}

// BenchmarkPeers does the work of Patch and Equal with apimachinery's general
// tools, for comparison.
func BenchmarkPeers(b *testing.B) {
	pod, u := typical()
	next, _ := Next(pod, u)
	b.Run("CreateTwoWayMergePatch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			before, _ := json.Marshal(corev1.Pod{Status: pod.Status})
			after, _ := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: next})
			if _, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	same := next.DeepCopy()
	b.Run("SemanticDeepEqual", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			equality.Semantic.DeepEqual(&next, same)
		}
	})
	b.Run("Equal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Equal(&next, same)
		}
	})
}
