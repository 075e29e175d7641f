// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stableVersions are served unless Options.Refuse says otherwise.
var stableVersions = []schema.GroupVersion{
	corev1.SchemeGroupVersion,
	coordinationv1.SchemeGroupVersion,
	eventsv1.SchemeGroupVersion,
}

// kinds is everything the server knows.
var kinds = []*kind{
	namespaces, nodes, leases, events,
}

var (
	namespaces = &kind{
		name: "Namespace", resource: "namespaces", views: []view{{gv: corev1.SchemeGroupVersion}},
		status: true, validName: apivalidation.ValidateNamespaceName, unconditional: true, returnsDeleted: true,
	}
	leases = &kind{
		name: "Lease", resource: "leases", views: []view{{gv: coordinationv1.SchemeGroupVersion}},
		namespaced: true, validName: apivalidation.NameIsDNSSubdomain, createOnUpdate: true,
	}
	events = &kind{
		name: "Event", resource: "events", views: []view{{gv: corev1.SchemeGroupVersion}},
		namespaced: true, validName: apivalidation.NameIsDNSSubdomain, createOnUpdate: true, unconditional: true,
	}
)

// lookup finds the kind and view that serve a resource in a group version.
func lookup(gv schema.GroupVersion, resource string) (*kind, int) {
	for _, k := range kinds {
		if k.resource != resource {
			continue
		}
		for v := range k.views {
			if k.views[v].gv == gv {
				return k, v
			}
		}
	}
	return nil, 0
}
