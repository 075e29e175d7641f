// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
)

// Pod resolves the inputs of one pod's containers and volumes. It keeps each object
// that it has read, so that all containers of the pod see the same version; make a
// new one with [Resolver.Pod] to see changes, as at the restart of a container.
// An object that lacked something is not kept: the next call looks again. It is safe
// for concurrent use.
type Pod struct {
	resolver *Resolver
	pod      *corev1.Pod // private copy, read-only
	memory   *Memory     // nil: none
	refresh  bool        // see Resolver.Refresh

	once       sync.Once
	containers map[string]*corev1.Container // by name; made once

	mu       sync.Mutex
	objects  map[objectKey]any
	noAnswer bool // a request has found that the API server can't be reached
}

// Addresses are the addresses of a pod and its host, the primary one first.
type Addresses struct {
	// PodIPs are the pod's addresses. Without any those of the pod's status are
	// taken, and those of the host for a pod in the host's network.
	PodIPs []string
	// HostIPs are the node's. Without any those of the pod's status are taken.
	HostIPs []string
}

// of fills in the addresses in the pod's status.
func (a Addresses) of(pod *corev1.Pod) Addresses {
	if len(a.HostIPs) == 0 {
		for _, ip := range pod.Status.HostIPs {
			a.HostIPs = append(a.HostIPs, ip.IP)
		}
		if len(a.HostIPs) == 0 && pod.Status.HostIP != "" {
			a.HostIPs = []string{pod.Status.HostIP}
		}
	}
	if len(a.PodIPs) == 0 {
		for _, ip := range pod.Status.PodIPs {
			a.PodIPs = append(a.PodIPs, ip.IP)
		}
		if len(a.PodIPs) == 0 && pod.Status.PodIP != "" {
			a.PodIPs = []string{pod.Status.PodIP}
		}
	}
	if len(a.PodIPs) == 0 && pod.Spec.HostNetwork {
		a.PodIPs = a.HostIPs
	}
	return a
}

// container returns the container of this name, of whatever kind.
func (p *Pod) container(name string) (*corev1.Container, error) {
	p.once.Do(func() {
		spec := &p.pod.Spec
		p.containers = make(map[string]*corev1.Container, len(spec.Containers)+len(spec.InitContainers)+len(spec.EphemeralContainers))
		for i := range spec.EphemeralContainers {
			c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
			p.containers[c.Name] = c
		}
		for _, list := range [...][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				p.containers[list[i].Name] = &list[i]
			}
		}
	})
	if c := p.containers[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("the pod has no container %q", name)
}

// configMap returns a ConfigMap of the pod's namespace. The error is ErrMissing if
// there is none.
func (p *Pod) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	return read(ctx, p, "ConfigMap", "configmaps", name, func(ctx context.Context) (*corev1.ConfigMap, error) {
		cm, err := p.resolver.cfg.ConfigMaps.ConfigMaps(p.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierr.Answer(cm, err, name)
	})
}

// secret returns a Secret of the pod's namespace. The error is ErrMissing if there
// is none.
func (p *Pod) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return read(ctx, p, "Secret", "secrets", name, func(ctx context.Context) (*corev1.Secret, error) {
		secret, err := p.resolver.cfg.Secrets.Secrets(p.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierr.Answer(secret, err, name)
	})
}

// trustBundle returns a ClusterTrustBundle. The error is ErrMissing if there is none.
func (p *Pod) trustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return read(ctx, p, "ClusterTrustBundle", "clustertrustbundles", name, func(ctx context.Context) (*certificatesv1.ClusterTrustBundle, error) {
		bundle, err := p.resolver.cfg.Certificates.ClusterTrustBundles().Get(ctx, name, metav1.GetOptions{})
		return apierr.Answer(bundle, err, name)
	})
}

// trustBundles returns the ClusterTrustBundles that match a selector.
func (p *Pod) trustBundles(ctx context.Context, selector string) (*certificatesv1.ClusterTrustBundleList, error) {
	return read(ctx, p, "ClusterTrustBundleList", "", selector, func(ctx context.Context) (*certificatesv1.ClusterTrustBundleList, error) {
		list, err := p.resolver.cfg.Certificates.ClusterTrustBundles().List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && list.ResourceVersion == "" {
			err = apierr.ErrAnswer
		}
		return list, err
	})
}

