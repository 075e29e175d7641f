// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The condition costs no request of its own: it is written with the first status.
func TestPodScheduledHasTheGenerationObserved(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		w.bind(newPod("direct", func(p *corev1.Pod) { p.Status.Conditions = nil }))
		pass(time.Minute)
		for _, name := range []string{"a", "direct"} {
			if c := condition(w.pod(name), corev1.PodScheduled); c == nil || c.Status != corev1.ConditionTrue || c.ObservedGeneration != 1 {
				t.Errorf("%s: %+v", name, c)
			}
		}
		w.expectRequests(2, 0, 0)
	})
}

// The provider says nothing of resources; after a resize those of the new spec count.
func TestResourcesAreThoseOfTheSpecThatWasAccepted(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}))
		pass(time.Minute)
		w.expectRequests(1, 0, 0)
		for _, want := range []string{"1", "2", "3"} {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(want)}
			})
			pass(time.Minute)
			cs := w.pod("a").Status.ContainerStatuses[0]
			if cs.Resources == nil || cs.Resources.Requests.Cpu().String() != want || cs.AllocatedResources.Cpu().String() != want {
				t.Errorf("%+v, %+v; want %s", cs.Resources, cs.AllocatedResources, want)
			}
		}
	})
}

func TestMissingConfigurationIsTheReasonThatItsContainerWaits(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		missing := fmt.Errorf("prepare: %w", &podenv.SourceError{Container: "main", Field: "env A", Kind: "ConfigMap", Name: "m", Wait: true, Err: podenv.ErrMissing})
		heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: missing})
		w.bind(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "registry.example/o:1"})
		}))
		reasons := func() (reasons []string) {
			for _, cs := range w.pod("a").Status.ContainerStatuses {
				if cs.State.Waiting != nil {
					reasons = append(reasons, cs.State.Waiting.Reason)
				}
			}
			return reasons
		}
		pass(time.Minute)
		if got := reasons(); !slices.Equal(got, []string{podenv.ReasonConfigError, "ContainerCreating"}) {
			t.Errorf("missing: %q", got)
		}
		heal()
		heal = w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
		pass(10 * time.Minute)
		if got := reasons(); !slices.Equal(got, []string{"ContainerCreating", "ContainerCreating"}) {
			t.Errorf("there, and the backend is down: %q", got)
		}
		heal()
		pass(10 * time.Minute)
		w.expectPhase("a", corev1.PodRunning)
	})
}

// containerRecorder keeps the object of an event, too.
type containerRecorder struct{ recorder }

func (r *containerRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	r.recorder.Eventf(regarding, related, eventtype, reason, regarding.(*corev1.ObjectReference).FieldPath, note, args...)
}

func TestContainerEventsAreThoseOfAKubelet(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: time.Second}, func(w *world) {
		r := &containerRecorder{recorder{t: t}}
		w.cfg.ContainerEvents = r
		expect := func(what string, want ...string) {
			t.Helper()
			got := r.take()
			for i := range got {
				words := strings.Fields(got[i])
				got[i] = words[1] + " " + words[2] + " " + strings.TrimSuffix(words[3], ":")
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s:\n got  %q\n want %q", what, got, want)
			}
		}
		w.run()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		const main = " spec.containers{main}"
		expect("a start", "Normal Started"+main)

		w.stop()
		w.run()
		pass(time.Minute)
		expect("an adoption")

		w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
			st.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		})
		pass(time.Minute)
		expect("an end")
		w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
			st.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		})
		pass(time.Minute)
		expect("a restart", "Normal Started"+main)

		w.kubectlDelete("a", -1)
		pass(time.Minute)
		expect("a deletion", "Normal Killing"+main)
	})
}

func TestHostAddressesAreThoseOfTheNode(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return phasesOnly{p} } // reports no addresses
		address := "192.0.2.1"
		w.cfg.HostIPs = func(node string) []string { return []string{address, "2001:db8::1"} }
		w.run()
		w.bind(newPod("a"))
		w.bind(newPod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
		pass(time.Minute)
		for _, name := range []string{"a", "host"} {
			st := w.pod(name).Status
			if st.HostIP != "192.0.2.1" || len(st.HostIPs) != 2 || st.HostIPs[1].IP != "2001:db8::1" {
				t.Errorf("%s: hostIP %q, %v", name, st.HostIP, st.HostIPs)
			}
			if (name == "host") != (st.PodIP == "192.0.2.1") {
				t.Errorf("%s: podIP %q", name, st.PodIP)
			}
		}
		w.server.ResetJournal()
		address = "192.0.2.2" // the next write has it
		w.kubectlDelete("a", -1)
		synctest.Wait()
		w.expectRequests(1, 1, 0)
		if body := w.patched("a")[0]["status"].(map[string]any); body["hostIP"] != "192.0.2.2" {
			t.Errorf("the last status has hostIP %v", body["hostIP"])
		}
	})
}

// A panic leaves the addresses out, and nothing else.
func TestHostAddressesMayPanic(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.HostIPs = func(node string) []string { panic("no addresses") }
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
	})
}

func TestFieldsThatAreLeftOutAreLogged(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs(textlogger.Verbosity(2))
		w.run()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		for range 3 {
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
				st.Message += "."
				st.ContainerStatuses = append(st.ContainerStatuses[:1], corev1.ContainerStatus{Name: "unheard-of"})
			})
			pass(time.Minute)
		}
		w.stop()
		lines := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "Left invalid fields") {
				lines++
				if !strings.Contains(line, "unheard-of") || !strings.Contains(line, klog.KObj(pod).String()) {
					t.Errorf("%s", line)
				}
			}
		}
		if lines != 1 {
			t.Errorf("%d lines about fields left out, want one for the same problem:\n%s", lines, log.String())
		}
	})
}
