// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
)

// fence is the provider's view of its term: election.Term implements it.
type fence interface {
	Valid() bool
	Token() uint64
}

// provider runs pods in the cloud, for one term. It keeps no state: the
// provider of the next term, in either process, finds everything in the cloud.
type provider struct {
	client *http.Client
	pods   string // the URL of the node's pods
	term   fence
}

// podsync finds these interfaces by type assertion, so a changed signature must
// not compile.
var (
	_ podsync.Inspector = (*provider)(nil)
	_ podsync.Releaser  = (*provider)(nil)
)

// relist is the time between two lists, because the cloud sends no events.
const relist = 2 * time.Second

// errNotLeading means that the term has ended or may have ended.
var errNotLeading = errors.New("the term is not assured")

// Start implements podsync.Provider.
func (p *provider) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	if len(pod.Spec.InitContainers) > 0 {
		return podsync.State{}, podsync.Reject("Unsupported", "the cloud runs no init containers")
	}
	wanted := instance{
		Namespace: pod.Namespace, Name: pod.Name, Generation: pod.Generation,
		Completes: pod.Spec.RestartPolicy != corev1.RestartPolicyAlways,
	}
	for _, c := range pod.Spec.Containers {
		wanted.Containers = append(wanted.Containers, container{Name: c.Name, Image: c.Image})
	}
	return p.one(ctx, http.MethodPut, podsync.RefOf(pod), "", &wanted)
}

// Stop implements podsync.Provider.
func (p *provider) Stop(ctx context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	state, err := p.one(ctx, http.MethodPost, ref, "/stop", nil)
	if errors.Is(err, podsync.ErrNotFound) {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	return state, err
}

// Release implements podsync.Releaser.
func (p *provider) Release(ctx context.Context, ref podsync.Ref) error {
	_, err := p.one(ctx, http.MethodDelete, ref, "", nil)
	if errors.Is(err, podsync.ErrNotFound) {
		return nil
	}
	return err
}

// List implements podsync.Provider. podsync lists before it starts or stops
// anything, so the first list of a term raises the fence.
func (p *provider) List(ctx context.Context) ([]podsync.State, error) {
	var list []instance
	if err := p.call(ctx, http.MethodGet, p.pods, nil, &list); err != nil {
		return nil, err
	}
	states := make([]podsync.State, 0, len(list))
	for _, i := range list {
		states = append(states, i.state())
	}
	return states, nil
}

// Inspect implements podsync.Inspector.
func (p *provider) Inspect(ctx context.Context, ref podsync.Ref) (podsync.State, error) {
	states, err := p.List(ctx)
	if err != nil {
		return podsync.State{}, err
	}
	for _, state := range states {
		if state.UID == ref.UID {
			return state, nil
		}
	}
	return podsync.State{}, fmt.Errorf("pod %s: %w", ref, podsync.ErrNotFound)
}

// one sends a request about one pod.
func (p *provider) one(ctx context.Context, method string, ref podsync.Ref, suffix string, body *instance) (podsync.State, error) {
	var i instance
	if err := p.call(ctx, method, p.pods+"/"+string(ref.UID)+suffix, body, &i); err != nil {
		return podsync.State{}, err
	}
	return i.state(), nil
}

// call sends a request. It starts none outside the term. The cloud refuses a
// request that arrives after the term's end, once it has seen the next term.
func (p *provider) call(ctx context.Context, method, url string, body *instance, result any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(tokenHeader, strconv.FormatUint(p.term.Token(), 10))
	if !p.term.Valid() {
		return podsync.RetryAfter(errNotLeading, time.Second)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	content, err = io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return podsync.ErrNotFound
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("cloud: %s: %s", answer.Status, strings.TrimSpace(string(content)))
	}
	return json.Unmarshal(content, result)
}

// state converts an instance to a podsync.State.
func (i *instance) state() podsync.State {
	started := metav1.NewTime(i.Started)
	s := podsync.State{
		Ref:        podsync.Ref{UID: i.UID, Namespace: i.Namespace, Name: i.Name},
		Generation: i.Generation,
		Stopped:    !i.Ended.IsZero(),
		Status:     corev1.PodStatus{StartTime: &started},
	}
	for _, c := range i.Containers {
		status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ContainerID: i.ID + "/" + c.Name}
		if s.Stopped {
			status.State.Terminated = &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: started, FinishedAt: metav1.NewTime(i.Ended), ContainerID: status.ContainerID,
			}
		} else {
			status.Ready, status.Started = true, new(true)
			status.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
		}
		s.Status.ContainerStatuses = append(s.Status.ContainerStatuses, status)
	}
	return s
}
