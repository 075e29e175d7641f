// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package side runs a provider that nobody here wrote with vkadapter and with
// virtual-kubelet's own node package, through one scenario, in virtual time.
package side

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/vkadapter"
)

// NodeName is the node of every port.
const NodeName = "port"

// The names of the sides.
const (
	Kubewright     = "kubewright"
	VirtualKubelet = "virtual-kubelet"
)

// A Process returns the provider of one process.
type Process func(nodeutil.ProviderConfig) node.PodLifecycleHandler

// A Port is a provider with a fake of its back end. The back end outlives the processes.
type Port struct {
	Cloud *Cloud
	// Process prepares the provider of a process outside of the bubble: goroutines that
	// the provider starts there need not end.
	Process func(*testing.T) Process
	// Exit ends the containers of a pod of the namespace default with exit code 0.
	Exit func(pod string)
	// Silence adds a stage in which the back end does not answer at all. Without it the
	// back end is behind a socket, on which virtual time does not pass.
	Silence bool
}

// Errors of the back end.
var (
	ErrAway  = errors.New("500 Internal Server Error")
	errReset = errors.New("connection reset by peer")
)

// A Cloud is what the fakes of all back ends have in common. Its zero value is a back end
// that answers and holds nothing.
type Cloud struct {
	mu     sync.Mutex
	errors bool
	silent chan struct{} // closed when the silence ends; nil: the back end answers
	holds  map[string]bool
	starts map[string]int // of each pod, for each of which one is right
}

// Call begins a call. It returns an error if the back end is away.
func (c *Cloud) Call(ctx context.Context) error {
	c.mu.Lock()
	fails, silent := c.errors, c.silent
	c.mu.Unlock()
	if fails {
		return ErrAway
	}
	if silent != nil {
		select {
		case <-silent:
			return errReset
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Started records that the back end has started an instance of a pod.
func (c *Cloud) Started(instance, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds == nil {
		c.holds, c.starts = make(map[string]bool), make(map[string]int)
	}
	c.holds[instance] = true
	c.starts[pod]++
}

// Stopped records that the back end no longer has an instance.
func (c *Cloud) Stopped(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, instance)
}

// Fail begins or ends a time in which every call fails.
func (c *Cloud) Fail(fails bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors = fails
}

// fallSilent begins a time in which no call is answered. It returns the function that ends
// it: then the calls that wait fail.
func (c *Cloud) fallSilent() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := make(chan struct{})
	c.silent = silent
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.silent = nil
		close(silent)
	}
}

func (c *Cloud) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := 0
	for _, n := range c.starts {
		most = max(most, n)
	}
	return fmt.Sprintf("%d instances, at most %d for a pod; ", len(c.holds), most)
}

// run is Run of a node.
type run func(context.Context) error

func start(t *testing.T, side string, s *apitest.Server, p Process, lockDir string) run {
	if side == Kubewright {
		n, err := vkadapter.NewNode(NodeName, func(pc nodeutil.ProviderConfig) (node.PodLifecycleHandler, node.NodeProvider, error) {
			return p(pc), nil, nil
		}, vkadapter.NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: &idle{done: make(chan struct{})}, LockDir: lockDir})
		if err != nil {
			t.Fatal(err)
		}
		return n.Run
	}
	n, err := nodeutil.NewNode(NodeName, func(pc nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
		provider := p(pc)
		if whole, ok := provider.(nodeutil.Provider); ok {
			return whole, nil, nil
		}
		return bare{PodLifecycleHandler: provider}, nil, nil
	}, nodeutil.WithClient(s.Client(apitest.User{})))
	if err != nil {
		t.Fatal(err)
	}
	return n.Run
}

// bare adds the methods that virtual-kubelet requires today to a provider of 2019. Nothing
// here calls them, so they are those of a nil interface.
type bare struct {
	node.PodLifecycleHandler
	added
}

// added is one level deeper, so that the provider's own methods come first.
type added struct{ nodeutil.Provider }

// idle is a listener without connections.
type idle struct {
	done chan struct{}
	once sync.Once
}

