// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What follows from the answers of the API.
func TestAPIResults(t *testing.T) {
	reported := func() *scene { return runningPod().says(unready()) }
	stopped := func() *scene { return runningPod(deletedWithin(30)).says(exited(0, true)) }
	answer := func(s *scene, same bool, edit ...func(*corev1.Pod)) *scene {
		c := s.writeStarted(tick, Patch, wallAt(tick))
		resp := s.Pod().DeepCopy()
		resp.ResourceVersion = "40"
		for _, f := range edit {
			f(resp)
		}
		s.statusStored(tick, c, resp, same)
		return s
	}
	fail := func(s *scene, n int, ev WriteFailed) *scene {
		for range n {
			s.writeStarted(tick, Patch, wallAt(tick))
			s.writeFailed(tick, ev)
		}
		return s
	}
	refuse := func(s *scene, n int) *scene {
		for range n {
			s.statusRejected(s.writeStarted(tick, Patch, wallAt(tick)))
		}
		return s
	}
	none := func(*corev1.Pod) *corev1.Pod { return nil }
	same := func(pod *corev1.Pod) *corev1.Pod { return pod.DeepCopy() }
	newer := func(pod *corev1.Pod) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.ResourceVersion = "50"
		return pod
	}
	read := func(s *scene, has func(*corev1.Pod) *corev1.Pod) *scene {
		s.writeStarted(tick, Get, wallAt(tick))
		s.finishGet(tick, 0, has(s.Pod()))
		return s
	}
	for _, tc := range []struct {
		name  string
		scene *scene
		at    Instant // after tick
		write Op
		final bool
	}{
		{name: "to be written", scene: reported(), write: Patch},
		{name: "200, as sent", scene: answer(reported(), true)},
		{name: "200, with somebody else's change", scene: answer(reported(), false), write: Patch},
		{name: "200, but a report came meanwhile", scene: func() *scene {
			s := reported()
			c := s.writeStarted(tick, Patch, wallAt(tick))
			s.says(exited(1, false))
			s.statusStored(tick, c, s.Pod(), true)
			return s
		}(), at: time.Second, write: Patch},
		{name: "200, and the watch was faster", scene: func() *scene {
			s := reported()
			c := s.writeStarted(tick, Patch, wallAt(tick))
			resp := s.Pod().DeepCopy()
			resp.ResourceVersion = "40"
			s.setPod(tick, &Version{pod: resp.DeepCopy()})
			s.statusStored(tick, c, resp, true)
			return s
		}()},
		{name: "200, and the watch comes later", scene: func() *scene {
			s := answer(reported(), true)
			s.setPod(tick, &Version{pod: s.Pod().DeepCopy()})
			return s
		}()},
		{name: "an older version comes late", scene: func() *scene {
			old := testPod()
			s := answer(reported(), true)
			s.setPod(tick, &Version{pod: old})
			return s
		}()},
		{name: "it was there already", scene: func() *scene {
			s := reported()
			s.statusStored(tick, s.writeStarted(tick, Patch, wallAt(tick)), nil, true)
			return s
		}()},
		{name: "final 200", scene: answer(stopped(), true, phase(corev1.PodFailed)), write: Delete, final: true},
		{name: "404: wait for the watch", scene: reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.notFound(tick) }), at: goneAfter - 1},
		{name: "404: ask", scene: reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.notFound(tick) }), at: goneAfter, write: Get},
		{name: "404, and it is there", scene: read(reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.notFound(tick) }), same), write: Patch},
		{name: "404 twice: removed", scene: read(reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.notFound(tick) }), none), at: time.Hour},
		{name: "409: read", scene: reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.conflicted(tick) }), write: Get},
		{name: "409: read, and again", scene: read(reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.conflicted(tick) }), newer), write: Patch},
		{name: "409: read, and nobody was faster", scene: read(reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.conflicted(tick) }), same)},
		{name: "409: read, and again later", scene: read(reported().with(func(s *scene) { s.writeStarted(tick, Patch, wallAt(tick)); s.conflicted(tick) }), same), at: time.Second, write: Patch},
		{name: "409 again and again: seldom", scene: reported().with(func(s *scene) {
			for range 9 {
				s.writeStarted(tick, Patch, wallAt(tick))
				s.conflicted(tick)
			}
		})},
		{name: "422: held", scene: refuse(reported(), 1), at: 24 * time.Hour},
		{name: "422: until it changes", scene: refuse(reported(), 1).says(runs()), write: Patch},
		{name: "422 final: what can't be invalid", scene: refuse(stopped(), 1), write: Patch},
		{name: "422 final twice: done without", scene: refuse(stopped(), 2), write: Delete, final: true},
		{name: "503: backoff", scene: fail(reported(), 1, WriteFailed{MayBeStored: true})},
		{name: "503: read what has become of it", scene: fail(reported(), 1, WriteFailed{MayBeStored: true}), at: time.Second, write: Get},
		{name: "503: read, and again", scene: read(fail(reported(), 1, WriteFailed{MayBeStored: true}), same), at: time.Second, write: Patch},
		{name: "503: seen what has become of it", scene: fail(reported(), 1, WriteFailed{MayBeStored: true}).now(), write: Patch},
		{name: "503 for ever: read", scene: fail(reported(), 1000, WriteFailed{MayBeStored: true}), at: time.Minute, write: Get},
		{name: "429: again", scene: fail(reported(), 1, WriteFailed{}), at: time.Second, write: Patch},
		{name: "Retry-After", scene: fail(reported(), 1, WriteFailed{After: 20 * time.Second}), at: 19 * time.Second},
		{name: "403 or 422: seldom in the end", scene: fail(reported(), 1000, WriteFailed{}), at: time.Minute/2 - 1},
		{name: "somebody undoes the end", scene: ended().now(phase(corev1.PodRunning)), write: Patch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.scene
			s.advance(moment(tick + tc.at))
			if got := s.decideWrite(tick + tc.at); got.Op != tc.write {
				t.Errorf("write %q, want %q", got.Op, tc.write)
			}
			if s.final() != tc.final {
				t.Errorf("final %v, want %v", s.final(), tc.final)
			}
		})
	}
}

