// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"iter"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
)

// MaxPayloadSize is the size limit of a payload in bytes, as for a ConfigMap.
const MaxPayloadSize = 1 << 20

// Errors of the sources of this package. They keep the running configuration.
var (
	// ErrSourceNotFound: the file, URL or object does not exist. The error of a source
	// wraps it and names the source. It does not unassign: deleting an object by mistake
	// must not reconfigure a fleet.
	ErrSourceNotFound = errors.New("configcheckpoint: the source does not exist")
	// ErrTooLarge: the payload has more than MaxPayloadSize bytes.
	ErrTooLarge = errors.New("configcheckpoint: the payload is too large")
)

// A Payload is a configuration as a source delivers it.
type Payload struct {
	// Data is the input of Codec.Decode. An empty slice is a payload like any
	// other. Nil is an error of the source, unless Unassign is set.
	Data []byte
	// Unassign means that nothing is assigned: the node returns to the built-in
	// default and forgets the last-known-good configuration. Data must be nil.
	Unassign bool
	// Name is its origin, for people, for example
	// "ConfigMap kube-system/agent[config.yaml]". At most 256 bytes are kept.
	Name string
	// Version is the source's version of it, for people. It decides nothing: a
	// new version of the same bytes is the same configuration. At most 128 bytes
	// are kept.
	Version string
}

// check returns an error for a payload that neither assigns nor unassigns: the
// zero Payload must not cost a node its last-known-good configuration.
func (p Payload) check() error {
	switch {
	case p.Data == nil && !p.Unassign:
		return errors.New("configcheckpoint: the source yielded a payload without Data and without Unassign")
	case p.Data != nil && p.Unassign:
		return errors.New("configcheckpoint: the source yielded a payload with Data and with Unassign")
	}
	return nil
}

// ref names p, which does not unassign. Its Time is zero.
func (p Payload) ref() Ref {
	return Ref{Digest: DigestOf(p.Data), Name: rollout.Tidy(p.Name, rollout.MaxName), Version: rollout.Tidy(p.Version, rollout.MaxVersion), Size: len(p.Data)}
}

// A Source yields the wanted payload when it is first known and after each
// change, until ctx is done. An error is reported and keeps the running
// configuration, and iteration continues. A source that returns before ctx is
// done yields nothing more.
//
// One goroutine ranges over Payloads, once in a Run, and again after a panic. After
// an error it waits for up to ten seconds before it takes the next payload, so that
// a source that fails at once does not make a busy loop. The controller copies the
// data.
type Source interface {
	// Payloads returns the sequence of payloads and errors until ctx is done.
	Payloads(ctx context.Context) iter.Seq2[Payload, error]
}

// SourceFunc is a function that is a Source.
type SourceFunc func(ctx context.Context) iter.Seq2[Payload, error]

// Payloads implements Source.
func (f SourceFunc) Payloads(ctx context.Context) iter.Seq2[Payload, error] { return f(ctx) }
