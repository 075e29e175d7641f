// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/vkadapter"
)

var (
	known    = errdefs.NotFound("no such job")
	errPlain = errors.New("404 Not Found")
	fromAPI  = apierrors.NewNotFound(corev1.Resource("pods"), "x")
)

// wild are providers with the habits that were found in real ones.
var wild = map[string]struct {
	habits
	once bool // Config.ListOnce
}{
	"as asked for":                                {habits: habits{notFound: known}},
	"without NotifyPods":                          {habits: habits{notFound: known, silent: true}},
	"without UIDs":                                {habits: habits{notFound: known, noUIDs: true}},
	"without UIDs and NotifyPods":                 {habits: habits{notFound: known, noUIDs: true, silent: true}},
	"without names":                               {habits: habits{notFound: known, noNames: true, noUIDs: true, silent: true}},
	"without names, nil for not found":            {habits: habits{noNames: true, noUIDs: true, silent: true}},
	"nil for not found":                           {habits: habits{}},
	"any error for not found":                     {habits: habits{notFound: errPlain}},
	"any error for not found, without NotifyPods": {habits: habits{notFound: errPlain, silent: true}},
	"the API's error for not found":               {habits: habits{notFound: fromAPI}},
	"names of jobs in GetPods":                    {habits: habits{notFound: errPlain, noUIDs: true, jobNames: true, silent: true}},
	"names of jobs in GetPods, and NotifyPods":    {habits: habits{notFound: known, noUIDs: true, jobNames: true}},
	"by UID":                                      {habits: habits{notFound: known, byUID: true}},
	"by UID without NotifyPods":                   {habits: habits{notFound: known, byUID: true, silent: true}},
	"status only from GetPodStatus":               {habits: habits{notFound: known, noStatus: true, silent: true}},
	"status only from reports":                    {habits: habits{notFound: known, noStatus: true}},
	"phases without containers":                   {habits: habits{notFound: known, noContainers: true}},
	"phases without containers, no NotifyPods":    {habits: habits{notFound: known, noContainers: true, silent: true}},
	"names of its own for containers":             {habits: habits{notFound: known, ownContainers: true, silent: true}},
	"final phase while a container runs":          {habits: habits{notFound: known, staleRunning: true}},
	"GetPods lags behind CreatePod":               {habits: habits{notFound: known, lag: 20 * time.Second}},
	"GetPods lags behind, no NotifyPods":          {habits: habits{notFound: errPlain, lag: 20 * time.Second, silent: true}},
	"ends some time after DeletePod":              {habits: habits{notFound: known, stopTime: 10 * time.Second}},
	"ends some time after, no NotifyPods":         {habits: habits{notFound: known, stopTime: 10 * time.Second, silent: true}},
	"the end in the last report":                  {habits: habits{notFound: known, forgets: true}},
	"a loop that GetPods starts":                  {habits: habits{notFound: known, loopInGetPods: true}, once: true},
	"a job that a goroutine of CreatePod submits": {habits: habits{notFound: known, loopInCreate: true}},
	"jobs that are found by annotation":           {habits: habits{listsCluster: true, byUID: true, noStatus: true}, once: true},
	"jobs by annotation, GetPods again and again": {habits: habits{listsCluster: true, byUID: true, noStatus: true}},
	"GetPods lists nothing":                       {habits: habits{notFound: known, unlisted: true}},
	"GetPods lists nothing, any error":            {habits: habits{notFound: errPlain, unlisted: true, silent: true}},
	"names of jobs, GetPod fails now and then":    {habits: habits{notFound: errPlain, noUIDs: true, jobNames: true, blips: true, silent: true}},
	"a job in a label, which DeletePod needs":     {habits: habits{notFound: known, inLabels: true}},
	"jobs that are found by label":                {habits: habits{listsCluster: true, byUID: true, noStatus: true, inLabels: true}},
	"objects of others in GetPods":                {habits: habits{notFound: known, foreign: true, noUIDs: true}},
	"objects of others, no NotifyPods":            {habits: habits{notFound: known, foreign: true, silent: true}},
	"CreatePod fails after it has created":        {habits: habits{notFound: known, createTimesOut: true}},
	"objects of a host cluster":                   {habits: habits{notFound: fromAPI, hostObjects: true, silent: true, createTimesOut: true, stopTime: 10 * time.Second}},
	"a deleted job stays, failed":                 {habits: habits{notFound: known, keepsEnded: true, stopTime: 10 * time.Second}},
	"reports in calls, a job in a label":          {habits: habits{notFound: known, inLabels: true, reportsInCall: true, listsCluster: true, byUID: true}},
	"an empty list, and nil for all":              {habits: habits{unlisted: true, nilErrors: true, silent: true}},
	"reports pods of the lister, without UIDs":    {habits: habits{notFound: known, noUIDs: true, noStatus: true, polls: true}},
	// As interlink-hq/interLink at f632175, with a type that names GetLogs GetContainerLogs: GetPod and
	// GetPodStatus are not implemented; GetPodByUID returns errdefs.NotFound for a missing pod and asks no
	// back end; GetPods lists pods of the API with an annotation, and begins the loop that reports;
	// CreatePod returns nil before its goroutine has called the back end; DeletePod returns
	// errdefs.NotFound for a missing pod, and forgets the pod before the back end has answered.
	"interLink": {habits: habits{listsCluster: true, byUID: true, loopInGetPods: true, loopInCreate: true, forgets: true}, once: true},
	// As SaladTechnologies/virtual-kubelet-saladcloud at d097e61: of a missing pod, and of an answer
	// 500, GetPod returns nil, nil, and GetPodStatus an error with the StatusCode; GetPods returns pods
	// without names, and nil, nil for an answer 500; CreatePod and DeletePod succeed then.
	"SaladCloud": {habits: habits{noNames: true, noUIDs: true, lies: true, codes: true, ownContainers: true, polls: true}},
	// As dingp/vk-provider-nersc at 3d31e43, with a type for its GetContainerLogs: GetPod and GetPodStatus
	// return a plain error for a pod that this process has not created, and another one if the back end
	// answers 404 or 500, nothing, or an empty body. GetPods leaves out such a pod, and then returns no
	// error. It has no UIDs and no containers. DeletePod succeeds for a pod that it does not know, and
	// fails if the back end does; CreatePod fails then.
	"NERSC":                                  {habits: habits{ownJobs: true, noUIDs: true, noContainers: true, silent: true, notFound: errPlain}},
	"a job that runs when it is asked about": {habits: habits{notFound: known, silent: true, progressInPoll: true}},
}

