// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/vkadapter"
)

// While the back end is away, each method returns nothing and no error: MassHold keeps the pods,
// because Inspect does not confirm that they are lost.
func TestNoPodIsLostWhileAllMethodsReturnNothing(t *testing.T) {
	for _, silent := range []bool{true, false} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint("silent ", silent, ", restart ", restart), func(t *testing.T) {
				bubble(t, habits{silent: silent, lies: true, nilErrors: true}, func(w *world) {
					w.start()
					var uids []types.UID
					for i := range 4 {
						uids = append(uids, w.pod(fmt.Sprint("web", i), []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever}[i%2]))
					}
					pass(2 * time.Minute)
					w.cloud.setAway(true)
					if restart {
						w.kill()
						w.start()
					}
					pass(3 * time.Minute)
					w.phase("while it is away", "web0", corev1.PodRunning)
					w.phase("while it is away", "web1", corev1.PodRunning)
					w.cloud.setAway(false)
					pass(5 * time.Minute)
					w.once("afterwards", uids...)
					w.holds("afterwards", "web0", "web1", "web2", "web3")
				})
			})
		}
	}
}

// hanging is a provider whose GetPods leaves out the pod "bad". From the time at which GetPod of it is to
// hang on, it does, and so does the first GetPods if that is to hang.
type hanging struct{ *provider }

func (h hanging) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if name == "bad" && h.count("GetPod is to hang") > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.provider.GetPod(ctx, namespace, name)
}

func (h hanging) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	if h.count("GetPods is to hang") == 1 {
		h.did("GetPods is to hang")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pods, err := h.provider.GetPods(ctx)
	for i := range pods {
		if pods[i].Name == "bad" {
			pods[i] = nil
		}
	}
	return pods, err
}

// One call of a list that hangs, of GetPods or about a pod that GetPods leaves out, does not keep the
// Node from being ready for longer than the list may take.
func TestOneCallThatHangsEndsNoList(t *testing.T) {
	for _, what := range []string{"GetPod is to hang", "GetPods is to hang"} {
		t.Run(what, func(t *testing.T) {
			bubble(t, habits{silent: true, notFound: known}, func(w *world) {
				w.wrap = func(p *provider) statusByMethod { return hanging{p} }
				w.start()
				w.pod("good", corev1.RestartPolicyNever)
				w.pod("bad", corev1.RestartPolicyNever)
				pass(2 * time.Minute)
				w.p.did(what)
				pass(12 * time.Minute)
				if n := apitest.Get[*corev1.Node](w.s, "", nodeName); !isReady(n) {
					t.Errorf("the node is not ready: %v", n.Status.Conditions)
				}
				w.cloud.exit("good", 0)
				pass(time.Minute)
				w.phase("afterwards", "good", corev1.PodSucceeded)
				w.phase("afterwards", "bad", corev1.PodRunning)
			})
		})
	}
}

// keeping is a provider that goes on writing into the pod that CreatePod and UpdatePod have got.
type keeping struct{ *provider }

func (k keeping) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	defer k.write(pod)
	return k.provider.CreatePod(ctx, pod)
}

func (k keeping) UpdatePod(ctx context.Context, pod *corev1.Pod) error {
	defer k.write(pod)
	return k.provider.UpdatePod(ctx, pod)
}

func (k keeping) write(pod *corev1.Pod) {
	go func() {
		pod.Annotations = map[string]string{}
		for i := range 100 {
			pod.Annotations["state"] = fmt.Sprint(i)
		}
	}()
}

// The race detector finds out if the adapter reads such a pod afterwards.
func TestAProviderKeepsThePodThatItWasHanded(t *testing.T) {
	_, p := newAdapter(t, habits{silent: true, notFound: known}, vkadapter.Config{})
	a, err := vkadapter.New(keeping{p}, vkadapter.Config{NodeName: nodeName})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		pod := newPod(fmt.Sprint("web", i), types.UID(fmt.Sprint(i)))
		if _, err := a.Start(t.Context(), pod); err != nil {
			t.Error(err)
		}
		if _, err := a.Update(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
}

// panicking is a NodeProvider whose NotifyNodeStatus panics.
type panicking struct{ nodeProvider }

func (*panicking) NotifyNodeStatus(context.Context, func(*corev1.Node)) {
	panic("a fault of the provider")
}

func TestAPanicOfNotifyNodeStatusEndsNothing(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		w.nodes = &panicking{}
		w.start()
		w.pod("web", corev1.RestartPolicyNever)
		pass(time.Minute)
		w.phase("after the panic", "web", corev1.PodRunning)
	})
}

// pinging is a NodeProvider that reports its Node in Ping, with the time.
type pinging struct {
	nodeProvider
	pings int
}

func (p *pinging) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pings++
	if p.cb != nil {
		node := &corev1.Node{}
		node.Status.Conditions = []corev1.NodeCondition{{Type: "Fan", Status: corev1.ConditionTrue}}
		node.Status.Conditions[0].LastHeartbeatTime.Time = time.Now()
		p.cb(node)
	}
	return nil
}

// A report wakes a round, which calls Ping: one that says the same wakes none.
func TestAReportInEachPing(t *testing.T) {
	bubble(t, habits{notFound: known}, func(w *world) {
		nodes := &pinging{}
		w.nodes = nodes
		w.start()
		pass(time.Minute)
		before := nodes.count()
		pass(time.Minute)
		if n := nodes.count() - before; n < 5 || n > 7 {
			t.Errorf("Ping was called %d times in a minute, want once in ten seconds", n)
		}
	})
}

func (p *pinging) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pings
}
