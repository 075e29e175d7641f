// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	nodePrefix = "scale-"
	namespace  = metav1.NamespaceDefault
	// inFlight is the maximum number of concurrent requests of the driver.
	inFlight = 16
	// recreateAfter is how long a deleted Node stays absent if the driver
	// creates it again: about as long as with a contender that registers its
	// Nodes.
	recreateAfter = 15 * time.Second
)

// driver generates the load: it creates and deletes pods and Nodes.
type driver struct {
	client kubernetes.Interface
	pods   *pods
	nodes  *nodes
	o      options
	// registers is true if the contender creates the Nodes.
	registers bool

	mu     sync.Mutex
	random *rand.Rand // makes the same choices for every contender
	alive  []alive
	made   int
	turns  []int // the order in which Nodes are deleted
	turn   int
	away   sync.WaitGroup // Nodes that will be created again soon
	// trouble counts failed requests of the driver. They are retried.
	trouble faults
}

// alive is a pod that the driver has created and not deleted.
type alive struct {
	name, node string
	uid        types.UID
}

func newDriver(client kubernetes.Interface, p *pods, n *nodes, o options, registers bool) *driver {
	random := rand.New(rand.NewPCG(1, 2))
	return &driver{client: client, pods: p, nodes: n, o: o, registers: registers, random: random, turns: random.Perm(o.Nodes)}
}

// createNodes creates all Nodes.
func (d *driver) createNodes(ctx context.Context) {
	pace(ctx, d.o.Rate, d.o.Nodes, func(i int) { d.createNode(ctx, nodeName(i)) })
}

// createPods creates the pods, evenly distributed over all nodes.
func (d *driver) createPods(ctx context.Context) {
	pace(ctx, d.o.Rate, d.o.Pods, func(i int) { d.createPod(ctx, nodeName(i%d.o.Nodes)) })
}

// deletePods deletes all pods.
func (d *driver) deletePods(ctx context.Context) {
	d.mu.Lock()
	count := len(d.alive)
	d.mu.Unlock()
	pace(ctx, d.o.Rate, count, func(int) { d.deletePod(ctx) })
}

// churn replaces pods and deletes Nodes until ctx is done. Some Nodes may still
// be absent when it returns; the driver creates them later.
func (d *driver) churn(ctx context.Context) {
	// Finish every replacement, so that no deleted pod is left without its
	// successor.
	whole := context.WithoutCancel(ctx)
	var wg sync.WaitGroup
	if d.o.PodChurn > 0 {
		wg.Go(func() {
			pace(ctx, d.o.PodChurn, 0, func(int) {
				if node, ok := d.deletePod(whole); ok {
					d.createPod(whole, d.readyNode(node))
				}
			})
		})
	}
	if d.o.NodeChurn > 0 {
		wg.Go(func() {
			pace(ctx, d.o.NodeChurn/60, 0, func(int) { d.replaceNode(whole) })
		})
	}
	wg.Wait()
}

// readyNode returns name if that node is Ready, otherwise another Ready node,
// because a scheduler would not choose an absent one.
func (d *driver) readyNode(name string) string {
	for range d.o.Nodes {
		if d.nodes.isReady(name) {
			break
		}
		d.mu.Lock()
		name = nodeName(d.random.IntN(d.o.Nodes))
		d.mu.Unlock()
	}
	return name
}

// forceDelete deletes all remaining pods without a grace period, and returns
// their number.
func (d *driver) forceDelete(ctx context.Context) (int, error) {
	list, err := d.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, pod := range list.Items {
		err := d.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, err
		}
	}
	return len(list.Items), nil
}

// createPod creates a pod that is bound to node.
func (d *driver) createPod(ctx context.Context, node string) {
	d.mu.Lock()
	name := fmt.Sprintf("pod-%06d", d.made)
	d.made++
	d.mu.Unlock()
	d.persist(ctx, "create pod", func() error {
		pod, err := d.client.CoreV1().Pods(namespace).Create(ctx, newPod(name, node), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // by an earlier attempt whose answer was lost
			pod, err = d.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.alive = append(d.alive, alive{name, node, pod.UID})
		return nil
	})
}

// deletePod deletes a random pod and returns its node. ok is false if there is
// no pod.
func (d *driver) deletePod(ctx context.Context) (node string, ok bool) {
	d.mu.Lock()
	if len(d.alive) == 0 {
		d.mu.Unlock()
		return "", false
	}
	i := d.random.IntN(len(d.alive))
	victim := d.alive[i]
	d.alive[i] = d.alive[len(d.alive)-1]
	d.alive = d.alive[:len(d.alive)-1]
	d.mu.Unlock()

	d.pods.want(string(victim.uid))
	d.persist(ctx, "delete pod", func() error {
		err := d.client.CoreV1().Pods(namespace).Delete(ctx, victim.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.uid}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return victim.node, true
}

// replaceNode deletes the next Node in turn, and creates it again unless the
// contender does. All Nodes have their turn before the first has it again: the
// pod garbage collector checks twice within a minute, and deletes the pods of a
// Node that is absent both times.
func (d *driver) replaceNode(ctx context.Context) {
	d.mu.Lock()
	name := nodeName(d.turns[d.turn%len(d.turns)])
	d.turn++
	d.mu.Unlock()
	if !d.nodes.isReady(name) {
		return // it is already absent
	}
	d.deleteNode(ctx, name)
	if !d.registers {
		d.away.Go(func() {
			time.Sleep(recreateAfter)
			d.createNode(ctx, name)
		})
	}
}

func (d *driver) createNode(ctx context.Context, name string) {
	d.persist(ctx, "create node", func() error {
		_, err := d.client.CoreV1().Nodes().Create(ctx, newNode(name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (d *driver) deleteNode(ctx context.Context, name string) {
	d.persist(ctx, "delete node", func() error {
		err := d.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// deleteNodes deletes all Nodes.
func (d *driver) deleteNodes(ctx context.Context) {
	pace(ctx, d.o.Rate, d.o.Nodes, func(i int) { d.deleteNode(ctx, nodeName(i)) })
}

// persist retries a request every second until it succeeds or ctx is done.
func (d *driver) persist(ctx context.Context, what string, do func() error) {
	for ctx.Err() == nil {
		err := do()
		if err == nil || ctx.Err() != nil {
			return
		}
		d.mu.Lock()
		d.trouble.add("%s: %v", what, err)
		d.mu.Unlock()
		time.Sleep(time.Second)
	}
}

func (d *driver) faults() faults {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trouble
}

func nodeName(i int) string { return fmt.Sprint(nodePrefix, i) }

// newPod returns a pod with one container that is bound to node.
func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "scale"}},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "c", Image: "example.com/none:1"}},
		},
	}
}

// newNode returns a Node like those of examples/fleet, without its status.
func newNode(name string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "kwok"}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}
