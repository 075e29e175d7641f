// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package configcheckpoint stores the configuration of an agent on the disk of its node.
// It tries out a new configuration, and rolls back to the last good one if the new one is
// bad. So a bad configuration can't take the node down.
//
// # Usage
//
// Call Boot before anything else, and run the agent concurrently with Run:
//
//	source, err := configcheckpoint.HTTP(client, "https://config.example.com/agent.json", 0)
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
// A configuration is a payload of bytes, which is identified by its [Digest]. The running
// process decodes, validates and admits a new payload, and rejects a bad one without a
// restart. A good payload is stored and assigned. Then it runs on trial: after a restart,
// for which Run returns ErrRestart, or at once if Config.Apply is set. A newer payload
// replaces the one on trial at once.
//
// The trial succeeds when the configuration has been healthy for Trial.Soak in one
// process, or on Verdict(nil). The configuration is then the last-known-good one. The trial
// fails if Trial.Health fails for Trial.Grace, on Verdict with an error, if Apply or a
// later Decode fails, or if Trial.Attempts processes were started with the configuration
// and ended without success. The configuration is then rejected, and the last-known-good
// one runs. The same build of the program does not try the same bytes again until Forget
// is called, but another build does. After the trial a configuration is not checked: if the
// process crashes a day later, nothing is rolled back.
//
// Before a start on trial, and before a new payload is decoded, a record is written to the
// disk. So if the process dies, the attempt is counted. It is not counted if the
// configuration was healthy and the process stopped with Close. A power cut during a trial
// is counted, because a bad configuration may have caused it. [Controller.Boot] does not
// use the network. The record can be written even if the disk is full.
//
// # Concurrency
//
// All methods are safe for concurrent use. Run calls Hooks one after the other from its
// own goroutine. Decode, Validate, Admit, Apply and Health run in other goroutines, and Boot
// or Run waits for them. A panic counts as an error. Each call of Admit, Apply and Health
// may take 30 s, and Decode and Validate may take 30 s together. After that the controller
// continues without the call, because a call that hangs must not prevent a roll-back. While
// a call of Apply or Health hangs, Run applies no other configuration, but returns
// ErrRestart. When Run ends, it waits 10 s for such a call and for the Source. Only these
// can outlive Run.
//
// # Failure modes
//
//   - If the source fails or returns a zero Payload, or what it reads is missing, the
//     configuration stays. Only a payload with Unassign set removes it.
//   - If the disk is full, read-only or broken, a proven configuration runs. A start on
//     trial, or the decoding of a new payload, waits until it can be recorded.
//   - If a stored payload is missing or damaged, the next one in the order of Boot runs,
//     until the source delivers the same bytes again.
//   - If one copy of the record is damaged, it is repaired from the other copy, which is at
//     most one change older. If both are damaged, they are renamed to slot.a.bad and
//     slot.b.bad. Then the built-in default runs until the source assigns again.
//   - If a copy of the record can't be read, or a newer program wrote it in a format that
//     this program must not write, nothing is written. The program then uses the other
//     copy or the part that it can read. If it can read neither, it uses the built-in
//     default.
//   - If another user owns the directory or the record, or can write to it, Boot returns
//     ErrPermissions. If another process has opened the store, Boot returns ErrLocked.
//
// # Compatibility
//
// The package is made for Linux. On other Unix systems a flush may reach only the cache of
// the drive. On Windows there is no lock, no check of owners and no flush of directories.
// The store must be on a local disk. A newer program can read the store of an older one. An
// older program can read that of a newer one, unless the record forbids it.
//
// The sources of this package are File and HTTP. Package configcheckpoint/kube has a source
// that reads a ConfigMap, a condition of the Node and events; without its import a program
// links nothing of Kubernetes except klog.
//
// DESIGN.md has the states and the timing, examples/agent is a complete program, and
// docs/operations.md has the metrics, events, log lines and permissions.
package configcheckpoint
