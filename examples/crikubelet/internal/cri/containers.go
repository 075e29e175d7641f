// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// selector returns the labels of everything that belongs to a pod, or to all pods.
func (r *Runtime) selector(pod types.UID) map[string]string {
	labels := map[string]string{labelNode: r.cfg.Node}
	if pod != "" {
		labels[labelUID] = string(pod)
	}
	return labels
}

// idOf returns the ID that a container was started with.
func idOf(c interface {
	GetLabels() map[string]string
	GetMetadata() *runtimeapi.ContainerMetadata
}) podruntime.ContainerID {
	labels := c.GetLabels()
	return podruntime.ContainerID{Pod: types.UID(labels[labelUID]), Name: labels[labelContainer], Attempt: int(c.GetMetadata().GetAttempt())}
}

// listPatience is the time that all statuses may take in a list of all pods. A pod that is not known
// by then is listed alone.
const listPatience = 5 * time.Second

// askAtOnce is the number of pods of which a list asks for statuses at once.
const askAtOnce = 16

// ask calls f for the open statuses of each pod, one after the other, and returns the first error
// of each pod: it is not known then. So a pod that hangs takes one place, however many containers
// it has. pod is the one of the list; empty: the list is of all pods.
func (r *Runtime) ask(ctx context.Context, pod types.UID, open map[types.UID][]int, f func(ctx context.Context, i int) error) unknown {
	failed := unknown{}
	if len(open) == 0 {
		return failed
	}
	if pod == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.patience)
		defer cancel()
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	fail := func(pod types.UID, err error) {
		mu.Lock()
		defer mu.Unlock()
		failed[pod] = err
	}
	places := make(chan struct{}, askAtOnce)
	for uid, statuses := range open {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			fail(uid, ctx.Err())
			continue
		}
		wg.Go(func() {
			defer func() { <-places }()
			for _, i := range statuses {
				if err := f(ctx, i); err != nil {
					fail(uid, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// unknown are the errors of statuses, by the UIDs of their pods.
type unknown map[types.UID]error

// err returns the error of a list. ctx is that of its caller.
func (u unknown) err(ctx context.Context) error {
	if len(u) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	return &podruntime.ListError{Pods: u}
}

// List implements podruntime.Runtime. It asks for the status of a container only
// after a change of its state.
func (r *Runtime) List(ctx context.Context, pod types.UID) ([]podruntime.Container, error) {
	answer, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: r.selector(pod)}})
	if err != nil {
		return nil, err
	}
	scheme, err := r.scheme(ctx)
	if err != nil {
		return nil, err
	}
	var list []podruntime.Container
	newest := map[podruntime.ContainerID]int{}
	listed := map[string]bool{}
	statuses, open := make([]*runtimeapi.ContainerStatus, len(answer.Containers)), map[types.UID][]int{}
	for i, c := range answer.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_CREATED {
			continue
		}
		if statuses[i] = r.keptStatus(c); statuses[i] == nil {
			uid := idOf(c).Pod
			open[uid] = append(open[uid], i)
		}
	}
	failed := r.ask(ctx, pod, open, func(ctx context.Context, i int) (err error) {
		c := answer.Containers[i]
		if statuses[i], err = r.containerStatus(ctx, c); err != nil {
			return fmt.Errorf("container %v: %w", idOf(c), err)
		}
		return nil
	})
	for i, c := range answer.Containers {
		listed[c.Id] = true
		s := statuses[i]
		if s == nil && c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			continue // it is not known, or was removed in the meantime
		}
		found := container(c, s)
		found.RuntimeID = scheme + c.Id
		if at, ok := newest[found.ID]; !ok {
			newest[found.ID] = len(list)
			list = append(list, found)
		} else if list[at].State < found.State {
			list[at] = found // the other one was created by a Start that was cut off
		}
	}
	if pod == "" {
		r.forgetStatuses(listed)
	}
	return list, failed.err(ctx)
}

// keptStatus returns the status of a container that was listed with the same state before, or nil.
func (r *Runtime) keptStatus(c *runtimeapi.Container) *runtimeapi.ContainerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.statuses[c.Id]; s != nil && s.State == c.State {
		return s
	}
	return nil
}

// containerStatus asks for the status of a container, which is nil if it was removed. Those of running
// and exited containers do not change and are kept.
func (r *Runtime) containerStatus(ctx context.Context, c *runtimeapi.Container) (*runtimeapi.ContainerStatus, error) {
	if c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		r.settle(ctx, c)
	}
	answer, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := answer.GetStatus()
	if s == nil {
		return nil, errors.New("the runtime returned no status")
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		// It may run. The list is complete with it, so that the other pods go on.
		return &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_RUNNING, ImageRef: s.ImageRef, StartedAt: s.StartedAt}, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses[c.Id] = s
	return s, nil
}

// settleTimeout is the time that List waits for the end of a container whose task the
// runtime has lost.
const settleTimeout = 2 * time.Second

// settle ends such a container, which settles its state. A shim that hangs may prevent that;
// it is tried again with the next list.
func (r *Runtime) settle(ctx context.Context, c *runtimeapi.Container) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if _, err := r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id}); err != nil {
		klog.FromContext(ctx).Error(err, "The runtime does not know the state of a container, and can't end it", "container", idOf(c))
	}
}

// forgetStatuses drops the statuses of containers that are no longer listed.
func (r *Runtime) forgetStatuses(listed map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.statuses {
		if !listed[id] {
			delete(r.statuses, id)
		}
	}
}

