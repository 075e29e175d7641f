// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubewright/kubewright/internal/apierr"
)

var (
	// ErrAlreadyRun is returned by the second call of Run.
	ErrAlreadyRun = errors.New("resourceslice: already run: a Controller runs once")
	// ErrUnknownPool is returned by Wait for a pool that was neither Set nor
	// removed lately.
	ErrUnknownPool = errors.New("resourceslice: unknown pool")
)

// An InvalidError means that a pool can't be published as it is. Set returns it
// for problems of the pool as a whole, and for content that the scheduler can't
// parse. The controller reports it if the API server refuses a slice: refused
// devices are left out, or keep their previous content, and the rest is published.
type InvalidError struct {
	// Pool is the pool.
	Pool PoolID
	// Slice is the object that the API server refused; empty for others.
	Slice string
	// Refused are the names of the devices and counter sets in the slice that are left out, or
	// keep their previous content, sorted: those that the API server has named or, if it has
	// named none, all that are new or changed. From Set it is empty.
	Refused []string
	// Err holds the problems. From Set it is a utilerrors.Aggregate with a
	// *field.Error for each problem, whose path is one within Pool; otherwise it
	// is the API server's answer.
	Err error
}

// Error implements error.
func (e *InvalidError) Error() string {
	if e.Slice != "" {
		text := fmt.Sprintf("resourceslice: pool %s: slice %s refused", e.Pool, e.Slice)
		if len(e.Refused) > 0 {
			text += " because of " + few(e.Refused)
		}
		return fmt.Sprintf("%s: %v", text, e.Err)
	}
	return fmt.Sprintf("resourceslice: pool %s: invalid: %v", e.Pool, e.Err)
}

// few returns the first of some names, and the number of the others.
func few(names []string) string {
	if n := len(names) - maxNames; n > 0 {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:maxNames], ", "), n)
	}
	return strings.Join(names, ", ")
}

// maxNames is the number of names in the text of an error.
const maxNames = 5

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }

// A DroppedFieldsError means that the API server stores a slice without some of
// its fields, because a feature gate is off or the API server is too old. The
// rest is published, except for the devices in Withheld. The fields are sent
// again when their device changes, every hour, and after an API server outage.
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
	// they must not use. See Config.PublishUnrestricted. Devices that consume from
	// such a counter set are among them.
	Withheld []string
}

// Error implements error.
func (e *DroppedFieldsError) Error() string {
	text := fmt.Sprintf("resourceslice: pool %s: slice %s: the API server dropped %s", e.Pool, e.Slice, strings.Join(e.Fields, ", "))
	if len(e.Withheld) > 0 {
		text += "; not published: " + few(e.Withheld)
	}
	return text
}

// A ForbiddenError means that the controller lacks a permission. The request is
// repeated every minute. A node's credentials are denied a new slice for some
// milliseconds, and a deleted one always; the controller recognizes both and reports
// neither.
type ForbiddenError struct {
	// Pool is the zero value if the permission concerns all pools.
	Pool PoolID
	// Verb is list, which stands for watch too, or create, update or delete.
	Verb string
	// Err is the API server's answer.
	Err error
}

// Error implements error.
func (e *ForbiddenError) Error() string {
	if e.Pool == (PoolID{}) {
		return fmt.Sprintf("resourceslice: not allowed to list and watch ResourceSlices: %v", apierr.Permission(e.Err, "resourceslice.yaml"))
	}
	return fmt.Sprintf("resourceslice: pool %s: not allowed to %s a ResourceSlice: %v", e.Pool, e.Verb, apierr.Permission(e.Err, "resourceslice.yaml"))
}

// Unwrap returns Err.
func (e *ForbiddenError) Unwrap() error { return e.Err }

// A ContendedError means that another writer keeps changing the slices of a pool,
// or that they belong to another owner.
type ContendedError struct {
	// Pool is the pool.
	Pool PoolID
	// Manager is the field manager of the other writer, or the other owner;
	// empty if it is unknown.
	Manager string
	// Repairs is the number of recent repairs of the pool, and Next the time
	// before the next one. Both are 0 if the slices belong to another owner: then
	// they are not changed.
	Repairs int
	Next    time.Duration
	// Newer is set if the other writer is a newer instance of this program, with the
	// same field manager and owner, as during a rolling update. Then this instance
	// leaves the pool to it until it falls silent. Such an error is only in a Status.
	Newer bool
}

// Error implements error.
func (e *ContendedError) Error() string {
	by := "another writer"
	if e.Manager != "" {
		by = e.Manager
	}
	if e.Newer {
		return fmt.Sprintf("resourceslice: pool %s is published by a newer instance of %s", e.Pool, by)
	}
	if e.Repairs == 0 {
		return fmt.Sprintf("resourceslice: pool %s belongs to %s", e.Pool, by)
	}
	return fmt.Sprintf("resourceslice: pool %s was changed by %s and repaired %d times lately, the next repair comes after %v", e.Pool, by, e.Repairs, e.Next)
}

// An UnavailableError means that the API server does not serve ResourceSlices of
// resource.k8s.io/v1. The controller keeps asking, initially every 30 seconds and finally
// every five minutes.
type UnavailableError struct{}

// Error implements error.
func (e *UnavailableError) Error() string {
	return "resourceslice: the API server does not serve ResourceSlices of resource.k8s.io/v1"
}
