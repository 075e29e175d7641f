// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimstore records which ResourceClaims a DRA driver has prepared, so
// that a crash, an upgrade, a reboot or a lost call leaves nothing behind.
//
// The helper library kubeletplugin of k8s.io/dynamic-resource-allocation has the
// registration, the sockets and the calls of a driver. What was done for a claim,
// and has to be undone, a driver must remember on its own. This package does it:
//
//	store, err := claimstore.Open(ctx, claimstore.Config[State]{
//		Dir:    "/var/lib/kubelet/plugins/gpu.example.com/claims",
//		Driver: "gpu.example.com",
//		BootID: bootID, // claimstore.BootID()
//		Claims: clientset.ResourceV1(),
//		Unprepare: func(ctx context.Context, claim claimstore.Claim, state State, phase claimstore.Phase) error {
//			return destroyPartition(ctx, state.Partition) // succeeds if it does not exist
//		},
//	})
//	...
//	go store.Run(ctx)
//
//	// In PrepareResourceClaims, for each claim:
//	state, err := store.Prepare(ctx, claim, func(ctx context.Context, begin func(State) error) (State, error) {
//		state := State{Partition: newID()}
//		if err := begin(state); err != nil { // on the disk before the first side effect
//			return state, err
//		}
//		return state, createPartition(ctx, state.Partition)
//	})
//
//	// In UnprepareResourceClaims, for each claim:
//	err := store.Unprepare(ctx, claim.NamespacedName, claim.UID)
//
// # Behavior
//
// A claim is Preparing from the first begin on, Prepared when Prepare has
// returned, and ended when Unprepare has returned. Each step is on the disk before
// the call that makes it returns. Prepare and Unprepare are idempotent: a claim
// that is prepared, or has ended, costs a read of a file in the page cache. A crash
// at any point leaves a record from which the next call, or Run, goes on.
//
// A device belongs to one claim at a time: Prepare refuses a device that another
// claim holds, and names that claim. Claims that name a share of a device, and
// devices for which Config.Shared returns true, are excepted.
//
// A claim that has ended leaves a tombstone. If Prepare is called for it later,
// the store asks the API server whether a Pod uses the claim: a call that was
// delayed until after Unprepare changes nothing.
//
// Records of another boot of the machine are handed to Config.Unprepare once, with
// the phase Rebooted, and end. Run unprepares claims that no longer exist or have lost
// their devices. It sends one GET for each claim and Interval.
//
// The state is encoded once and never again: a field that a newer version of the
// driver adds survives an older one, as long as the older one only reads the
// record.
//
// # Concurrency
//
// Calls for different claims run concurrently, calls for one claim or one device
// one after the other. The same holds between processes with one directory, such
// as the two instances of a driver during kubeletplugin's RollingUpdate: a process
// locks a claim for the time of a call, and a process that dies loses its locks.
// The lock is one of Linux; on other systems only one process may use a directory.
//
// # Failure modes
//
//   - Full disk: Prepare fails. Unprepare succeeds: it changes one byte in place.
//   - Read-only disk: both fail. All and idempotent calls of Prepare work.
//   - Power cut: every acknowledged step is there, because it was flushed. What
//     was being written is not.
//   - Damage: a damaged record costs one claim. Its readable part is used, with the
//     phase Unreadable, and otherwise its line is appended to the file "damaged" and
//     reported. Prepare of such a claim returns an UnreadableError until the claim
//     was unprepared.
//   - API server away: Prepare and Unprepare need it only for a claim that has
//     ended before. Run ends no claim without an answer.
//
// The state of a claim is readable with cat, and is not encrypted.
//
// # Compatibility
//
// Kubernetes 1.34 and newer, because the package uses resource.k8s.io/v1. Run and
// Prepare need the verb get for resourceclaims. The format of the file has a
// version; a newer version reads all older ones.
package claimstore
