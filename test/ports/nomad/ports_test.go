// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nomad runs the provider of Nomad that virtual-kubelet v0.10 had, with vkadapter and
// with virtual-kubelet's own node package, side by side. Nomad is a fake.
package nomad

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	"old.invalid/virtual-kubelet/providers/nomad"

	"github.com/kubewright/kubewright/test/ports/internal/side"
)

func TestMain(m *testing.M) { side.Main(m, newProcess) }

// cluster is a fake of the Nomad API.
type cluster struct {
	side.Cloud

	mu   sync.Mutex
	jobs map[string]*api.Job
	dead map[string]bool
}

func newPort() *side.Port {
	c := &cluster{jobs: map[string]*api.Job{}, dead: map[string]bool{}}
	c.Handler = http.HandlerFunc(c.serve)
	return &side.Port{
		Cloud: &c.Cloud, New: newProcess, Exit: c.exit, Socket: true, DeleteTimeout: 20 * time.Second,
		Env: func(url string) map[string]string {
			return map[string]string{"NOMAD_ADDR": strings.TrimPrefix(url, "http://")}
		},
	}
}

func newProcess() (side.Process, error) {
	provider, err := nomad.NewProvider(nil, side.NodeName, "Linux")
	if err != nil {
		return nil, err
	}
	return func(nodeutil.ProviderConfig) node.PodLifecycleHandler { return provider }, nil
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Nomad-Index", "1")
	w.Header().Set("X-Nomad-LastContact", "0")
	w.Header().Set("X-Nomad-KnownLeader", "true")
	c.mu.Lock()
	defer c.mu.Unlock()
	id, allocations := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/job/"), "/allocations")
	job := c.jobs[id]
	var answer any
	switch {
	case r.URL.Path == "/v1/jobs" && r.Method == http.MethodPut:
		var sent api.JobRegisterRequest
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		now := time.Now().Unix()
		sent.Job.SubmitTime = &now
		if c.jobs[*sent.Job.ID] == nil { // otherwise it is an update
			delete(c.dead, *sent.Job.ID)
			c.Started(*sent.Job.ID, *sent.Job.ID)
		}
		c.jobs[*sent.Job.ID] = sent.Job
		answer = api.JobRegisterResponse{EvalID: "registered"}
	case r.URL.Path == "/v1/jobs":
		list := []api.JobListStub{}
		for id := range c.jobs {
			if strings.HasPrefix(id, r.URL.Query().Get("prefix")) {
				list = append(list, api.JobListStub{ID: id, Name: id})
			}
		}
		answer = list
	case r.Method == http.MethodDelete: // an unknown job is no error
		delete(c.jobs, id)
		c.Stopped(id)
		answer = api.JobDeregisterResponse{EvalID: "deregistered"}
	case job == nil:
		http.Error(w, "job not found", http.StatusNotFound)
		return
	case allocations:
		answer = []api.AllocationListStub{{JobID: id, TaskStates: map[string]*api.TaskState{
			job.TaskGroups[0].Tasks[0].Name: {State: c.status(id), StartedAt: time.Unix(*job.SubmitTime, 0)},
		}}}
	default:
		status := c.status(id)
		job.Status = &status
		answer = job
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (c *cluster) status(id string) string {
	if c.dead[id] {
		return "dead"
	}
	return "running"
}

func jobOf(pod string) string { return "nomad-virtual-kubelet-" + pod }

func (c *cluster) exit(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead[jobOf(pod)] = true
}

func TestSideBySide(t *testing.T) {
	side.Compare(t, newPort, map[string][]string{
		side.Kubewright: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 2 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 3 instances, at most 1 for a pod; new Running, web Running",
			"after two minutes of empty answers: 4 instances, at most 1 for a pod; new Running, void Running, web Running",
			"after a minute without the API server, web ended: 4 instances, at most 1 for a pod; new Running, void Running, web Failed",
			"with a second process: 5 instances, at most 1 for a pod; new Running, two Running, void Running, web Failed",
			"deleted: 5 instances, at most 1 for a pod; new Running Terminating, two Running Terminating, void Running Terminating",
		},
		side.VirtualKubelet: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 2 for a pod; web Running",
			"after two minutes of errors: 1 instances, at most 2 for a pod; new Failed ProviderFailed, web Running",
			"after two minutes of empty answers: 1 instances, at most 2 for a pod; new Failed ProviderFailed, void Failed ProviderFailed, web Running",
			"after a minute without the API server, web ended: 1 instances, at most 2 for a pod; new Failed ProviderFailed, void Failed ProviderFailed, web Failed",
			"with a second process: 1 instances, at most 2 for a pod; new Failed ProviderFailed, two Running, void Failed ProviderFailed, web Failed",
			"deleted: 0 instances, at most 2 for a pod; ",
		},
	})
}

func TestKilled(t *testing.T) {
	side.Killed(t, newPort, map[string]side.Stages{
		side.Kubewright: {
			Created: side.AliveKilled.Created,
			Started: "5 instances, at most 1 for a pod; ended Failed, half Running, new Running, web Running",
			Stopped: "5 instances, at most 1 for a pod; ended Failed, half Running, new Running, web Running Terminating",
			Deleted: "5 instances, at most 1 for a pod; ", // DeletePod ends none of the jobs
		},
		side.VirtualKubelet: {
			Created: side.AliveKilled.Created,
			Started: "4 instances, at most 2 for a pod; ended Running, half Running, new Running, web Running",
			Stopped: "3 instances, at most 3 for a pod; ended Running, half Running, new Running",
			Deleted: "0 instances, at most 3 for a pod; ",
		},
	})
}

// The provider's logs are empty, and its exec does nothing.
func TestAnswers(t *testing.T) {
	side.Answers(t, newPort(), []side.Question{
		{Path: "/containerLogs/default/web/main", Kubewright: "200 "},
		{Path: "/containerLogs/default/none/main", Kubewright: "404 pod default/none is not on node \"port\"\n", VirtualKubelet: "200 "},
		{Path: "/exec/default/web/main?command=hello", Kubewright: ""},
		{
			Path:           "/attach/default/web/main",
			Kubewright:     "error: Internal error occurred: error attaching to container: " + side.NoMethod("AttachToContainer"),
			VirtualKubelet: "error: unable to upgrade connection: 501 not implemented",
		},
		{Path: "/stats/summary", Kubewright: "501 " + side.NoMethod("GetStatsSummary") + "\n", VirtualKubelet: "404 404 request not found\n"},
		{Path: "/metrics/resource", Kubewright: "200 " + side.NoMetrics, VirtualKubelet: "404 404 request not found\n"},
	})
}