// The object of which an informer's cache holds a copy is not held a second time,
// whichever comes first, the watch or the answer: with tens of thousands of pods
// that is a third of the memory.
func TestTheCachesCopyIsKept(t *testing.T) {
	for _, test := range []struct {
		name       string
		watchFirst bool
		take       func(s *scene, resp *corev1.Pod)
	}{
		{"of a write, the watch was faster", true, func(s *scene, resp *corev1.Pod) { s.statusStored(tick, s.write.inflight, resp, true) }},
		{"of a write, the watch comes later", false, func(s *scene, resp *corev1.Pod) { s.statusStored(tick, s.write.inflight, resp, true) }},
		{"of a read, the watch was faster", true, func(s *scene, resp *corev1.Pod) { s.State.finishGet(tick, 0, resp) }},
		{"of a read, the watch comes later", false, func(s *scene, resp *corev1.Pod) { s.State.finishGet(tick, 0, resp) }},
	} {
		s := runningPod().says(runs())
		s.writeStarted(tick, Patch, wallAt(tick))
		resp := s.Pod().DeepCopy()
		resp.ResourceVersion = "40"
		cached := resp.DeepCopy()
		if test.watchFirst {
			s.setPod(tick, &Version{pod: cached})
		}
		test.take(s, resp)
		if !test.watchFirst {
			s.setPod(tick, &Version{pod: cached})
		}
		if s.api.pod.pod != cached {
			t.Errorf("%s: the answer is held beside the cache's copy", test.name)
		}
		if s.provider.mirror != nil && s.provider.mirror != s.api.pod {
			t.Errorf("%s: the status of the answer is held beside the cache's copy", test.name)
		}
	}
}

func TestRepairsBecomeRarer(t *testing.T) {
	s := runningPod()
	for i := range 20 {
		s.now(func(p *corev1.Pod) { p.ResourceVersion = string(rune('3'+i/10)) + string(rune('0'+i%10)) })
		c := s.writeStarted(tick, Patch, wallAt(tick))
		resp := s.Pod().DeepCopy()
		s.statusStored(tick, c, resp, true)
	}
	if s.write.retryAt < tick+s.r.Retry.Cap/2 {
		t.Errorf("the next repair is due %v later", s.write.retryAt-tick)
	}
	s.says(runs())
	if s.write.rivals.repairs != 0 {
		t.Error("a report doesn't end it")
	}
}

// The API server before 1.34 keeps no generation of pods.
func TestUpdatesWithoutGeneration(t *testing.T) {
	zero := func(p *corev1.Pod) { p.Generation = 0 }
	s := fresh(zero).calls(Start, 0, runs())
	if s.changed() {
		t.Error("changed at once")
	}
	s.now(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	if s.changed() {
		t.Error("a label counts as a change")
	}
	for name, edit := range map[string]func(*corev1.Pod){
		"image":      func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" },
		"deadline":   func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) },
		"toleration": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k"}} },
		"ephemeral": func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
		},
	} {
		if s := fresh(zero).calls(Start, 0, runs()).now(edit); !s.changed() {
			t.Errorf("%s does not count as a change", name)
		}
	}
}

// The first status waits for the pod to run.
func TestMergeUntil(t *testing.T) {
	pending := &Report{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}}}
	for name, tc := range map[string]struct {
		scene *scene
		want  Instant
	}{
		"not started":        {fresh(), tick - 9*time.Second},
		"starting":           {fresh().calls(Start, 0), tick - 9*time.Second},
		"started, waiting":   {fresh().calls(Start, 0, pending), tick - 9*time.Second},
		"started, runs":      {fresh().calls(Start, 0, runs()), 0},
		"waiting, but known": {fresh(func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)} }).calls(Start, 0, pending), 0},
		"ending":             {runningPod().now(deletedWithin(30)), tick + time.Second},
	} {
		if got := tc.scene.mergeUntil(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
