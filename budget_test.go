// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/resourceslice"
)

// A runner is a controller.
type runner interface {
	Run(ctx context.Context) error
}

// minute returns a call that runs a controller for a minute, with the server that others have filled,
// and then checks what it has done.
func minute[C runner](t *testing.T, fill func(s *apitest.Server), create func(client kubernetes.Interface) (C, error), check func(c C, s *apitest.Server) error) func() {
	return func() {
		synctest.Test(t, func(t *testing.T) {
			server := apitest.New(apitest.Options{})
			fill(server)
			c, err := create(server.Client(apitest.User{}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- c.Run(ctx) }()
			time.Sleep(time.Minute)
			if err := check(c, server); err != nil {
				t.Error(err)
			}
			cancel()
			<-ended
		})
	}
}

// crowd returns a pod of n containers with n annotations.
func crowd(n int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "crowd", Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for i := range n {
		name := fmt.Sprint("c", i)
		pod.Annotations["example.com/"+name] = "v"
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "registry.example/i:1"})
	}
	return pod
}

// manyAnnotations returns n keys with a prefix, and a record of a candidate as the value of each.
func manyAnnotations(prefix string, n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[strings.TrimPrefix(fmt.Sprint(prefix, "/k", i), "/")] = fmt.Sprintf(`{"identity":"k%d"}`, i)
	}
	return all
}

// manyKeys returns a resolver that knows the ConfigMap "all", and the n keys of it.
func manyKeys(t *testing.T, n int) (*podenv.Resolver, []string) {
	var keys []string
	data := map[string]string{}
	for i := range n {
		keys = append(keys, fmt.Sprint("K", i))
		data[keys[i]] = "v"
	}
	server := apitest.New(apitest.Options{})
	server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}, Data: data})
	client := server.Client(apitest.User{}).CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: client, Secrets: client})
	if err != nil {
		t.Fatal(err)
	}
	return resolver, keys
}

