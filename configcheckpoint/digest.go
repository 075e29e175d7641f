// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"crypto/sha256"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
)

// A Digest is the SHA-256 of a payload, and its identity: two payloads with
// the same bytes are the same configuration, from whichever object, version or
// file they came. The zero Digest stands for the built-in default.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a payload.
func DigestOf(data []byte) Digest { return sha256.Sum256(data) }

// IsZero reports whether d stands for the built-in default.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns d in 64 hexadecimal digits, which is also the name of its
// file in the store.
func (d Digest) String() string { return rollout.Digest(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return rollout.Digest(d).MarshalText() }

// UnmarshalText implements encoding.TextUnmarshaler, so that a Digest can be a
// flag (flag.TextVar). It accepts exactly 64 hexadecimal digits.
func (d *Digest) UnmarshalText(text []byte) error { return (*rollout.Digest)(d).UnmarshalText(text) }

// A Ref names one configuration. The zero Ref is the built-in default.
type Ref struct {
	// Digest identifies the payload.
	Digest Digest `json:"digest"`
	// Name is the origin of the payload, for people.
	Name string `json:"name,omitempty"`
	// Version is the source's version of it, for people.
	Version string `json:"version,omitempty"`
	// Size is the length of the payload in bytes.
	Size int `json:"size,omitempty"`
	// Time is the time of its staging, by the wall clock, for people.
	Time time.Time `json:"time,omitzero"`
}

// String returns the name and the first digits of the digest.
func (r Ref) String() string {
	if r.Digest.IsZero() {
		return "the built-in default"
	}
	short := r.Digest.String()[:12]
	if r.Name == "" {
		return "sha256:" + short
	}
	return r.Name + " (sha256:" + short + ")"
}

// refOf returns the Ref that package rollout knows as r, the zero Ref for nil.
func refOf(r *rollout.Ref) Ref {
	if r == nil {
		return Ref{}
	}
	return Ref{Digest: Digest(r.Digest), Name: r.Name, Version: r.Version, Size: r.Size, Time: r.Time}
}

// core returns r as package rollout knows it.
func (r Ref) core() rollout.Ref {
	return rollout.Ref{Digest: rollout.Digest(r.Digest), Name: r.Name, Version: r.Version, Size: r.Size, Time: r.Time}
}
