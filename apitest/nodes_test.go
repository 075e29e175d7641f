// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
)

func TestNodeStatusIsRefusedAsByTheRealServer(t *testing.T) {
	hostname := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n"}
	internal := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "n"}
	for _, test := range []struct {
		name    string
		version string
		status  corev1.NodeStatus
		want    string // part of the refusal; empty if the write is accepted
	}{
		{"different addresses", "", corev1.NodeStatus{Addresses: []corev1.NodeAddress{hostname, internal}}, ""},
		{"an address twice", "", corev1.NodeStatus{Addresses: []corev1.NodeAddress{hostname, internal, hostname}}, `status.addresses[2]: Duplicate value`},
		{"sorted features", "", corev1.NodeStatus{DeclaredFeatures: []string{"A", "A/b", "B"}}, ""},
		{"unsorted features", "", corev1.NodeStatus{DeclaredFeatures: []string{"B", "A"}}, `status.declaredFeatures[1]: Invalid value: "A": list must be sorted alphabetically`},
		{"a feature twice", "", corev1.NodeStatus{DeclaredFeatures: []string{"A", "A"}}, `status.declaredFeatures[1]: Duplicate value: "A"`},
		{"a feature in lower case", "", corev1.NodeStatus{DeclaredFeatures: []string{"a"}}, `must start with an UpperCamelCase segment`},
		{"a long feature", "", corev1.NodeStatus{DeclaredFeatures: []string{"A" + strings.Repeat("a", 253)}}, `must be no more than 253 characters`},
		{"features of a server without them", "v1.34.0", corev1.NodeStatus{DeclaredFeatures: []string{"b", "a"}}, ""},
	} {
		t.Run(test.name, bubble(func(t *testing.T) {
			s := apitest.New(apitest.Options{Version: test.version})
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			patch, err := json.Marshal(map[string]any{"status": test.status})
			if err != nil {
				t.Fatal(err)
			}
			n, err := s.Client(apitest.NodeUser("n")).CoreV1().Nodes().Patch(t.Context(), "n", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want a refusal with %q", err, test.want)
			}
			if test.version != "" && n.Status.DeclaredFeatures != nil {
				t.Errorf("an old server kept %v", n.Status.DeclaredFeatures)
			}
		}))
	}
}
