// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package azureaci runs the provider of azure-aci, as its module has it, with vkadapter and
// with virtual-kubelet's own node package, side by side. Its cloud is a fake.
package azureaci

import (
	"context"
	"sync"
	"testing"
	"time"

	azaci "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerinstance/armcontainerinstance/v2"
	"github.com/virtual-kubelet/azure-aci/pkg/auth"
	"github.com/virtual-kubelet/azure-aci/pkg/client"
	aci "github.com/virtual-kubelet/azure-aci/pkg/provider"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/test/ports/internal/side"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// azure is a fake of the calls that the provider makes.
type azure struct {
	client.AzClientsInterface // of the calls that are not faked: a nil pointer
	side.Cloud

	mu     sync.Mutex
	groups map[string]*azaci.ContainerGroup
}

func newAzure() *azure { return &azure{groups: map[string]*azaci.ContainerGroup{}} }

func (a *azure) CreateContainerGroup(ctx context.Context, _, namespace, name string, cg *azaci.ContainerGroup) error {
	if err := a.Call(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	name = namespace + "-" + name
	state, running, now, none := "Succeeded", "Running", time.Now(), int32(0)
	cg.Name, cg.ID, cg.Properties.ProvisioningState = &name, &name, &state
	cg.Properties.InstanceView = &azaci.ContainerGroupPropertiesInstanceView{State: &running}
	for _, c := range cg.Properties.Containers {
		c.Properties.InstanceView = &azaci.ContainerPropertiesInstanceView{
			CurrentState: &azaci.ContainerState{State: &running, StartTime: &now, DetailStatus: &running},
			RestartCount: &none, Events: []*azaci.Event{},
		}
	}
	a.groups[name] = cg
	a.Started(name, *cg.Tags["UID"])
	return nil
}

func (a *azure) GetContainerGroup(ctx context.Context, _, name string) (*azaci.ContainerGroup, error) {
	if err := a.Call(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if cg, ok := a.groups[name]; ok {
		return cg, nil
	}
	return nil, errdefs.NotFound("cg is not found")
}

func (a *azure) GetContainerGroupInfo(ctx context.Context, group, namespace, name, _ string) (*azaci.ContainerGroup, error) {
	return a.GetContainerGroup(ctx, group, namespace+"-"+name)
}

func (a *azure) GetContainerGroupListResult(ctx context.Context, _ string) (list []*azaci.ContainerGroup, err error) {
	if err := a.Call(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cg := range a.groups {
		list = append(list, cg)
	}
	return list, nil
}

func (a *azure) DeleteContainerGroup(ctx context.Context, _, name string) error {
	if err := a.Call(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.groups, name)
	a.Stopped(name)
	return nil
}

// exit ends the containers of a group with exit code 0.
func (a *azure) exit(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended, now := "Succeeded", time.Now()
	cg := a.groups[name]
	cg.Properties.InstanceView = &azaci.ContainerGroupPropertiesInstanceView{State: &ended}
	for _, c := range cg.Properties.Containers {
		view := *c.Properties.InstanceView
		view.CurrentState = &azaci.ContainerState{State: &ended, StartTime: view.CurrentState.StartTime, FinishTime: &now, ExitCode: new(int32), DetailStatus: &ended}
		c.Properties.InstanceView = &view
	}
}

// late is a lister that a provider gets before the process that has it begins: the provider
// starts goroutines that never end, so it must be made outside of the bubble.
type late struct{ corev1listers.PodLister }

func (a *azure) process(t *testing.T) side.Process {
	t.Setenv("ACI_RESOURCE_GROUP", "group")
	t.Setenv("ACI_REGION", "westeurope")
	t.Setenv("ACI_VNET_NAME", "net")
	t.Setenv("ACI_VNET_RESOURCE_GROUP", "group")
	pods := &late{}
	provider, err := aci.NewACIProvider(context.Background(), "", auth.Config{AuthConfig: &auth.Authentication{}}, a, nodeutil.ProviderConfig{Pods: pods}, side.NodeName, "Linux", "192.0.2.1", 10250, "cluster.local", apitest.New(apitest.Options{}).Client(apitest.User{}))
	if err != nil {
		t.Fatal(err)
	}
	return func(pc nodeutil.ProviderConfig) node.PodLifecycleHandler {
		pods.PodLister = pc.Pods
		provider.ConfigureNode(context.Background(), pc.Node)
		return provider
	}
}

func TestSideBySide(t *testing.T) {
	side.Compare(t, func(*testing.T) *side.Port {
		a := newAzure()
		return &side.Port{Cloud: &a.Cloud, Process: a.process, Exit: func(pod string) { a.exit("default-" + pod) }, Silence: true}
	}, map[string][]string{
		side.Kubewright: side.Alive,
		// Two processes create the pod "two" twice in some runs.
		side.VirtualKubelet: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 1 instances, at most 1 for a pod; new Failed ProviderFailed, web Running",
			"after two minutes of silence: 2 instances, at most 1 for a pod; late Running, new Failed ProviderFailed, web Running",
			"after a minute without the API server, web ended: 2 instances, at most 1 for a pod; late Running, new Failed ProviderFailed, web Succeeded",
			"with a second process: 3 instances, at most (1|2) for a pod; late Running, new Failed ProviderFailed, two Running, web Succeeded",
			"deleted: 0 instances, at most (1|2) for a pod; ",
		},
	})
}
