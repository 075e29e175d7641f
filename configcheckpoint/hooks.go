// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import "k8s.io/klog/v2"

// Hooks observe a Controller. Each is optional. Run's goroutine calls them
// synchronously and without locks, one at a time, including those for Boot and
// Verdict. They must not block, and may call every method of the Controller. A panic in a
// hook is reported and has no other effect.
type Hooks struct {
	// Delivered is called for every payload and error of the source.
	Delivered func(Delivered)
	// Staged is called when a new configuration has been stored and assigned. Package kube
	// records an event then.
	Staged func(Staged)
	// Promoted is called when a configuration passes its trial.
	Promoted func(Promoted)
	// Rejected is called when a configuration is rejected, before or after it
	// ran.
	Rejected func(Rejected)
	// StatusChanged is called with the status whenever it has changed. It is
	// the place to trigger a write of the Node's status.
	StatusChanged func(Status)
}

// Delivered is the argument of Hooks.Delivered.
type Delivered struct {
	// Ref is the payload; zero for an error, and for a payload that assigns
	// nothing.
	Ref Ref
	// Err is the error that the source yielded, or the fault of its payload.
	Err error
}

// Staged is the argument of Hooks.Staged.
type Staged struct {
	// Ref is the assigned configuration; zero if nothing is assigned.
	Ref Ref
	// Proven means that it is the last-known-good configuration, so that no
	// trial follows.
	Proven bool
}

// Promoted is the argument of Hooks.Promoted.
type Promoted struct {
	// Ref is the configuration.
	Ref Ref
	// ByVerdict means that Verdict(nil) promoted it, rather than its soak.
	ByVerdict bool
}

// Rejected is the argument of Hooks.Rejected.
type Rejected struct {
	// Ref is the configuration.
	Ref Ref
	// Reason is the cause, fit for a label of a metric.
	Reason Reason
	// Message explains the cause, after Config.Redact.
	Message string
	// RolledBack means that it was assigned, so that another configuration takes
	// its place.
	RolledBack bool
}

// An observer reports to the log and the hooks.
type observer struct {
	logger klog.Logger // of Run
	hooks  Hooks
}

func (o observer) delivered(i Delivered) {
	if o.hooks.Delivered != nil {
		o.hooks.Delivered(i)
	}
}

func (o observer) staged(i Staged) {
	o.logger.V(2).Info("Assigned a configuration", "config", i.Ref.String(), "proven", i.Proven)
	if o.hooks.Staged != nil {
		o.hooks.Staged(i)
	}
}

func (o observer) promoted(i Promoted) {
	o.logger.V(2).Info("A configuration passed its trial", "config", i.Ref.String(), "byVerdict", i.ByVerdict)
	if o.hooks.Promoted != nil {
		o.hooks.Promoted(i)
	}
}

func (o observer) rejected(i Rejected) {
	o.logger.Info("Rejected a configuration", "config", i.Ref.String(), "reason", i.Reason, "message", i.Message, "rolledBack", i.RolledBack)
	if o.hooks.Rejected != nil {
		o.hooks.Rejected(i)
	}
}

func (o observer) statusChanged(s Status) {
	if o.hooks.StatusChanged != nil {
		o.hooks.StatusChanged(s)
	}
}
