// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"sync"
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

// A callQueue makes the API calls of nodes apart from their rounds, which an API
// server that does not answer must not hold up. Each node has at most one call under
// way, and all together have at most limit. A node that waits for its turn has no
// goroutine.
type callQueue struct {
	limit int
	call  func(ctx context.Context, name string)

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while no call may begin
	waiting []string
	nodes   map[string]*queuedNode // those that wait or are under way
	running int
	workers sync.WaitGroup
}

// queuedNode is a node in a callQueue.
type queuedNode struct {
	cancel context.CancelFunc // ends the call that is under way; nil while it waits
	again  bool               // asked for while it was under way
}

// open lets calls begin. They end with ctx.
func (q *callQueue) open(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
}

// close lets no further call begin, and waits for those that are under way.
func (q *callQueue) close() {
	q.mu.Lock()
	q.ctx = nil
	q.mu.Unlock()
	q.workers.Wait()
}

// add asks for a call for a node. One that waits already is enough.
func (q *callQueue) add(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil {
		return
	}
	if n, ok := q.nodes[name]; ok {
		n.again = n.cancel != nil
		return
	}
	if q.nodes == nil {
		q.nodes = make(map[string]*queuedNode)
	}
	q.nodes[name] = &queuedNode{}
	q.waiting = append(q.waiting, name)
	if q.running < q.limit {
		q.running++
		q.workers.Go(q.work)
	}
}

// cancel ends the call of a node that is under way.
func (q *callQueue) cancel(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n, ok := q.nodes[name]; ok && n.cancel != nil {
		n.cancel()
	}
}

// work makes calls until none waits.
func (q *callQueue) work() {
	for {
		ctx, name, ok := q.next()
		if !ok {
			return
		}
		q.call(ctx, name)
		q.done(name)
	}
}

// next returns the call that has waited longest.
func (q *callQueue) next() (ctx context.Context, name string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.ctx == nil {
		q.running--
		return nil, "", false
	}
	name, q.waiting = q.waiting[0], q.waiting[1:]
	ctx, q.nodes[name].cancel = context.WithCancel(q.ctx)
	return ctx, name, true
}

// done ends the call of a node, and lets it wait again if that was asked for.
func (q *callQueue) done(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.nodes[name]
	n.cancel()
	if !n.again {
		delete(q.nodes, name)
		return
	}
	n.cancel, n.again = nil, false
	q.waiting = append(q.waiting, name)
}
