// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
)

// fieldManager is who managedFields names as the writer of Nodes.
const fieldManager = "kubewright-nodestatus"

// create creates the Node.
func (c *Controller) create(ctx context.Context, node *corev1.Node) (*corev1.Node, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := c.cfg.Client.Nodes().Create(ctx, node, metav1.CreateOptions{FieldManager: fieldManager})
	answer, err = apierr.Answer(answer, err, node.Name)
	return answer, time.Since(begin), err
}

// get reads the Node.
func (c *Controller) get(ctx context.Context, name string) (*corev1.Node, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := c.cfg.Client.Nodes().Get(ctx, name, metav1.GetOptions{})
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}

// patch patches the Node's status, and its labels and annotations with it: the
// status subresource lets through all of the metadata.
func (c *Controller) patch(ctx context.Context, name string, data []byte) (*corev1.Node, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := c.cfg.Client.Nodes().Patch(ctx, name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}

// remove deletes the Node if it is still the one with this uid.
func (c *Controller) remove(ctx context.Context, name string, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	return c.cfg.Client.Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}
