// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstatus computes the status of a pod from a node's observations of its
// containers, and the smallest write that stores it.
//
// It has the part of a kubelet between its runtime and the API server, as pure
// functions of the API's types: no client, no goroutine, no clock. Package podsync
// uses it; a custom kubelet, a simulator or a test can use it too.
//
// # Usage
//
// Three calls turn a report into a request:
//
//	next, problems := podstatus.Next(pod, podstatus.Update{Observed: report, Generation: pod.Generation, Now: time.Now()})
//	if patch := podstatus.Patch(pod, &next); patch != nil {
//		pod, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, patch, metav1.PatchOptions{}, "status")
//	}
//
// [Next] joins the report with the stored status. [Patch] writes the difference
// with the pod's UID as its precondition. The parts of Next are exported where
// they are of use alone: [Phase] and [FinalPhase], [Ended], [ShouldRestart],
// [Ready] and its kin, [QOSClass], [Validate].
//
// # Behavior
//
// What Next holds, whatever the report says:
//
//   - The phase never goes back, and a terminal one stays, with its reason.
//   - The phase isn't terminal before Update.Stopped: until then containers may
//     run and hold resources.
//   - Succeeded needs an exit code 0 of every regular container and of every init
//     container that has a status. A container whose end was not observed has
//     ended with code 137 and reason ContainerStatusUnknown.
//   - A container doesn't leave Terminated unless restart policy and rules let
//     it; a status, once stored, doesn't disappear; restart counts don't fall.
//   - Ready and ContainersReady are False with a terminal phase. Ready waits for
//     readiness gates.
//   - Conditions of other components stay as they are, byte for byte. A
//     transition time moves only with the condition's status, a start time never.
//   - observedGeneration never falls.
//   - Times have whole seconds, texts are UTF-8 of limited length, termination
//     messages share 12 KiB, lists have the order of the spec.
//   - Next is idempotent: once its result is stored, it gives no further patch.
//
// Everything that the API server would refuse in a report is left out of the
// result and listed, so that a defect of a provider is seen and does not keep the
// rest of the status, or the end of the pod, from being stored.
//
// # Concurrency
//
// The functions may be called concurrently. They don't change their arguments, and
// their results share no memory with them; the pod may come straight from an
// informer's cache.
//
// # Failure modes
//
// There is no error to return. An API server may yet refuse a status for reasons
// that only it knows, such as an admission webhook; [Minimal] is the fallback. A report about a pod with another UID is the caller's to sort out.
//
// # Permissions
//
// None for the package. To send what Patch returns takes the verb patch on
// pods/status; nothing else of the pod is in it, so NodeRestriction lets a node's
// own credentials write it.
//
// # Compatibility
//
// The rules are those of Kubernetes 1.37: sidecars (KEP-753), restart policies and
// rules of containers (KEP-5307), restarts of all containers (KEP-5532), readiness
// gates (KEP-580), observedGeneration (KEP-5067). An older server drops fields
// that it doesn't know; then the same patch is made again at the next call, so
// leave Update.Generation at 0 for servers before 1.34.
package podstatus
