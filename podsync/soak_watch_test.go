// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// restoreLag is the time after which the controller has seen that the API server was restored,
// although watches lag.
const restoreLag = 2 * time.Minute

// watchWrites checks each write of the controller before the server gets it.
func (s *soaker) watchWrites() {
	s.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Func: func(r apitest.Request) bool {
		if r.Resource != "pods" {
			return false
		}
		if r.Verb != "list" && r.Verb != "watch" {
			s.mu.Lock()
			s.asked++
			s.mu.Unlock()
		}
		switch r.Verb {
		case "patch":
			s.judgePatch(r)
		case "delete":
			s.judgeDelete(r)
		}
		return false
	}}, Times: 1})
}

func (s *soaker) judgePatch(r apitest.Request) {
	var body map[string]json.RawMessage
	var meta map[string]string
	if err := json.Unmarshal(r.Body, &body); err != nil {
		s.t.Errorf("patch: %v", err)
	}
	if err := json.Unmarshal(body["metadata"], &meta); err != nil || meta["uid"] == "" || len(body) != 2 {
		s.t.Errorf("patch without UID or of more than the status: %s", r.Body)
	}
	delete(meta, "uid")
	delete(meta, "resourceVersion")
	if len(meta) > 0 {
		s.t.Errorf("patch of metadata: %s", r.Body)
	}
	s.t.Notef("PATCH %s %s", r.Name, r.Body)
}

func (s *soaker) judgeDelete(r apitest.Request) {
	pod := s.pod(r.Name)
	obj, err := r.Object()
	opts, ok := obj.(*metav1.DeleteOptions)
	if err != nil || !ok {
		s.t.Errorf("DELETE with %v, %v", obj, err)
		return
	}
	if opts.Preconditions == nil || opts.Preconditions.UID == nil || opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 0 {
		s.t.Errorf("DELETE without UID or with grace: %s", r.Body)
		return
	}
	uid := *opts.Preconditions.UID
	s.t.Notef("DELETE %s %s", r.Name, uid)
	if s.backend.Running(uid) {
		s.t.Errorf("DELETE of %s, which runs", r.Name)
	}
	if pod != nil && pod.UID == uid && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		s.t.Errorf("DELETE of %s in phase %s", r.Name, pod.Status.Phase)
	}
}

// goesBack finds parts of a pod's status that went back and must not.
func (s *soaker) goesBack(before, now *corev1.Pod) {
	if before == nil {
		return
	}
	was, is := &before.Status, &now.Status
	if was.Phase == corev1.PodRunning && is.Phase == corev1.PodPending {
		s.t.Errorf("%s was Running and is Pending", now.Name)
	}
	if was.StartTime != nil && !was.StartTime.Equal(is.StartTime) {
		s.t.Errorf("the start time of %s was %v and is %v", now.Name, was.StartTime, is.StartTime)
	}
	if is.ObservedGeneration < was.ObservedGeneration {
		s.t.Errorf("%s had observed %d, and now %d", now.Name, was.ObservedGeneration, is.ObservedGeneration)
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{was.InitContainerStatuses, is.InitContainerStatuses}, {was.ContainerStatuses, is.ContainerStatuses},
	} {
		if terminal(now) && !podstatus.HasStarted(was) && len(lists[1]) == 0 {
			continue // nothing of it ran
		}
		for i := range lists[0] {
			if i >= len(lists[1]) || lists[1][i].Name != lists[0][i].Name {
				s.t.Errorf("%s has lost the status of %s", now.Name, lists[0][i].Name)
				break
			}
			if a, b := lists[0][i].RestartCount, lists[1][i].RestartCount; b < a {
				s.t.Errorf("%s in %s had restarted %d times, and now %d", lists[0][i].Name, now.Name, a, b)
			}
		}
	}
	for i := range was.Conditions {
		a := &was.Conditions[i]
		switch b := condition(now, a.Type); {
		case b == nil:
			s.t.Errorf("%s has lost its condition %s", now.Name, a.Type)
		case b.LastTransitionTime.Unix() < a.LastTransitionTime.Unix():
			s.t.Errorf("the condition %s of %s changed at %v, and now before, at %v", a.Type, now.Name, a.LastTransitionTime, b.LastTransitionTime)
		}
	}
}
