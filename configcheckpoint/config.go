// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config and Trial.
const (
	// DefaultSoak is the time that a configuration must be healthy to be promoted.
	DefaultSoak = 10 * time.Minute
	// DefaultAttempts is the number of starts without success after which a
	// configuration is rolled back. It is less than 5, because systemd gives up after
	// 5 starts within 10 s.
	DefaultAttempts = 3
	// DefaultEvery is the time between two calls of Trial.Health.
	DefaultEvery = 10 * time.Second
	// DefaultGrace is the time that Trial.Health may fail without a success.
	DefaultGrace = time.Minute
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "configcheckpoint"
)

// A Codec turns a payload into the program's configuration.
//
// The functions are called by Boot and Run, one at a time, unless an earlier call has not
// returned in time. Decode and Validate may take 30 s together. If they take longer, the
// payload is rejected, and the controller no longer waits for the call. An error of Decode
// rejects the payload, and a panic counts as an error.
// If they end the process (os.Exit, stack overflow, out of memory), the payload is
// rejected after Trial.Attempts processes have ended in this way.
type Codec[T any] struct {
	// Required. Decode parses a payload, merges other input of the program
	// (drop-ins, flags), and sets defaults. It must not keep data and must not
	// block. It should be strict, because a configuration with a misspelt key would
	// otherwise be rolled out without an effect.
	Decode func(data []byte) (T, error)
	// Validate checks the result of Decode, if possible for this machine. If it
	// returns an error, the configuration is rejected without a restart. Nil accepts
	// everything.
	Validate func(T) error
	// Default returns the built-in configuration. It runs while no configuration is
	// assigned, and if no other can run. It has no deadline, and Validate does not check
	// its result. With it, Boot can't fail because of the content of the disk, unless Default
	// returns an error. Nil means
	// that there is no built-in configuration. Then Boot returns a NoConfigError until
	// another process has stored the first configuration.
	Default func() (T, error)
}

// Trial configures the trial that a new configuration must pass. Its values must come
// from the program, and never from the configuration on trial.
type Trial struct {
	// Soak is the time that the configuration must run in one process, always
	// healthy, to be promoted. At least 1 second. Default: DefaultSoak.
	Soak time.Duration
	// Attempts is the number of starts without success after which the configuration
	// is rolled back. It must be less than the limit of the supervisor: systemd gives up
	// after 5 starts in 10 seconds, and U-Boot has a bootlimit. At least 1. Default:
	// DefaultAttempts.
	Attempts int
	// Health returns an error while the process does not do its work. It is called
	// only during a trial, one call at a time, and must return when ctx is done. It is not
	// running while Apply is called: ctx is canceled before that, and the result does not
	// count. If it is nil, a running process counts as healthy.
	Health func(ctx context.Context) error
	// Every is the time between two calls of Health. At least 1 millisecond.
	// Default: DefaultEvery.
	Every time.Duration
	// Grace is the time that Health may fail, without a success, before the
	// configuration is rolled back. Raise it for a process that takes long to become
	// healthy. At least 1 millisecond. Default: DefaultGrace.
	Grace time.Duration
}

