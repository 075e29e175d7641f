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

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config and Trial.
const (
	// DefaultSoak is for how long a configuration must run well to be promoted.
	DefaultSoak = 10 * time.Minute
	// DefaultAttempts is how many starts without success roll it back. It is
	// below the 5 within 10 s after which systemd gives up.
	DefaultAttempts = 3
	// DefaultEvery is the time between two calls of Trial.Health.
	DefaultEvery = 10 * time.Second
	// DefaultGrace is for how long Trial.Health may fail.
	DefaultGrace = time.Minute
	// DefaultCallTimeout is the deadline of one call of Health, Apply or Admit.
	DefaultCallTimeout = 30 * time.Second
	// DefaultShutdownTimeout is the time for such a call that is under way when
	// Run is to return.
	DefaultShutdownTimeout = 10 * time.Second
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "configcheckpoint"
)

// A Codec turns a payload into the embedder's configuration.
type Codec[T any] struct {
	// Required. Decode parses a payload, merges what the embedder merges
	// (drop-ins, flags), and sets defaults. It must not keep data, must not
	// block, and should be strict: a misspelt key that is ignored is a rollout
	// that did nothing. A panic counts as an error.
	Decode func(data []byte) (T, error)
	// Validate checks what Decode returned, for this machine if it can. A
	// configuration that fails is rejected before anything is restarted. Nil
	// accepts everything. A panic counts as an error.
	Validate func(T) error
	// Default returns the built-in configuration, which runs while nothing is
	// assigned and when nothing else can. With it Boot can't fail for the state
	// of the disk. Nil means there is none: Boot then returns a NoConfigError
	// until the first configuration has arrived by other means.
	Default func() (T, error)
}

// Trial says what a new configuration has to stand before it is called good.
// It belongs to the program and never to the configuration on trial.
type Trial struct {
	// Soak is for how long the configuration must run in one process, healthy
	// all the while, to be promoted. At least 1 second. Default: DefaultSoak.
	Soak time.Duration
	// Attempts is how many starts without success roll it back. Keep it below
	// the supervisor's own limit (systemd gives up after 5 starts in 10
	// seconds). At least 1. Default: DefaultAttempts.
	Attempts int
	// Health returns an error while the process does not do its work. It is
	// called during a trial only, one call at a time, and must return when ctx
	// is done. Nil means that to be alive is to be healthy.
	Health func(ctx context.Context) error
	// Every is the time between two calls of Health. At least 1 millisecond.
	// Default: DefaultEvery.
	Every time.Duration
	// Grace is for how long Health may fail in a row before the configuration
	// is rolled back. A process that takes long to become healthy needs more.
	// At least 1 millisecond. Default: DefaultGrace.
	Grace time.Duration
}

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config[T any] struct {
	// Required. Dir is the directory of the store: an absolute path without
	// "..", to a local disk, whose parent exists. It is created with mode 0700
	// and belongs to this controller alone. One that others can write, or that
	// another user owns, is refused.
	Dir string
	// Required is its Decode. Codec turns payloads into configurations.
	Codec Codec[T]
	// Required. Source says which configuration to run.
	Source Source

	// Build is the version of the program. A configuration that one build
	// rejected is given a new chance by another. At most 128 bytes. Default: a
	// rejection holds for all builds.
	Build string
	// Trial says when a configuration is good. Default: those of all its
	// fields.
	Trial Trial
	// Apply puts a configuration into effect in the running process. It is
	// called by Run, one call at a time, and must be repeatable. An error
	// rejects a configuration on trial, and the fallback is applied. Nil means
	// that a change takes a restart: Run returns ErrRestart.
	Apply func(ctx context.Context, config Active[T]) error
	// Admit is asked before a new configuration is stored: for a canary (see
	// HashGate), a maintenance window or a signature. A wait above zero holds
	// the payload back and asks again after it. An error rejects the content
	// for good. Nil admits everything. The return to the last-known-good
	// configuration is not asked for.
	Admit func(ctx context.Context, p Payload) (wait time.Duration, err error)
	// Redact turns an error of Decode, Validate, Health, Apply or Admit into
	// the text of the status, the events and the store, of which 200 bytes are
	// kept. Nil means err.Error(). Set it where such errors quote secrets.
	Redact func(err error) string

	// CallTimeout is the deadline of each call of Health, Apply and Admit. At
	// least 1 millisecond. Default: DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout is how long Run waits, when it is to return, for such a
	// call that outlives its context. At least 1 millisecond. Default:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is told of errors that the controller goes on from: of the
	// first of each class while the same work fails with it. It is called
	// synchronously and must not block. Default: the logger of Boot's and Run's
	// context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in the package comment.
	// Default: none.
	EventRecorder events.EventRecorder
	// Required with EventRecorder. EventObject is what the events are about,
	// usually the Node.
	EventObject runtime.Object
	// Hooks are called on what happens. Default: none.
	Hooks Hooks
}

// complete fills in the defaults and returns all that is wrong.
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
	if cfg.Source == nil {
		problems = append(problems, field.Required(field.NewPath("Source"), ""))
	}
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	if len(cfg.Build) > maxBuild || tidy(cfg.Build, maxBuild) != cfg.Build {
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
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, time.Millisecond)...)
	return lifecycle.InvalidConfig("configcheckpoint", problems)
}

// cleanPath reports whether path says outright which file it means.
func cleanPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path
}
