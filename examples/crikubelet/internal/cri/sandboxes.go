// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// sandboxes returns the sandboxes of the runtime for a pod, or for all, the newest
// first.
func (r *Runtime) sandboxes(ctx context.Context, pod types.UID) ([]*runtimeapi.PodSandbox, error) {
	answer, err := r.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: r.selector(pod)}})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(answer.Items, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()), cmp.Compare(b.CreatedAt, a.CreatedAt))
	})
	return answer.Items, nil
}

// ListPods implements podruntime.Sandboxer.
func (r *Runtime) ListPods(ctx context.Context, pod types.UID) ([]podruntime.Sandbox, error) {
	all, err := r.sandboxes(ctx, pod)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	listed := map[string]bool{}
	var newest []*runtimeapi.PodSandbox
	for _, s := range all {
		uid := s.Labels[labelUID]
		listed[s.Id] = true
		if !seen[uid] {
			newest = append(newest, s)
		}
		seen[uid] = true
	}
	found, open := make([]*podruntime.Sandbox, len(newest)), map[types.UID][]int{}
	for i, s := range newest {
		if known := r.keptBox(s); known != nil || s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			found[i] = new(sandbox(s, known))
		} else {
			open[types.UID(s.Labels[labelUID])] = []int{i}
		}
	}
	failed := r.ask(ctx, pod, open, func(ctx context.Context, i int) error {
		known, err := r.boxStatus(ctx, newest[i].Id)
		if err == nil {
			found[i] = new(sandbox(newest[i], known))
		}
		return unlessGone(err)
	})
	var list []podruntime.Sandbox
	for _, s := range found {
		if s != nil { // it is known, and was not removed in the meantime
			list = append(list, *s)
		}
	}
	if pod == "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id := range r.boxes {
			if !listed[id] {
				delete(r.boxes, id)
			}
		}
	}
	return list, failed.err(ctx)
}

// keptBox returns the status of a sandbox that was ready before, or nil.
func (r *Runtime) keptBox(s *runtimeapi.PodSandbox) *runtimeapi.PodSandboxStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boxes[s.Id]
}

// boxStatus asks for the status of a sandbox, which is kept: the addresses of a sandbox that is ready
// do not change.
func (r *Runtime) boxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	answer, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes[id] = answer.GetStatus()
	return r.boxes[id], nil
}

// readySandbox returns a sandbox that is ready.
func (r *Runtime) readySandbox(ctx context.Context, s *runtimeapi.PodSandbox) (podruntime.Sandbox, error) {
	known := r.keptBox(s)
	if known == nil {
		var err error
		if known, err = r.boxStatus(ctx, s.Id); err != nil {
			return podruntime.Sandbox{}, err
		}
	}
	return sandbox(s, known), nil
}

// sandbox returns a sandbox with the addresses in its status, which may be nil. A sandbox that was
// stopped keeps them in the status of the pod.
func sandbox(s *runtimeapi.PodSandbox, known *runtimeapi.PodSandboxStatus) podruntime.Sandbox {
	out := podruntime.Sandbox{Pod: types.UID(s.Labels[labelUID]), ID: s.Id, Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY}
	if n := known.GetNetwork(); n.GetIp() != "" && known.GetLinux().GetNamespaces().GetOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		out.IPs = append(out.IPs, n.Ip)
		for _, ip := range n.AdditionalIps {
			out.IPs = append(out.IPs, ip.Ip)
		}
	}
	return out
}

// SetUpPod implements podruntime.Sandboxer.
func (r *Runtime) SetUpPod(ctx context.Context, spec podruntime.SandboxSpec) (podruntime.Sandbox, error) {
	all, err := r.sandboxes(ctx, spec.Pod.UID)
	if err != nil {
		return podruntime.Sandbox{}, err
	}
	if len(all) > 0 && all[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
		return r.readySandbox(ctx, all[0])
	}
	attempt := uint32(0)
	for _, old := range all {
		// Its addresses are free then.
		if err := r.stopSandbox(ctx, old.Id); err != nil {
			return podruntime.Sandbox{}, err
		}
		attempt = max(attempt, old.GetMetadata().GetAttempt()+1)
	}
	if err := r.removeEmpty(ctx, spec.Pod.UID, all); err != nil {
		return podruntime.Sandbox{}, err
	}
	handler, err := r.handler(ctx, spec.Pod, all)
	if err != nil {
		return podruntime.Sandbox{}, err
	}
	if err := r.cfg.Claims.Prepare(ctx, spec.Pod); err != nil {
		return podruntime.Sandbox{}, &podruntime.StartError{Reason: "FailedPrepareDynamicResources", Err: err}
	}
	cfg := r.sandboxConfig(spec.Pod, spec.Hostname)
	cfg.Metadata.Attempt = attempt
	cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: spec.DNS.Servers, Searches: spec.DNS.Searches, Options: spec.DNS.Options}
	if err := errors.Join(os.MkdirAll(cfg.LogDirectory, 0o755), r.ResizePod(ctx, spec.Pod, false)); err != nil {
		return podruntime.Sandbox{}, err
	}
	made, err := r.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		return podruntime.Sandbox{}, err
	}
	return r.readySandbox(ctx, &runtimeapi.PodSandbox{Id: made.PodSandboxId, Labels: cfg.Labels, State: runtimeapi.PodSandboxState_SANDBOX_READY})
}

