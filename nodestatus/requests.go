// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

const (
	// callTimeout is the deadline of one API call, its retries inside client-go included.
	callTimeout = 10 * time.Second
	// fieldManager is who managedFields names as the writer of Nodes.
	fieldManager = status.FieldManager
	// taintManager is who managedFields names as the writer of KeepTaints. It is another
	// one, because only a creation writes the spec in the name of fieldManager.
	taintManager = fieldManager + "-taints"
)

// A request is a request to the API server, and its body.
type request struct {
	do     status.Do
	cause  status.Cause
	create *corev1.Node
	patch  []byte
}

// verb returns the verb of the request, as hooks and errors have it.
func (r request) verb() string {
	switch r.do {
	case status.Create:
		return "create"
	case status.Read:
		return "get"
	}
	return "patch"
}

// A sender sends requests about Nodes.
type sender struct{ client corev1client.NodesGetter }

// send sends a request about the Node called name. It returns the time it took too.
func (s sender) send(ctx context.Context, name string, r request) (answer *corev1.Node, latency time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes, begin := s.client.Nodes(), time.Now()
	switch r.do {
	case status.Create:
		answer, err = nodes.Create(ctx, r.create, metav1.CreateOptions{FieldManager: fieldManager})
	case status.Read:
		answer, err = nodes.Get(ctx, name, metav1.GetOptions{})
	case status.Patch:
		// The status subresource lets through all of the metadata: labels and annotations.
		answer, err = nodes.Patch(ctx, name, types.StrategicMergePatchType, r.patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	case status.Taint:
		answer, err = nodes.Patch(ctx, name, types.MergePatchType, r.patch, metav1.PatchOptions{FieldManager: taintManager})
	}
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}

// remove deletes the Node if it is still the one with this uid.
func (s sender) remove(ctx context.Context, name string, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.client.Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

// judge returns the meaning of the error of a request about the Node.
func judge(err error, nodeName string) status.Verdict {
	switch apierr.Classify(err) {
	case apierr.NotFound:
		// Too much follows from a deleted Node to take the 404 of a proxy for one.
		if apierr.IsMissing(err, "nodes", nodeName) {
			return status.Gone
		}
		return status.Refused
	case apierr.Conflict:
		return status.Other
	case apierr.Invalid:
		if mentionsUID(err) {
			return status.Other
		}
		return status.Refused
	case apierr.AlreadyExists, apierr.Unauthorized, apierr.Forbidden:
		return status.Refused
	default:
		return status.Away
	}
}

// mentionsUID reports whether a 422 is about metadata.uid, which can't change:
// the patch was made for another object.
func mentionsUID(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(answer.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
