// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podenv resolves the inputs of a pod's containers from the API: environment
// variables, command and arguments, and the files of ConfigMap, Secret, downward
// API and projected volumes.
//
// Its users start containers: a provider of package podsync, a kubelet, a
// tool that runs a pod's command elsewhere. It reads single objects when they are
// needed, as the Node authorizer allows, and has no informers.
//
// # Usage
//
//	resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core, Services: core}) // core: clientset.CoreV1()
//	...
//	p := resolver.Pod(pod)
//	env, err := p.Container(ctx, "app", podenv.Addresses{})
//	if err != nil {
//		return err // names every object and key that is missing
//	}
//	cmd.Env = env.Strings()
//
// # Behavior
//
// Variables are defined in this order, a later definition over an earlier one: the
// Services of the pod's namespace and kubernetes (see Config.Services), the sources
// of envFrom, the variables of env. References $(NAME) in values, command and args
// are expanded from the variables before them; see [Expand]. Values from a
// source are not expanded.
//
// All sources of the API are known: fieldRef, resourceFieldRef, configMapKeyRef,
// secretKeyRef, and fileKeyRef where Config.ReadFile is set. Limits that the
// container doesn't set are those of the pod, else the node's allocatable.
//
// A pod has its addresses only once it runs somewhere. Variables that need one
// before that don't fail: they are left out and named in Environment.Late. Resolve
// again with [Addresses] when the address is known; it costs no request.
//
// The result has no random order: the same pod and the same objects give the same
// slices.
//
// # Requests and caching
//
// A ConfigMap or a Secret is read by one GET at the first use by a [Pod] and kept as
// long as that value. Nothing is shared between Pods but requests: those who ask
// for the same object while a request is under way share the next one. So a burst
// of pods with one ConfigMap costs few requests, and each pod sees the object as it
// was after the pod was handed over, or newer. Lists of Services, from the API
// server's watch cache, are kept for Config.ServiceAge.
//
// A [Memory] keeps what a pod has read for a later start while the API server can't be
// reached: see [Resolver.Recall].
//
// # Concurrency
//
// [Resolver] and [Pod] are safe for concurrent use. Objects that a client returned
// and the caller's pod are never changed; the results belong to the caller. A
// request that a caller no longer waits for ends within Config.CallTimeout.
//
// # Failure modes
//
// A missing source is a [*SourceError] that names container, field, object and key.
// All of them are joined, so that one event lists everything to create. [CanWait]
// tells a pod that may yet start from one that never will. Failures of the API are
// returned as they are, within a SourceError. There are no retries: the caller has
// a backoff already.
//
// While the API server can't be reached, [Resolver.Recall] uses the objects and tokens of
// the last time, and after one failed request it makes no other for what it remembers.
// Answers with 403 and 404 count: an object that was deleted is missing. Certificates are
// not remembered.
//
// # Permissions
//
// get on configmaps and secrets; list and get on services; create on
// serviceaccounts/token if Config.ServiceAccounts is set. If Config.Certificates is
// set: get on serviceaccounts and nodes, create and list on podcertificaterequests, get
// and list on clustertrustbundles. A node's credentials have them all for the pods bound
// to it.
//
// # Compatibility
//
// The rules are those of Kubernetes 1.37. Names of variables may have any character
// but "=" (KEP-4369).
package podenv
