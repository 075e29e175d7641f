// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/internal/optional"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// DefaultDeleteTimeout is the default of [Config.DeleteTimeout].
const DefaultDeleteTimeout = 5 * time.Minute

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
	// call Trigger of a nodestatus.Controller. The goroutine of the provider that reports the
	// Node calls it, maybe several at the same time. It must not block. A panic in it is
	// logged. Default: none.
	NodeChanged func()
	// Controller returns the controller that uses the adapter as its provider, or nil
	// before there is one. It is needed if the provider returns pods without their names,
	// annotations or containers. Then the adapter takes these from the controller for pods
	// that an earlier process has started. It is called at any time, from any goroutine, and
	// must answer from memory. Default: none.
	Controller func() *podsync.Controller
	// EventRecorder records the events of virtual-kubelet about pods, such as
	// ProviderCreateSuccess, and about missing references, such as
	// MandatorySecretNotFound. Default: none.
	EventRecorder events.EventRecorder
	// CreateError replaces an error of CreatePod by an error of [podsync.Provider] Start.
	// An error of podsync.Reject fails the pod. After any other error CreatePod is called
	// again. Set it for a provider that returns temporary errors as invalid input, or if
	// users of the provider rely on [FailNever]. It is called for several pods at the
	// same time, and must not block. Default: [RejectInvalid].
	CreateError func(pod *corev1.Pod, err error) error
	// NotFound reports whether an error of GetPod, GetPodStatus or DeletePod says that the
	// provider does not hold the pod. Set it for a provider with an error of its own for that:
	// while another error might mean it, a pod that ran keeps its status, and the event
	// ProviderGetFailed says so. An error that GetPod also has for a pod that cannot exist needs
	// no function. NotFound is called for several pods at the same time, and must not block.
	// Default: [IsNotFound].
	NotFound func(err error) bool
	// DeleteTimeout is the time, after the grace period, for which a pod may run on although
	// DeletePod has succeeded. After that, and after three such calls, the pod counts as
	// stopped, and the event ProviderDeleteIgnored says so. The instance may still run.
	// virtual-kubelet deletes such a pod at the end of the grace period. A negative value
	// means no limit: the pod stays until the provider shows its end. Default:
	// [DefaultDeleteTimeout].
	DeleteTimeout time.Duration
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
	problems = append(problems, optional.Check("provider", provider, optionalMethods)...)
	if err := lifecycle.InvalidConfig("vkadapter", problems); err != nil {
		return nil, err
	}
	if cfg.Controller == nil {
		cfg.Controller = func() *podsync.Controller { return nil }
	}
	if cfg.CreateError == nil {
		cfg.CreateError = RejectInvalid
	}
	if cfg.NotFound == nil {
		cfg.NotFound = IsNotFound
	}
	cfg.DeleteTimeout = cmp.Or(cfg.DeleteTimeout, DefaultDeleteTimeout)
	if cfg.Client != nil && cfg.Resolver == nil {
		resolver, err := podenv.New(podenv.Config{ConfigMaps: cfg.Client, Secrets: cfg.Client, Services: cfg.Client, ServiceAccounts: cfg.Client})
		if err != nil {
			return nil, fmt.Errorf("vkadapter: %w", err)
		}
		cfg.Resolver = resolver
	}
	a := &Adapter{
		cfg: cfg, provider: provider, held: newHoldings(cfg.Controller), registered: make(chan struct{}),
		environment: environment{client: cfg.Client, resolver: cfg.Resolver, events: cfg.EventRecorder},
	}
	a.notifier, _ = provider.(node.PodNotifier)
	a.held.notifies = a.notifier != nil
	a.finder = &finder{
		nodeName: cfg.NodeName, provider: provider, notifier: a.notifier, held: a.held,
		client: cfg.Client, controller: cfg.Controller, listOnce: cfg.ListOnce, notFound: cfg.NotFound,
		environment: a.environment,
	}
	a.finder.byUID, _ = provider.(uidHandler)
	a.life, a.end = context.WithCancel(context.Background())
	return a, nil
}

// The methods of node.NodeProvider, which a provider may have one by one.
type (
	pinger interface {
		Ping(ctx context.Context) error
	}
	statusNotifier interface {
		NotifyNodeStatus(ctx context.Context, notify func(*corev1.Node))
	}
)

// optionalMethods are the methods that New looks for in a provider. A NodeProvider has its two, and the
// others are not called there.
var optionalMethods = []optional.Method{
	optional.Of(node.PodNotifier.NotifyPods, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("NotifyPods") }),
	optional.Of(pinger.Ping, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Ping") }),
	optional.Of(statusNotifier.NotifyNodeStatus, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("NotifyNodeStatus") }),
	optional.Of(uidHandler.GetPodByUID, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("GetPodByUID") }),
	optional.Of(uidHandler.GetPodStatusByUID, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("GetPodStatusByUID") }),
	optional.Of(logProvider.GetContainerLogs, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("GetContainerLogs") }),
	optional.Of(execProvider.RunInContainer, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("RunInContainer") }),
	optional.Of(attachProvider.AttachToContainer, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("AttachToContainer") }),
	optional.Of(forwardProvider.PortForward, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("PortForward") }),
	optional.Of(statsProvider.GetStatsSummary, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("GetStatsSummary") }),
	optional.Of(metricsProvider.GetMetricsResource, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("GetMetricsResource") }),
}