// container returns a container with its status, which is nil if it never ran.
func container(c *runtimeapi.Container, s *runtimeapi.ContainerStatus) podruntime.Container {
	out := podruntime.Container{ID: idOf(c)}
	if s == nil {
		return out
	}
	out.ImageID, out.StartedAt = s.ImageRef, unixNano(s.StartedAt)
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		out.State = podruntime.ContainerRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		out.State, out.FinishedAt = podruntime.ContainerExited, unixNano(s.FinishedAt)
		out.ExitCode, out.Reason, out.Message = s.ExitCode, s.Reason, s.Message
	}
	return out
}

// unixNano returns a time of the CRI, in which 0 is none.
func unixNano(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// find returns the containers of the runtime that have an ID. There are more than one
// only if a Start was cut off.
func (r *Runtime) find(ctx context.Context, id podruntime.ContainerID) ([]*runtimeapi.Container, error) {
	labels := r.selector(id.Pod)
	labels[labelContainer] = id.Name
	answer, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return nil, err
	}
	var found []*runtimeapi.Container
	for _, c := range answer.Containers {
		if idOf(c) == id {
			found = append(found, c)
		}
	}
	return found, nil
}

// Start implements podruntime.Runtime.
//
// A StartContainer that is cut off, because this process or the runtime is killed, may leave a container that has run and
// that the runtime lists as created. So the attempt is on disk before the call, and is not made again after that.
func (r *Runtime) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	existing, err := r.find(ctx, spec.ID)
	if err != nil {
		return err
	}
	for _, c := range existing {
		if c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			return nil
		}
		// Its environment may be out of date. A runtime that is still starting it refuses.
		if _, err := r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
			return err
		}
	}
	begun, attempt := filepath.Join(spec.Dir, "begun"), strconv.Itoa(spec.ID.Attempt)
	switch last, err := os.ReadFile(begun); {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	case string(last) == attempt:
		return fmt.Errorf("the start of %v was cut off: %w", spec.ID, podruntime.ErrMayHaveRun)
	}
	if spec.Sandbox == nil {
		return errors.New("the container has no sandbox")
	}
	image, err := r.pulled(ctx, spec.Container)
	if err != nil {
		return err
	}
	cfg, err := r.containerConfig(ctx, &spec, image)
	if err != nil {
		return &podruntime.StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	created, err := r.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: spec.Sandbox.ID, Config: cfg, SandboxConfig: r.sandboxConfig(spec.Pod, spec.Hostname),
	})
	if err != nil {
		return &podruntime.StartError{Reason: "CreateContainerError", Err: err}
	}
	if err := os.WriteFile(begun, []byte(attempt), 0o600); err != nil {
		return err
	}
	if _, err = r.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		failed := &podruntime.StartError{Reason: "RunContainerError", Err: err}
		if lost, statusErr := r.lostSandbox(ctx, spec.Sandbox.ID); !lost {
			return errors.Join(failed, statusErr)
		}
		// The container never ran, so it must run in a new sandbox, even in a pod that
		// is never restarted. It goes first: its exit would count otherwise.
		err := os.Remove(begun)
		if err == nil {
			_, err = r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: created.ContainerId})
		}
		if err == nil {
			err = r.stopSandbox(ctx, spec.Sandbox.ID)
		}
		return errors.Join(failed, err)
	}
	return nil
}

// Stop implements podruntime.Runtime. It returns when the container has ended.
func (r *Runtime) Stop(ctx context.Context, id podruntime.ContainerID, opts podruntime.StopOptions) error {
	found, err := r.find(ctx, id)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range found {
		if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		// The runtime counts whole seconds, from now on.
		timeout := max(time.Until(opts.Deadline)+time.Second-1, 0) / time.Second
		_, err := r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id, Timeout: int64(timeout)})
		if status.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Remove implements podruntime.Runtime.
func (r *Runtime) Remove(ctx context.Context, id podruntime.ContainerID) error {
	found, err := r.find(ctx, id)
	if err != nil {
		return err
	}
	for _, c := range found {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("%v runs", id) // the runtime would kill it
		}
		if _, err := r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
			return err
		}
	}
	return r.removeLogs(id)
}

// logDir returns the directory of the logs of a pod.
func (r *Runtime) logDir(pod types.UID) string { return filepath.Join(r.cfg.LogDir, string(pod)) }

// logName returns the path of a container's log in the directory of its pod.
func logName(id podruntime.ContainerID) string {
	return filepath.Join(id.Name, strconv.Itoa(id.Attempt)+".log")
}

// removeLogs deletes the log of a container and its rotated parts.
func (r *Runtime) removeLogs(id podruntime.ContainerID) error {
	log := r.logPath(id)
	rotated, err := files(log+".", "")
	errs := []error{err, os.RemoveAll(log)}
	for _, path := range rotated {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// files returns the paths of the files whose paths begin and end so, by name. Unlike
// filepath.Glob it leaves out nothing that it can't read, and takes no path for a pattern.
func files(prefix, suffix string) (paths []string, err error) {
	dir, name := filepath.Split(prefix)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && strings.HasSuffix(e.Name(), suffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// Resize implements podruntime.Resizer.
func (r *Runtime) Resize(ctx context.Context, id podruntime.ContainerID, pod *corev1.Pod, c *corev1.Container) error {
	found, err := r.find(ctx, id)
	if err != nil || len(found) == 0 {
		return err
	}
	to, limits := found[len(found)-1].Id, resources(pod, c, r.cfg.Memory)
	if r.hasPodCgroups() {
		if err := r.cfg.Cgroups.CheckMemory(path.Join(r.podCgroup(id.Pod), to), limits.MemoryLimitInBytes); err != nil {
			return err
		}
	}
	_, err = r.client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: to, Linux: limits})
	return err
}
