// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			name := fmt.Sprintf("node-%d", i)
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			c, err := New(Config{
				Client:   s.Client(apitest.NodeUser(name)).CoordinationV1(),
				NodeName: name,
				Process:  "host", // with the default, a last write follows
				Owner:    (&owners{server: s}).get,
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: ErrAlreadyRun,
		// 12 visits a minute, each a GET and a POST at most. With Retry-After: 1
		// client-go itself repeats each of them every second.
		MaxPerHour:  3600,
		ReadyWithin: 17 * time.Second,
	}, testing.Short())
}
