// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podenv resolves the inputs of a pod's containers from the API: environment
// variables, command and arguments, and the files of ConfigMap, Secret, downward
// API and projected volumes.
//
// It is for programs that start containers: providers of package podsync, kubelets, and
// tools that run a pod's command elsewhere. It reads single objects when they are
// needed, because the Node authorizer allows no more, and has no informers.
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
// Variables come from three places: the Services of the pod's namespace and the Service
// kubernetes (see Config.Services), then envFrom, then env. If a variable is defined
// twice, the later definition counts. References $(NAME) in values, command and args are
// replaced by variables that were defined before; see [Expand]. They are not replaced in
// values that come from other objects, such as ConfigMaps.
//
// The package supports all sources of the API: fieldRef, resourceFieldRef,
// configMapKeyRef, secretKeyRef and, if Config.ReadFile is set, fileKeyRef. If a container
// does not set a limit, resourceFieldRef returns the limit of the pod or, if that is not
// set either, the node's allocatable resources.
//
// A pod gets its addresses only when it runs. Variables that need an address which is not
// known yet are no error. They are left out and named in Environment.Late. When the
// address is known, resolve again with [Addresses]. This costs no request.
//
// The order of the result is not random: the same pod and objects give the same slices.
//
// # Requests and caching
//
// A [Pod] reads a ConfigMap or a Secret by one GET when it needs it first, and keeps the
// object as long as the Pod is in use. Pods do not share objects, but they share requests:
// all Pods that need an object while a request for it is in flight wait for one more
// request. So a burst of pods with one ConfigMap costs few requests, and no pod gets an
// object that was read before the call of [Resolver.Pod]. Only a volume that is refreshed may
// get one that is up to half a minute old; see [Resolver.Refresh]. Lists of Services come from the
// API server's watch cache, and are kept for Config.ServiceAge.
//
// A [Memory] stores the objects that a pod has read, so that its containers can start
// again while the API server can't be reached; see [Resolver.Recall].
//
// # Concurrency
//
// [Resolver] and [Pod] are safe for concurrent use. They never change the caller's pod or
// an object that a client returned. The caller may change the results. A request ends
// within Config.CallTimeout, even if its caller no longer waits for it.
//
// # Failure modes
//
// If a source is missing, the error is a [*SourceError] that names the container, the
// field, the object and the key. The errors of all missing sources are joined, so that one
// event can list everything that an administrator must create. [CanWait] reports whether
// the pod can start when they exist. API errors are wrapped in a SourceError and not
// changed. There are no retries, because the caller must have a backoff anyway.
//
// References and repeated sources can multiply a few KB to terabytes. So references and
// sources add at most 8 MiB to a container, and 32 MiB in equal shares to all containers of
// a pod. The files of a volume have at most 32 MiB, and those of all volumes of a pod 128 MiB
// in equal shares. More is a SourceError, and CanWait reports false.
//
// While the API server can't be reached, a pod of [Resolver.Recall] uses the objects and
// tokens of its Memory. After one failed request it sends no other request for them.
// Answers with 403 and 404 count as answers: an object that was deleted is missing. But a
// page of a proxy, or an object that a proxy makes up, is no answer: nothing is missing
// because of it, and the Memory keeps what it has. Certificates are not stored.
//
// # Permissions
//
// The client needs get for configmaps and secrets, and list and get for services. If
// Config.ServiceAccounts is set, it needs create for serviceaccounts/token. If
// Config.Certificates is set, it needs get for serviceaccounts and nodes, create and list
// for podcertificaterequests, and get and list for clustertrustbundles. The credentials of
// a node have all these permissions for the pods that are bound to it.
//
// # Compatibility
//
// The rules are those of Kubernetes 1.37. The name of a variable may contain any
// character except "=" (KEP-4369).
package podenv
