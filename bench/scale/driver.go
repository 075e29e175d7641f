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
	// inFlight is how many requests of the driver run at once, at most.
	inFlight = 16
	// recreateAfter is how long a Node is away that the contender does not
	// register again itself: about as long as with one that does.
	recreateAfter = 15 * time.Second
)

// driver makes the work: it creates and deletes pods and Nodes.
type driver struct {
	client kubernetes.Interface
	pods   *pods
	nodes  *nodes
	o      options
	// registers tells that Nodes are the contender's business.
	registers bool

	mu     sync.Mutex
	random *rand.Rand // the same choices for every contender
	alive  []alive
	made   int
	turns  []int // in which Nodes are deleted
	turn   int
	away   sync.WaitGroup // Nodes that are created again soon
	// trouble are requests of the driver that failed. They are repeated.
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

// createPods creates the pods, evenly on all nodes.
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

// churn replaces pods and deletes Nodes until ctx is done. Nodes may be away then
// that it creates again later.
func (d *driver) churn(ctx context.Context) {
	// What has begun is finished: a pod is not left without the one in its place.
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

// readyNode returns the node called name if it is Ready, else another one: no
// scheduler would take one that is away.
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

// forceDelete deletes what is there of pods, without a word to whoever runs
// them, and returns how many that were.
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
		if apierrors.IsAlreadyExists(err) { // an earlier try whose answer was lost
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

// deletePod deletes a pod, chosen at random, and returns its node; ok is false if
// there is none.
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

// replaceNode deletes the Node whose turn it is, and creates it again if nobody
// else does. No Node has its turn twice before all have had it: the pod garbage
// collector looks twice within a minute, and deletes the pods of a Node that is
// away both times.
func (d *driver) replaceNode(ctx context.Context) {
	d.mu.Lock()
	name := nodeName(d.turns[d.turn%len(d.turns)])
	d.turn++
	d.mu.Unlock()
	if !d.nodes.isReady(name) {
		return // it is away already
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

// persist repeats a request each second until it succeeds or ctx is done.
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

// newPod returns a pod of one container that is bound to node.
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

// newNode returns a Node like those of examples/fleet, before its status.
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