// each runs f with every wild provider.
func each(t *testing.T, f func(w *world)) {
	for name, c := range wild {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.habits, func(w *world) {
				w.change = func(cfg *vkadapter.NodeConfig) {
					cfg.Adapter = func(a *vkadapter.Config) { a.ListOnce = c.once }
				}
				if c.foreign {
					w.s.Put(&corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: elsewhere, UID: "uid-elsewhere"},
						Spec:       corev1.PodSpec{NodeName: "another", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
						Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
							{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
						}},
					})
				}
				f(w)
				if touched := w.cloud.touched; len(touched) > 0 {
					t.Errorf("DeletePod was called for %v", touched)
				}
			})
		})
	}
}

// A pod starts once, lives through the death of its process, and is deleted with its job. A provider that
// has forgotten its jobs then starts another one, as the restart policy says for a pod that was lost.
func TestWildProvidersLoseNoPod(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		web := w.pod("web", corev1.RestartPolicyAlways)
		pass(time.Minute)
		w.phase("after a minute", "web", corev1.PodRunning)
		w.kill()
		pass(time.Minute)
		w.start()
		pass(3 * time.Minute)
		w.phase("after a restart", "web", corev1.PodRunning)
		w.holds("after a restart", "web")
		jobs := 1
		if w.habits.ownJobs {
			jobs = 2
		}
		w.times("after a restart", jobs, web)
		w.delete("web")
		pass(2 * time.Minute)
		if pod := w.get("web"); pod != nil {
			w.Errorf("the deleted pod is there after two minutes: %v", pod.Status)
		}
		w.holds("after the deletion")
		w.times("after the deletion", jobs, web)
		again := w.pod("web", corev1.RestartPolicyAlways)
		pass(time.Minute)
		w.phase("a second pod of the name", "web", corev1.PodRunning)
		w.once("a second pod of the name", again)
	})
}