// TestTheCostOfWhatOthersSendIsLinear: one large object, or many, make a node busy for as long as they
// are large. Packages podstatus, podruntime, nodeapi, vkadapter and contest
// of election/coordinator have such tests of their own. A claim has 32 devices at most, so claimstore
// and claimstatus meet nothing large.
func TestTheCostOfWhatOthersSendIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	all := corev1.LocalObjectReference{Name: "all"}
	node := func(client kubernetes.Interface) (*nodestatus.Controller, error) {
		return nodestatus.New(nodestatus.Config{Client: client.CoreV1(), NodeName: "n1", Setters: nodestatus.Standard()})
	}
	pods := func(client kubernetes.Interface) (*podsync.Controller, error) {
		return podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: "n1", Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect()})
	}
	running := func(_ *podsync.Controller, s *apitest.Server) error {
		for _, pod := range apitest.List[*corev1.Pod](s, "") {
			if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) != len(pod.Spec.Containers) {
				return fmt.Errorf("pod %s: %s, %d containers", pod.Name, pod.Status.Phase, len(pod.Status.ContainerStatuses))
			}
		}
		return nil
	}
	devices := func(n int) (list []resourcev1.Device) {
		for i := range n {
			list = append(list, resourcev1.Device{Name: fmt.Sprint("d", i)})
		}
		return list
	}
	for name, c := range map[string]struct {
		size    int
		prepare func(t *testing.T, n int) func()
	}{
		"podsync: a pod with many containers and annotations": {2000, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) { s.Put(crowd(n)) }, pods, running)
		}},
		"podsync: many pods": {100, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) {
				for i := range n {
					pod := crowd(1)
					pod.Name = fmt.Sprint("p", i)
					s.Put(pod)
				}
			}, pods, running)
		}},
		"podenv: variables of one ConfigMap, and references to them": {2500, func(t *testing.T, n int) func() {
			resolver, keys := manyKeys(t, n)
			pod := crowd(1)
			for _, key := range keys {
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
					corev1.EnvVar{Name: key, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: all, Key: key}}},
					corev1.EnvVar{Name: "R" + key, Value: "$(" + key + ")"})
			}
			return func() {
				if env, err := resolver.Pod(pod).Container(t.Context(), "c0", podenv.Addresses{}); err != nil || len(env.Strings()) != 2*n {
					t.Error(err, len(env.Strings()))
				}
			}
		}},
		"podenv: a container of many": {2500, func(t *testing.T, n int) func() {
			resolver, _ := manyKeys(t, 1)
			pod := crowd(n)
			return func() {
				if _, err := resolver.Pod(pod).Container(t.Context(), fmt.Sprint("c", n-1), podenv.Addresses{}); err != nil {
					t.Error(err)
				}
			}
		}},
		"podenv: files of a volume": {1000, func(t *testing.T, n int) func() {
			resolver, keys := manyKeys(t, n)
			var items []corev1.KeyToPath
			for _, key := range keys {
				items = append(items, corev1.KeyToPath{Key: key, Path: "d/" + key})
			}
			pod := crowd(1)
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: all, Items: items}}},
			}}}}
			return func() {
				if files, err := resolver.Pod(pod).Volume(t.Context(), "v"); err != nil || len(files) != n {
					t.Error(err, len(files))
				}
			}
		}},
		// Not many conditions: the server's own merge of them is quadratic, in apitest and elsewhere.
		"nodestatus: a Node with many labels, annotations and taints": {2500, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{}, Annotations: map[string]string{}}}
				for i := range n {
					name := fmt.Sprint("example.com/k", i)
					node.Labels[name], node.Annotations[name] = "v", "v"
					node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: name, Effect: corev1.TaintEffectNoSchedule})
				}
				s.Put(node)
			}, node, func(_ *nodestatus.Controller, s *apitest.Server) error {
				node := apitest.Get[*corev1.Node](s, "", "n1")
				if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) || len(node.Spec.Taints) != n {
					return fmt.Errorf("%d taints, %v", len(node.Spec.Taints), node.Status.Conditions)
				}
				return nil
			})
		}},
		"lease: a Lease with many annotations": {1000, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) {
				s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n1", Annotations: manyAnnotations("example.com", n)}})
			}, func(client kubernetes.Interface) (*lease.Controller, error) {
				return lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: "n1", Owner: lease.NoOwner})
			}, func(c *lease.Controller, s *apitest.Server) error {
				if l := apitest.Get[*coordinationv1.Lease](s, corev1.NamespaceNodeLease, "n1"); len(l.Annotations) < n {
					return fmt.Errorf("%d annotations", len(l.Annotations))
				}
				return c.Holds(context.Background(), "n1")
			})
		}},
		"election: a Lease with many records of candidates": {1000, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) {
				s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", Annotations: manyAnnotations("candidate.election.kubewright.dev", n)}})
			}, func(client kubernetes.Interface) (*election.Candidate, error) {
				return election.New(election.Config{
					Client: client.CoordinationV1(), Lease: types.NamespacedName{Namespace: "default", Name: "e"}, Self: election.Peer{Identity: "one"},
					Lead: func(ctx context.Context, _ election.Term) error { <-ctx.Done(); return nil },
				})
			}, func(c *election.Candidate, _ *apitest.Server) error {
				if !c.IsLeader() {
					return errors.New("it does not lead")
				}
				return nil
			})
		}},
		"configcheckpoint: a ConfigMap with many keys, and a payload as long": {2500, func(t *testing.T, n int) func() {
			return minute(t, func(s *apitest.Server) {
				data := manyAnnotations("", n)
				data["config"] = strings.Repeat("0123456789\n", 9*n)
				s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"}, Data: data})
			}, func(client kubernetes.Interface) (*configcheckpoint.Controller[string], error) {
				source, err := configkube.ConfigMap(client.CoreV1(), "default", "agent", "config")
				if err != nil {
					return nil, err
				}
				c, err := configcheckpoint.New(configcheckpoint.Config[string]{
					Dir: filepath.Join(t.TempDir(), "store"), Source: source,
					Codec: configcheckpoint.Codec[string]{
						Decode:  func(data []byte) (string, error) { return string(data), nil },
						Default: func() (string, error) { return "", nil },
					},
				})
				if err != nil {
					return nil, err
				}
				_, err = c.Boot(context.Background())
				return c, err
			}, func(c *configcheckpoint.Controller[string], _ *apitest.Server) error {
				if c.Status().Phase != configcheckpoint.PhaseStaged {
					return fmt.Errorf("%+v", c.Status())
				}
				return nil
			})
		}},
		"resourceslice: many devices, beside as many slices that another client has made": {250, func(t *testing.T, n int) func() {
			id := resourceslice.PoolID{Driver: "gpu.example.com", Name: "n1"}
			return minute(t, func(s *apitest.Server) {
				s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
				for i := range n {
					s.Put(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, Spec: resourcev1.ResourceSliceSpec{
						Driver: id.Driver, NodeName: new("n1"), Pool: resourcev1.ResourcePool{Name: id.Name, Generation: int64(i), ResourceSliceCount: 1}, Devices: devices(1),
					}})
				}
			}, func(client kubernetes.Interface) (*resourceslice.Controller, error) {
				c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
				if err != nil {
					return nil, err
				}
				return c, c.Set(id, resourceslice.Pool{Devices: devices(10 * n)})
			}, func(c *resourceslice.Controller, s *apitest.Server) error {
				seen := 0
				for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
					if len(slice.OwnerReferences) > 0 {
						seen += len(slice.Spec.Devices)
					}
				}
				if seen != 10*n {
					return fmt.Errorf("%d devices", seen)
				}
				return nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lineartest.Check(t, c.size, func(n int) func() { return c.prepare(t, n) })
		})
	}
}