// removeTimeout is the time that the next sandbox of a pod waits for the removal of earlier ones.
const removeTimeout = 5 * time.Second

// removeEmpty removes sandboxes of a pod that were stopped and have no containers. The
// others keep the exit codes of theirs.
func (r *Runtime) removeEmpty(ctx context.Context, pod types.UID, stopped []*runtimeapi.PodSandbox) error {
	if len(stopped) == 0 {
		return nil
	}
	list, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: r.selector(pod)}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	for _, s := range stopped {
		if slices.ContainsFunc(list.Containers, func(c *runtimeapi.Container) bool { return c.PodSandboxId == s.Id }) {
			continue
		}
		if err := r.removeSandbox(ctx, s.Id); err != nil {
			// It goes with the pod.
			klog.FromContext(ctx).Error(err, "An old sandbox can't be removed", "sandbox", s.Id)
		}
	}
	return nil
}

func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	_, err := r.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return unlessGone(err)
}

// unlessGone returns err, or nil if it says that there is no such sandbox.
func unlessGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// handler returns the handler of the pod's runtime class. It is that of the sandboxes that the
// pod had before, because neither changes, so a pod has its next sandbox while the API server is
// away.
func (r *Runtime) handler(ctx context.Context, pod *corev1.Pod, before []*runtimeapi.PodSandbox) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if len(before) > 0 && before[0].RuntimeHandler != "" {
		return before[0].RuntimeHandler, nil
	}
	class, err := r.cfg.RuntimeClasses.RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return class.Handler, nil
}

// sandboxConfig returns the configuration of a pod's sandbox, but for its DNS.
func (r *Runtime) sandboxConfig(pod *corev1.Pod, hostname string) *runtimeapi.PodSandboxConfig {
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Hostname:     hostname,
		LogDirectory: r.logDir(pod.UID),
		Labels:       labelsOf(pod, r.cfg.Node),
		Annotations:  annotationsOf(pod),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: r.podCgroup(pod.UID), SecurityContext: r.sandboxSecurity(pod), Sysctls: map[string]string{},
		},
	}
	if pod.Spec.HostNetwork {
		cfg.Hostname = "" // that of the node
	}
	p, _ := contexts(pod, nil)
	for _, s := range p.Sysctls {
		cfg.Linux.Sysctls[s.Name] = s.Value
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, port := range c.Ports {
			if port.HostPort == 0 || pod.Spec.HostNetwork {
				continue
			}
			cfg.PortMappings = append(cfg.PortMappings, &runtimeapi.PortMapping{
				Protocol: runtimeapi.Protocol(runtimeapi.Protocol_value[string(port.Protocol)]),
				HostIp:   port.HostIP, HostPort: port.HostPort, ContainerPort: port.ContainerPort,
			})
		}
	}
	return cfg
}

// maxAnnotations is the number of bytes of a pod's annotations that its sandbox has.
const maxAnnotations = 32 << 10

// annotationsOf returns the annotations for a sandbox, the shortest first, up to maxAnnotations. A
// pod may have eight times as many. The runtime's list of sandboxes has those of all pods, and no pod
// of the node is listed if it exceeds maxMessage.
func annotationsOf(pod *corev1.Pod) map[string]string {
	size := func(name string) int { return len(name) + len(pod.Annotations[name]) }
	names := slices.SortedFunc(maps.Keys(pod.Annotations), func(a, b string) int {
		return cmp.Or(cmp.Compare(size(a), size(b)), strings.Compare(a, b))
	})
	some, left := map[string]string{}, maxAnnotations
	for _, name := range names {
		if left -= size(name); left < 0 {
			break
		}
		some[name] = pod.Annotations[name]
	}
	return some
}

func (r *Runtime) stopSandbox(ctx context.Context, id string) error {
	_, err := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return unlessGone(err)
}

// lostSandbox reports whether a sandbox has no process, even if it is listed as ready:
// containerd 1.6 lists one so that it was creating when it was killed. It says so only
// in the details for people, with the number of the process.
func (r *Runtime) lostSandbox(ctx context.Context, id string) (bool, error) {
	answer, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if status.Code(err) == codes.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if answer.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return true, nil
	}
	var info struct {
		PID *int64 `json:"pid"`
	}
	// A runtime may have no details, or others.
	_ = json.Unmarshal([]byte(answer.Info["info"]), &info)
	return info.PID != nil && *info.PID == 0, nil
}

// TearDownPod implements podruntime.Sandboxer. The devices of the pod are free when it
// returns: other pods may have them as soon as the phase of this one is terminal.
func (r *Runtime) TearDownPod(ctx context.Context, pod types.UID) error {
	all, err := r.sandboxes(ctx, pod)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range all {
		errs = append(errs, r.stopSandbox(ctx, s.Id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.cfg.Claims.Release(ctx, pod)
}

// RemovePod implements podruntime.Sandboxer.
func (r *Runtime) RemovePod(ctx context.Context, pod types.UID) error {
	all, err := r.sandboxes(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range all {
		if err := r.removeSandbox(ctx, s.Id); err != nil {
			return err
		}
	}
	return errors.Join(r.removePodCgroup(ctx, pod), os.RemoveAll(r.logDir(pod)), r.pulledImages.forgetPod(pod))
}