// A pod that completes has the phase that the provider reports, and its job stays for its
// logs until the pod is deleted, unless the provider shows a container that runs: then it is deleted at
// once. One that runs is lost with a provider that forgets it.
func TestWildProvidersComplete(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		good, bad := w.pod("good", corev1.RestartPolicyNever), w.pod("failing", corev1.RestartPolicyNever)
		later := w.pod("later", corev1.RestartPolicyNever)
		pass(time.Minute)
		w.cloud.exit("good", 0)
		w.cloud.exit("failing", 3)
		pass(time.Minute)
		w.phase("after the exit", "good", corev1.PodSucceeded)
		w.phase("after the exit", "failing", corev1.PodFailed)
		w.kill()
		w.start()
		pass(12 * time.Minute)
		w.cloud.exit("later", 0)
		pass(12 * time.Minute)
		w.phase("after a restart", "good", corev1.PodSucceeded)
		wantLater := corev1.PodSucceeded
		if w.habits.ownJobs {
			wantLater = corev1.PodFailed
		}
		w.phase("after a restart", "later", wantLater)
		w.phase("after a restart", "failing", corev1.PodFailed)
		if w.habits.staleRunning { // DeletePod makes sure of the end
			w.holds("after a restart")
		} else {
			w.holds("after a restart", "failing", "good", "later")
		}
		w.once("after a restart", good, bad, later)
		w.delete("good")
		w.delete("later")
		w.delete("failing")
		pass(3 * time.Minute)
		if w.habits.ownJobs {
			w.holds("after the deletion", "failing", "good", "later")
		} else {
			w.holds("after the deletion")
		}
	})
}

// While the back end does not answer, nothing is concluded, and nothing is lost.
func TestWildProvidersOutlastTheirBackEnd(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		web, old := w.pod("web", corev1.RestartPolicyAlways), w.pod("old", corev1.RestartPolicyAlways)
		pass(time.Minute)
		w.cloud.setAway(true)
		fresh := w.pod("new", corev1.RestartPolicyAlways)
		w.delete("old")
		pass(2 * time.Minute)
		w.cloud.setAway(false)
		pass(7 * time.Minute) // the longest backoff
		if w.habits.blips {
			pass(time.Hour) // each seventh try fails too
		}
		w.phase("after the outage", "web", corev1.PodRunning)
		w.phase("after the outage", "new", corev1.PodRunning)
		if pod := w.get("old"); pod != nil {
			w.Errorf("the deleted pod is still there: %v", pod.Status)
		}
		w.holds("after the outage", "new", "web")
		w.once("after the outage", web, old, fresh)
	})
}

// A pod that is deleted while no process runs leaves no job behind, unless the provider does not show
// such a job under the name of its pod. Then the job runs on: docs/migrate.md lists these providers.
func TestWildProvidersLeaveNoOrphans(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		w.pod("web", corev1.RestartPolicyAlways)
		other := w.pod("other", corev1.RestartPolicyAlways)
		pass(time.Minute)
		w.kill()
		apitest.Remove[*corev1.Pod](w.s, "default", "web")
		w.start()
		pass(10 * time.Minute)
		if h := w.habits; h.noNames || h.jobNames && h.silent || h.listsCluster || h.unlisted || h.hostObjects || h.ownJobs {
			w.holds("after the restart", "other", "web")
		} else {
			w.holds("after the restart", "other")
		}
		if w.habits.ownJobs {
			w.times("after the restart", 2, other)
		} else {
			w.once("after the restart", other)
		}
		w.phase("after the restart", "other", corev1.PodRunning)
	})
}

// The process is killed, and the API server is restored from a backup before the next one begins. A pod
// that lives in both runs on, one whose deletion the restore undoes starts again, and the job of one that the
// backup does not have ends, unless the provider does not show such a job under the name of its pod.
func TestWildProvidersOutliveARestore(t *testing.T) {
	each(t, func(w *world) {
		w.start()
		stays, deleted := w.pod("web", corev1.RestartPolicyAlways), w.pod("other", corev1.RestartPolicyAlways)
		pass(time.Minute)
		restore := w.s.Backup()
		w.delete("other")
		pass(2 * time.Minute)
		w.pod("new", corev1.RestartPolicyAlways)
		pass(time.Minute)
		w.holds("before the restore", "new", "web")
		w.kill()
		restore()
		w.start()
		pass(12 * time.Minute)
		h := w.habits
		jobs, again, phase := map[types.UID]int{stays: 1, deleted: 2}, "other", corev1.PodRunning
		switch {
		case h.ownJobs:
			jobs[stays] = 2
		case h.listsCluster: // it believes the annotation that the restored pod has of its job
			jobs[deleted], again = 1, ""
		case h.keepsEnded: // it still has the job that was deleted
			jobs[deleted], again, phase = 1, "", corev1.PodFailed
		}
		w.phase("after the restore", "web", corev1.PodRunning)
		w.phase("after the restore", "other", phase)
		want := []string{"web"}
		if h.noNames || h.jobNames && h.silent || h.listsCluster || h.unlisted || h.hostObjects || h.ownJobs {
			want = []string{"new", "web"}
		}
		if again != "" {
			want = append(want, again)
			slices.Sort(want)
		}
		w.holds("after the restore", want...)
		for uid, n := range jobs {
			w.times("after the restore", n, uid)
		}
	})
}
