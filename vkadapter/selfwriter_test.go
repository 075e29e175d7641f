// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
)

// selfWriter writes the status of each pod to the API after ten seconds, as RunPod's kubelet
// does (BSVogler/k8s-runpod-kubelet at d9b7e16: updateAllPodStatuses), and not with the function that NotifyPods gets. GetPod and GetPods return what it has
// read from the API then. Only GetPodStatus asks the back end.
type selfWriter struct {
	*provider
	client kubernetes.Interface
	copies copies

	mu   sync.Mutex
	read map[string]*corev1.Pod
}

// copies says which copy of a pod of the API a selfWriter returns.
type copies int

const (
	newest copies = iota // the one that it has read after it had written the status
	older                // the one that it has read before it wrote
	given                // the one that CreatePod or UpdatePod got
)

func (p *selfWriter) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	if err := p.provider.CreatePod(ctx, pod); err != nil {
		return err
	}
	p.keep(pod.DeepCopy())
	return nil
}

func (p *selfWriter) keep(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read[pod.Name] = pod
}

func (p *selfWriter) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	p.keep(pod.DeepCopy())
	return nil
}

func (p *selfWriter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod, err := p.provider.GetPod(ctx, namespace, name); pod == nil || err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read[name], nil
}

func (p *selfWriter) GetPods(ctx context.Context) (pods []*corev1.Pod, err error) {
	all, err := p.provider.GetPods(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range all {
		if read := p.read[pod.Name]; read != nil {
			pods = append(pods, read)
		}
	}
	return pods, err
}

func (p *selfWriter) NotifyPods(ctx context.Context, _ func(*corev1.Pod)) {
	go func() {
		written := make(map[types.UID]bool)
		for {
			select {
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
				return
			}
			for _, job := range p.all() {
				if written[job.UID] {
					continue
				}
				status := job.Status
				status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
				body, _ := json.Marshal(map[string]any{"status": status})
				pods := p.client.CoreV1().Pods(job.Namespace)
				before, _ := pods.Get(ctx, job.Name, metav1.GetOptions{})
				if _, err := pods.Patch(ctx, job.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: "itself"}, "status"); err != nil {
					continue
				}
				if latest, err := pods.Get(ctx, job.Name, metav1.GetOptions{}); err == nil {
					written[job.UID] = true
					switch p.copies {
					case newest:
						p.keep(latest)
					case older:
						p.keep(before)
					}
				}
			}
		}
	}()
}

// TestAProviderThatWritesStatusesItself: its pods ran, and were not ready for hours, because
// what the controller had written came back to it as the provider's word.
func TestAProviderThatWritesStatusesItself(t *testing.T) {
	for name, copies := range map[string]copies{"reads them back": newest, "has read them before": older, "keeps those that it was given": given} {
		t.Run(name, func(t *testing.T) { testSelfWriter(t, copies) })
	}
}

func testSelfWriter(t *testing.T, copies copies) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.wrap = func(p *provider) statusByMethod {
			return &selfWriter{provider: p, client: w.s.Client(apitest.User{}), copies: copies, read: map[string]*corev1.Pod{}}
		}
		w.start()
		web := w.pod("web", corev1.RestartPolicyAlways)
		ready := func(when string) {
			t.Helper()
			w.phase(when, "web", corev1.PodRunning)
			pod := w.get("web")
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return
				}
			}
			t.Errorf("%s: the pod is not ready: %+v", when, pod.Status)
		}
		pass(30 * time.Second)
		ready("after half a minute")
		pod := w.get("web")
		pod.Annotations = map[string]string{"touched": "yes"}
		if _, err := w.s.Client(apitest.User{}).CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		ready("after a change")
		before := len(w.s.Requests(apitest.Match{}))
		pass(time.Hour)
		ready("after an hour")
		if n := len(w.s.Requests(apitest.Match{})) - before; n > 500 {
			t.Errorf("%d requests in a quiet hour", n)
		}
		w.cloud.exit("web", 3)
		pass(5 * time.Minute)
		if s := w.get("web").Status; len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
			t.Errorf("after the exit: %+v", s)
		}
		w.once("after the exit", web)
		w.delete("web")
		pass(2 * time.Minute)
		w.holds("after the deletion")
		for _, r := range w.s.Requests(apitest.Match{}) {
			if r.Code == http.StatusUnprocessableEntity {
				t.Error(r)
			}
		}
	})
}

// TestTheNodeHasTheLabelsOfNodeutil: users and programs select nodes by them, and a program
// that sets a taint loses none.
func TestTheNodeHasTheLabelsOfNodeutil(t *testing.T) {
	for name, template := range map[string]*corev1.Node{
		"none":    nil,
		"a taint": {Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Effect: corev1.TaintEffectNoSchedule}}}},
		"a label": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "mine"}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{}, func(w *world) {
				w.template = template
				w.start()
				labels := apitest.Get[*corev1.Node](w.s, "", nodeName).Labels
				want := map[string]string{"type": "virtual-kubelet", "kubernetes.io/role": "agent", corev1.LabelHostname: nodeName}
				if name == "a label" {
					want["type"] = "mine"
				}
				for key, value := range want {
					if labels[key] != value {
						t.Errorf("%s=%q, want %q", key, labels[key], value)
					}
				}
			})
		})
	}
}
