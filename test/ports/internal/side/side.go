// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package side runs a provider that nobody here wrote with vkadapter and with
// virtual-kubelet's own node package: through one scenario in virtual time (Compare), in
// processes that are killed (Killed), and behind the HTTP servers of both (Answers).
package side

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
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
	"k8s.io/client-go/kubernetes"

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

// A Port is a provider with a fake of its back end.
type Port struct {
	Cloud *Cloud
	// Env is the environment in which New finds the back end at url.
	Env func(url string) map[string]string
	// New prepares the provider of a process. In a test with virtual time it is called
	// outside of the bubble: goroutines that the provider starts there need not end.
	New func() (Process, error)
	// Exit ends the containers of a pod of the namespace default with exit code 0.
	Exit func(pod string)
	// Socket is set if the provider makes an HTTP client of its own. Then there is no stage
	// in which the back end does not answer at all, because virtual time does not pass on a
	// socket.
	Socket bool
	// DeleteTimeout is that of vkadapter in the processes of Killed. Zero means the default.
	DeleteTimeout time.Duration
	// NotEmpty leaves out the stage in which the back end answers with nothing.
	NotEmpty bool
}

// run is Run of a node.
type run func(context.Context) error

// newNode makes a node of one side. cfg is used only for vkadapter.
func newNode(side string, client kubernetes.Interface, p Process, cfg vkadapter.NodeConfig) (run, error) {
	if side == Kubewright {
		cfg.Client = client
		n, err := vkadapter.NewNode(NodeName, func(pc nodeutil.ProviderConfig) (node.PodLifecycleHandler, node.NodeProvider, error) {
			return p(pc), nil, nil
		}, cfg)
		if err != nil {
			return nil, err
		}
		return n.Run, nil
	}
	n, err := nodeutil.NewNode(NodeName, func(pc nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
		return whole(p(pc)), nil, nil
	}, nodeutil.WithClient(client))
	if err != nil {
		return nil, err
	}
	return n.Run, nil
}

// whole adds the methods that virtual-kubelet requires today to a provider of 2019.
func whole(provider node.PodLifecycleHandler) nodeutil.Provider {
	if whole, ok := provider.(nodeutil.Provider); ok {
		return whole
	}
	return bare{PodLifecycleHandler: provider}
}

// bare has the methods that virtual-kubelet requires today. Nothing here calls them, so they
// are those of a nil interface.
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

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName: NodeName, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(30)),
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "registry.example/app:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
		},
	}
}

func put(s *apitest.Server, name string) {
	pod := newPod(name)
	pod.UID = types.UID("uid-" + name)
	s.Put(pod)
}

// processes prepares the back end of p, and n processes that find it from within this process.
func (p *Port) processes(t *testing.T, n int) (all []Process) {
	url := "http://backend.invalid"
	if p.Socket {
		server := httptest.NewUnstartedServer(p.Cloud)
		// A connection that stays open would hold up virtual time.
		server.Config.SetKeepAlivesEnabled(false)
		server.Start()
		t.Cleanup(server.Close)
		url = server.URL
	} else {
		before := http.DefaultTransport
		http.DefaultTransport = p.Cloud
		t.Cleanup(func() { http.DefaultTransport = before })
	}
	for name, value := range p.Env(url) {
		t.Setenv(name, value)
	}
	for range n {
		process, err := p.New()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, process)
	}
	return all
}

// story runs the scenario with one side, and returns what there is after each stage: the
// instances of the back end, and the phases of the pods in the API.
func (p *Port) story(t *testing.T, side string) (stages []string) {
	processes := p.processes(t, 3)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		begin := func(process Process) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			run, err := newNode(side, s.Client(apitest.User{}), process,
				vkadapter.NodeConfig{InternalIP: "192.0.2.1", Listener: &idle{done: make(chan struct{})}, LockDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			go func() { done <- run(ctx) }()
			time.Sleep(15 * time.Second)
			return func() { cancel(); <-done }
		}
		note := func(stage string) {
			stages = append(stages, stage+": "+p.Cloud.state()+phases(apitest.List[*corev1.Pod](s, "default")))
		}

		end := begin(processes[0])
		put(s, "web")
		put(s, "gone")
		time.Sleep(time.Minute)
		note("created")

		back := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused}) // it writes nothing more
		end()
		back()
		apitest.Remove[*corev1.Pod](s, "default", "gone")
		end = begin(processes[1])
		time.Sleep(2 * time.Minute)
		note("restarted, one deleted meanwhile")

		p.Cloud.answer(fails)
		put(s, "new")
		time.Sleep(2 * time.Minute)
		p.Cloud.answer(answers)
		time.Sleep(7 * time.Minute)
		note("after two minutes of errors")

		if !p.Socket {
			answer := p.Cloud.fallSilent()
			put(s, "late")
			time.Sleep(2 * time.Minute)
			answer()
			time.Sleep(7 * time.Minute)
			note("after two minutes of silence")
		}

		if !p.NotEmpty {
			p.Cloud.answer(empty)
			put(s, "void")
			time.Sleep(2 * time.Minute)
			p.Cloud.answer(answers)
			time.Sleep(7 * time.Minute)
			note("after two minutes of empty answers")
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
		t.Logf("%d requests about pods, %d calls of the back end",
			len(s.Requests(apitest.Match{Resource: "pods"}))+len(s.Requests(apitest.Match{Resource: "pods/status"})), p.Cloud.served())
	})
	return stages
}

// Compare runs the scenario with both sides. For kubewright want is what must hold; for
// virtual-kubelet it is what was observed, which docs/compare.md shows. A line may be
// alternatives in brackets, as in a regular expression, if the outcome depends on the run.
func Compare(t *testing.T, newPort func() *Port, want map[string][]string) {
	for _, side := range []string{Kubewright, VirtualKubelet} {
		t.Run(side, func(t *testing.T) {
			got := newPort().story(t, side)
			if !slices.EqualFunc(got, want[side], matches) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[side], "\n"))
			}
		})
	}
}

func matches(got, want string) bool { return regexp.MustCompile("^" + want + "$").MatchString(got) }

func phases(pods []*corev1.Pod) string {
	var all []string
	for _, pod := range pods {
		about := strings.TrimSpace(fmt.Sprintf("%s %s %s", pod.Name, cmp.Or(pod.Status.Phase, corev1.PodPending), pod.Status.Reason))
		if pod.DeletionTimestamp != nil {
			about += " Terminating"
		}
		all = append(all, about)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
