// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimstore records which ResourceClaims a DRA driver has prepared, so
// that a crash, an upgrade, a reboot or a lost call leaves nothing behind.
//
// Package kubeletplugin of k8s.io/dynamic-resource-allocation handles a driver's
// registration, sockets and calls. But the driver must remember what it has done for a
// claim, so that it can undo it later. This package stores that:
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
// The phase of a claim is Preparing from the first call of begin, and Prepared when
// Prepare has returned. It is Preparing again when Config.Unprepare is called. Otherwise
// a claim that is undone in part would look prepared. When Unprepare has returned, the
// claim has ended. A change of the phase is on the disk before the call returns. Prepare
// and Unprepare are idempotent: if there is nothing to do, a call only reads a file,
// usually from the page cache. After a crash at any point, the next call or Run continues
// from the record on the disk.
//
// A device belongs to one claim at a time. If another claim holds it, Prepare returns an
// error with the name of that claim. Devices for which Config.Shared returns true, and
// claims for a share of a device, are exceptions.
//
// A claim that has ended leaves a tombstone. A call of Prepare may be delayed until after
// Unprepare. So if Prepare is called for a claim that has ended, or that is prepared for
// another allocation, the store reads the claim from the API server, and does nothing
// unless a Pod uses it with the allocation of the call.
//
// If the machine was restarted, Config.Unprepare is called once for each claim, with the
// phase Rebooted, and the claim ends. Run unprepares claims that no longer exist or have
// lost their devices. It sends one GET for each claim and Interval, and another one before
// it ends a claim.
//
// A record says what was done, and not what still exists. If Config.Restore is set, Prepare
// calls it for a claim that is prepared, and Run calls it once for each. It looks at files,
// mounts and daemons, and makes again what is missing. Sweep is the other direction: it
// removes what is left of a device, if no record names the device. List returns all records,
// with their phases.
//
// The state of a claim is encoded only once, and again if Restore changes it. If an older
// version of the driver only reads the record, fields that a newer version has added are not
// lost.
//
// # Concurrency
//
// Calls for different claims run concurrently. Calls for one claim or one device run one
// after the other. This is also true for several processes with one directory, such as
// the two instances of a driver during kubeletplugin's RollingUpdate. A process locks a
// claim during a call, and loses its locks if it dies. The locks need Linux. On other
// systems only one process may use a directory.
//
// Unprepare and Restore are called with the claim's lock. A driver that holds a mutex of
// its own while it calls Prepare, and takes that mutex in Unprepare or Restore, blocks
// itself: Prepare calls both. They must not call the Store. After Prepare has returned, the
// claim is not locked, and the driver must not write a file of it outside of Restore.
//
// # Failure modes
//
//   - If the disk is full, Prepare fails. Unprepare succeeds, because it changes one byte
//     in place.
//   - If the disk is read-only, both fail if they have to write, and Sweep does nothing.
//     List works, and so do Prepare and Unprepare if there is nothing to do.
//   - After a power cut, a change is there if the call had returned, because it was
//     flushed. A change that was being written may be lost.
//   - If a record is damaged, other claims are not affected. If a part of it can be read,
//     the claim has the phase Unreadable. Otherwise the line is appended to the file
//     "damaged" and reported. Prepare of such a claim returns an UnreadableError until the
//     claim was unprepared. What can't be read counts as used: Sweep does nothing if a
//     device may be named by it. Run ends an unreadable claim only if the fields that name
//     it are intact, as a digest of them shows.
//   - If the file is empty or has only zeros, as after some power cuts, the records are lost.
//     That is reported, and Sweep does nothing until an administrator has removed "damaged".
//   - If the API server is away, Prepare fails for claims that have ended before or are
//     prepared for another allocation, and only for these. Unprepare does not need it. Run
//     ends no claim of this boot without an answer.
//
// The file is text that cat can show. The states of claims in it are not encrypted.
//
// # Compatibility
//
// The package needs resource.k8s.io/v1 (Kubernetes 1.34), and the verb get for
// resourceclaims. The format of the file has a version, and newer versions of this
// package can read all older ones.
package claimstore
