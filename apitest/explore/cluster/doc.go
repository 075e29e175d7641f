// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster simulates the rest of a cluster in explorations: the controllers of
// Kubernetes on whose work an operator depends.
//
//	explore.Scenario{Programs: []explore.Program{operator, cluster.Controllers(w)}}
//
// The program of [Controllers] looks at all objects once a second, until nothing has changed for a
// while. It does this:
//
//   - A Deployment gets a ReplicaSet for each template, and a ReplicaSet gets Pods. An update
//     creates all new Pods, waits until they are ready, and then deletes the old ones.
//   - A StatefulSet gets Pods and their PersistentVolumeClaims, one after the other. After an
//     update, the Pods are replaced one by one, from the last one on.
//   - A Job gets Pods, and is complete after enough of them have succeeded. While it is
//     suspended, it has no active Pods.
//   - A Pod becomes Running and Ready. All have one address, so that runs can be compared. A Pod
//     of a Job succeeds ten seconds later. A deleted Pod is removed.
//   - The status of Deployments, ReplicaSets, StatefulSets and Jobs is kept.
//   - A namespace gets the ServiceAccount default and the ConfigMap kube-root-ca.crt.
//   - The garbage collector runs.
//
// It does less than the controllers of Kubernetes: it has no maxSurge, maxUnavailable,
// partitions, revisions, failed Pods, indexes of Jobs, retention of claims, or finalizers of claims that
// are in use. Its ends are those
// of kube-controller-manager v1.37 in the scenarios of test/explore/public, which compares them.
package cluster
