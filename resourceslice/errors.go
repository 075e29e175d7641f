// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("resourceslice: already run: a Controller runs once")
	// ErrUnknownPool is returned by Wait for a pool that was neither Set nor
	// Removed.
	ErrUnknownPool = errors.New("resourceslice: unknown pool")
)

// An InvalidError says that a pool can't be published as it is. Set returns it
// for what can be seen without the API server. The controller reports it when
// the API server refuses a slice all the same: it then leaves out what was
// refused, or leaves it as it was, and publishes the rest.
type InvalidError struct {
	// Pool is the pool.
	Pool PoolID
	// Slice is the object that the API server refused; empty from Set.
	Slice string
	// Err holds the problems: from Set a utilerrors.Aggregate of *field.Error
	// that has all of them, with paths within Pool, otherwise the API server's
	// answer.
	Err error
}

// Error implements error.
func (e *InvalidError) Error() string {
	if e.Slice != "" {
		return fmt.Sprintf("resourceslice: pool %s: slice %s refused: %v", e.Pool, e.Slice, e.Err)
	}
	return fmt.Sprintf("resourceslice: pool %s: invalid: %v", e.Pool, e.Err)
}

// Unwrap returns the problems.
func (e *InvalidError) Unwrap() error { return e.Err }

// A DroppedFieldsError says that the API server stores a slice without some of
// its fields, because a feature gate is off or because it is too old to know
// them. The rest is published, except for the devices in Withheld. The fields
// are sent again when their device changes, every hour, and after an outage of
// the API server.
type DroppedFieldsError struct {
	// Pool is the pool.
	Pool PoolID
	// Slice is one of the objects.
	Slice string
	// Fields are the paths of the fields, without indexes, sorted, for example
	// devices.taints.
	Fields []string
	// Withheld are the names of the devices and counter sets that are not
	// published, sorted: without the dropped field, Pods could use a device that
	// they must not use. See Config.PublishUnrestricted.
	Withheld []string
}

// Error implements error.
func (e *DroppedFieldsError) Error() string {
	text := fmt.Sprintf("resourceslice: pool %s: slice %s: the API server dropped %s", e.Pool, e.Slice, strings.Join(e.Fields, ", "))
	if n := len(e.Withheld); n > 0 {
		text += fmt.Sprintf("; %d devices and counter sets are withheld", n)
	}
	return text
}

// sort sorts the lists of e and removes duplicates.
func (e *DroppedFieldsError) sort() {
	for _, list := range []*[]string{&e.Fields, &e.Withheld} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}

// A ForbiddenError says that the controller lacks a permission. It tries again
// every minute.
type ForbiddenError struct {
	// Pool is the zero value where all pools are concerned.
	Pool PoolID
	// Verb is list, create, update or delete.
	Verb string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *ForbiddenError) Error() string {
	if e.Pool == (PoolID{}) {
		return fmt.Sprintf("resourceslice: not allowed to %s ResourceSlices: %v", e.Verb, e.Err)
	}
	return fmt.Sprintf("resourceslice: pool %s: not allowed to %s a ResourceSlice: %v", e.Pool, e.Verb, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *ForbiddenError) Unwrap() error { return e.Err }

// A ContendedError says that somebody else keeps changing the slices of a pool,
// or owns them.
type ContendedError struct {
	// Pool is the pool.
	Pool PoolID
	// Manager is the field manager of the other writer as the API server
	// recorded it; empty where that is not known.
	Manager string
	// Repairs is how often the pool was repaired lately, and Next how long the
	// controller waits from now on before it does so again. Both are 0 where
	// the pool's slices are owned by another object: they are left alone.
	Repairs int
	Next    time.Duration
}

// Error implements error.
func (e *ContendedError) Error() string {
	by := "another writer"
	if e.Manager != "" {
		by = e.Manager
	}
	if e.Repairs == 0 {
		return fmt.Sprintf("resourceslice: pool %s belongs to %s", e.Pool, by)
	}
	return fmt.Sprintf("resourceslice: pool %s was changed by %s and repaired %d times lately, the next repair comes after %v", e.Pool, by, e.Repairs, e.Next)
}

// An UnavailableError says that the API server serves no version of ResourceSlice
// that this package knows. The controller goes on asking, every 30 seconds at
// first and every five minutes in the end.
type UnavailableError struct {
	// Versions were asked for, newest first.
	Versions []string
}

// Error implements error.
func (e *UnavailableError) Error() string {
	return "resourceslice: the API server serves no ResourceSlice in resource.k8s.io/" + strings.Join(e.Versions, ", ")
}

// An UnsupportedError says that a pool needs what the version of the API in use
// doesn't have. Nothing of it is published until Set changes it or the API
// server serves a newer version.
type UnsupportedError struct {
	// Pool is the pool.
	Pool PoolID
	// Version is the version in use, Field the path within Pool.
	Version, Field string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("resourceslice: pool %s: %s needs resource.k8s.io/v1, the API server has %s only", e.Pool, e.Field, e.Version)
}
