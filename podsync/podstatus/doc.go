// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstatus computes the status of a pod from a node's observations of its
// containers, and the smallest write that stores it.
//
// It does what a kubelet does between its runtime and the API server, with functions
// of the API's types. It has no client, no goroutine and no clock. Package podsync
// uses it. A custom kubelet, a simulator or a test can use it too.
//
// # Usage
//
// This turns a report about a pod's containers into a request:
//
//	next, problems := podstatus.Next(pod, podstatus.Update{Observed: report, Generation: pod.Generation, Now: time.Now()})
//	if patch := podstatus.Patch(pod, &next); patch != nil {
//		pod, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, patch, metav1.PatchOptions{}, "status")
//	}
//
// [Next] combines the report with the stored status. [Patch] returns a patch with the
// difference, and with the pod's UID as its precondition. Some parts of Next are also
// exported: [Phase], [FinalPhase], [Ended], [ShouldRestart], [Ready] and other functions
// for conditions, [QOSClass], [Validate].
//
// # Behavior
//
// The result of Next always has these properties, even if the report contradicts them:
//
//   - The phase never goes back. A terminal phase stays, with its reason.
//   - The phase isn't terminal before Update.Stopped, because until then containers
//     may run and hold resources.
//   - The phase is Succeeded only if every regular container, and every init
//     container that has a status, has the exit code 0. A container whose end was not
//     observed gets code 137 and reason ContainerStatusUnknown.
//   - A container that is Terminated stays so unless the restart policy and the restart
//     rules let it start again. The stored status of a container doesn't disappear, except
//     that of one that waits in a pod that fails before anything of it ran. A restart
//     count doesn't decrease.
//   - Ready and ContainersReady are False if the phase is terminal. Ready is True only
//     if all readiness gates are.
//   - Conditions of other components stay as they are, byte for byte. The transition
//     time of a condition changes only with its status. A start time never changes.
//   - observedGeneration never decreases.
//   - Times have whole seconds. Texts are UTF-8 of limited length. The termination
//     messages of a pod have at most 12 KiB together. Lists have the order of the spec.
//   - Next is idempotent: when its result is stored, there is nothing more to patch.
//
// Next leaves out what the API server would refuse in a report, and lists it as a
// problem. So a mistake of a provider is seen, but the rest of the status, and the end of
// the pod, are stored.
//
// # Concurrency
//
// The functions may be called concurrently. They don't change their arguments, and
// their results share no memory with the arguments. The pod may be an object in an
// informer's cache.
//
// # Failure modes
//
// The functions return no errors. The API server may still refuse a status, for example
// because of an admission webhook. Then send the result of [Minimal] instead. The caller
// must discard reports about pods with another UID, because the functions do not check it.
//
// # Permissions
//
// The package sends nothing. To send the patch, a client needs the verb patch for
// pods/status. The patch changes only the status, so a node's own credentials are
// enough (NodeRestriction).
//
// # Compatibility
//
// The rules are those of Kubernetes 1.37: sidecars (KEP-753), restart policies and
// rules of containers (KEP-5307), restarts of all containers (KEP-5532), readiness
// gates (KEP-580), observedGeneration (KEP-5067). An older server drops fields
// that it doesn't know, and then the next call returns the same patch again. To prevent
// this with servers before 1.34, leave Update.Generation at 0.
package podstatus
