// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
)

// fieldManager is the name of a Reporter in managedFields.
const fieldManager = "kubewright-configcheckpoint"

// repeat is the time between two patches with the same condition, the last fifth random.
func repeat() time.Duration {
	return backoff.Policy{Base: 5 * time.Minute, Cap: 5 * time.Minute, Jitter: 0.2}.Delay(1)
}

// A Reporter shows the status of a Controller as one condition of a Node that another
// component maintains, usually a kubelet. It writes nothing else of the Node, and the
// kubelet leaves conditions alone that are not its own.
//
// Its methods may be called by any number of goroutines.
type Reporter struct {
	nodes corev1client.NodeInterface
	node  string
	kind  corev1.NodeConditionType
	once  lifecycle.Once
	wake  chan struct{} // has room for one signal

	mu        sync.Mutex
	condition *corev1.NodeCondition // to write; nil before the first status
}

// NewReporter returns a Reporter for the condition of the given type of a Node. Its error
// names every argument that is not valid. The client needs permission to patch nodes/status.
func NewReporter(client corev1client.NodesGetter, nodeName string, kind corev1.NodeConditionType) (*Reporter, error) {
	problems := nodename.CheckFirst("nodeName", nodeName, "", false)
	if lifecycle.IsNil(client) {
		problems = append(problems, errors.New("the client is nil"))
	}
	// The rule of API conventions for types of conditions; the API server has none.
	for _, msg := range validation.IsQualifiedName(string(kind)) {
		problems = append(problems, fmt.Errorf("the type %q: %s", kind, msg))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("configcheckpoint: reporter: %w", errors.Join(problems...))
	}
	return &Reporter{nodes: client.Nodes(), node: nodeName, kind: kind, wake: make(chan struct{}, 1)}, nil
}

// Name returns "configcheckpoint-reporter".
func (r *Reporter) Name() string { return "configcheckpoint-reporter" }

// StatusChanged makes s the status to write. It is for Hooks.StatusChanged and does not
// block.
func (r *Reporter) StatusChanged(s configcheckpoint.Status) {
	c := Condition(s, r.kind)
	c.LastHeartbeatTime = metav1.Now()
	r.mu.Lock()
	r.condition = &c
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run writes each status until ctx is done, and then returns nil. It retries after errors,
// also while the Node does not exist, with a delay of 1 s that doubles up to a minute. Every
// five minutes it repeats the last patch, in case the Node was created again. A patch that
// changes nothing is not stored by the API server and no watch shows it. A second call returns
// configcheckpoint.ErrAlreadyRun.
func (r *Reporter) Run(ctx context.Context) error {
	if !r.once.Begin() {
		return configcheckpoint.ErrAlreadyRun
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(r.Name()).WithValues("node", klog.KRef("", r.node)))
	retry := backoff.Policy{Base: time.Second, Cap: time.Minute}
	var failing apierr.Streak
	for {
		err := r.write(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wake, wait := r.wake, repeat()
		if err != nil {
			failing.Fail(ctx, nil, apierr.Permission(err, "node-condition.yaml"), "Failed to write the condition of the Node", "type", r.kind)
			wake, wait = nil, max(retry.Delay(failing.Failures()), apierr.RetryAfter(err))
		} else {
			failing.OK(ctx, "Wrote the condition of the Node again", "type", r.kind)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(wait):
		}
	}
}

// write patches the last status into the Node, if there is one.
func (r *Reporter) write(ctx context.Context) error {
	r.mu.Lock()
	condition := r.condition
	r.mu.Unlock()
	if condition == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []*corev1.NodeCondition{condition}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := r.nodes.Patch(ctx, r.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	_, err = apierr.Answer(answer, err, r.node) // an empty answer of a proxy is none
	return err
}