// A turn is one call of Container or Volume. It asks for each object once, although the pod may name one
// thousands of times. What has lacked something, the next call reads again.
type turn struct {
	p       *Pod
	failed  map[objectKey]error
	lacking map[objectKey]bool
}

func (t *turn) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	return once(ctx, t, "ConfigMap", name, t.p.configMap)
}

func (t *turn) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return once(ctx, t, "Secret", name, t.p.secret)
}

func (t *turn) trustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return once(ctx, t, "ClusterTrustBundle", name, t.p.trustBundle)
}

func (t *turn) trustBundles(ctx context.Context, selector string) (*certificatesv1.ClusterTrustBundleList, error) {
	return once(ctx, t, "ClusterTrustBundleList", selector, t.p.trustBundles)
}

// once returns what get returns, or the error that it has returned in this turn. The Pod keeps objects.
func once[T any](ctx context.Context, t *turn, kind, name string, get func(context.Context, string) (*T, error)) (*T, error) {
	key := objectKey{kind: kind, name: name}
	if err := t.failed[key]; err != nil {
		return nil, err
	}
	obj, err := get(ctx, name)
	if err != nil {
		if t.failed == nil {
			t.failed = map[objectKey]error{}
		}
		t.failed[key] = err
	}
	return obj, err
}

// configKey returns a text of a ConfigMap.
func (t *turn) configKey(ctx context.Context, name, key string) (string, error) {
	cm, err := t.configMap(ctx, name)
	if err != nil {
		return "", err
	}
	value, ok := cm.Data[key]
	if !ok {
		return "", ErrMissing
	}
	return value, nil
}

// secretKey returns a value of a Secret.
func (t *turn) secretKey(ctx context.Context, name, key string) (string, error) {
	secret, err := t.secret(ctx, name)
	if err != nil {
		return "", err
	}
	value, ok := secret.Data[key]
	if !ok {
		return "", ErrMissing
	}
	return string(value), nil
}

// lacks records that an object lacks something.
func (t *turn) lacks(kind, name string) {
	if t.lacking == nil {
		t.lacking = map[objectKey]bool{}
	}
	t.lacking[objectKey{kind: kind, name: name}] = true
}

// end lets the next call read the objects again that lacked something.
func (t *turn) end() {
	for key := range t.lacking {
		t.p.forget(key.kind, key.name)
	}
}

// away reports whether a request has found that the API server can't be reached. What the
// Memory has is not asked for again, because each request may take Config.CallTimeout.
func (p *Pod) away() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noAnswer
}

func (p *Pod) setAway() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noAnswer = true
}

// recent returns an object that another pod has read just now, if that will do, or nil.
func (p *Pod) recent(key objectKey) *held {
	if !p.refresh {
		return nil
	}
	return p.resolver.shelf.recent(key, sharedAge)
}

// forget lets the next call read an object again.
func (p *Pod) forget(kind, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.objects, objectKey{kind, p.pod.Namespace, name})
}

// read returns the object that the pod has read before, or reads it. resource is that of the
// API, empty for a list, which is never missing.
func read[T any](ctx context.Context, p *Pod, kind, resource, name string, get func(context.Context) (*T, error)) (*T, error) {
	key := objectKey{kind, p.pod.Namespace, name}
	p.mu.Lock()
	kept, ok := p.objects[key]
	p.mu.Unlock()
	if ok {
		return kept.(*T), nil
	}
	last, known := p.memory.recall(key)
	var obj any
	if recent := p.recent(key); recent != nil {
		last = recent
		p.memory.keep(key, last)
	} else if !known || !p.away() {
		began, err := time.Now(), error(nil)
		obj, err = p.resolver.reads.get(ctx, key, true, func(ctx context.Context) (any, error) { return get(ctx) })
		switch {
		case apierr.IsMissing(err, resource, name):
			p.memory.keep(key, &held{})
			return nil, ErrMissing
		case err == nil:
			last = p.resolver.shelf.share(key, obj, began)
			p.memory.keep(key, last)
			obj = last.object
		case known && unreachable(ctx, err):
			p.setAway()
			obj = nil // what a client returns with an error is an empty object
		case err != nil:
			return nil, err
		}
	}
	if obj == nil {
		if last.object == nil {
			return nil, ErrMissing
		}
		obj = last.object
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept, ok := p.objects[key]; ok {
		// Another call was first: all containers see its version.
		return kept.(*T), nil
	}
	p.objects[key] = obj
	return obj.(*T), nil
}
