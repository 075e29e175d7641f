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
// docs/testing.md goes from a first test to budgets, with the traps of virtual time.
//
// # Behavior
//
// [Server.Client] returns an ordinary *kubernetes.Clientset, [Server.Config] the
// configuration for any other client, and [Server.Handler] an http.Handler for a
// real listener. Requests in JSON or protobuf run on the goroutine of the
// caller. Latencies, Retry-After and watch timeouts use package time, so inside
// a bubble they are exact and take no real time.
//
// Every kind of client-go's clientset is served in its newest version. If that
// version is alpha or beta, [Options].Serve must name it. Other kinds are served
// after [Server.Register], or after the creation of their
// CustomResourceDefinition. The rules for all kinds:
//
//   - resourceVersions, UIDs, generateName, generations; 409 for stale writes
//   - the status subresource, label and field selectors, pages of lists, dry runs
//   - merge, strategic merge and JSON patches, server-side apply with its conflicts
//   - watches that replay, filter, send bookmarks and initial events, expire with 410
//   - graceful deletion of pods, finalizers, preconditions, propagation policies
//
// [Server.Inject] injects faults. [Server.DropWatches], [Server.BreakWatches] and
// [Server.ExpireWatches] end watches. [Server.Compact] forgets all history.
// [Server.Requests] returns the journal: every request with its time, user, body and
// result. [Server.Put], [Get], [List], [Edit] and [Delete] read and change objects
// without a request, a journal entry, authorization or validation. [Server.Observe]
// reports every change, [Server.Objects] returns all objects, [Server.StallReads] makes
// reads old, and [Server.Backup] remembers and restores everything.
//
// By default the Node authorizer applies to node identities, and all other requests are
// allowed; [Options].Authorizer replaces that, see [RBACFrom]. NodeRestriction is always on.
//
// # Concurrency
//
// A Server may be used concurrently. It starts no goroutine, apart from timers
// while a namespace is being emptied and for [Fault].CommitAfter. In a bubble, use
// a Server that was made in that bubble, as [Bubble] does.
//
// # Compatibility
//
// In every test run internal/conformance compares answers with recordings of
// kube-apiserver 1.37, 1.36, 1.35 and 1.34. In up to nine cases the package words an
// error of an older one as 1.37 does. Of 1,900 malformed and unusual requests only the
// status codes are compared: 14 differ from 1.37, which internal/conformance lists.
//
//	                                       as kube-apiserver 1.37
//	metadata, conflicts, patches, delete   yes, recorded
//	lists, pages, selectors, watches       yes, recorded
//	Table and CBOR encodings               no: 406 and 415
//	nodes, pods, leases, LeaseCandidates,  yes, recorded, with the validation
//	  events, secrets, ResourceSlices,       and defaults that controllers meet
//	  the status of ResourceClaims
//	Node authorizer, NodeRestriction, RBAC yes, recorded
//	other kinds                            metadata, status, generation, watch:
//	                                         recorded; no defaults, no validation
//	access reviews                         answered by the Authorizer
//	tokens of ServiceAccounts, TokenReview yes; a client is who its Config says
//	eviction, PodDisruptionBudgets         yes; no controller fills in the status of a budget
//	PriorityClasses                        yes
//	/scale of Deployments and others,      yes, not recorded
//	  and of custom resources
//	server-side apply                      yes, recorded; managedFields are exact
//	                                         from the first apply to an object on,
//	                                         or always: Options.ManagedFields
//	custom resources                       yes, recorded; no schema, no conversion
//	garbage collection                     on Server.CollectGarbage
//	namespaces                             emptied by the server itself
//
// Not enforced, and so a program that a test accepts may be refused by a real server:
//
//   - authentication, quotas, limit ranges, webhooks, admission policies, Pod Security,
//     priority and fairness, rate limits
//   - the schemas of custom resources: no validation, pruning, defaults or conversion
//   - defaults and validation of the kinds that are not named above
//   - of pods: affinity beyond its shape, most of security contexts, resource claims' names,
//     volumes of storage systems, RuntimeClasses, and the admission plugin ServiceAccount
//   - the finalizers of PersistentVolumes and their claims, which only a controller removes
//   - of ResourceClaims: the requests, and the gates of the status' fields
//   - the size of custom resources in etcd
//
// Not offered, and answered with 404: logs, exec, attach, port-forward, proxy. Server-side
// apply of a Scale is answered with 415.
//
// There is no promise of compatibility before version 1.0.
package apitest
