// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import coordinationv1beta1client "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"

// Registry says where candidates make themselves known, and so who chooses
// among them. All replicas must use the same one: with two of them in one
// fleet there is still never more than one leader, but neither half knows the
// other. It is never detected, because a fleet that is half upgraded would come
// to different answers. The zero value is [OnLease].
type Registry struct {
	candidates coordinationv1beta1client.LeaseCandidatesGetter
	native     bool
}

// OnLease keeps the records of candidates in annotations of the Lease itself,
// on every cluster and with no other object. The leader chooses: it offers the
// lease to a better candidate, and hands it over when that has accepted.
//
// Sixteen candidates have a record, the best ones where there are more; the
// others are observers. They watch nothing, send one GET every two
// LeaseDurations, and claim the lease only where none of the sixteen does.
func OnLease() Registry { return Registry{} }

// LeaseCandidates keeps a LeaseCandidate object (coordination.k8s.io/v1beta1)
// for each candidate, and leaves the choice to a controller: the one in the API
// server where the feature gate CoordinatedLeaderElection is on, or a
// [Controller]. The API is off by default and v1beta1 ends with Kubernetes
// 1.38. Where no controller does anything about a Lease that is free,
// candidates claim it after [Config.FallbackAfter].
//
// A LeaseCandidate has fields for versions and the name of a strategy; Priority
// and Attributes of a [Peer] are in an annotation, which a [Controller] reads and
// the API server does not. clientset.CoordinationV1beta1() is a client.
func LeaseCandidates(client coordinationv1beta1client.LeaseCandidatesGetter) Registry {
	return Registry{candidates: client, native: true}
}