// An Active is a running configuration.
type Active[T any] struct {
	// Config is the result of Codec.Decode or Codec.Default.
	Config T
	// Ref identifies the configuration. The zero Ref is the built-in default.
	Ref Ref
	// Role is the role of the configuration.
	Role Role
	// Trial reports whether the configuration is on trial.
	Trial bool
}

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config[T any] struct {
	// Required. Dir is the directory of the store: an absolute path without
	// "..", on a local disk. Its parent must exist. The directory is created with mode
	// 0700. No other program may use it. Boot returns an error if another user owns the
	// directory or a record in it, or can write to it. Root, and a group of this process
	// (fsGroup of a Pod), do not count as other users. To read the state, use cat on slot.a
	// and slot.b in the directory. To start over, remove the directory while the process
	// is stopped.
	Dir string
	// Required (its Decode). Codec turns payloads into configurations.
	Codec Codec[T]
	// Required. Source delivers the configuration to run.
	Source Source

	// Build is the version of the program. If one build has rejected a configuration,
	// another build tries it again. At most four rejections are stored: that of the
	// assigned configuration first, and then those of configurations that have run. At
	// most 128 bytes. Default: a rejection is valid for all builds.
	Build string
	// Trial is the trial of a new configuration. Default: the defaults of its
	// fields.
	Trial Trial
	// Apply makes the running process use a configuration. It is called by Run, one
	// call at a time, and must be repeatable. It must return when ctx is done, which is after
	// 30 seconds. If it returns an error, a configuration on
	// trial is rejected, and Apply is called with the fallback. If it is nil, a change
	// needs a restart, and Run returns ErrRestart. Run also does so if a call of Apply or
	// Trial.Health has not returned, because nothing else can then be applied or checked
	// in this process.
	Apply func(ctx context.Context, config Active[T]) error
	// Admit is called before a new configuration is stored, for example for a canary
	// (see HashGate), a maintenance window or a signature. If wait is greater than zero,
	// the payload must wait, and Admit is called again after that time. An error that
	// wraps ErrRefused rejects the payload. After any other error, Admit is called again,
	// first after up to 10 seconds, later after up to 5 minutes. If it is nil, every
	// payload is admitted. Admit is not called before a roll-back to the last-known-good
	// configuration. There is one call at a time. It must return when ctx is done, which is
	// after 30 seconds. While a call hangs, Admit is not called again, so no later payload is admitted, and
	// ErrorHandler reports that.
	Admit func(ctx context.Context, p Payload) (wait time.Duration, err error)
	// Redact returns the text of an error of Decode, Validate, Health, Apply or Admit,
	// for the status, the events and the store. The first 200 bytes are used. Set it if
	// such errors may contain secrets, as those of Flux did (kustomize-controller #420). It
	// is called by any goroutine and must not block. If it panics, the panic is reported,
	// and the text has nothing of the error. If it is nil, the text is err.Error().
	Redact func(err error) string

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from.
	// Repeats of the same class are suppressed until the same operation succeeds. The error
	// of a panic in a function of Config has a method Stack() []byte, which errors.As finds.
	// Boot and Run call ErrorHandler synchronously, one call at a time, and it must not
	// block. Default: the
	// errors are logged with the logger of Boot's and Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks are called when the state changes. Default: none.
	Hooks Hooks
}

// complete sets the defaults and returns every problem.
func (cfg *Config[T]) complete() error {
	var problems []error
	switch {
	case cfg.Dir == "":
		problems = append(problems, lifecycle.Missing("Dir", "a directory that outlives the process"))
	case !cleanPath(cfg.Dir):
		problems = append(problems, lifecycle.Invalid("Dir", cfg.Dir, "must be an absolute path without empty, \".\" or \"..\" elements"))
	}
	if cfg.Codec.Decode == nil {
		problems = append(problems, lifecycle.Missing("Codec.Decode", "it parses a payload"))
	}
	if lifecycle.IsNil(cfg.Source) {
		problems = append(problems, lifecycle.Missing("Source", "for example the result of configcheckpoint.HTTP"))
	}
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	if len(cfg.Build) > rollout.MaxBuild || rollout.Tidy(cfg.Build, rollout.MaxBuild) != cfg.Build {
		problems = append(problems, lifecycle.Invalid("Build", cfg.Build, "must be at most 128 bytes of printable text"))
	}
	if cfg.Redact == nil {
		cfg.Redact = error.Error
	}
	problems = append(problems, lifecycle.DefaultDuration("Trial.Soak", &cfg.Trial.Soak, DefaultSoak, time.Second)...)
	problems = append(problems, lifecycle.DefaultInt("Trial.Attempts", &cfg.Trial.Attempts, DefaultAttempts, 1)...)
	problems = append(problems, lifecycle.DefaultDuration("Trial.Every", &cfg.Trial.Every, DefaultEvery, time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("Trial.Grace", &cfg.Trial.Grace, DefaultGrace, time.Millisecond)...)
	return lifecycle.InvalidConfig("configcheckpoint", problems)
}

// cleanPath reports whether path is absolute, without "." and "..".
func cleanPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path
}
