// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A listClient is a runtime with running containers, of which the statuses of some pods hang.
type listClient struct {
	runtimeapi.RuntimeServiceClient
	containers []*runtimeapi.Container
	sandboxes  []*runtimeapi.PodSandbox
	hangs      map[string]bool // by the UID of the pod
	asked      atomic.Int64    // statuses
}

// add adds a pod with a sandbox and n containers.
func (c *listClient) add(pod string, n int) {
	labels := map[string]string{labelNode: "n1", labelUID: pod}
	c.sandboxes = append(c.sandboxes, &runtimeapi.PodSandbox{Id: pod, Labels: labels, Metadata: &runtimeapi.PodSandboxMetadata{}})
	for i := range n {
		c.containers = append(c.containers, &runtimeapi.Container{
			Id: fmt.Sprintf("%s/%d", pod, i), State: runtimeapi.ContainerState_CONTAINER_RUNNING, Metadata: &runtimeapi.ContainerMetadata{},
			Labels: map[string]string{labelNode: "n1", labelUID: pod, labelContainer: fmt.Sprint("c", i)},
		})
	}
}

func (c *listClient) Version(context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "memory"}, nil
}

func (c *listClient) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest, _ ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	out := &runtimeapi.ListContainersResponse{}
	for _, one := range c.containers {
		if uid := r.Filter.LabelSelector[labelUID]; uid == "" || uid == one.Labels[labelUID] {
			out.Containers = append(out.Containers, one)
		}
	}
	return out, nil
}

func (c *listClient) ListPodSandbox(_ context.Context, _ *runtimeapi.ListPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: c.sandboxes}, nil
}

// answer answers for a status of a pod, or hangs.
func (c *listClient) answer(ctx context.Context, pod string) error {
	c.asked.Add(1)
	if !c.hangs[pod] {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func (c *listClient) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	for _, one := range c.containers {
		if one.Id == r.ContainerId {
			return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: one.Id, State: one.State, Labels: one.Labels}}, c.answer(ctx, one.Labels[labelUID])
		}
	}
	return nil, status.Error(codes.NotFound, r.ContainerId)
}

func (c *listClient) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: r.PodSandboxId}}, c.answer(ctx, r.PodSandboxId)
}

// runtime returns a Runtime that asks c.
func (c *listClient) runtime() *Runtime {
	return &Runtime{
		cfg: Config{Node: "n1"}, client: c, patience: listPatience,
		statuses: map[string]*runtimeapi.ContainerStatus{}, boxes: map[string]*runtimeapi.PodSandboxStatus{},
	}
}

// unknownPods returns the pods that a list does not know.
func unknownPods(t *testing.T, err error) map[types.UID]error {
	t.Helper()
	failed, ok := errors.AsType[*podruntime.ListError](err)
	if !ok {
		t.Fatalf("the list ended with %v, not with a ListError", err)
	}
	return failed.Pods
}

// A list of all pods has one deadline: a pod takes one place of it, with any number of containers
// that hang, and the other pods are known.
func TestAListOfAllPodsHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &listClient{hangs: map[string]bool{"large": true}}
		client.add("large", 200)
		for i := range 20 {
			client.add(fmt.Sprint("small", i), 2)
		}
		r, begun := client.runtime(), time.Now()
		list, err := r.List(t.Context(), "")
		if failed := unknownPods(t, err); len(list) != 40 || len(failed) != 1 || failed["large"] == nil {
			t.Errorf("%d containers are listed, and unknown are %v, want 40 and the large pod", len(list), failed)
		}
		if took, asked := time.Since(begun), client.asked.Load(); took != listPatience || asked != 41 {
			t.Errorf("the list took %v and asked for %d statuses, want %v and 41", took, asked, listPatience)
		}
		begun = time.Now()
		boxes, err := r.ListPods(t.Context(), "")
		if failed := unknownPods(t, err); len(boxes) != 20 || len(failed) != 1 || failed["large"] == nil {
			t.Errorf("%d sandboxes are listed, and unknown are %v, want 20 and the large pod", len(boxes), failed)
		}
		if took := time.Since(begun); took != listPatience {
			t.Errorf("the list of the sandboxes took %v, want %v", took, listPatience)
		}
	})
}

// Pods that hang take all places. The list ends in time, and those behind them are known as soon as
// they are listed alone.
func TestPodsBehindThoseThatHangAreListedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &listClient{hangs: map[string]bool{}}
		for i := range 3 * askAtOnce {
			name := fmt.Sprint("hangs", i)
			client.hangs[name] = true
			client.add(name, 3)
		}
		client.add("well", 3)
		r, begun := client.runtime(), time.Now()
		list, err := r.List(t.Context(), "")
		if failed := unknownPods(t, err); time.Since(begun) != listPatience || len(list)+3*len(failed) != len(client.containers) {
			t.Errorf("after %v %d containers are listed, and %d pods are unknown of %d", time.Since(begun), len(list), len(failed), 3*askAtOnce+1)
		}
		if list, err := r.List(t.Context(), "well"); len(list) != 3 || err != nil {
			t.Errorf("the list of the pod has %d containers with error %v", len(list), err)
		}
	})
}

// A container whose status is kept costs a list no call, and neither a goroutine nor a timer.
func TestAKeptStatusIsNotAskedForAgain(t *testing.T) {
	const containers = 1000
	client := &listClient{}
	for i := range containers / 10 {
		client.add(fmt.Sprint("pod", i), 10)
	}
	r := client.runtime()
	lists := func() {
		if list, err := r.List(t.Context(), ""); len(list) != containers || err != nil {
			t.Fatalf("%d containers are listed, with error %v", len(list), err)
		}
		if list, err := r.ListPods(t.Context(), ""); len(list) != containers/10 || err != nil {
			t.Fatalf("%d sandboxes are listed, with error %v", len(list), err)
		}
	}
	lists()
	client.asked.Store(0)
	allocations := testing.AllocsPerRun(5, lists)
	if asked := client.asked.Load(); asked != 0 {
		t.Errorf("the lists asked for %d statuses that are kept", asked)
	}
	if allocations > 2*containers {
		t.Errorf("%.0f allocations for %d containers", allocations, containers)
	}
}
