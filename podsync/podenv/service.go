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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
)

// The Service by which containers find the API server, whether or not the pod
// wants links to other Services.
const (
	apiServiceNamespace = metav1.NamespaceDefault
	apiServiceName      = "kubernetes"
)

// serviceVars returns the variables that name Services, by Service. Services whose
// names run into each other once they are upper case define a variable twice; the
// last definition counts.
func (p *Pod) serviceVars(ctx context.Context) ([]Var, error) {
	if p.resolver.cfg.Services == nil {
		return nil, nil
	}
	links, err := p.serviceLinks(ctx, apiServiceNamespace, apiServiceName)
	if err != nil {
		return nil, fmt.Errorf("podenv: Service %s/%s: %w", apiServiceNamespace, apiServiceName, apierr.Permission(err, "podenv.yaml"))
	}
	// The API's default is true.
	if enabled := p.pod.Spec.EnableServiceLinks; enabled == nil || *enabled {
		own, err := p.serviceLinks(ctx, p.pod.Namespace, "")
		if err != nil {
			return nil, fmt.Errorf("podenv: Services of %s: %w", p.pod.Namespace, apierr.Permission(err, "podenv.yaml"))
		}
		// A Service of this name in the pod's namespace hides the API's.
		if !slices.ContainsFunc(own, func(l serviceLinks) bool { return l.Service == apiServiceName }) {
			own = slices.Concat(links, own)
		}
		links = own
	}
	n := 0
	for i := range links {
		n += len(links[i].Vars)
	}
	vars := make([]Var, 0, n)
	for i := range links {
		vars = append(vars, links[i].Vars...)
	}
	return vars, nil
}

// varsOf returns the variables of one Service: the two kinds that containers have had
// since before DNS, and that are documented with Services.
func varsOf(s *corev1.Service) []Var {
	name, ip := variableName(s.Name), s.Spec.ClusterIP
	out := []Var{{name + "_SERVICE_HOST", ip}}
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

// serviceLinks returns the variables of Services; see Resolver.serviceLinks. If the API
// server can't be reached, they are those of the last time that this pod or another one
// asked.
func (p *Pod) serviceLinks(ctx context.Context, namespace, name string) ([]serviceLinks, error) {
	key := objectKey{kindServices, namespace, name}
	last, known := p.memory.recall(key)
	if p.memory != nil && !known {
		last, known = p.resolver.shelf.find(key)
	}
	if known && p.away() {
		p.memory.keep(key, last)
		return last.object.([]serviceLinks), nil
	}
	links, err := p.resolver.serviceLinks(ctx, namespace, name)
	switch {
	case err == nil:
		if p.memory != nil {
			p.memory.keep(key, p.resolver.shelf.share(key, links, time.Time{}))
		}
	case known && unreachable(ctx, err):
		p.setAway()
		p.memory.keep(key, last)
		return last.object.([]serviceLinks), nil
	}
	return links, err
}

// serviceLinks returns the variables of the Services of a namespace that have a
// cluster IP, by name, or of the one of this name if it exists and has one. They are
// shared and read-only.
func (r *Resolver) serviceLinks(ctx context.Context, namespace, name string) ([]serviceLinks, error) {
	key := objectKey{kindServices, namespace, name}
	if links, ok := r.services.get(key, r.cfg.ServiceAge); ok {
		return links, nil
	}
	v, err := r.reads.get(ctx, key, false, func(ctx context.Context) (any, error) {
		began := time.Now()
		links, err := r.readLinks(ctx, namespace, name)
		if err == nil {
			r.services.put(key, serviceEntry{began, links}, r.cfg.ServiceAge)
		}
		return links, err
	})
	if err != nil {
		return nil, err
	}
	return v.([]serviceLinks), nil
}

func (r *Resolver) readLinks(ctx context.Context, namespace, name string) ([]serviceLinks, error) {
	var items []corev1.Service
	if name != "" {
		s, err := r.cfg.Services.Services(namespace).Get(ctx, name, metav1.GetOptions{})
		s, err = apierr.Answer(s, err, name)
		switch {
		case apierr.IsMissing(err, "services", name):
		case err != nil:
			return nil, err
		default:
			items = []corev1.Service{*s}
		}
	} else {
		// From the server's watch cache: a Service may be a moment old.
		list, err := r.cfg.Services.Services(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil && list.ResourceVersion == "" {
			err = apierr.ErrAnswer
		}
		if err != nil {
			return nil, err
		}
		items = list.Items
	}
	links := make([]serviceLinks, 0, len(items))
	for i := range items {
		if ip := items[i].Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone || len(items[i].Spec.Ports) == 0 {
			continue
		}
		links = append(links, serviceLinks{items[i].Name, varsOf(&items[i])})
	}
	slices.SortFunc(links, func(a, b serviceLinks) int { return strings.Compare(a.Service, b.Service) })
	return links, nil
}
