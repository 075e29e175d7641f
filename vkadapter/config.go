// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"fmt"
	"reflect"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// Config configures an Adapter. The zero value of every optional field means the
// default that its comment states.
type Config struct {
	// Required. NodeName is the node whose pods the provider runs.
	NodeName string

	// Client reads the ConfigMaps, Secrets and Services that environment variables
	// refer to. The provider gets their values, as from virtual-kubelet.
	// clientset.CoreV1() is one. Default: none, and the provider gets the variables as they
	// are in the pod, as with SkipDownwardAPIResolution of virtual-kubelet.
	Client corev1client.CoreV1Interface
	// Resolver is used instead of a Resolver that New makes with Client. A provider that
	// mounts volumes can share its Resolver with the adapter: Pod.Volume returns the files
	// of ConfigMaps, Secrets, tokens and the downward API. Default: made with Client.
	Resolver *podenv.Resolver
	// NodeProvider is the part of the provider that is about its Node, the second result
	// of a NewProviderFunc. The methods Setter, HealthCheck and Node of the Adapter use
	// it. Default: none.
	NodeProvider node.NodeProvider
	// NodeChanged is called when NodeProvider has reported a new Node, for example to
	// call Trigger of a nodestatus.Controller. It must not block. Default: none.
	NodeChanged func()
	// Controller returns the controller that uses the adapter as its provider, or nil
	// before there is one. It is needed if the provider returns pods without their names,
	// annotations or containers. Then the adapter takes these from the controller for pods
	// that an earlier process has started. Default: none.
	Controller func() *podsync.Controller
	// EventRecorder records the events of virtual-kubelet about pods, such as
	// ProviderCreateSuccess, and about missing references, such as
	// MandatorySecretNotFound. Default: none.
	EventRecorder events.EventRecorder
	// CreateError replaces an error of CreatePod by an error of [podsync.Provider] Start.
	// An error of podsync.Reject fails the pod. After any other error CreatePod is called
	// again. Set it for a provider that returns temporary errors as invalid input, or if
	// users of the provider rely on [FailNever]. Default: [RejectInvalid].
	CreateError func(pod *corev1.Pod, err error) error
	// ListOnce makes the adapter call GetPods only once, when Run begins, as
	// virtual-kubelet does. Set it for a provider whose GetPods starts a loop, or returns
	// nothing after the first call. The adapter then looks up known pods with GetPod, one by
	// one. Default: GetPods is called again and again; see List.
	ListOnce bool
}

// New returns an Adapter for a provider that was written for virtual-kubelet. The error
// names every invalid field of cfg. It also names every method of the provider that has the
// name of an optional method, but another signature. New does not call the provider.
func New(provider node.PodLifecycleHandler, cfg Config) (*Adapter, error) {
	var problems []error
	if lifecycle.IsNil(provider) {
		problems = append(problems, field.Required(field.NewPath("provider"), "it runs the pods"))
	}
	problems = append(problems, nodename.CheckFirst("NodeName", cfg.NodeName, "", false)...)
	if cfg.Resolver != nil && cfg.Client == nil {
		problems = append(problems, field.Required(field.NewPath("Client"), "with Resolver, to tell a missing object from a missing key"))
	}
	problems = append(problems, checkMethods("provider", provider)...)
	problems = append(problems, checkMethods("NodeProvider", cfg.NodeProvider)...)
	if err := lifecycle.InvalidConfig("vkadapter", problems); err != nil {
		return nil, err
	}
	if cfg.Controller == nil {
		cfg.Controller = func() *podsync.Controller { return nil }
	}
	if cfg.CreateError == nil {
		cfg.CreateError = RejectInvalid
	}
	if cfg.Client != nil && cfg.Resolver == nil {
		resolver, err := podenv.New(podenv.Config{ConfigMaps: cfg.Client, Secrets: cfg.Client, Services: cfg.Client, ServiceAccounts: cfg.Client})
		if err != nil {
			return nil, fmt.Errorf("vkadapter: %w", err)
		}
		cfg.Resolver = resolver
	}
	a := &Adapter{
		cfg: cfg, provider: provider, held: newHoldings(cfg.Controller),
		environment: environment{client: cfg.Client, resolver: cfg.Resolver, events: cfg.EventRecorder},
	}
	a.notifier, _ = provider.(node.PodNotifier)
	a.finder = &finder{
		nodeName: cfg.NodeName, provider: provider, notifier: a.notifier, held: a.held,
		client: cfg.Client, controller: cfg.Controller, listOnce: cfg.ListOnce,
	}
	a.finder.byUID, _ = provider.(uidHandler)
	a.life, a.end = context.WithCancel(context.Background())
	return a, nil
}

// optional are the methods that New looks for, each in an interface of its own kind.
var optional = []reflect.Type{
	reflect.TypeFor[node.PodNotifier](), reflect.TypeFor[node.NodeProvider](), reflect.TypeFor[uidHandler](),
	reflect.TypeFor[logProvider](), reflect.TypeFor[execProvider](), reflect.TypeFor[attachProvider](),
	reflect.TypeFor[forwardProvider](), reflect.TypeFor[statsProvider](), reflect.TypeFor[metricsProvider](),
}

// checkMethods returns the methods of v that look like optional ones and are not: without
// this check their feature would be missing without a word.
func checkMethods(what string, v any) (problems []error) {
	if v == nil {
		return nil
	}
	has := reflect.TypeOf(v)
	for _, want := range optional {
		for i := range want.NumMethod() {
			m := want.Method(i)
			got, ok := has.MethodByName(m.Name)
			if !ok {
				if want == reflect.TypeFor[uidHandler]() && anyMethod(has, want) {
					problems = append(problems, field.Required(field.NewPath(what).Child(m.Name), fmt.Sprintf("%v has its companion, and both are needed: %v", has, m.Type)))
				}
				continue
			}
			if signature := withoutReceiver(got.Type); signature != m.Type {
				problems = append(problems, field.TypeInvalid(field.NewPath(what).Child(m.Name), signature.String(), fmt.Sprintf("want %v", m.Type)))
			}
		}
	}
	return problems
}

// anyMethod reports whether t has a method with the name of one of want.
func anyMethod(t, want reflect.Type) bool {
	for i := range want.NumMethod() {
		if _, ok := t.MethodByName(want.Method(i).Name); ok {
			return true
		}
	}
	return false
}

// withoutReceiver returns the type of a method as an interface has it.
func withoutReceiver(method reflect.Type) reflect.Type {
	in, out := make([]reflect.Type, 0, method.NumIn()), make([]reflect.Type, 0, method.NumOut())
	for i := 1; i < method.NumIn(); i++ {
		in = append(in, method.In(i))
	}
	for i := range method.NumOut() {
		out = append(out, method.Out(i))
	}
	return reflect.FuncOf(in, out, method.IsVariadic())
}
