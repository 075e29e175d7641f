// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// Two managers apply one field.
func Example_apply() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
	apply := func(manager, value string, force bool) {
		config := corev1apply.ConfigMap("c", "default").WithData(map[string]string{"colour": value})
		cm, err := maps.Apply(ctx, config, metav1.ApplyOptions{FieldManager: manager, Force: force})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(manager, "set", cm.Data["colour"])
	}
	apply("one", "red", false)
	apply("two", "blue", false)
	apply("two", "blue", true)
	// Output:
	// one set red
	// Apply failed with 1 conflict: conflict with "one": .data.colour
	// two set blue
}
