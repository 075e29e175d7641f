// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"log"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/vkadapter"
)

// newProvider is what a program for virtual-kubelet passes to nodeutil.NewNode.
var newProvider nodeutil.NewProviderFunc

// A program whose function newProvider was written for nodeutil.NewNode.
func ExampleNewNode() {
	api, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	api.QPS = -1 // the API server has limits of its own
	virtual, err := vkadapter.NewNode("vk", newProvider, vkadapter.NodeConfig{
		Client:     kubernetes.NewForConfigOrDie(api),
		InternalIP: "192.0.2.7",
		Adapter:    func(cfg *vkadapter.Config) { cfg.CreateError = vkadapter.FailNever },
		Pods:       func(cfg *podsync.Config) { cfg.Policy.Lost = podsync.LostFail },
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := virtual.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// A program that makes the controllers itself.
func ExampleNew() {
	var (
		client       kubernetes.Interface
		provider     node.PodLifecycleHandler
		nodeProvider node.NodeProvider
		pods         *podsync.Controller
	)
	adapter, err := vkadapter.New(provider, vkadapter.Config{
		NodeName:     "vk",
		Client:       client.CoreV1(),
		NodeProvider: nodeProvider,
		Controller:   func() *podsync.Controller { return pods },
	})
	if err != nil {
		log.Fatal(err)
	}
	pods, err = podsync.New(podsync.Config{
		NodeName: "vk",
		Client:   client.CoreV1(),
		Provider: adapter,
		Relist:   adapter.Relist(),
		Policy:   podsync.Policy{TrustPhase: true, UpdateMetadata: true},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = nodestatus.Config{
		NodeName:     "vk",
		Client:       client.CoreV1(),
		Setters:      []nodestatus.Setter{adapter.Setter},
		HealthChecks: []nodestatus.HealthCheck{adapter.HealthCheck, pods.CheckProvider},
	}
	// adapter.Backend() is the Backend of a nodeapi.Config.
}
