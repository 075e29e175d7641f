// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package configcheckpoint keeps an agent's configuration on its node's disk,
// tries out a new one, and rolls back to the last good one if the new one is
// bad, so that no configuration can take the node down.
//
// # Usage
//
// Call Boot before anything else, and run the agent concurrently with Run:
//
//	source, err := configcheckpoint.ConfigMap(client.CoreV1(), "kube-system", "agent", "config.yaml")
//	...
//	controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
//		Dir:    "/var/lib/agent/config",
//		Codec:  configcheckpoint.Codec[Settings]{Decode: decode, Validate: validate, Default: defaults},
//		Source: source,
//		Build:  version,
//		Trial:  configcheckpoint.Trial{Health: healthy},
//	})
//	...
//	active, err := controller.Boot(ctx)
//	...
//	go agent(ctx, active.Config)
//	err = controller.Run(ctx)
//	... // stop the agent
//	closeErr := controller.Close(agentErr)
//	if errors.Is(err, configcheckpoint.ErrRestart) {
//		os.Exit(75) // not 0: a supervisor that restarts on failure would stop
//	}
//
// # Behavior
//
// A configuration is a payload of bytes, and its identity is their [Digest]. The running
// process decodes, validates and admits a new payload, and rejects a bad one without a
// restart. A payload that passes is stored and assigned. It then runs on trial: after a
// restart, for which Run returns ErrRestart, or at once if Config.Apply is set. A newer
// payload replaces the one on trial at once.
//
// The trial succeeds when the configuration has been healthy for Trial.Soak in one
// process, or on Verdict(nil); the configuration is then the last-known-good one. It
// fails if Trial.Health fails for Trial.Grace, on Verdict with an error, if Apply or a
// later Decode fails, or if Trial.Attempts processes were started with the configuration
// and ended without success. The configuration is then rejected, and the last-known-good
// one runs. The same build does not try the same bytes again until Forget; another build
// does. A proven configuration is not checked: a crash a day later rolls back nothing.
//
// Each start on trial, and each decoding of a new payload, is written to the disk before
// it begins, so a process that it ends is counted. A stop reported to Close while the
// configuration was healthy is not counted. A power cut during a trial is, because it
// can't be distinguished from a machine that the configuration brought down.
// [Controller.Boot] does not use the network. The state can be written on a full disk.
//
// # Concurrency
//
// All methods are safe for concurrent use. Run calls Hooks one after the other from its
// own goroutine. Decode, Validate, Admit, Apply and Health each run in a goroutine that
// Boot or Run waits for; a panic is an error. Each call of Admit, Apply and Health has
// 30 s, and so have Decode and Validate together. A function that takes longer is left
// behind, because it must not prevent a roll-back. Only it, or a Source that ignores its
// context, can outlive Run, which waits 10 s for them.
//
// # Failure modes
//
//   - The source fails, or yields a zero Payload, or the ConfigMap or its key is missing:
//     the running configuration stays. Only a payload with Unassign set unassigns.
//   - The disk is full, read-only or broken: a proven configuration runs. A start on
//     trial, or the decoding of a new payload, waits until it can be recorded.
//   - A stored payload is missing or damaged: the next one in the order of Boot runs,
//     until the source delivers the same bytes again.
//   - One copy of the record is damaged: it is repaired from the other, which is at most
//     one change older. Both are: they are renamed to slot.a.bad and slot.b.bad, and the
//     built-in default runs until the source assigns again.
//   - A copy of the record can't be read, or a newer program wrote it in a format that
//     this one must not write: nothing is written. The other copy, or its readable part,
//     serves, and else the built-in default.
//   - Another user owns or can write the directory or the record: Boot returns
//     ErrPermissions. Another process has the store open: ErrLocked.
//
// # Compatibility
//
// Linux first. On other Unix systems a flush may reach no further than the drive's cache.
// On Windows there is no lock, no check of owners and no flush of directories. The store
// must be on a local disk. A newer program reads the store of an older one, and an older
// one that of a newer one unless the record forbids it.
//
// DESIGN.md has the states and the timing, examples/agent is a complete program, and
// docs/operations.md has the metrics, events, log lines and permissions.
package configcheckpoint
