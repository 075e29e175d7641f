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
// docs/testing.md goes from a first test to faults and budgets, and has the
// traps of tests in virtual time.
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
//   - resourceVersions, UIDs, creation times, generateName and generations; 409
//     for stale writes, 422 for invalid ones
//   - the status subresource, label and field selectors, pages of lists, dry runs
//   - merge, strategic merge and JSON patches, and server-side apply with its
//     conflicts
//   - watches that replay, filter, send bookmarks and initial events, and expire
//     with 410
//   - graceful deletion of pods, finalizers, preconditions, propagation policies;
//     a namespace that is deleted goes with its contents
//
// [Server.Inject] injects faults. [Server.DropWatches], [Server.BreakWatches] and
// [Server.ExpireWatches] end watches. [Server.Compact] forgets all history.
// [Server.Requests] returns the journal: every request with its time, user, body
// and result. [Server.Put], [Get], [Edit] and [Delete] change objects as another
// client would, but without a request, a journal entry, authorization or
// validation.
//
// The Node authorizer and NodeRestriction apply to node identities. All other
// requests are allowed unless [Options].Authorizer refuses them; see [RBACFrom].
//
// # Concurrency
//
// A Server may be used concurrently. It starts no goroutine, apart from timers
// while a namespace is being emptied and for [Fault].CommitAfter. In a bubble, use
// a Server that was made in that bubble, as [Bubble] does.
//
// # Compatibility
//
// The cases of internal/conformance run against this package in every test run.
// They compare its answers with recordings of kube-apiserver 1.37, 1.36, 1.35 and
// 1.34. In nine cases the package words an error of an older one as 1.37 does.
//
// A corpus of 1,900 malformed and unusual requests compares status codes with the
// same four versions. The package answers 14 of them with another code, which
// internal/conformance lists.
//
//	                                       as kube-apiserver 1.37
//	metadata, conflicts, patches, delete   yes, recorded
//	lists, pages, selectors, watches       yes, recorded
//	Table and CBOR encodings               no: 406 and 415
//	nodes, pods, leases, LeaseCandidates,  yes, recorded, with the validation
//	  events, secrets, resource.k8s.io       and defaults that controllers meet
//	Node authorizer, NodeRestriction, RBAC yes, recorded
//	other kinds                            metadata, status, generation, watch:
//	                                         recorded; no defaults, no validation
//	access reviews                         answered by the Authorizer
//	/scale, logs, exec, proxy              no: 404
//	server-side apply                      yes, recorded; managedFields are exact
//	                                         from the first apply to an object on
//	custom resources                       yes, recorded; no schema, no conversion
//	authentication, quota, webhooks,       no
//	  priority and fairness
//	garbage collection                     on Server.CollectGarbage
//	namespaces                             emptied by the server itself
//
// Until the first apply to an object, its managedFields name their managers, and
// the field sets in them are a placeholder. There is no promise of compatibility
// before version 1.0.
package apitest
