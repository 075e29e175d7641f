// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package azureaci runs the provider of azure-aci, as its module has it, with vkadapter and
// with virtual-kubelet's own node package, side by side. Its cloud is a fake.
package azureaci

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	azaci "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerinstance/armcontainerinstance/v2"
	"github.com/virtual-kubelet/azure-aci/pkg/auth"
	"github.com/virtual-kubelet/azure-aci/pkg/client"
	aci "github.com/virtual-kubelet/azure-aci/pkg/provider"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/vkadapter"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const nodeName = "aci"

// azure is a fake of the calls that the provider makes. It outlives the process.
type azure struct {
	client.AzClientsInterface // of the calls that are not faked: a nil pointer

	mu      sync.Mutex
	away    bool
	groups  map[string]*azaci.ContainerGroup
	creates map[types.UID]int // how many groups each pod had
}

func newAzure() *azure {
	return &azure{groups: map[string]*azaci.ContainerGroup{}, creates: map[types.UID]int{}}
}

var errAway = fmt.Errorf("500 Internal Server Error")

func (a *azure) CreateContainerGroup(_ context.Context, _, namespace, name string, cg *azaci.ContainerGroup) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return errAway
	}
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
	a.creates[types.UID(*cg.Tags["UID"])]++
	return nil
}

func (a *azure) GetContainerGroup(_ context.Context, _, name string) (*azaci.ContainerGroup, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return nil, errAway
	}
	if cg, ok := a.groups[name]; ok {
		return cg, nil
	}
	return nil, errdefs.NotFound("cg is not found")
}

func (a *azure) GetContainerGroupInfo(ctx context.Context, group, namespace, name, _ string) (*azaci.ContainerGroup, error) {
	return a.GetContainerGroup(ctx, group, namespace+"-"+name)
}

func (a *azure) GetContainerGroupListResult(context.Context, string) (list []*azaci.ContainerGroup, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return nil, errAway
	}
	for _, cg := range a.groups {
		list = append(list, cg)
	}
	return list, nil
}

func (a *azure) DeleteContainerGroup(_ context.Context, _, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return errAway
	}
	delete(a.groups, name)
	return nil
}

func (a *azure) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
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

func (a *azure) state() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	most := 0
	for _, n := range a.creates {
		most = max(most, n)
	}
	return fmt.Sprintf("%d groups, %d for each pod; ", len(a.groups), most)
}

// late is a lister that a provider gets before the process that has it begins: the provider
// starts goroutines that never end, so it must be made outside of the bubble.
type late struct{ corev1listers.PodLister }

// A process is a provider and the machinery around it.
type process struct {
	provider *aci.ACIProvider
	pods     *late
}

func newProcess(t *testing.T, cloud *azure) *process {
	t.Setenv("ACI_RESOURCE_GROUP", "group")
	t.Setenv("ACI_REGION", "westeurope")
	t.Setenv("ACI_VNET_NAME", "net")
	t.Setenv("ACI_VNET_RESOURCE_GROUP", "group")
	p := &process{pods: &late{}}
	pc := nodeutil.ProviderConfig{Pods: p.pods}
	var err error
	p.provider, err = aci.NewACIProvider(context.Background(), "", auth.Config{AuthConfig: &auth.Authentication{}}, cloud, pc, nodeName, "Linux", "192.0.2.1", 10250, "cluster.local", apitest.New(apitest.Options{}).Client(apitest.User{}))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run is Run of a node.
type run func(context.Context) error

var sides = map[string]func(t *testing.T, s *apitest.Server, p *process, lockDir string) run{
	"kubewright": func(t *testing.T, s *apitest.Server, p *process, lockDir string) run {
		n, err := vkadapter.NewNode(nodeName, func(pc nodeutil.ProviderConfig) (*aci.ACIProvider, node.NodeProvider, error) {
			p.pods.PodLister = pc.Pods
			p.provider.ConfigureNode(t.Context(), pc.Node)
			return p.provider, nil, nil
		}, vkadapter.NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: &silent{done: make(chan struct{})}, LockDir: lockDir})
		if err != nil {
			t.Fatal(err)
		}
		return n.Run
	},
	"virtual-kubelet": func(t *testing.T, s *apitest.Server, p *process, _ string) run {
		n, err := nodeutil.NewNode(nodeName, func(pc nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
			p.pods.PodLister = pc.Pods
			p.provider.ConfigureNode(t.Context(), pc.Node)
			return p.provider, nil, nil
		}, nodeutil.WithClient(s.Client(apitest.User{})))
		if err != nil {
			t.Fatal(err)
		}
		return n.Run
	},
}

