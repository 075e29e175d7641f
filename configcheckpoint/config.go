// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config and Trial.
const (
	// DefaultSoak is the time that a configuration must run healthily to be
	// promoted.
	DefaultSoak = 10 * time.Minute
	// DefaultAttempts is the number of starts without success that rolls a
	// configuration back. It is below the 5 within 10 s after which systemd gives
	// up.
	DefaultAttempts = 3
	// DefaultEvery is the time between two calls of Trial.Health.
	DefaultEvery = 10 * time.Second
	// DefaultGrace is the time that Trial.Health may fail without a break.
	DefaultGrace = time.Minute
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "configcheckpoint"
)

// A Codec turns a payload into the program's configuration.
//
// Decode and Validate together have 30 s; a payload for which they take longer is
// rejected, and the call is left behind. A panic counts as an error. A
// payload for which they end the process (os.Exit, a stack overflow, no memory)
// is rejected after Trial.Attempts processes have ended in this way.
type Codec[T any] struct {
	// Required. Decode parses a payload, merges other input of the program
	// (drop-ins, flags), and sets defaults. It must not keep data, must not
	// block, and should be strict: ignoring a misspelt key makes a rollout that
	// did nothing.
	Decode func(data []byte) (T, error)
	// Validate checks the result of Decode, for this machine if it can. A
	// configuration that fails is rejected before anything is restarted. Nil
	// accepts everything.
	Validate func(T) error
	// Default returns the built-in configuration, which runs while nothing is
	// assigned and if nothing else can. It has no deadline, and Validate does not
	// check its result. With it, Boot can't fail because of the content of the
	// disk. Nil means that there is none: Boot then returns a NoConfigError until
	// another process has stored the first configuration.
	Default func() (T, error)
}

// Trial configures the trial that a new configuration must pass before it is
// called good. It belongs to the program, never to the configuration on trial.
type Trial struct {
	// Soak is the time that the configuration must run in one process, healthy
	// without a break, to be promoted. At least 1 second. Default: DefaultSoak.
	Soak time.Duration
	// Attempts is the number of starts without success that rolls the
	// configuration back. Keep it below the supervisor's own limit (systemd gives
	// up after 5 starts in 10 seconds; U-Boot counts starts too, and has a bootlimit).
	// At least 1. Default: DefaultAttempts.
	Attempts int
	// Health returns an error while the process does not do its work. It is
	// called during a trial only, one call at a time, and must return when ctx
	// is done. If it is nil, a running process is healthy.
	Health func(ctx context.Context) error
	// Every is the time between two calls of Health. At least 1 millisecond.
	// Default: DefaultEvery.
	Every time.Duration
	// Grace is the time that Health may fail without a break before the
	// configuration is rolled back. A process that takes long to become healthy
	// needs more. At least 1 millisecond. Default: DefaultGrace.
	Grace time.Duration
}

// An Active is a running configuration.
type Active[T any] struct {
	// Config is what Codec.Decode or Codec.Default returned.
	Config T
	// Ref names it; the zero Ref is the built-in default.
	Ref Ref
	// Role is the part it plays.
	Role Role
	// Trial means that it is not proven yet.
	Trial bool
}

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config[T any] struct {
	// Required. Dir is the directory of the store: an absolute path without
	// "..", to a local disk, whose parent exists. It is created with mode 0700
	// and belongs to this controller alone. A directory or a record in it that
	// another user owns or can write is refused; root, and a group of this process
	// (fsGroup of a Pod), are not other users. To read the state, use cat on
	// slot.a and slot.b in it; to start over, remove it while the process is
	// stopped.
	Dir string
	// Required (its Decode). Codec turns payloads into configurations.
	Codec Codec[T]
	// Required. Source yields the configuration to run.
	Source Source

	// Build is the version of the program. A configuration that one build
	// rejected gets a new chance with another build. At most four rejections are
	// kept: that of the assigned configuration, and of the others first those of
	// configurations that ran. At most 128 bytes. Default: a rejection holds for all
	// builds.
	Build string
	// Trial is the trial of a new configuration. Default: the defaults of its
	// fields.
	Trial Trial
	// Apply puts a configuration into effect in the running process. It is
	// called by Run, one call at a time, and must be repeatable. An error
	// rejects a configuration on trial, and the fallback is applied. Nil means
	// that a change takes a restart: Run returns ErrRestart.
	Apply func(ctx context.Context, config Active[T]) error
	// Admit is called before a new configuration is stored: for a canary (see
	// HashGate), a maintenance window or a signature. A wait above zero holds
	// the payload back, and Admit is called again after it. An error that wraps
	// ErrRefused rejects the content. After any other error, which is no answer,
	// Admit is called again: after up to 10 seconds, later after up to 5 minutes. Nil
	// admits everything. Admit is not called for the return to the
	// last-known-good configuration.
	Admit func(ctx context.Context, p Payload) (wait time.Duration, err error)
	// Redact turns an error of Decode, Validate, Health, Apply or Admit into
	// the text of the status, the events and the store, of which 200 bytes are
	// kept. Nil means err.Error(). Set it if such errors quote secrets. After a panic,
	// which is reported, the text shows nothing of the error. It must not block.
	Redact func(err error) string

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from.
	// Repeats of the same class are suppressed until the same work succeeds. Panics in
	// functions of Config are errors with a method Stack() []byte, which errors.As
	// finds. It is called synchronously by Boot and Run and must not block. Default: the
	// logger of Boot's and Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in docs/operations.md, as the kubelet did
	// when it took its configuration from a ConfigMap. Default: none.
	EventRecorder events.EventRecorder
	// Required with EventRecorder. EventObject is the object of the events,
	// usually the Node.
	EventObject runtime.Object
	// Hooks observe the controller. Default: none.
	Hooks Hooks
}

// complete sets the defaults and returns every problem.
func (cfg *Config[T]) complete() error {
	var problems field.ErrorList
	switch {
	case cfg.Dir == "":
		problems = append(problems, field.Required(field.NewPath("Dir"), ""))
	case !cleanPath(cfg.Dir):
		problems = append(problems, field.Invalid(field.NewPath("Dir"), cfg.Dir, "must be an absolute path without empty, \".\" or \"..\" elements"))
	}
	if cfg.Codec.Decode == nil {
		problems = append(problems, field.Required(field.NewPath("Codec", "Decode"), ""))
	}
	if lifecycle.IsNil(cfg.Source) {
		problems = append(problems, field.Required(field.NewPath("Source"), ""))
	}
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	if len(cfg.Build) > rollout.MaxBuild || rollout.Tidy(cfg.Build, rollout.MaxBuild) != cfg.Build {
		problems = append(problems, field.Invalid(field.NewPath("Build"), cfg.Build, "must be at most 128 bytes of printable text"))
	}
	if cfg.EventRecorder != nil && cfg.EventObject == nil {
		problems = append(problems, field.Required(field.NewPath("EventObject"), "EventRecorder is set"))
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
