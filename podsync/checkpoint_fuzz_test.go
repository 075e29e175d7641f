// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FuzzRecord reads what a disk may have made of the record of a pod. What is accepted is
// the record of that pod, and is written as it was read.
func FuzzRecord(f *testing.F) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}}
	data, err := (&record{Pod: pod}).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, "1")
	f.Add(data, "2")
	f.Add(data[:len(data)-1], "1")
	f.Add(bytes.Replace(data, []byte("ns"), []byte("no"), 1), "1")
	f.Add([]byte("kubewright pod 1 00000000\n"), "")
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		r, err := decodeRecord(types.UID(uid), data)
		if err != nil {
			return
		}
		if r.Pod == nil || string(r.Pod.UID) != uid {
			t.Fatalf("the record of another pod was accepted: %+v", r.Pod)
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord(types.UID(uid), again); err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
	})
}
