// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds is everything the server knows. To add a kind, add a row.
var kinds = []*kind{
	namespaces, nodes, pods, configMaps, secrets, services, serviceAccounts, events,
	leases, leaseCandidates,
	deviceClasses, resourceClaims, resourceClaimTemplates, resourceSlices,
}

// stableVersions are served unless Options.Refuse says otherwise.
var stableVersions = []schema.GroupVersion{
	corev1.SchemeGroupVersion,
	coordinationv1.SchemeGroupVersion,
	eventsv1.SchemeGroupVersion,
	resourcev1.SchemeGroupVersion,
}
