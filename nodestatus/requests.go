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

// sender sends the requests about Nodes. Each method returns the time it took too.
type sender struct{ client corev1client.NodesGetter }

// do sends one request about the Node called name.
func do(ctx context.Context, name string, send func(ctx context.Context) (*corev1.Node, error)) (*corev1.Node, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := send(ctx)
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}

// create creates the Node.
func (s sender) create(ctx context.Context, node *corev1.Node) (*corev1.Node, time.Duration, error) {
	return do(ctx, node.Name, func(ctx context.Context) (*corev1.Node, error) {
		return s.client.Nodes().Create(ctx, node, metav1.CreateOptions{FieldManager: fieldManager})
	})
}

// get reads the Node.
func (s sender) get(ctx context.Context, name string) (*corev1.Node, time.Duration, error) {
	return do(ctx, name, func(ctx context.Context) (*corev1.Node, error) {
		return s.client.Nodes().Get(ctx, name, metav1.GetOptions{})
	})
}

// patch patches the Node's status, and its labels and annotations with it: the
// status subresource lets through all of the metadata.
func (s sender) patch(ctx context.Context, name string, data []byte) (*corev1.Node, time.Duration, error) {
	return do(ctx, name, func(ctx context.Context) (*corev1.Node, error) {
		return s.client.Nodes().Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	})
}

// taint patches the Node itself, and not its status.
func (s sender) taint(ctx context.Context, name string, data []byte) (*corev1.Node, time.Duration, error) {
	return do(ctx, name, func(ctx context.Context) (*corev1.Node, error) {
		return s.client.Nodes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: taintManager})
	})
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
