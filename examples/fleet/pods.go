// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsim"
)

// newPods returns the controller of all the fleet's pods and its informer,
// which the caller must run. The controller acts for a node only if gate allows
// it. One watch covers ten thousand nodes.
func newPods(client kubernetes.Interface, prefix string, runFor time.Duration, gate podsync.GateFunc, hooks podsync.Hooks) (*podsync.Controller, cache.SharedIndexInformer, *podsim.Provider, error) {
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, bound)
	informer := cache.NewSharedIndexInformerWithOptions(lw, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	// Only the controller reads the informer, and it reads encoded pods as well.
	if err := informer.SetTransform(podsync.Compact); err != nil {
		return nil, nil, nil, err
	}
	provider, err := podsim.New(podsim.Config{RunFor: runFor})
	if err != nil {
		return nil, nil, nil, err
	}
	controller, err := podsync.New(podsync.Config{
		Client:   client.CoreV1(),
		Provider: provider,
		Informer: informer,
		Gate:     gate,
		Hooks:    hooks,
		Owns: func(pod *corev1.Pod) bool {
			return strings.HasPrefix(pod.Spec.NodeName, prefix)
		},
		// The pods of this provider end with the process, so pods that had
		// started are simply started again.
		Policy: podsync.Policy{Lost: podsync.LostRestart, CompleteList: true},
	})
	return controller, informer, provider, err
}
