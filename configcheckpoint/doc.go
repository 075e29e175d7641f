// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package configcheckpoint keeps an agent's configuration on its node's disk,
// tries out a new one, and goes back to the last good one when the new one
// turns out bad, so that no configuration can take the node down.
//
// # Usage
//
// Give New a directory, a Codec and a Source, call Boot before anything else,
// run the agent with what it returns, and Run beside it:
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
//		os.Exit(75)
//	}
//
// The exit status must not be 0: a supervisor that restarts on failure takes
// 0 for the end of the work, and the node never comes back.
// examples/agent is the whole program.
//
// # Behavior
//
// A configuration is a payload of opaque bytes, and its identity is their
// SHA-256. A new version, label or file time of the same bytes is no change.
//
// A new payload is decoded, validated and admitted by the process that runs,
// and one that fails is rejected there and then, with nothing restarted. One
// that passes is stored and assigned. It then runs on trial: after a restart,
// for which Run returns ErrRestart, or at once where Config.Apply is set. The
// trial ends well when the configuration has run for Trial.Soak in one
// process, healthy without a break, or when Verdict(nil) says so; it is then
// the last-known-good one. It ends badly when Trial.Health failed for
// Trial.Grace, when Verdict is given an error, when Apply fails, or when
// Trial.Attempts processes were started with it and ended without success. The
// configuration is then rejected and the last-known-good one runs. While it is
// good nothing is counted or checked: a crash a day later rolls back nothing.
//
// Each start on trial is written to the disk before the configuration is
// decoded, so that one that takes the process down at once is counted too. A
// stop that Close was told of while the configuration was healthy is not
// counted. A power cut is, because it can't be told from a machine that the
// configuration brought down; the message of the rejection says how many
// starts ended with a reboot.
//
// Health that comes and goes decides nothing: each failure starts Soak again
// and each success starts Grace again, so a configuration whose health keeps
// flapping stays on trial, running, until a verdict or a newer payload. Where
// flapping must end a trial, let Health fail for as long as it is in doubt.
//
// A newer payload replaces the one on trial at once. What a failed trial goes
// back to is always the last configuration that passed one. When the source
// returns to that, it runs again without a trial.
//
// A rejection is kept with the digest of the payload and Config.Build. The
// same build does not try the same bytes again, over restarts and however
// often they are delivered, until Forget; another build does. Four rejections
// are kept. Those of configurations that ran outlast those made at the door,
// which cost nothing to make again.
//
// Boot takes the first of these that can be loaded, decoded and validated: the
// assigned configuration unless it is rejected, the last-known-good one, the
// one that was that before unless it was rejected since, Codec.Default. It does
// not use the network.
//
// What is on the disk:
//
//	slot.a, slot.b    two copies of the record, the newer one counts; read them with cat
//	p/<sha256>        payloads: assigned, last known good, previous
//
// A change of state is one write of 8 KiB over the older slot, flushed. The
// files are never larger than when they were made, so the state can be written
// on a full disk. Costs, in flushes of the disk: a start with a proven
// configuration 0, and 0 writes; a new payload 3; a start on trial, a
// promotion, a rejection 1. A trial that goes on costs none.
//
// To begin anew, remove the directory while the process is stopped.
//
// # Concurrency
//
// All methods are safe for concurrent use. Boot calls Codec's functions in its
// caller's goroutine. Run calls Decode, Validate, Hooks and ErrorHandler one
// after the other from its own; Admit, Apply and Health each from a goroutine
// that Run waits for, one call at a time for each. No lock is held meanwhile,
// so they may call the Controller. One that does not return when its context
// is done is left behind after ShutdownTimeout, and that goroutine is the only
// one that can outlive Run: what hangs must not keep a roll-back from
// happening. The source's iterator has a goroutine of its own as well.
//
// One process at a time may have a store open; a lock that the kernel drops
// with the process sees to it.
//
// # Failure modes
//
//   - The API server or the file is away, the ConfigMap or its key is missing:
//     what runs goes on, the condition keeps its status with reason
//     SourceFailed. Nothing but a payload whose Data is nil unassigns.
//   - The disk is full, read-only or broken: what is proven runs. A start on
//     trial that can't be recorded is not made, and tried again when the disk
//     can be written.
//   - A stored payload is missing or damaged: the next one in the order above
//     runs, and when the source delivers the same bytes again they are stored
//     anew and run.
//   - One slot is damaged: it is repaired from the other, which is at most one
//     change older. Both are: they are renamed to slot.a.bad and slot.b.bad, the
//     built-in default runs, and the source assigns anew.
//   - The store can't be read for want of file descriptors or memory: the
//     built-in default runs, and what is stored as soon as it can be read.
//   - The store was written by a newer program in a format that this one must
//     not touch: it is read as far as can be and never written.
//   - The directory can be written by others or belongs to another user: Boot
//     returns ErrPermissions. Another process has it: ErrLocked.
//   - Decode, Validate, Admit, Apply, Health or the source panics: that is an
//     error of theirs.
//
// # Events and hooks
//
// Events about Config.EventObject, where Config.EventRecorder is set:
//
//	ConfigStaged      Stage     Normal   a new configuration was stored and assigned
//	ConfigPromoted    Promote   Normal   it has passed its trial
//	ConfigRejected    Reject    Warning  it was barred at the door
//	ConfigRolledBack  RollBack  Warning  it was barred after it ran
//
// The Node condition: NodeCondition returns a setter to be listed with those of
// package nodestatus, or of whatever else writes the Node's status, and
// Hooks.StatusChanged is the moment to have it written:
//
//	setters := []nodestatus.Setter{controller.NodeCondition("AgentConfigOK")}
//	hooks := configcheckpoint.Hooks{StatusChanged: func(configcheckpoint.Status) { nodes.Trigger(nodeName) }}
//
// The condition is True while what the source wants is what runs. The constants
// of type Reason list its reasons.
//
// Recommended names for metrics, fed by [Hooks]; the first, the second and the
// last are gauges:
//
//	kubewright_configcheckpoint_info{role}                StatusChanged, Role: 1 for the present one
//	kubewright_configcheckpoint_trial                     StatusChanged, Phase: 1 during a trial
//	kubewright_configcheckpoint_deliveries_total{result}  Delivered
//	kubewright_configcheckpoint_promotions_total          Promoted
//	kubewright_configcheckpoint_rejections_total{reason}  Rejected, Reason
//	kubewright_configcheckpoint_condition{reason}         StatusChanged, OK: 1, 0 or -1 for Unknown, under the present Reason
//
// The log has at V0 each configuration that was rejected or rolled back, and the
// first of each kind of failure with its end; at V2 each one that was assigned,
// applied or promoted, and what Boot chose. A trial that goes on prints nothing.
//
// # Permissions
//
// The ConfigMap source needs list and watch of configmaps, which may be
// limited to the one by resourceNames. The Node authorizer lets a node's
// identity read a ConfigMap only while a pod on it uses it, so such an agent
// needs a Role of its own. Config.EventRecorder needs create and patch of
// events.k8s.io events. The File source needs nothing.
//
// The store holds payloads as they come, mode 0600 in a directory of mode
// 0700; it encrypts nothing, so configuration should refer to secrets rather
// than hold them. Payloads are never logged; for errors that quote them see
// Config.Redact.
//
// # Compatibility
//
// Linux first. On other Unix systems a flush may reach no further than the
// drive's cache. On Windows there is no lock, no check of the
// directory's owner and no flush of directories, so a power cut may lose the
// newest payload, which then is delivered again; the record is as safe as
// on Linux. The store must be on a local disk.
//
// The store's format has a version. A newer program reads what an older one
// wrote; an older one reads what a newer one wrote unless the newer one says
// that it must not.
package configcheckpoint
