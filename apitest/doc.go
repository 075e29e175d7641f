// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package apitest is a Kubernetes API server in memory, for tests that drive
// controllers through the real clientset in testing/synctest bubbles.
//
// # Usage
//
//	func TestController(t *testing.T) {
//		apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
//			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
//			go controller.Run(t.Context(), s.Client(apitest.NodeUser("n1")))
//
//			outage := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
//			time.Sleep(time.Minute) // of virtual time
//			outage()
//			time.Sleep(10 * time.Second)
//
//			if n := apitest.Get[*corev1.Node](s, "", "n1"); !ready(n) {
//				t.Error("not ready ten seconds after the outage")
//			}
//		})
//	}
//
// docs/testing.md is a guide. It also explains the traps of virtual time.
//
// # Behavior
//
// [Server.Client] returns an ordinary *kubernetes.Clientset, [Server.Config] the
// configuration for any other client, and [Server.Handler] an http.Handler for a
// real listener. The goroutine of the caller serves its requests, in JSON or protobuf.
// Latencies, Retry-After and watch timeouts use package time. So in a bubble they are
// exact and take no real time.
//
// The server serves the newest version of every kind of client-go's clientset. If that
// version is alpha or beta, [Options].Serve must contain it. Other kinds are served
// after [Server.Register], or after their CustomResourceDefinition was created. These
// features work for all kinds:
//
//   - resourceVersions, UIDs, generateName, generations; 409 for stale writes
//   - the status subresource, label and field selectors, pages of lists, dry runs
//   - merge, strategic merge and JSON patches, server-side apply with its conflicts
//   - watches that replay, filter, send bookmarks and initial events, expire with 410
//   - graceful deletion of pods, finalizers, preconditions, propagation policies
//
// [Server.Inject] injects faults. [Server.DropWatches], [Server.BreakWatches] and
// [Server.ExpireWatches] end watches. [Server.Compact] deletes the history of changes.
// [Server.Requests] returns the journal: every request with its time, user, body and
// result. [Server.Put], [Get], [List], [Edit] and [Remove] read and change objects
// without a request, a journal entry, authorization or validation. [Server.Observe]
// reports every change, [Server.Objects] returns all objects, [Server.StallReads] lets
// reads return an older state, and [Server.Backup] saves the state to restore it later.
//
// By default the Node authorizer decides about requests of nodes, and other requests are
// allowed. [Options].Authorizer replaces this, see [RBACFrom]. NodeRestriction is always on.
//
// # Concurrency
//
// A Server may be used concurrently. It starts no goroutines. It uses timers in two
// cases: while it deletes the content of a namespace, and for [Fault].CommitAfter. In a
// bubble, use a Server that was made in that bubble, as [Bubble] does.
//
// # Compatibility
//
// The tests in internal/conformance compare answers with recordings of kube-apiserver
// 1.37, 1.36, 1.35 and 1.34. For an older version, the messages of up to nine cases are
// those of 1.37. The recordings include 1,900 malformed and unusual requests, of which only
// the status codes are compared. 14 codes differ from 1.37; internal/conformance lists them.
//
//	                                       as kube-apiserver 1.37
//	metadata, conflicts, patches, delete   yes, recorded
//	lists, pages, selectors, watches       yes, recorded
//	Table and CBOR encodings               no: 406 and 415
//	nodes, pods, leases, LeaseCandidates,  yes, recorded, with the validation
//	  events, secrets, ResourceSlices,       and defaults that controllers meet
//	  the status of ResourceClaims
//	Deployments, ReplicaSets, DaemonSets,  yes, recorded: the defaults, selectors,
//	  StatefulSets, Jobs, CronJobs,          templates, and what may not change
//	  Services
//	Node authorizer, NodeRestriction, RBAC yes, recorded
//	other kinds                            metadata, status, generation, watch:
//	                                         recorded; no defaults, no validation
//	access reviews                         answered by the Authorizer
//	tokens of ServiceAccounts, TokenReview yes; they do not change who a client is
//	eviction, PodDisruptionBudgets         yes; no controller fills in the status of a budget
//	PriorityClasses                        yes
//	/scale of Deployments and others,      yes, recorded
//	  and of custom resources
//	server-side apply                      yes, recorded; managedFields are exact
//	                                         from the first apply to an object on,
//	                                         or always: Options.ManagedFields
//	custom resources                       yes, recorded; no conversion; schemas with
//	                                         Options.Schemas
//	garbage collection                     on Server.CollectGarbage
//	namespaces                             emptied by the server itself
//
// The Server does not check these. So a real server may refuse what a test accepts:
//
//   - authentication, quotas, limit ranges, webhooks, admission policies, Pod Security,
//     priority and fairness, rate limits
//   - without [Options].Schemas the schemas of custom resources: no validation, pruning or
//     defaults; and always their conversion
//   - defaults and validation of kinds that the table does not list
//   - in pods: the content of affinity, most of security contexts, names of resource claims,
//     volumes of storage systems, RuntimeClasses, the admission plugin ServiceAccount;
//     in /resize the resources of the pod as a whole, and whether its node has room for it
//     and supports it
//   - the finalizers of PersistentVolumes and their claims, which only a controller removes
//   - in ResourceClaims: the requests, and the feature gates of fields of the status
//   - the size of custom resources in etcd
//
// It also lacks these, so a client finds less than on a real server:
//
//   - the ServiceAccount default and the ConfigMap kube-root-ca.crt of a new namespace, and the
//     conditions of a namespace that is terminating
//   - short names and categories in discovery, also of custom resources; aggregated discovery
//     is answered with 406 if the client accepts nothing else; OpenAPI with 404
//   - warnings about deprecated fields; only those about deprecated versions are sent
//   - lists and watches from before the server was made, which get 410
//   - compressed answers
//
// It answers logs, exec, attach, port-forward and proxy with 404, and server-side apply of a
// Scale with 415. The Node authorizer refuses PersistentVolumes, VolumeAttachments, the
// status of PersistentVolumeClaims and secrets of storage systems, which a kubelet may use.
//
// There is no promise of compatibility before version 1.0.
package apitest