// silent is a listener without connections.
type silent struct {
	done chan struct{}
	once sync.Once
}

func (s *silent) Accept() (net.Conn, error) { <-s.done; return nil, net.ErrClosed }
func (s *silent) Close() error              { s.once.Do(func() { close(s.done) }); return nil }
func (*silent) Addr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 10250} }

func put(s *apitest.Server, name string, uid types.UID) {
	s.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec: corev1.PodSpec{
			NodeName: nodeName, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(30)),
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
		},
	})
}

// The stages of the scenario, and what each side has after them: for kubewright what must
// hold, for virtual-kubelet what was observed, which docs/compare.md shows.
var want = map[string][]string{
	"kubewright": {
		"created: 2 groups, 1 for each pod; gone Running, web Running",
		"restarted, one deleted meanwhile: 1 groups, 1 for each pod; web Running",
		"after two minutes without the back end: 2 groups, 1 for each pod; new Running, web Running",
		"after a minute without the API server, web ended: 2 groups, 1 for each pod; new Running, web Succeeded",
		"deleted: 0 groups, 1 for each pod; ",
	},
	"virtual-kubelet": {
		"created: 2 groups, 1 for each pod; gone Running, web Running",
		"restarted, one deleted meanwhile: 1 groups, 1 for each pod; web Running",
		"after two minutes without the back end: 1 groups, 1 for each pod; new Failed ProviderFailed, web Running",
		"after a minute without the API server, web ended: 1 groups, 1 for each pod; new Failed ProviderFailed, web Succeeded",
		"deleted: 0 groups, 1 for each pod; ",
	},
}

func TestSideBySide(t *testing.T) {
	for name, start := range sides {
		t.Run(name, func(t *testing.T) {
			cloud := newAzure()
			first, second := newProcess(t, cloud), newProcess(t, cloud)
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				begin := func(p *process) (end func()) {
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					f := start(t, s, p, dir)
					go func() { done <- f(ctx) }()
					time.Sleep(15 * time.Second)
					return func() { cancel(); <-done }
				}
				var got []string
				note := func(stage string) { got = append(got, stage+": "+cloud.state()+phases(s)) }

				end := begin(first)
				put(s, "web", "1")
				put(s, "gone", "2")
				time.Sleep(time.Minute)
				note("created")

				back := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused}) // killed: it writes nothing more
				end()
				back()
				apitest.Delete[*corev1.Pod](s, "default", "gone")
				end = begin(second)
				time.Sleep(2 * time.Minute)
				note("restarted, one deleted meanwhile")

				cloud.setAway(true)
				put(s, "new", "3")
				time.Sleep(2 * time.Minute)
				cloud.setAway(false)
				time.Sleep(7 * time.Minute)
				note("after two minutes without the back end")

				back = s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
				cloud.exit("default-web")
				time.Sleep(time.Minute)
				back()
				time.Sleep(2 * time.Minute)
				note("after a minute without the API server, web ended")

				for _, pod := range []string{"web", "new"} {
					if err := s.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(2 * time.Minute)
				note("deleted")
				end()

				if !slices.Equal(got, want[name]) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[name], "\n"))
				}
				t.Logf("%d requests about pods", len(s.Requests(apitest.Match{Resource: "pods"}))+len(s.Requests(apitest.Match{Resource: "pods/status"})))
			})
		})
	}
}

func phases(s *apitest.Server) string {
	var all []string
	for _, pod := range apitest.List[*corev1.Pod](s, "default") {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", pod.Name, pod.Status.Phase, pod.Status.Reason)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
