// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestARestoredBackupHasTheOldObjectsAndVersions(t *testing.T) {
	s := New(Options{})
	put := func(name, value string) *corev1.ConfigMap {
		return s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"k": value}}).(*corev1.ConfigMap)
	}
	old := put("a", "1")
	restore := s.Backup()
	later := put("a", "2")
	put("b", "1")
	restore()
	got := Get[*corev1.ConfigMap](s, "default", "a")
	if got.ResourceVersion != old.ResourceVersion || got.Data["k"] != "1" || Get[*corev1.ConfigMap](s, "default", "b") != nil {
		t.Errorf("restored %v", got)
	}
	if next := put("a", "3"); len(next.ResourceVersion) >= len(later.ResourceVersion) {
		t.Errorf("the next version is %s, after %s and a backup at %s", next.ResourceVersion, later.ResourceVersion, old.ResourceVersion)
	}
}
