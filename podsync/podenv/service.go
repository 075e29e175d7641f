// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The Service by which containers find the API server, whether or not the pod
// wants links to other Services.
const (
	apiServiceNamespace = metav1.NamespaceDefault
	apiServiceName      = "kubernetes"
)

// serviceVars returns the variables that name Services, by name.
func (p *Pod) serviceVars(ctx context.Context) ([]Var, error) {
	if p.resolver.cfg.Services == nil {
		return nil, nil
	}
	var all []Var
	api, err := p.resolver.linkedServices(ctx, apiServiceNamespace, apiServiceName)
	if err != nil {
		return nil, fmt.Errorf("podenv: Service %s/%s: %w", apiServiceNamespace, apiServiceName, err)
	}
	byName := map[string]*corev1.Service{}
	for _, s := range api {
		byName[s.Name] = s
	}
	// The API's default is true.
	if links := p.pod.Spec.EnableServiceLinks; links == nil || *links {
		services, err := p.resolver.linkedServices(ctx, p.pod.Namespace, "")
		if err != nil {
			return nil, fmt.Errorf("podenv: Services of %s: %w", p.pod.Namespace, err)
		}
		for _, s := range services {
			byName[s.Name] = s
		}
	}
	// Names of Services and of their ports may run into each other once they are
	// upper case; the last Service by name has the variable then.
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = appendServiceVars(all, byName[name])
	}
	slices.SortStableFunc(all, func(a, b Var) int { return strings.Compare(a.Name, b.Name) })
	out := all[:0]
	for i, v := range all {
		if i+1 == len(all) || all[i+1].Name != v.Name {
			out = append(out, v)
		}
	}
	return out, nil
}

// appendServiceVars appends the variables of one Service: the two kinds that
// containers have had since before DNS, and that are documented with Services.
func appendServiceVars(out []Var, s *corev1.Service) []Var {
	name, ip := variableName(s.Name), s.Spec.ClusterIP
	out = append(out, Var{name + "_SERVICE_HOST", ip})
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		number := strconv.Itoa(int(port.Port))
		protocol := strings.ToUpper(string(port.Protocol))
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(ip, number)
		if i == 0 {
			out = append(out, Var{name + "_SERVICE_PORT", number}, Var{name + "_PORT", url})
		}
		if port.Name != "" {
			out = append(out, Var{name + "_SERVICE_PORT_" + variableName(port.Name), number})
		}
		prefix := name + "_PORT_" + number + "_" + protocol
		out = append(out, Var{prefix, url}, Var{prefix + "_PROTO", strings.ToLower(protocol)}, Var{prefix + "_PORT", number}, Var{prefix + "_ADDR", ip})
	}
	return out
}

func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// serviceCache keeps the Services of namespaces for Config.ServiceAge.
type serviceCache struct {
	mu      sync.Mutex
	entries map[objectKey]serviceEntry
}

type serviceEntry struct {
	read     time.Time // when the request began
	services []*corev1.Service
}

// linkedServices returns the Services of a namespace that have a cluster IP, or the
// one of this name if it exists and has one. They are shared and read-only.
func (r *Resolver) linkedServices(ctx context.Context, namespace, name string) ([]*corev1.Service, error) {
	key := objectKey{"Service", namespace, name}
	if services, ok := r.services.get(key, r.cfg.ServiceAge); ok {
		return services, nil
	}
	v, err := r.reads.get(ctx, key, func(ctx context.Context) (any, error) {
		began := time.Now()
		services, err := r.readServices(ctx, namespace, name)
		if err == nil {
			r.services.put(key, serviceEntry{began, services}, r.cfg.ServiceAge)
		}
		return services, err
	})
	if err != nil {
		return nil, err
	}
	return v.([]*corev1.Service), nil
}

func (r *Resolver) readServices(ctx context.Context, namespace, name string) ([]*corev1.Service, error) {
	var items []corev1.Service
	if name != "" {
		s, err := r.cfg.Services.Services(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			items = []corev1.Service{*s}
		}
	} else {
		// From the server's watch cache: nobody needs the last millisecond.
		list, err := r.cfg.Services.Services(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		items = list.Items
	}
	services := make([]*corev1.Service, 0, len(items))
	for i := range items {
		if ip := items[i].Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone || len(items[i].Spec.Ports) == 0 {
			continue
		}
		// What the variables need, and not what else a Service has.
		services = append(services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: items[i].Namespace, Name: items[i].Name},
			Spec:       corev1.ServiceSpec{ClusterIP: items[i].Spec.ClusterIP, Ports: items[i].Spec.Ports},
		})
	}
	return services, nil
}

func (c *serviceCache) get(key objectKey, age time.Duration) ([]*corev1.Service, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || time.Since(e.read) > age {
		return nil, false
	}
	return e.services, true
}

// put keeps e and drops what is too old, so that the cache holds the namespaces of
// the last few seconds and no others.
func (c *serviceCache) put(key objectKey, e serviceEntry, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[objectKey]serviceEntry{}
	}
	for k, old := range c.entries {
		if time.Since(old.read) > age {
			delete(c.entries, k)
		}
	}
	c.entries[key] = e
}