func (i *idle) Accept() (net.Conn, error) { <-i.done; return nil, net.ErrClosed }
func (i *idle) Close() error              { i.once.Do(func() { close(i.done) }); return nil }
func (*idle) Addr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 10250} }

func put(s *apitest.Server, name string) {
	s.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: NodeName, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(30)),
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
		},
	})
}

// Run runs the scenario with one side, and returns what there is after each stage: the
// instances of the back end, and the phases of the pods in the API.
func (p *Port) Run(t *testing.T, side string) (stages []string) {
	processes := []Process{p.Process(t), p.Process(t), p.Process(t)}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		begin := func(process Process) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			f := start(t, side, s, process, dir)
			go func() { done <- f(ctx) }()
			time.Sleep(15 * time.Second)
			return func() { cancel(); <-done }
		}
		note := func(stage string) { stages = append(stages, stage+": "+p.Cloud.state()+phases(s)) }

		end := begin(processes[0])
		put(s, "web")
		put(s, "gone")
		time.Sleep(time.Minute)
		note("created")

		back := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused}) // killed: it writes nothing more
		end()
		back()
		apitest.Delete[*corev1.Pod](s, "default", "gone")
		end = begin(processes[1])
		time.Sleep(2 * time.Minute)
		note("restarted, one deleted meanwhile")

		p.Cloud.Fail(true)
		put(s, "new")
		time.Sleep(2 * time.Minute)
		p.Cloud.Fail(false)
		time.Sleep(7 * time.Minute)
		note("after two minutes of errors")

		if p.Silence {
			answer := p.Cloud.fallSilent()
			put(s, "late")
			time.Sleep(2 * time.Minute)
			answer()
			time.Sleep(7 * time.Minute)
			note("after two minutes of silence")
		}

		back = s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		p.Exit("web")
		time.Sleep(time.Minute)
		back()
		time.Sleep(2 * time.Minute)
		note("after a minute without the API server, web ended")

		endSecond := begin(processes[2])
		put(s, "two")
		time.Sleep(time.Minute)
		endSecond()
		note("with a second process")

		for _, pod := range apitest.List[*corev1.Pod](s, "default") {
			if err := s.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * time.Minute)
		note("deleted")
		end()
		t.Logf("%d requests about pods", len(s.Requests(apitest.Match{Resource: "pods"}))+len(s.Requests(apitest.Match{Resource: "pods/status"})))
	})
	return stages
}

// Alive is what kubewright makes of a provider that finds its instances by the names of their
// pods, and can be silenced.
var Alive = []string{
	"created: 2 instances, at most 1 for a pod; gone Running, web Running",
	"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
	"after two minutes of errors: 2 instances, at most 1 for a pod; new Running, web Running",
	"after two minutes of silence: 3 instances, at most 1 for a pod; late Running, new Running, web Running",
	"after a minute without the API server, web ended: 3 instances, at most 1 for a pod; late Running, new Running, web Succeeded",
	"with a second process: 4 instances, at most 1 for a pod; late Running, new Running, two Running, web Succeeded",
	"deleted: 0 instances, at most 1 for a pod; ",
}

// Compare runs the scenario with both sides. For kubewright want is what must hold; for
// virtual-kubelet it is what was observed, which docs/compare.md shows. A line may be
// alternatives in brackets, as in a regular expression, if the outcome depends on the run.
func Compare(t *testing.T, newPort func(*testing.T) *Port, want map[string][]string) {
	for _, side := range []string{Kubewright, VirtualKubelet} {
		t.Run(side, func(t *testing.T) {
			got := newPort(t).Run(t, side)
			if !slices.EqualFunc(got, want[side], func(got, want string) bool { return regexp.MustCompile("^" + want + "$").MatchString(got) }) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[side], "\n"))
			}
		})
	}
}

func phases(s *apitest.Server) string {
	var all []string
	for _, pod := range apitest.List[*corev1.Pod](s, "default") {
		about := strings.TrimSpace(fmt.Sprintf("%s %s %s", pod.Name, pod.Status.Phase, pod.Status.Reason))
		if pod.DeletionTimestamp != nil {
			about += " Terminating"
		}
		all = append(all, about)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
